"""Scan: read the tasks of a plan.

Every frame is verified before it is decoded, and only the needed columns are decoded. A scan is one
sequence of parts, usually one per frame, across segments and tasks: with several threads the next
segment is opened and fetched while the previous one is still decoded.
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
_SMALL_ROWS = 65_536  # usually one frame: opened and read as one part
_SMALL_RAW_BYTES = 16 << 20  # the most that is decoded of a small segment ahead of its turn

# The decoded bytes of a frame, and the function that decodes it.
_Step = tuple[int, Callable[[], Iterable[pa.RecordBatch]]]


@dataclass(frozen=True, slots=True)
class _Epoch:
    schema: pa.Schema
    columns: list[str]
    fingerprint: str


@dataclass(frozen=True, slots=True, eq=False)
class _Scan:
    """A reading, and values derived from it once instead of per frame."""

    reading: Reading
    needed: pa.Schema
    names: list[str]
    epochs: dict[int, _Epoch] = field(default_factory=dict)

    def epoch(self, number: int) -> _Epoch:
        """Return the expected schema of an epoch's segments, and the columns to decode."""
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
    """A slice, and the storage it is read from."""

    scan: _Scan
    storage: Storage
    slice: Slice


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The work of one thread at a time: a frame, or a small segment that is not opened yet.

    Attributes:
        source: The slice that it belongs to.
        steps: Iterated when the part is run.
        weight: The most bytes decoded ahead of its turn; counts all columns of a frame.
    """

    source: _Source
    steps: Iterable[_Step]
    weight: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a part: batches, then either an error or the steps that exceed its weight."""

    source: _Source
    batches: Sequence[pa.RecordBatch] = ()
    error: FormatError | StorageError | None = None
    rest: Iterable[_Step] = ()


def run_task(reading: Reading, task: ReadTask, *, threads: int = 1) -> Iterator[pa.RecordBatch]:
    """Read a task: verified, decoded, lifted to the plan's schema, filtered, in offset order.

    Args:
        reading: The plan that the tasks of the scan share.
        task: One of these tasks.
        threads: How many frames are decoded at once (>= 1).

    Yields:
        Batches of `reading.result_schema`, none of them empty.

    Raises:
        SnapshotExpiredError: The version's segments were deleted after its grace.
        FormatError: An object is missing, truncated or damaged; names the object and the frame.
        StorageError: The storage failed.
    """
    return run_tasks(reading, [task], threads=threads)


def run_tasks(
    reading: Reading, tasks: Iterable[ReadTask], *, threads: int
) -> Iterator[pa.RecordBatch]:
    """Read tasks in offset order, one after the other; otherwise as `run_task`.

    With several threads, up to ``2 * threads`` parts are held beside the one in use; fewer if they
    would exceed `AHEAD_BYTES`, at least one.
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
        for slice_ in task.slices:
            yield _Source(dated, reading.storage, slice_)


def _is_live(reading: Reading, one: Slice) -> bool:
    root = StreamLog(reading.storage).reopen()
    if root.stream_id != reading.stream_id:
        return False
    placed = TableStatus(reading.storage).segments(root, one.start, one.start + one.claim[1])
    return any(segment.entry.path == one.path for segment in placed)


def read_frames(storage: Storage, one: Slice) -> Iterator[tuple[FrameEntry, memoryview]]:
    """Yield the stored bytes of a slice's frames, each with its index entry.

    Nothing is decoded or verified: the caller checks the checksums.
    """
    segment = _open(storage, one)
    wanted = [number for number, _ in _wanted_frames(segment.frames, one, Filters())]
    for number, data in segment.raw_frames(wanted):
        yield segment.frames[number], memoryview(data)


def _mend(source: _Source, outcomes: Iterable[_Outcome]) -> Iterator[pa.RecordBatch]:
    """Yield a slice's batches, from a follower if it is missing or damaged here; log that."""
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
    reading, slice_ = source.scan.reading, source.slice
    for url in reading.followers if isinstance(damage, FormatError) else ():
        try:
            storage = reading.storage.sibling(url)
            if StreamLog(storage).open().stream_id != reading.stream_id:
                continue
            parts = _parts(replace(source, storage=storage))
            there = (batch for part in parts for batch in _run(part.steps))
            # The same bytes give the same batches: skip those that were already yielded.
            for batch in islice(there, done, None):
                yield batch
                done += 1
        except (FormatError, NotFoundError, StorageError) as error:
            _LOG.warning("follower %s can't stand in for %s: %s", url, slice_.path, error)
            continue
        _LOG.warning("%s was read from follower %s: %s", slice_.path, url, damage)
        return
    raise damage


def _attempt(part: _Part) -> _Outcome:
    """Run a part; return its error in the outcome, so that it is handled in order, in `_mend`."""
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
    """Yield the parts of a slice in offset order; none gives an empty batch."""
    slice_ = source.slice
    if slice_.bytes <= WHOLE_OBJECT_BYTES and slice_.segment_rows <= _SMALL_ROWS:
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
    """Fetch the frames to read in order, and yield a step for each."""
    columns = source.scan.epoch(source.slice.epoch).columns
    segment = _open(source.storage, source.slice)
    rows = dict(_wanted_frames(segment.frames, source.slice, source.scan.reading.filters))
    for number, data in segment.fetch(list(rows), columns):
        decode = partial(_decode, source, segment, number, rows[number], data)
        yield segment.frames[number].raw_bytes, decode


def _decode(
    source: _Source, segment: OpenSegment, number: int, row: int, data: list[pa.Buffer]
) -> Iterable[pa.RecordBatch]:
    slice_, frame = source.slice, segment.frames[number]
    epoch = source.scan.epoch(slice_.epoch)
    if frame.fingerprint != epoch.fingerprint:
        raise CorruptionError("frame is of another schema", where=segment.where, start=frame.start)
    batch = segment.decode(number, data, schema=epoch.schema, columns=epoch.columns)
    first = max(slice_.rows[0] - row, 0)
    last = min(slice_.rows[1] - row, frame.rows)
    if (first, last) != (0, frame.rows):
        batch = batch.slice(first, last - first)
    batch = _finish(source.scan, lift(batch, source.scan.needed), slice_, row + first)
    return (batch,) if batch.num_rows else ()


def _open(storage: Storage, one: Slice) -> OpenSegment:
    segment = open_segment(storage, one)
    if sum(frame.rows for frame in segment.frames) != one.segment_rows:
        raise CorruptionError("segment holds another number of rows", where=segment.where)
    return segment


def _wanted_frames(
    frames: Sequence[FrameEntry], one: Slice, filters: Filters
) -> Iterator[tuple[int, int]]:
    """Yield the number of each frame to read, and its first row."""
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
