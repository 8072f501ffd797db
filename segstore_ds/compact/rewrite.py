"""Compaction: merges many small segments into few large ones, or splits large ones.

`plan_range_groups` chooses groups of segments, the rows of a `CompactJob`; `run_group` writes the
outputs of one group, and `commit_groups` replaces all groups in one commit.

Guarantees: the same events at the same offsets in the same order. Nothing names the outputs before
the commit, so a crash at any point leaves the old stream. Readers of older versions keep reading
the inputs until upkeep deletes them. A group whose inputs another commit changed is skipped; of two
compactions of one segment at most one wins. Memory holds one output frame, the read and write
buffers, and a few tiny segments that were decoded ahead. A group reads its inputs once, and once
more for each further attempt if an output would pass the target in bytes.
"""

import logging
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from segstore_ds.compact.commit import Replacement, discard, run_each
from segstore_ds.compact.plan import Group, Joins, count_frames, parse_row, plan_groups
from segstore_ds.errors import CorruptionError, InvalidInputError, SchemaMismatchError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame, with_marks
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.indexed_columns import key_columns_of, time_column_of
from segstore_ds.format.parquet.writer import can_store
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.format.schema.codec import decode_schema, fingerprint
from segstore_ds.format.schema.widening import plan_schema
from segstore_ds.format.segment import ARROW
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import CompactRules
from segstore_ds.options.table import SPLIT, STITCH
from segstore_ds.read.decode import read_frames
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.plan import Reading, ReadTask
from segstore_ds.read.prefetch import read_ahead
from segstore_ds.read.scan import run_task
from segstore_ds.read.segments import WHOLE_OBJECT_BYTES, open_segment
from segstore_ds.status.table_status import Slice, TableStatus
from segstore_ds.storage import Storage
from segstore_ds.storage.base import Mirrors
from segstore_ds.write.layout import FRAME_BYTES, HOT, Layout
from segstore_ds.write.request import Target
from segstore_ds.write.staged import delete_staged
from segstore_ds.write.task_writer import TaskWriter, stage_frames

_LOG = logging.getLogger(__name__)
TINY_THREADS = 8  # tiny segments fetched and decoded at once; mostly they wait for the storage
SETTLED_BYTES = 1 << 20  # least input bytes for which a merge after a commit writes Parquet
_JOINED_SHARE = 8  # small batches are joined up to a frame divided by this: frames stay full


@dataclass(frozen=True, slots=True)
class CompactJob:
    """What all groups of a compaction share; picklable."""

    storage: Storage = field(repr=False)  # the stream's folder; pickles without its connections
    stream_id: str  # id of the stream
    version: int  # the version that the job was planned on
    epochs: dict[int, str] = field(repr=False)  # schema text by epoch number
    layout: Layout  # compression and frames of the outputs
    key_columns: tuple[str, ...] = ()  # columns for which frames get a Bloom filter
    time_column: str | None = None  # column whose bounds are kept whatever the layout says
    mirrors: Mirrors | None = None  # other folders with the stream's objects
    dropped: frozenset[str] = frozenset()  # stored names of columns that need not be kept
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False)  # makes new ids

    def take(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Group]:
        """Return the groups of rows of `PLAN_SCHEMA`, each once."""
        known = set[int]()
        for row in rows:
            group = parse_row(row, stream_id=self.stream_id)
            if group.start not in known:
                known.add(group.start)
                yield group

    def run(self, rows: Iterable[Group]) -> Generator[Replacement, None, None]:
        """Write the outputs of groups and yield what replaces each."""
        nonce = self.clock.new_id()[:12]  # one for all: names also contain the group's offset
        return run_each(lambda _, group: run_group(self, group, nonce=nonce), rows, self.discard)

    def size(self, rows: Iterable[Group]) -> int:
        """Return the encoded bytes of groups."""
        return sum(group.bytes for group in rows)

    def discard(self, done: Iterable[Replacement]) -> None:
        """Delete what was written for a commit that was never tried; never raises."""
        discard(self.storage, done)

    def target(
        self,
        epoch: int,
        token: str,
        *,
        form: str | None = None,
        most_bytes: int = 1 << 62,
        storage: Storage | None = None,
    ) -> Target:
        """Return where outputs are written: in one format, or as the layout says."""
        layout = replace(self.layout, inline_bytes=0)
        if form is not None:
            layout = replace(
                layout, segment_rows=None, segment_bytes=most_bytes, segment_format=form
            )
        schema = decode_schema(self.epochs[epoch])
        storage = storage or self.storage
        return Target(storage, schema, layout, token, self.key_columns, self.time_column)


