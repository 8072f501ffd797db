"""Scan: read the tasks of a plan.

Every frame is verified before it is decoded, and only the columns asked for are decoded. What is
read is one row of parts, frames for the most, whatever segment or task they belong to: so with
several threads the next segment is opened and fetched while the last one is still decoded.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter

import pyarrow as pa

from segstore_ds.commit.commit import StreamLog
from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
    StorageError,
)
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.schema.codec import decode_schema, fingerprint, lift
from segstore_ds.read.filters import Filters
from segstore_ds.read.plan import Reading, ReadTask
from segstore_ds.read.prefetch import map_ahead
from segstore_ds.read.segments import WHOLE_OBJECT_BYTES, OpenSegment, open_segment
from segstore_ds.status.slices import Slice
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)
_SMALL_ROWS = 65_536  # one frame, for the most: opened and read as one part
_SMALL_RAW_BYTES = 16 << 20  # what is decoded of a small segment before its turn

# What the buffers of a frame take, and what decodes it.
_Step = tuple[int, Callable[[], Iterable[pa.RecordBatch]]]


@dataclass(frozen=True, slots=True)
class _Epoch:
    schema: pa.Schema
    columns: list[str]
    fingerprint: str


@dataclass(frozen=True, slots=True, eq=False)
class _Scan:
    """A reading, and what would be worked out of it again for each frame."""

    reading: Reading
    needed: pa.Schema
    names: list[str]
    epochs: dict[int, _Epoch] = field(default_factory=dict)

    def epoch(self, number: int) -> _Epoch:
        """Return what a segment of an epoch has to look like; raises FormatError."""
        found = self.epochs.get(number)
        if found is None:
            schema = decode_schema(self.reading.epochs[number])
            found_names = set(schema.names)
            columns = [name for name in self.needed.names if name in found_names]
            found = _Epoch(schema, columns or [schema.names[0]], fingerprint(schema))
            self.epochs[number] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A slice, and where it is read."""

    scan: _Scan
    storage: Storage
    slice: Slice


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one thread does at once: a frame, or a small segment, whose index nobody has seen yet.

    Attributes:
        steps: Run when they are taken.
        weight: What may be decoded before its turn, whichever columns are read.
    """

    source: _Source
    steps: Iterable[_Step]
    weight: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a part; an error comes behind the batches, and `rest` would weigh too much."""

    source: _Source
    batches: Sequence[pa.RecordBatch] = ()
    error: FormatError | StorageError | None = None
    rest: Iterable[_Step] = ()


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
    return run_tasks(reading, [task], threads=threads)


def run_tasks(
    reading: Reading, tasks: Iterable[ReadTask], *, threads: int
) -> Iterator[pa.RecordBatch]:
    """Read tasks one after the other; otherwise as `run_task`.

    Args:
        reading: What the tasks of the scan share.
        tasks: In offset order.
        threads: How many frames are decoded at once. With several, up to twice as many are held,
            and the one that is used; only one where frames are as large as `AHEAD_BYTES`.
    """
    parts = (part for source in _sources(reading, tasks) for part in _parts(source))
    ahead = map_ahead(_attempt, parts, threads=threads, weigh=attrgetter("weight"))
    with closing(ahead) as outcomes:
        for source, found in groupby(outcomes, key=lambda outcome: outcome.source):
            try:
                yield from _mend(source, found)
            except MissingObjectError as error:
                if _is_live(reading, source.slice):
                    raise
                raise SnapshotExpiredError(
                    "segments of this version were deleted",
                    stream=reading.stream_id,
                    version=reading.version,
                    segment=source.slice.path,
                ) from error


def _sources(reading: Reading, tasks: Iterable[ReadTask]) -> Iterator[_Source]:
    plain = _Scan(reading, reading.needed_schema, reading.result_schema.names)
    for task in tasks:
        dated = plain
        if task.times is not None:
            dated = replace(plain, reading=replace(reading, times=task.times))
        for one in task.slices:
            yield _Source(dated, reading.storage, one)


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


