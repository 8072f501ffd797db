"""Scan: read the tasks of a plan.

Every frame is verified before it is decoded, and only the columns asked for are decoded.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.engine.commit import StreamLog
from segstore_ds.engine.filters import Filters
from segstore_ds.engine.scan_plan import Reading, ReadTask
from segstore_ds.engine.slices import Slice
from segstore_ds.engine.table_status import TableStatus
from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
    StorageError,
    TruncatedObjectError,
)
from segstore_ds.format import names
from segstore_ds.format.frame import decode_frame
from segstore_ds.format.schema import decode_schema, fingerprint, lift
from segstore_ds.format.segment_arrow import parse_footer
from segstore_ds.format.segment_index import FrameEntry
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)
WHOLE_OBJECT_BYTES = 1 << 20  # up to this size one request for all beats two for parts
READ_BYTES = 16 << 20  # neighbouring frames are fetched together up to this size


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
            yield from _read_slice(reading, one)
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


def read_frames(storage: Storage, one: Slice) -> Iterator[tuple[FrameEntry, memoryview]]:
    """Yield the frames of a slice as they lie in storage, each with what the index says of it.

    Nothing is decoded; whoever uses the bytes checks their checksum.

    Raises:
        FormatError: The object is missing, cut or damaged, or holds another number of rows.
        StorageError: The storage failed.
    """
    where = f"{storage.url}/{names.segment_object(one.path)}"
    frames, whole = _open_segment(storage, one, where)
    wanted = list(_wanted_frames(frames, one, Filters()))
    for _, frame, data in _fetch(storage, one.path, wanted, whole):
        yield frame, data


def _read_slice(reading: Reading, one: Slice) -> Iterator[pa.RecordBatch]:
    """Read a slice here, and what is missing or damaged here from a follower, which is reported."""
    done = 0
    damage: FormatError
    try:
        for batch in _run_slice(reading, reading.storage, one):
            yield batch
            done += 1
    except FormatError as error:
        damage = error
    else:
        return
    for url in reading.followers:
        try:
            storage = reading.storage.sibling(url)
            if StreamLog(storage).open().stream_id != reading.stream_id:
                continue
            # The same bytes give the same batches, so those that came from here are passed over.
            for batch in islice(_run_slice(reading, storage, one), done, None):
                yield batch
                done += 1
        except (FormatError, NotFoundError, StorageError) as error:
            _LOG.warning("follower %s can't stand in for %s: %s", url, one.path, error)
            continue
        _LOG.warning("%s was read from follower %s: %s", one.path, url, damage)
        return
    raise damage


def _run_slice(reading: Reading, storage: Storage, one: Slice) -> Iterator[pa.RecordBatch]:
    where = f"{storage.url}/{names.segment_object(one.path)}"
    schema = decode_schema(reading.epochs[one.epoch])
    needed = reading.needed_schema
    present = [name for name in needed.names if name in schema.names] or [schema.names[0]]
    expected = fingerprint(schema)
    frames, whole = _open_segment(storage, one, where)
    wanted = list(_wanted_frames(frames, one, reading.filters))
    for row, frame, data in _fetch(storage, one.path, wanted, whole):
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
    whole: ByteArraySegment | None,
) -> Iterator[tuple[int, FrameEntry, pa.Buffer]]:
    for run in plan_runs(wanted, READ_BYTES):
        start, end = run[0][1].start, run[-1][1].end
        if whole is None:
            view = ByteArraySegment(storage.get_range(names.segment_object(path), start, end))
        else:
            view = whole.slice(start, end)
        for row, frame in run:
            # No copy: what is not compressed ends up in the batch as it was fetched.
            yield row, frame, view.slice(frame.start - start, frame.end - start).to_arrow()


def _open_segment(
    storage: Storage, one: Slice, where: str
) -> tuple[tuple[FrameEntry, ...], ByteArraySegment | None]:
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
    return frames, None if whole is None else ByteArraySegment(whole)
