"""Scan: read the tasks of a plan.

Every frame is verified before it is decoded, and only the columns asked for are decoded.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pyarrow as pa

from segstore_ds.engine.commit import StreamLog
from segstore_ds.engine.filters import Filters
from segstore_ds.engine.read_ahead import map_ahead
from segstore_ds.engine.scan_plan import Reading, ReadTask
from segstore_ds.engine.segments import OpenSegment, open_segment
from segstore_ds.engine.slices import Slice
from segstore_ds.engine.table_status import TableStatus
from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
    StorageError,
)
from segstore_ds.format.schema import decode_schema, fingerprint, lift
from segstore_ds.format.segment_index import FrameEntry
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)


def run_task(reading: Reading, task: ReadTask, *, threads: int = 1) -> Iterator[pa.RecordBatch]:
    """Read a task: verified, decoded, lifted to the plan's schema, filtered, in offset order.

    Args:
        reading: What the tasks of the scan share.
        task: One of them.
        threads: How many frames are decoded at once.

    Yields:
        Batches of `reading.result_schema`, none of them empty.

    Raises:
        SnapshotExpiredError: The version's segments were deleted after its grace.
        FormatError: An object is missing, cut or damaged; names object and frame.
        StorageError: The storage failed.
    """
    if task.times is not None:
        reading = replace(reading, times=task.times)
    for one in task.slices:
        try:
            yield from _read_slice(reading, one, threads)
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
    segment = _open(storage, one)
    wanted = [number for number, _ in _wanted_frames(segment.frames, one, Filters())]
    for number, data in segment.raw_frames(wanted):
        yield segment.frames[number], memoryview(data)


def _read_slice(reading: Reading, one: Slice, threads: int) -> Iterator[pa.RecordBatch]:
    """Read a slice here, and what is missing or damaged here from a follower, which is reported."""
    done = 0
    damage: FormatError
    try:
        for batch in _run_slice(reading, reading.storage, one, threads):
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
            for batch in islice(_run_slice(reading, storage, one, threads), done, None):
                yield batch
                done += 1
        except (FormatError, NotFoundError, StorageError) as error:
            _LOG.warning("follower %s can't stand in for %s: %s", url, one.path, error)
            continue
        _LOG.warning("%s was read from follower %s: %s", one.path, url, damage)
        return
    raise damage


def _run_slice(
    reading: Reading, storage: Storage, one: Slice, threads: int
) -> Iterator[pa.RecordBatch]:
    schema = decode_schema(reading.epochs[one.epoch])
    needed = reading.needed_schema
    present = [name for name in needed.names if name in schema.names] or [schema.names[0]]
    expected = fingerprint(schema)
    segment = _open(storage, one)
    rows = dict(_wanted_frames(segment.frames, one, reading.filters))

    def decode(fetched: tuple[int, list[pa.Buffer]]) -> pa.RecordBatch:
        number, data = fetched
        row, frame = rows[number], segment.frames[number]
        if frame.fingerprint != expected:
            raise CorruptionError(
                "frame is of another schema", where=segment.where, start=frame.start
            )
        batch = segment.decode(number, data, schema=schema, columns=present)
        first = max(one.rows[0] - row, 0)
        last = min(one.rows[1] - row, frame.rows)
        if (first, last) != (0, frame.rows):
            batch = batch.slice(first, last - first)
        return _finish(reading, lift(batch, needed), one, row + first)

    fetched = segment.fetch(list(rows), present)
    for batch in map_ahead(decode, fetched, threads=min(threads, max(len(rows), 1))):
        if batch.num_rows:
            yield batch


def _open(storage: Storage, one: Slice) -> OpenSegment:
    segment = open_segment(storage, one)
    if sum(frame.rows for frame in segment.frames) != one.segment_rows:
        raise CorruptionError("segment holds another number of rows", where=segment.where)
    return segment


def _wanted_frames(
    frames: Sequence[FrameEntry], one: Slice, filters: Filters
) -> Iterator[tuple[int, int]]:
    """Yield the place of each frame to read, and its first row."""
    row = 0
    for number, frame in enumerate(frames):
        claimed = one.claim[0] <= row < one.claim[1]
        wanted = row < one.rows[1] and row + frame.rows > one.rows[0]
        if claimed and wanted and (not filters or filters.may_match(frame.stats, frame.rows)):
            yield number, row
        row += frame.rows


def _finish(reading: Reading, batch: pa.RecordBatch, one: Slice, row: int) -> pa.RecordBatch:
    if reading.offset_column is not None:
        offsets = pa.arange(one.start + row, one.start + row + batch.num_rows)
        batch = batch.append_column(reading.offset_column, offsets)
    if reading.segment_column is not None:
        segment = pa.repeat(pa.scalar(one.segment_id, pa.int64()), batch.num_rows)
        batch = batch.append_column(reading.segment_column, segment)
    if reading.commit_time_column is not None and reading.times is not None:
        times = reading.times.column(one.start + row, batch.num_rows)
        batch = batch.append_column(reading.commit_time_column, times)
    if reading.filters:
        batch = reading.filters.apply(batch)
    names_wanted = reading.result_schema.names
    return batch if batch.schema.names == names_wanted else batch.select(names_wanted)