def plan_job(
    context: StreamContext, root: Root, layout: Layout, *, stages: bool = False
) -> CompactJob:
    """Return what all groups of a compaction share; `stages` if they write to the stream."""
    epochs = {epoch.number: context.status.schema_texts(epoch)[0] for epoch in root.epochs}
    seams = context.log.seams
    return CompactJob(
        seams.staging(root) if stages else context.storage,
        root.stream_id,
        root.version,
        epochs,
        layout,
        key_columns_of(root),
        time_column_of(root),
        seams.of(root).mirrors(root),
        frozenset(stored for stored, name in root.epoch.names.items() if name is None),
        context.clock,
    )


def joins_of(job: CompactJob) -> Joins:
    """Return a function that tells whether bytes of one epoch can be converted to another.

    Only columns that were dropped may be lost.
    """
    known: dict[tuple[int, int], bool] = {}

    def joins(older: int, newer: int) -> bool:
        if (older, newer) not in known:
            schemas = decode_schema(job.epochs[older]), decode_schema(job.epochs[newer])
            known[older, newer] = _lifts(*schemas, job.dropped)
        return known[older, newer]

    return joins


def _lifts(older: pa.Schema, target: pa.Schema, dropped: frozenset[str]) -> bool:
    kept = pa.schema([field for field in older if field.name not in dropped])
    try:
        merged = plan_schema(target, kept, merge=True)
    except SchemaMismatchError:
        return False
    return bool(merged.equals(target, check_metadata=True))


def plan_range_groups(
    status: TableStatus, root: Root, job: CompactJob, rules: CompactRules, bounds: tuple[int, int]
) -> list[Group]:
    """Choose groups among the segments that hold events of a range."""
    return plan_groups(
        status.segments(root, *bounds, with_stats=False),
        rules,
        joins=joins_of(job),
        frames=partial(frames_of, job),
        frame_rows=job.layout.frame_rows,
    )


def frames_of(job: CompactJob, entry: SegmentEntry) -> Sequence[FrameEntry]:
    """Return a segment's frames, from its footer."""
    return open_segment(job.storage, entry, whole=False).frames


def run_group(job: CompactJob, group: Group, *, nonce: str) -> Replacement:
    """Write the outputs of a group and return them as a durable, uncommitted replacement.

    `nonce` is 12 hex digits, unique to this attempt. After a failure the outputs are deleted, best
    effort.
    """
    token = names.build_token(job.version, nonce)
    slices = [*group.inputs]
    outputs: list[SegmentEntry] = []
    try:
        if group.rules.mode == STITCH:
            path = names.build_segment_path(token, f"{group.start}-0-0.arrow")
            frames = read_ahead(_raw_frames(job, slices))
            outputs.append(stage_frames(job.storage, frames, path=path))
        else:
            for piece, part in enumerate(_pieces(group, slices)):
                outputs.extend(_write_piece(job, group, part, piece, token))
    except BaseException:
        delete_staged(job.storage, outputs)
        raise
    inputs = tuple((placed.entry.segment_id, placed.entry.path) for placed in group.inputs)
    alone = len(inputs) == group.pieces == 1
    count = count_frames(group.inputs[0].entry, partial(frames_of, job))[0] if alone else 0
    return Replacement(group.start, inputs, group.rows, group.epoch, tuple(outputs), count)


def _pieces(group: Group, slices: Sequence[Slice]) -> Iterator[Sequence[Slice]]:
    if group.pieces == 1:
        yield slices
        return
    (segment,) = slices
    for piece in range(group.pieces):
        first = segment.entry.rows * piece // group.pieces
        last = segment.entry.rows * (piece + 1) // group.pieces
        # A frame that spans a cut is read for both pieces.
        yield [replace(segment, rows=(first, last))]


def _write_piece(
    job: CompactJob, group: Group, slices: Sequence[Slice], piece: int, token: str
) -> tuple[SegmentEntry, ...]:
    def write(form: str, name: str, limit: int = 1 << 62) -> tuple[SegmentEntry, ...]:
        target = job.target(group.epoch, token, form=form, most_bytes=limit)
        # Encoded frames can only be passed on to Arrow; a single segment needs other frames.
        decoded = len(slices) == 1 or form != ARROW
        contents = (events_of if decoded else _contents)(job, group.epoch, slices)
        writer = TaskWriter(target, group.start, f"{piece}{form[0]}{name}")
        return writer.stage(read_ahead(contents)).segments

    # A split has no limit: the next round splits what is still too large. An output of a merge may
    # be larger than its inputs, as Parquet sometimes needs more bytes.
    rules = group.rules
    most = sys.maxsize if rules.mode == SPLIT else max(rules.target_bytes, group.bytes)
    chosen = output_format(job.layout, decode_schema(job.epochs[group.epoch]), slices)
    for form in dict.fromkeys((chosen, ARROW)):
        # First without a limit: an unneeded limit could cut the output into two segments, which
        # every later compaction would merge again. The second try has a name of its own.
        for name, limit in (("", 1 << 62), ("l", most)):
            try:
                outputs = write(form, name, limit)
            except InvalidInputError as error:
                if form == ARROW:
                    raise
                _LOG.warning(
                    "a group of segments is written as Arrow, since Parquet can't hold it: %s",
                    error,
                )
                break
            formats = {output.format for output in outputs}
            if max(output.bytes for output in outputs) <= most and len(formats) == 1:
                return outputs
            delete_staged(job.storage, outputs)
            if len(formats) > 1:
                # Parquet can't hold some of the events. Every later compaction would merge that
                # Arrow remainder with its neighbours again. As Arrow all fit into one segment.
                break
    return ()  # they can't be merged within the target, and stay as they are


