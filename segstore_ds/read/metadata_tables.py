"""Metadata tables: the metadata of a stream as rows.

Each table has fixed columns and is read in batches, so a list of a million segments is never in
memory as a whole. The tables of segments and frames can be read by ranges of offsets that begin and
end where status parts do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.indexed_columns import find_time_field
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.rows import Ints, column_values
from segstore_ds.format.root import Root
from segstore_ds.format.statistics import Flags, absent_in, limits_of
from segstore_ds.log.context import StreamContext
from segstore_ds.read.metadata_rows import (
    BATCH_ROWS,
    HISTORY,
    ROW_TABLES,
    RowDicts,
    build_batches,
    history_rows,
    ints,
    texts,
)
from segstore_ds.read.segments import open_segment
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.history import NUMBERS_SKIPPED, History
from segstore_ds.status.table_status import Run, TableStatus

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


_TIMES = ("time_min", "time_max", "watermark")
_SEGMENTS = pa.schema(
    [
        *ints("segment_id", "epoch", "number", "start", "end", "rows", "bytes"),
        *texts("format"),
        *ints("footer_bytes"),
        *texts("path", "stats"),
        *texts(*_TIMES),
        *ints("version"),
        ("commit_time", pa.timestamp("us", "UTC")),
    ]
)
_FRAMES = pa.schema(
    [
        *ints("segment_id", "frame", "start", "end", "rows", "bytes", "raw_bytes", "place", "crc"),
        *texts("path"),
    ]
)


def _segments(context: StreamContext, root: Root, span: Range) -> Iterator[pa.RecordBatch]:
    texts_of, first = _segment_times(context, root, span[0]), 0
    commits = _SegmentCommits(context.log.history, root)
    for run in context.status.runs(root, *span, with_stats=True):
        last = first + len(run.columns)
        yield from _segment_rows(run, run.load_stats().texts(), texts_of(first, last), commits)
        first = last


class _SegmentCommits:
    """Finds the commit that added a segment, by its number; reads the history back as needed.

    Numbers are assigned in the order of commits and never reused, so the segment counts in the
    history tell which commit assigned each number.
    """

    def __init__(self, history: History, root: Root) -> None:
        self._batches = history.batches_back(root)
        self._least = root.next_segment  # the lowest number whose commit is known
        self._whole = True  # all rows so far could be read
        self._lost = False  # the oldest row that was read is of a lost version
        # Of each commit that added segments: the number after its last one, its version, its time.
        self._known = np.zeros((3, 0), np.int64)

    def columns(self, numbers: Ints) -> Iterator[pa.Array]:
        """Yield versions and times of the segments of some numbers; null where rows are lost."""
        least = int(numbers.min())
        while least < self._least and self._read_back():
            pass
        ends, versions, times = self._known
        found = np.searchsorted(ends, numbers, "right")
        places = pa.array(found, mask=numbers < self._least)
        yield from (pa.array(values).take(places) for values in (versions, times))

    def _read_back(self) -> bool:
        """Read the batch of rows before; False if there is none that can be read."""
        try:
            rows = next(self._batches)
        except StopIteration:
            self._least = 0 if self._whole else self._least  # lower numbers are of a copy's origin
            return False
        except FormatError:
            self._batches, self._whole = iter(()), False
            return False
        operations = rows["operation"].to_numpy(zero_copy_only=False)
        wanted = ("segments", "version", "time")
        made, versions, times = (column_values(rows, name) for name in wanted)
        lost = np.append(operations == Operation.LOST, self._lost)
        made = made + NUMBERS_SKIPPED * (lost[:-1] & ~lost[1:])
        starts = self._least - np.cumsum(made[::-1])[::-1]
        ends = np.append(starts[1:], self._least)
        found = np.stack([ends, versions, times])[:, starts < ends]
        self._known = np.concatenate([found, self._known], axis=1)
        if len(rows):
            self._least, self._lost = int(starts[0]), bool(lost[0])
        return True


def _segment_times(
    context: StreamContext, root: Root, start: int
) -> Callable[[int, int], list[pa.Array]]:
    """Return a function of a range of segments, counted from an offset, to their `_TIMES`.

    They are the bounds of the time column, and a watermark: the smallest time in any later segment.
    What is unknown is null.
    """
    field = find_time_field(root, epoch_schema(context.status, root.epoch))
    if field is None or start >= root.tail:
        return lambda first, last: [pa.nulls(last - first, pa.string())] * len(_TIMES)
    schemas = dict(enumerate(epoch_schema(context.status, epoch) for epoch in root.epochs))
    runs = context.status.runs(root, start, root.tail, with_stats=True)
    low, high, known = time_bounds(runs, field, schemas)
    timed = known & (low <= high)
    # After the last segment there is no time, and that is known.
    none = limits_of(field.type)[1]
    least = np.append(np.minimum.accumulate(low[::-1])[::-1], none)[1:]
    sure = np.append(np.logical_and.accumulate(known[::-1])[::-1], True)[1:]
    some = np.append(np.logical_or.accumulate(timed[::-1])[::-1], False)[1:]
    columns = ((low, timed), (high, timed), (least, sure & some))
    return lambda first, last: [
        _as_texts(values[first:last], shown[first:last], field.type) for values, shown in columns
    ]


def time_bounds(
    runs: Iterable[Run], field: pa.Field, schemas: Mapping[int, pa.Schema]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Flags]:
    """Return the bounds of a time column in segments, and where they are known.

    A segment without values has a low bound above its high bound.
    """
    pieces = []
    for run in runs:
        absent = absent_in(run.columns.epochs, schemas, field.name)
        low, high, _, known = run.load_stats().numbers(field, run.columns.rows, absent)
        pieces.append((low, high, known))
    low, high, known = (np.concatenate([piece[n] for piece in pieces]) for n in range(3))
    return low, high, known


def _as_texts(
    values: npt.NDArray[Any], shown: npt.NDArray[np.bool_], data_type: pa.DataType
) -> pa.Array:
    found = pa.array(np.where(shown, values, 0), mask=~shown)
    if t.is_temporal(data_type):
        found = found.cast(pa.int32() if data_type.bit_width == 32 else pa.int64()).view(data_type)
    return found.cast(data_type).cast(pa.string())


def _segment_rows(
    run: Run, stats: Sequence[str | None], times: Sequence[pa.Array], commits: _SegmentCommits
) -> Iterator[pa.RecordBatch]:
    columns, starts = run.columns, run.starts
    for first in range(0, len(columns), BATCH_ROWS):
        last = min(first + BATCH_ROWS, len(columns))
        piece = columns.slice(first, last)
        ids = (piece.epochs.astype(np.int64) << 32) | piece.numbers.astype(np.int64)
        at = starts[first:last]
        version, moment = commits.columns(piece.numbers.astype(np.int64))
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
                version,
                moment.cast(_SEGMENTS.field("commit_time").type),
            ],
            schema=_SEGMENTS,
        )


def _frames(context: StreamContext, root: Root, span: Range) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for placed in context.status.segments(root, *span, with_stats=False):
        entry, path = placed.entry, names.segment_object(placed.entry.path)
        cursor = placed.start
        segment = open_segment(context.storage, entry, where=path, whole=False)
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


def _table_of_rows(
    schema: pa.Schema, rows: Callable[[StreamContext, Root], RowDicts]
) -> MetadataTable:
    return MetadataTable(
        schema, lambda context, root, _: build_batches(rows(context, root), schema)
    )


METADATA_TABLES: Mapping[str, MetadataTable] = {
    "segments": MetadataTable(_SEGMENTS, _segments, by_range=True),
    "frames": MetadataTable(_FRAMES, _frames, by_range=True),
    "history": MetadataTable(HISTORY, lambda context, root, _: history_rows(context, root)),
    **{name: _table_of_rows(*table) for name, table in ROW_TABLES.items()},
}
