"""Scan: plan which frames hold the events of a range, pack them into tasks, read them.

A plan is bound to one version and picklable; a task needs nothing but the storage. Large segments
are split without opening them: a task claims the frames that *start* within its rows, so each frame
is decoded by exactly one task. Every frame is verified before it is decoded, and only the columns
asked for are decoded.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa

from segstore_ds.engine.commit import StreamLog
from segstore_ds.engine.filters import Filters
from segstore_ds.engine.table_status import PlacedSegment, TableStatus
from segstore_ds.errors import (
    CorruptionError,
    MissingObjectError,
    SnapshotExpiredError,
    TruncatedObjectError,
)
from segstore_ds.format import names
from segstore_ds.format.fields import parse_json
from segstore_ds.format.frame import decode_frame
from segstore_ds.format.schema import decode_schema, fingerprint, lift
from segstore_ds.format.segment_arrow import parse_footer
from segstore_ds.format.segment_index import FrameEntry
from segstore_ds.format.statistics import from_json
from segstore_ds.storage import Storage

WHOLE_OBJECT_BYTES = 1 << 20  # up to this size one request for all beats two for parts
READ_BYTES = 16 << 20  # neighbouring frames are fetched together up to this size


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a segment to read.

    Attributes:
        start: Offset of the segment's first event.
        epoch: Of the segment's bytes.
        segment_rows: All rows of the segment.
        rows: ``[first, last)`` rows of the segment that are wanted.
        claim: ``[first, last)``: frames whose first row lies in it belong to this slice.
    """

    path: str
    segment_id: int
    start: int
    epoch: int
    bytes: int
    footer_bytes: int
    footer_crc: int
    segment_rows: int
    rows: tuple[int, int]
    claim: tuple[int, int]

    @property
    def claimed_rows(self) -> int:
        """Wanted rows within the claim; frames at its borders may shift a few to a neighbour."""
        return min(self.rows[1], self.claim[1]) - max(self.rows[0], self.claim[0])

    @property
    def claimed_bytes(self) -> int:
        """Encoded bytes of the claimed rows, pro rata, at least 1."""
        return max(self.bytes * self.claimed_rows // self.segment_rows, 1)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Slices that one task reads, in offset order."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What every task of a scan shares; picklable.

    Attributes:
        storage: The stream's folder; pickles without its connections.
        stream_id: Of the stream, for errors.
        version: The plan is bound to.
        epochs: Number of an epoch -> its schema as text.
        schema: Of the whole stream as of the version.
        columns: Columns of the stream to return, in order.
        filters: What rows have to satisfy.
        offset_column: Name of an extra column with offsets, or None.
        segment_column: Name of an extra column with segment ids, or None.
    """

    storage: Storage = field(repr=False)
    stream_id: str
    version: int
    epochs: dict[int, str] = field(repr=False)
    schema: pa.Schema
    columns: tuple[str, ...]
    filters: Filters
    offset_column: str | None = None
    segment_column: str | None = None

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of what `run_task` yields."""
        fields = [self.schema.field(name) for name in self.columns]
        fields += [
            pa.field(name, pa.int64())
            for name in (self.offset_column, self.segment_column)
            if name is not None
        ]
        return pa.schema(fields)

    @property
    def needed_schema(self) -> pa.Schema:
        """The columns that have to be decoded: those asked for and those filtered by."""
        wanted = dict.fromkeys((*self.columns, *self.filters.columns))
        # Rows have to be counted even when no column of the stream is asked for.
        found = [self.schema.field(name) for name in wanted] or [self.schema.field(0)]
        return pa.schema(found)


def plan_slices(segments: Iterable[PlacedSegment], start: int, end: int) -> list[Slice]:
    """Return what to read of each segment for the events ``[start, end)``. Pure."""
    slices = []
    for placed in segments:
        entry = placed.entry
        first = max(start - placed.start, 0)
        last = min(end - placed.start, entry.rows)
        if first >= last:
            continue
        slices.append(
            Slice(
                path=entry.path,
                segment_id=entry.segment_id,
                start=placed.start,
                epoch=entry.epoch,
                bytes=entry.bytes,
                footer_bytes=entry.footer_bytes,
                footer_crc=entry.footer_crc,
                segment_rows=entry.rows,
                rows=(first, last),
                claim=(0, entry.rows),
            )
        )
    return slices


def prune_segments(
    segments: Iterable[PlacedSegment], filters: Filters, schemas: dict[int, pa.Schema]
) -> Iterator[PlacedSegment]:
    """Drop the segments whose statistics say that no row can pass.

    Raises:
        CorruptionError: Statistics can't be read.
    """
    for placed in segments:
        entry = placed.entry
        if filters and entry.stats is not None:
            where = entry.path
            value = parse_json(entry.stats.encode(), where=where)
            stats = from_json(value, where=where, schema=schemas.get(entry.epoch))
            if not filters.may_match(stats, entry.rows):
                continue
        yield placed


def plan_tasks(
    slices: Sequence[Slice],
    *,
    partition_bytes: int,
    partition_rows: int | None = None,
    min_partitions: int | None = None,
) -> list[ReadTask]:
    """Pack slices into tasks of about the target: large ones split, small ones together. Pure.

    Args:
        slices: In offset order.
        partition_bytes: Encoded bytes per task, about (>= 1).
        partition_rows: Rows per task, about (>= 1); None for any.
        min_partitions: Tasks wanted at least, where there are rows enough; None for any.

    Returns:
        Tasks in offset order, none of them empty.
    """
    total_bytes = sum(one.claimed_bytes for one in slices)
    total_rows = sum(one.claimed_rows for one in slices)
    most_bytes, most_rows = partition_bytes, partition_rows or 1 << 62
    if min_partitions:
        most_bytes = max(1, min(most_bytes, -(-total_bytes // min_partitions)))
        most_rows = max(1, min(most_rows, -(-total_rows // min_partitions)))
    tasks: list[ReadTask] = []
    packed: list[Slice] = []
    used_bytes = used_rows = 0
    for piece in (piece for one in slices for piece in _split(one, most_bytes, most_rows)):
        size, rows = piece.claimed_bytes, piece.claimed_rows
        # A tenth over the target is better than a task for the rest.
        over = used_bytes + size > most_bytes * 1.1 or used_rows + rows > most_rows * 1.1
        if packed and over:
            tasks.append(ReadTask(tuple(packed)))
            packed, used_bytes, used_rows = [], 0, 0
        packed.append(piece)
        used_bytes += size
        used_rows += rows
    if packed:
        tasks.append(ReadTask(tuple(packed)))
    return tasks


def _split(one: Slice, most_bytes: int, most_rows: int) -> Iterator[Slice]:
    first, last = one.rows
    rows = last - first
    pieces = max(round(one.claimed_bytes / most_bytes), -(-rows // most_rows), 1)
    pieces = min(pieces, rows)
    borders = [first + rows * piece // pieces for piece in range(1, pieces)]
    # The first piece claims the frame that straddles the first row, wherever it starts.
    for claim in pairwise([0, *borders, one.segment_rows]):
        yield replace(one, claim=claim)


def run_task(reading: Reading, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Read a task: verified, decoded, lifted to the plan's schema, filtered, in offset order.

    Yields:
        Batches of `reading.result_schema`, none of them empty.

    Raises:
        SnapshotExpiredError: The version's segments were deleted after its grace.
        FormatError: An object is missing, cut or damaged; names object and frame.
        StorageError: The storage failed.
    """
    for one in task.slices:
        try:
            yield from _run_slice(reading, one)
        except MissingObjectError as error:
            if _is_live(reading, one):
                raise
            raise SnapshotExpiredError(
                "segments of this version were deleted",
                stream=reading.stream_id,
                version=reading.version,
                segment=one.path,
            ) from error


def _is_live(reading: Reading, one: Slice) -> bool:
    root = StreamLog(reading.storage).reopen()
    if root.stream_id != reading.stream_id:
        return False
    placed = TableStatus(reading.storage).segments(root, one.start, one.start + one.claim[1])
    return any(segment.entry.path == one.path for segment in placed)


def _run_slice(reading: Reading, one: Slice) -> Iterator[pa.RecordBatch]:
    where = f"{reading.storage.url}/{names.segment_object(one.path)}"
    schema = decode_schema(reading.epochs[one.epoch])
    needed = reading.needed_schema
    present = [name for name in needed.names if name in schema.names] or [schema.names[0]]
    expected = fingerprint(schema)
    frames, whole = _open_segment(reading.storage, one, where)
    wanted = list(_wanted_frames(frames, one, reading.filters))
    for row, frame, data in _fetch(reading.storage, one.path, wanted, whole):
        if frame.fingerprint != expected:
            raise CorruptionError("frame is of another schema", where=where, start=frame.start)
        batch = decode_frame(
            data,
            crc=frame.crc,
            rows=frame.rows,
            schema=schema,
            columns=present,
            where=f"{where}[{frame.start}:{frame.end}]",
            limit_bytes=max(frame.raw_bytes, 1),
        )
        first = max(one.rows[0] - row, 0)
        last = min(one.rows[1] - row, frame.rows)
        if (first, last) != (0, frame.rows):
            batch = batch.slice(first, last - first)
        batch = _finish(reading, lift(batch, needed), one, row + first)
        if batch.num_rows:
            yield batch


def _wanted_frames(
    frames: Sequence[FrameEntry], one: Slice, filters: Filters
) -> Iterator[tuple[int, FrameEntry]]:
    row = 0
    for frame in frames:
        claimed = one.claim[0] <= row < one.claim[1]
        wanted = row < one.rows[1] and row + frame.rows > one.rows[0]
        if claimed and wanted and (not filters or filters.may_match(frame.stats, frame.rows)):
            yield row, frame
        row += frame.rows


def _finish(reading: Reading, batch: pa.RecordBatch, one: Slice, row: int) -> pa.RecordBatch:
    if reading.offset_column is not None:
        offsets = pa.arange(one.start + row, one.start + row + batch.num_rows)
        batch = batch.append_column(reading.offset_column, offsets)
    if reading.segment_column is not None:
        segment = pa.repeat(pa.scalar(one.segment_id, pa.int64()), batch.num_rows)
        batch = batch.append_column(reading.segment_column, segment)
    if reading.filters:
        batch = reading.filters.apply(batch)
    names_wanted = reading.result_schema.names
    return batch if batch.schema.names == names_wanted else batch.select(names_wanted)


def plan_runs(
    wanted: Sequence[tuple[int, FrameEntry]], most_bytes: int
) -> Iterator[list[tuple[int, FrameEntry]]]:
    """Group frames that lie side by side into runs of at most `most_bytes`. Pure."""
    run: list[tuple[int, FrameEntry]] = []
    for row, frame in wanted:
        if run and (frame.start != run[-1][1].end or frame.end - run[0][1].start > most_bytes):
            yield run
            run = []
        run.append((row, frame))
    if run:
        yield run


def _fetch(
    storage: Storage,
    path: str,
    wanted: Sequence[tuple[int, FrameEntry]],
    whole: bytes | None,
) -> Iterator[tuple[int, FrameEntry, memoryview]]:
    for run in plan_runs(wanted, READ_BYTES):
        start, end = run[0][1].start, run[-1][1].end
        if whole is None:
            view = memoryview(storage.get_range(names.segment_object(path), start, end))
        else:
            view = memoryview(whole)[start:end]
        for row, frame in run:
            yield row, frame, view[frame.start - start : frame.end - start]


def _open_segment(
    storage: Storage, one: Slice, where: str
) -> tuple[tuple[FrameEntry, ...], bytes | None]:
    path = names.segment_object(one.path)
    if one.footer_bytes > one.bytes:
        raise CorruptionError("footer is larger than its segment", where=where)
    whole = None
    if one.bytes <= WHOLE_OBJECT_BYTES:
        whole = storage.get(path, limit_bytes=one.bytes)
        if len(whole) < one.bytes:
            raise TruncatedObjectError(
                "segment is shorter than committed",
                where=where,
                expected=one.bytes,
                actual=len(whole),
            )
        tail = whole[one.bytes - one.footer_bytes :]
    else:
        tail = storage.get_range(path, one.bytes - one.footer_bytes, one.bytes)
    frames = parse_footer(tail, object_bytes=one.bytes, where=where, footer_crc=one.footer_crc)
    if sum(frame.rows for frame in frames) != one.segment_rows:
        raise CorruptionError("segment holds another number of rows", where=where)
    return frames, whole