def _mend(source: _Source, outcomes: Iterable[_Outcome]) -> Iterator[pa.RecordBatch]:
    """Yield a slice, and what is missing or damaged here from a follower, which is reported."""
    done = 0
    damage: FormatError | StorageError | None = None
    for outcome in outcomes:
        yield from outcome.batches
        done += len(outcome.batches)
        damage = outcome.error
        try:
            for batch in _run(outcome.rest):
                yield batch
                done += 1
        except (FormatError, StorageError) as error:
            damage = error
        if damage is not None:
            break
    if damage is None:
        return
    reading, one = source.scan.reading, source.slice
    for url in reading.followers if isinstance(damage, FormatError) else ():
        try:
            storage = reading.storage.sibling(url)
            if StreamLog(storage).open().stream_id != reading.stream_id:
                continue
            parts = _parts(replace(source, storage=storage))
            there = (batch for part in parts for batch in _run(part.steps))
            # The same bytes give the same batches, so those that came from here are passed over.
            for batch in islice(there, done, None):
                yield batch
                done += 1
        except (FormatError, NotFoundError, StorageError) as error:
            _LOG.warning("follower %s can't stand in for %s: %s", url, one.path, error)
            continue
        _LOG.warning("%s was read from follower %s: %s", one.path, url, damage)
        return
    raise damage


def _attempt(part: _Part) -> _Outcome:
    """Carry a part out; what it raises is told in its turn, and to who knows of followers."""
    batches: list[pa.RecordBatch] = []
    held_bytes = 0
    steps = iter(part.steps)
    try:
        for raw_bytes, decode in steps:
            held_bytes += raw_bytes
            if held_bytes > part.weight:
                rest = chain([(raw_bytes, decode)], steps)
                return _Outcome(part.source, batches, rest=rest)
            batches.extend(decode())
    except (FormatError, StorageError) as error:
        return _Outcome(part.source, batches, error)
    return _Outcome(part.source, batches)


def _run(steps: Iterable[_Step]) -> Iterator[pa.RecordBatch]:
    for _, decode in steps:
        yield from decode()


def _parts(source: _Source) -> Iterator[_Part]:
    """Yield what there is to do for a slice, in offset order; each part gives no empty batch."""
    one = source.slice
    if one.bytes <= WHOLE_OBJECT_BYTES and one.segment_rows <= _SMALL_ROWS:
        yield _Part(source, _steps(source), _SMALL_RAW_BYTES)
        return
    try:
        for step in _steps(source):
            yield _Part(source, [step], step[0])
    except (FormatError, StorageError) as error:
        yield _Part(source, [(0, partial(_fail, error))], 0)


def _fail(error: FormatError | StorageError) -> Iterable[pa.RecordBatch]:
    raise error


def _steps(source: _Source) -> Iterator[_Step]:
    """Fetch the frames to read, one after the other."""
    columns = source.scan.epoch(source.slice.epoch).columns
    segment = _open(source.storage, source.slice)
    rows = dict(_wanted_frames(segment.frames, source.slice, source.scan.reading.filters))
    for number, data in segment.fetch(list(rows), columns):
        decode = partial(_decode, source, segment, number, rows[number], data)
        yield segment.frames[number].raw_bytes, decode


def _decode(
    source: _Source, segment: OpenSegment, number: int, row: int, data: list[pa.Buffer]
) -> Iterable[pa.RecordBatch]:
    one, frame = source.slice, segment.frames[number]
    epoch = source.scan.epoch(one.epoch)
    if frame.fingerprint != epoch.fingerprint:
        raise CorruptionError("frame is of another schema", where=segment.where, start=frame.start)
    batch = segment.decode(number, data, schema=epoch.schema, columns=epoch.columns)
    first = max(one.rows[0] - row, 0)
    last = min(one.rows[1] - row, frame.rows)
    if (first, last) != (0, frame.rows):
        batch = batch.slice(first, last - first)
    batch = _finish(source.scan, lift(batch, source.scan.needed), one, row + first)
    return (batch,) if batch.num_rows else ()


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


def _finish(scan: _Scan, batch: pa.RecordBatch, one: Slice, row: int) -> pa.RecordBatch:
    reading = scan.reading
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
    return batch if batch.schema.names == scan.names else batch.select(scan.names)
