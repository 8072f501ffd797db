"""Scan: read the tasks of a plan, with any number of threads.

A scan is one sequence of decode units, usually one per frame, across segments and tasks: with
several threads the next segment is opened and fetched while the previous one is still decoded.
If a segment is damaged or missing, another copy is read. Only then is the log opened, because a
task has no handle on its stream.
"""

import logging
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, NoReturn

import pyarrow as pa

from segstore_ds.errors import (
    FormatError,
    MissingObjectError,
    SegstoreError,
    SnapshotExpiredError,
    StorageError,
)
from segstore_ds.format.inline import same_frame
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.decode import Decoder, Engine, SliceDecoder, Step, decode_steps
from segstore_ds.read.plan import Reading, ReadTask, reopen
from segstore_ds.read.prefetch import map_ahead
from segstore_ds.read.segments import WHOLE_OBJECT_BYTES
from segstore_ds.status.table_status import Slice
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)
LOOKUP_THREADS = 32  # to open segments for a key lookup; mostly they wait for the storage
OPENED_BYTES = 32 << 20  # the most bytes of segments that are opened ahead
_FEW = 16  # with fewer slices, all of them small, no thread is started
_SMALL_ROWS = 65_536  # usually one frame: opened and read as one unit
_SMALL_RAW_BYTES = 16 << 20  # the most that is decoded of a small segment ahead of its turn
_bytes_of, _rows_of = attrgetter("slice.entry.bytes"), attrgetter("slice.entry.rows")


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """The work of one thread at a time: frames that are fetched together, or a small segment.

    For a key lookup it is the few frames of a segment that are left. At most `weight` bytes, which
    count all columns of a frame, are decoded ahead.
    """

    decoder: SliceDecoder
    steps: Iterable[Step]
    weight: int


def run_task(reading: Reading, task: ReadTask, *, threads: int = 1) -> Iterator[pa.RecordBatch]:
    """Read one task; see `run_tasks`."""
    return run_tasks(reading, [task], threads=threads)


def open_reader(reading: Reading, tasks: Iterable[ReadTask]) -> pa.RecordBatchReader:
    """Return the events of tasks in offset order as a reader whose threads end with it."""
    threads = read_threads(reading)
    # Not bound to a name: only the reader refers to the generator, so both end together.
    return pa.RecordBatchReader.from_batches(
        reading.result_schema, run_tasks(reading, tasks, threads=threads)
    )


def read_threads(reading: Reading) -> int:
    """Return how many threads a reading takes."""
    found = reading.storage.profile  # threads that wait for an answer need no core
    return found.read_threads if found.is_far else min(os.cpu_count() or 1, found.read_threads)


def first_rows(reader: pa.RecordBatchReader, limit: int) -> pa.RecordBatchReader:
    """Return the first rows of a reader; the rest of it is not read."""

    def batches() -> Iterator[pa.RecordBatch]:
        left = limit
        while left and (batch := next(reader, None)) is not None:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def run_tasks(
    reading: Reading, tasks: Iterable[ReadTask], *, threads: int, engine: Engine | None = None
) -> Iterator[Any]:
    """Yield events in order: verified, decoded, lifted to the plan's schema, filtered.

    No batch is empty. With several threads, up to ``2 * threads`` units are held beside the one in
    use; fewer if they would exceed `AHEAD_BYTES`, at least one. An `engine` may decode and filter
    some of the events itself; if they are damaged, no other folder is read.
    """
    decoder = Decoder(reading, engine)
    rest = (SliceDecoder(decoder, part, task.times) for task in tasks for part in task.slices)
    first = [*islice(rest, _FEW)]
    if len(first) < _FEW and _is_small(*first) and _waits_once(first):
        threads = 1  # starting one takes as long as reading a few events
    slices: Generator[SliceDecoder] = (each for each in chain(first, rest))
    far = threads > 1 and reading.needs_data and reading.storage.profile.is_far
    if far or (decoder.looks_up and len(first) > 1):
        # Opening one after the other would wait for every answer.
        opening = LOOKUP_THREADS if decoder.looks_up else threads
        slices = map_ahead(
            SliceDecoder.open_ahead,
            slices,
            threads=opening,
            weigh=attrgetter("opening_bytes"),
            most_bytes=OPENED_BYTES,
        )
    units = (unit for slice_ in slices for unit in _units(slice_, reading.storage, far=far))
    ahead = map_ahead(_decode_ahead, units, threads=threads, weigh=attrgetter("weight"))
    with closing(slices), closing(ahead) as decoded:
        for slice_, found in groupby(decoded, key=itemgetter(0)):
            batches = chain.from_iterable(ready for _, ready in found)
            yield from _read_or_fall_back(slice_, batches)


