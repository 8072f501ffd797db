"""Metadata tables: the metadata of a stream as rows.

Each table has fixed columns and is read in batches, so that the list of a million segments is never
in memory as a whole. The tables of segments and frames can be read by ranges of offsets, whose
borders are those of status parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.errors import FormatError, InvalidInputError, SnapshotExpiredError
from segstore_ds.format import names
from segstore_ds.format.copies import all_pins
from segstore_ds.format.parts.history import HISTORY_SCHEMA
from segstore_ds.format.policies import build_upkeep, upkeep_of
from segstore_ds.format.reader_record import NO_END
from segstore_ds.format.record import escape_text
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.transition import GRACE_S
from segstore_ds.read.reader_records import each_reader
from segstore_ds.read.segments import open_segment
from segstore_ds.read.storage_held import STORAGE_SCHEMA, storage_rows
from segstore_ds.read.table_columns import flags, ints, texts, times
from segstore_ds.read.time_bounds import TIME_FIELDS, segment_times
from segstore_ds.status.inline import with_inline
from segstore_ds.status.table_status import Run, TableStatus

BATCH_ROWS = 16_384
SEGMENTS_PER_RANGE = 65_536

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A metadata table: its columns, its reader, and whether it can be read by offset ranges."""

    schema: pa.Schema
    read: Callable[[StreamContext, Root, Range], Iterator[pa.RecordBatch]]
    by_range: bool = False


def find_table(name: str) -> MetadataTable:
    """Return a metadata table by name; an unknown name is an InvalidInputError."""
    if name not in METADATA_TABLES:
        raise InvalidInputError(
            "no such metadata table", remedy=f"known: {', '.join(METADATA_TABLES)}", table=name
        )
    return METADATA_TABLES[name]


def plan_table(
    status: TableStatus,
    root: Root,
    table: MetadataTable,
    *,
    most_segments: int = SEGMENTS_PER_RANGE,
) -> list[Range]:
    """Return ranges of offsets that cover a metadata table, in order.

    Neighbouring status parts are packed into ranges of at most `most_segments` segments. A larger
    part is one range. The last range also covers the segments that are in no part yet.
    """
    if not table.by_range:
        return [(root.head, root.tail)]
    ranges: list[Range] = []
    start, packed = root.head, 0
    for part in status.table.parts(root, root.head, root.tail):
        if packed and packed + part.count > most_segments:
            ranges.append((start, part.start))
            start, packed = part.start, 0
        packed += part.count
    return [*ranges, (start, root.tail)]


def open_table(
    context: StreamContext, name: str, root: Root, span: Range | None = None
) -> pa.RecordBatchReader:
    """Return a metadata table as of a root; `span` limits only the tables read by range."""
    table = find_table(name)
    rows = table.read(context, root, (root.head, root.tail) if span is None else span)
    return pa.RecordBatchReader.from_batches(table.schema, rows)


# Segments and frames.

_SEGMENTS = pa.schema(
    [
        *ints("segment_id", "epoch", "number", "start", "end", "rows", "bytes"),
        *texts("format"),
        *ints("footer_bytes"),
        *texts("path", "stats"),
        *TIME_FIELDS,
    ]
)
_FRAMES = pa.schema(
    [
        *ints("segment_id", "frame", "start", "end", "rows", "bytes", "raw_bytes", "place", "crc"),
        *texts("path"),
    ]
)


def _segments(context: StreamContext, root: Root, span: Range) -> Iterator[pa.RecordBatch]:
    times, done = segment_times(context, root, *span), 0
    for run in context.status.runs(root, *span):
        own = [column.slice(done, len(run.columns)) for column in times]
        yield from _segment_rows(run, run.load_stats().texts(), own)
        done += len(run.columns)