def output_format(layout: Layout, schema: pa.Schema, slices: Sequence[Slice]) -> str:
    """Return the value of `segmentFormat` for the outputs of a group. Pure.

    If any input is Parquet, or all together have `SETTLED_BYTES`, `HOT` becomes `auto`, which
    writes small outputs as Arrow. Otherwise it becomes Arrow.
    """
    wanted = layout.segment_format
    if wanted == HOT:
        settled = sum(part.entry.bytes for part in slices) >= SETTLED_BYTES
        kept = not settled and all(part.entry.format == ARROW for part in slices)
        wanted = ARROW if kept else "auto"
    return wanted if can_store(schema) else ARROW


def _contents(
    job: CompactJob, epoch: int, slices: Sequence[Slice]
) -> Iterator[pa.RecordBatch | Frame]:
    """Yield the events of whole segments; pass on encoded frames that are large enough."""

    def has_large_frames(segment: Slice) -> bool:
        kept = segment.entry.epoch == epoch and segment.entry.format == ARROW
        return kept and _is_large(job.layout, segment.entry.rows, segment.entry.bytes)

    for large, run in groupby(slices, has_large_frames):
        segments = list(run)
        if not large:  # together: thousands of tiny segments share one parsed schema
            yield from events_of(job, epoch, segments)
            continue
        for frame in _raw_frames(job, segments):
            passed = _is_large(job.layout, frame.rows, frame.raw_bytes)
            yield frame if passed else frame.decode(decode_schema(job.epochs[epoch]))


def _is_large(layout: Layout, rows: int, nbytes: int) -> bool:
    return rows * 2 >= layout.frame_rows or nbytes * 2 >= FRAME_BYTES


def events_of(job: CompactJob, epoch: int, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the events of slices, converted to the schema of an epoch."""
    schema = decode_schema(job.epochs[epoch])
    reading = Reading(
        storage=job.storage,
        stream_id=job.stream_id,
        version=job.version,
        start=slices[0].start,
        end=slices[-1].start + slices[-1].entry.rows,
        epochs=job.epochs,
        schema=schema,
        columns=tuple(schema.names),
        filters=Filters(),
    )
    tiny = all(part.entry.bytes <= WHOLE_OBJECT_BYTES for part in slices)
    threads = TINY_THREADS if tiny else 1
    batches = run_task(reading, ReadTask(tuple(slices)), threads=threads)
    return join_small(batches, job.layout.frame_rows // _JOINED_SHARE)


def join_small(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Join neighbouring small batches: writing a batch has a fixed cost."""
    most_bytes = FRAME_BYTES // _JOINED_SHARE
    held: list[pa.RecordBatch] = []
    rows = held_bytes = 0
    for batch in batches:
        size = batch.get_total_buffer_size()
        full = rows + batch.num_rows > most_rows or held_bytes + size > most_bytes
        if held and full:
            yield _joined(held)
            held, rows, held_bytes = [], 0, 0
        held.append(batch)
        rows, held_bytes = rows + batch.num_rows, held_bytes + size
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _raw_frames(job: CompactJob, slices: Sequence[Slice]) -> Iterator[Frame]:
    for part in slices:
        schema = decode_schema(job.epochs[part.entry.epoch])
        expected = fingerprint(schema)
        where = job.storage.describe(names.segment_place(part.entry.path, job.version))
        for entry, stats, data in read_frames(job.storage, part, where=where):
            if entry.fingerprint != expected:
                raise CorruptionError(
                    "frame has a different schema than its epoch", where=where, start=entry.start
                )
            frame = Frame(
                data=pa.py_buffer(data),
                rows=entry.rows,
                crc=entry.crc,
                stats=stats,
                fingerprint=entry.fingerprint,
                raw_bytes=entry.raw_bytes,
                filters=entry.filters,
            )
            yield with_marks(
                frame, schema=schema, keys=job.key_columns, bounded=job.time_column, where=where
            )