def _units(slice_: SliceDecoder, storage: Storage, *, far: bool) -> Iterator[_Unit]:
    """Yield the units of a slice in offset order; with `far`, threads fetch them as well."""
    if _is_small(slice_) or slice_.decoder.looks_up:
        yield _Unit(slice_, slice_.steps(storage), _SMALL_RAW_BYTES)
        return
    try:
        for raw_bytes, steps in slice_.runs(storage):
            if far:
                yield _Unit(slice_, steps, raw_bytes)
            else:
                for step in steps:
                    yield _Unit(slice_, [step], step[0])
    except (FormatError, StorageError) as error:
        yield _Unit(slice_, [(0, partial(_fail, error))], 0)


def _is_small(*slices: SliceDecoder) -> bool:
    few = sum(map(_rows_of, slices)) <= _SMALL_ROWS
    return bool(few and sum(map(_bytes_of, slices)) <= WHOLE_OBJECT_BYTES)


def _waits_once(slices: Sequence[SliceDecoder]) -> bool:
    """Tell whether reading slices waits at most once for an answer of a far storage."""
    objects = [slice_ for slice_ in slices if slice_.slice.entry.frame is None]
    return len(objects) < 2 or not objects[0].decoder.reading.storage.profile.is_far


def _decode_ahead(unit: _Unit) -> tuple[SliceDecoder, Iterator[pa.RecordBatch]]:
    """Decode a unit up to its weight; the rest is decoded, or its error raised, in its turn."""
    ready: list[pa.RecordBatch] = []
    held_bytes = 0
    steps = iter(unit.steps)
    try:
        for raw_bytes, decode in steps:
            held_bytes += raw_bytes
            if held_bytes > unit.weight:
                rest = decode_steps(chain([(raw_bytes, decode)], steps))
                return unit.decoder, chain(ready, rest)
            batch = decode()
            if batch is not None:
                ready.append(batch)
    except (FormatError, StorageError) as error:
        return unit.decoder, chain(ready, decode_steps(iter([(0, partial(_fail, error))])))
    return unit.decoder, iter(ready)


def _fail(error: FormatError | StorageError) -> NoReturn:
    raise error


def _read_or_fall_back(
    slice_: SliceDecoder, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield a slice's batches; if its segment is missing or damaged, the rest from another copy."""
    done = 0
    try:
        for batch in batches:
            yield batch
            done += 1
    except FormatError as error:
        damage = error
    else:
        return
    reading, path = slice_.decoder.reading, slice_.slice.entry.path
    for folder in reading.mirrors.folders(reading.storage) if reading.mirrors else ():
        try:
            other = _slice_in(folder, slice_)
            # The same bytes give the same batches: skip those that were already yielded.
            for batch in islice(other.batches(folder), done, None):
                yield batch
                done += 1
        except SegstoreError as error:
            _LOG.warning("%s has no intact copy of %s: %s", folder.url, path, error)
            continue
        _LOG.warning("%s is damaged here and was read from %s: %s", path, folder.url, damage)
        return
    stream = reading.storage, reading.stream_id
    if isinstance(damage, MissingObjectError) and not is_listed(*stream, slice_.slice):
        raise SnapshotExpiredError(
            "segments of this version were deleted",
            stream=reading.stream_id,
            version=reading.version,
            segment=path,
        ) from damage
    raise damage


def _slice_in(folder: Storage, slice_: SliceDecoder) -> SliceDecoder:
    """Return a slice as another folder has it; of an inline segment, its commit file has a copy."""
    placed = slice_.slice
    if placed.entry.frame is None:
        return slice_
    root = StreamLog(folder).read_version(slice_.decoder.reading.version)
    entry = replace(placed.entry, frame=same_frame(root, placed.entry) or placed.entry.frame)
    return replace(slice_, slice=replace(placed, entry=entry), opened=None)


def is_listed(storage: Storage, stream_id: str, slice_: Slice) -> bool:
    """Tell whether a stream's newest version still has a slice's segment."""
    context, root = reopen(storage, stream_id)
    placed = context.status.segments(root, slice_.start, slice_.end)
    return any(segment.entry.path == slice_.entry.path for segment in placed)