def _segment_rows(
    run: Run, stats: Sequence[str | None], times: Sequence[pa.Array]
) -> Iterator[pa.RecordBatch]:
    columns, starts = run.columns, run.starts
    for first in range(0, len(columns), BATCH_ROWS):
        last = min(first + BATCH_ROWS, len(columns))
        piece = columns.slice(first, last)
        ids = (piece.epochs.astype(np.int64) << 32) | piece.numbers.astype(np.int64)
        at = starts[first:last]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(ids),
                pa.array(piece.epochs, pa.int64()),
                pa.array(piece.numbers, pa.int64()),
                pa.array(at, pa.int64()),
                pa.array(at + piece.rows, pa.int64()),
                pa.array(piece.rows, pa.int64()),
                pa.array(piece.bytes, pa.int64()),
                pa.array([piece.kind_names[int(kind)][0] for kind in piece.kinds], pa.string()),
                pa.array(piece.footer_bytes, pa.int64()),
                pa.array([names.segment_object(piece.path(row)) for row in range(last - first)]),
                pa.array(stats[first:last], pa.string()),
                *(column.slice(first, last - first) for column in times),
            ],
            schema=_SEGMENTS,
        )


def _frames(context: StreamContext, root: Root, span: Range) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    storage = with_inline(context.storage, root)
    for placed in context.status.segments(root, *span, with_stats=False):
        entry, path = placed.entry, names.segment_object(placed.entry.path)
        cursor = placed.start
        segment = open_segment(storage, entry, where=path, whole=False)
        for number, frame in enumerate(segment.frames):
            rows.append(
                {
                    "segment_id": entry.segment_id,
                    "frame": number,
                    "start": cursor,
                    "end": cursor + frame.rows,
                    "rows": frame.rows,
                    "bytes": frame.end - frame.start,
                    "raw_bytes": frame.raw_bytes,
                    "place": frame.start,
                    "crc": frame.crc,
                    "path": path,
                }
            )
            cursor += frame.rows
        if len(rows) >= BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows, _FRAMES)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _FRAMES)


# Writers, readers, tags and info.

_WRITERS = pa.schema(
    [
        *texts("writer_id", "owner"),
        *ints("batch_id", "version", "rows", "start", "end"),
    ]
)
_MEMBER = ("start", "end", "behind", "lease_s")  # `end` is null where it is not fixed yet
_READERS = pa.schema(
    [
        *texts("name", "owner"),
        *ints("offset", "behind", "lost", "generation"),
        *times("renewed"),
        *ints("lapse_s"),
        *flags("live", "released"),
        pa.field("members", pa.list_(pa.struct([*texts("member"), *ints(*_MEMBER)]))),
        *texts("damaged"),
    ]
)
_TAGS = pa.schema(
    [
        *texts("name"),
        *ints("offset", "version"),
        *times("time"),
    ]
)


def _writers(context: StreamContext, root: Root, _span: Range) -> Iterator[pa.RecordBatch]:
    rows = [
        {
            "writer_id": name,
            "owner": writer.owner,
            "batch_id": writer.batch_id,
            "version": writer.version,
            "rows": writer.rows,
            "start": writer.end - writer.rows,
            "end": writer.end,
        }
        for name, writer in sorted(context.status.writers.all(root).items())
    ]
    yield from build_batches(rows, _WRITERS)


def _readers(context: StreamContext, root: Root, _span: Range) -> Iterator[pa.RecordBatch]:
    now_us = context.clock.wall_us()  # reading must not write, and the store's time takes a write
    rows: list[dict[str, Any]] = [
        {"name": name, "damaged": str(seen)}
        if isinstance(seen, FormatError)
        else {
            "name": name,
            "owner": seen.record.owner,
            "offset": seen.record.offset,
            "behind": max(root.tail - seen.record.offset, 0),
            "lost": max(root.head - seen.record.offset, 0),
            "generation": seen.record.generation,
            "renewed": seen.renewed_us,
            "lapse_s": seen.record.lapse_s,
            "live": seen.is_live(now_us),
            "released": seen.record.released,
            "members": [
                {
                    "member": member,
                    "start": lease.start,
                    "end": None if lease.end == NO_END else lease.end,
                    "behind": lease.behind(root.tail),
                    "lease_s": lease.lease_s,
                }
                for member, lease in sorted(seen.record.members.items())
            ],
        }
        for name, seen in each_reader(context)
    ]
    yield from build_batches(rows, _READERS)


def _tags(_context: StreamContext, root: Root, _span: Range) -> Iterator[pa.RecordBatch]:
    rows = [
        {"name": name, "offset": tag.offset, "version": tag.version, "time": tag.time_us}
        for name, tag in sorted(root.tags.items())
    ]
    yield from build_batches(rows, _TAGS)


_INFO = pa.schema(
    [
        *texts("stream_id"),
        *ints("version", "generation"),
        *times("time"),
        *ints("head", "tail"),
        *flags("sealed"),
        *ints("events", "segments", "bytes", "parts", "root_segments", "inline_segments"),
        *ints("log_start", "staging_floor", "retired", "tags", "pins", "next_segment", "versions"),
        *times("kept_since", "retired_since", "freed_at"),
        *ints("pinned_version"),
        *texts("upkeep"),
        *times("upkeep_time"),
    ]
)


def _info(context: StreamContext, root: Root, _span: Range) -> Iterator[pa.RecordBatch]:
    runs = context.status.runs(root, root.head, root.tail)
    sizes = [(len(run.columns), int(run.columns.bytes.sum())) for run in runs]
    row = {
        "stream_id": root.stream_id,
        "version": root.version,
        "generation": root.generation,
        "time": root.time_us,
        "head": root.head,
        "tail": root.tail,
        "sealed": root.sealed,
        "events": root.tail - root.head,
        "segments": sum(count for count, _ in sizes),
        "bytes": sum(size for _, size in sizes),
        "parts": sum(1 for _ in context.status.table.parts(root)),
        "root_segments": len(root.entries),
        "inline_segments": sum(1 for entry in root.entries if entry.frame),
        "log_start": root.log_start,
        "staging_floor": root.staging_floor,
        "retired": root.retired_count,
        "tags": len(root.tags),
        "pins": len(root.pins),
        "next_segment": root.next_segment,
        **_storage_held(context, root),
    }
    yield from build_batches([row], _INFO)


def _storage_held(context: StreamContext, root: Root) -> dict[str, Any]:
    """Return what holds storage, and from when on the oldest dropped object may go."""
    policy = upkeep_of(root)
    dropped = next(context.status.retired.all(root), None)
    pins = [pin.version for pin in all_pins(root).values()]
    try:
        kept = context.log.history.moment(root, root.log_start)
    except SnapshotExpiredError:
        kept = None
    grace_us = int((GRACE_S if policy is None else policy.grace_s) * 1e6)
    return {
        "versions": root.version + 1 - root.log_start,
        "kept_since": kept and kept.time_us,
        "retired_since": dropped and dropped.time_us,
        "freed_at": dropped and dropped.time_us + grace_us,
        "pinned_version": min(pins, default=None),
        "upkeep": build_upkeep(policy),
        "upkeep_time": root.upkeep and root.upkeep.time_us,
    }


def _storage(context: StreamContext, root: Root, _span: Range) -> Iterator[pa.RecordBatch]:
    yield from build_batches(storage_rows(context, root), STORAGE_SCHEMA)


def _history(context: StreamContext, root: Root, _span: Range) -> Iterator[pa.RecordBatch]:
    return context.log.history.batches(root)


def build_batches(rows: list[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches; what is no valid text is escaped."""
    for first in range(0, len(rows), BATCH_ROWS):
        piece = rows[first : first + BATCH_ROWS]
        try:
            yield pa.RecordBatch.from_pylist(piece, schema)
        except UnicodeEncodeError:
            # A stream may still hold a name that is no longer accepted: show it escaped.
            shown = [{name: escape_text(value) for name, value in row.items()} for row in piece]
            yield pa.RecordBatch.from_pylist(shown, schema)


# Of a compaction's plan, which `compact` makes for an engine's tasks.
PLAN_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("version", pa.int64()),
        ("number", pa.int64()),
        ("start", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("segments", pa.int64()),
        ("plan", pa.string()),
        ("digest", pa.string()),
    ]
)
METADATA_TABLES: Mapping[str, MetadataTable] = {
    "segments": MetadataTable(_SEGMENTS, _segments, by_range=True),
    "frames": MetadataTable(_FRAMES, _frames, by_range=True),
    "history": MetadataTable(HISTORY_SCHEMA, _history),
    "info": MetadataTable(_INFO, _info),
    "storage": MetadataTable(STORAGE_SCHEMA, _storage),
    "writers": MetadataTable(_WRITERS, _writers),
    "readers": MetadataTable(_READERS, _readers),
    "tags": MetadataTable(_TAGS, _tags),
}
