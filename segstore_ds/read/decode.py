"""Decoding: the checked bytes of frames become batches of a plan's result.

Only the needed columns are decoded. This module knows no threads, no other folders and no log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, count
from operator import attrgetter
from typing import Any

import pyarrow as pa

from segstore_ds.errors import CorruptionError, FormatError, StorageError
from segstore_ds.format import names
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.bounds import Piece
from segstore_ds.format.rows import slice_for_readers
from segstore_ds.format.schema.codec import decode_schema, fingerprint
from segstore_ds.format.schema.conversion import lift
from segstore_ds.format.segment import PARQUET
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.plan import CommitTimes, Reading, plan_frames
from segstore_ds.read.prune import Key, find_keys
from segstore_ds.read.segments import (
    OpenSegment,
    ScanCache,
    fetch_frames,
    frame_stats,
    open_segment,
    whole_bytes,
)
from segstore_ds.status.table_status import Slice
from segstore_ds.storage import Storage

ENGINE_ROWS = 65_536  # a smaller segment is usually one frame: not worth a query of an engine
ROWS_WITHOUT_DATA = 65_536  # rows of a batch without a column of the stream
_filters_of = attrgetter("filters")

# The size of a frame once decoded, and the function that decodes it; None if no row is left.
Step = tuple[int, Callable[[], pa.RecordBatch | None]]


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Checked bytes of some columns, from frames of one Parquet segment.

    By frame number: `rows` has its first row, `data` its bytes, and `decode` decodes it.
    """

    slice: Slice
    segment: OpenSegment
    columns: Sequence[str]
    rows: Mapping[int, int]
    data: Mapping[int, Sequence[pa.Buffer]]
    decode: Callable[[int], pa.RecordBatch | None]

    def runs(self) -> list[tuple[int, int]]:
        """Return the first row and the number of the wanted rows of adjacent frames."""
        found: list[tuple[int, int]] = []
        for number in self.data:
            first = max(self.slice.rows[0], self.rows[number])
            last = min(self.slice.rows[1], self.rows[number] + self.segment.frames[number].rows)
            if found and sum(found[-1]) == first:
                first = found.pop()[0]
            found.append((first, last - first))
        return found


# Decodes Parquet frames in another way: its result replaces their batches.
Engine = Callable[[Fetched], Any]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """How segments of an epoch are decoded; `share` is the share of its columns that is read."""

    schema: pa.Schema
    columns: list[str]
    fingerprint: str
    share: float


class Decoder:
    """What decoding all slices of a reading needs, derived once instead of per frame.

    `needed` is the schema of the columns to decode, `stored` the same under stored names, and
    `pruning` the filters under stored names. `fetches` counts the fetches of the scan.
    """

    def __init__(self, reading: Reading, engine: Engine | None) -> None:
        self.reading, self.engine = reading, engine
        self.needed = reading.needed_schema
        self.stored = reading.as_stored(self.needed)
        self.pruning, self.looks_up = reading.pruning, reading.looks_up
        self.names = reading.result_schema.names
        self.fetches: Iterator[int] = count()
        self._epochs: dict[int, _Epoch] = {}
        self._keys: dict[int, tuple[Key, ...]] = {}

    @cached_property
    def cache(self) -> ScanCache | None:
        """The read cache, or None; made at its first use, as inline segments don't need it."""
        reading = self.reading
        return ScanCache.of(reading.storage, reading.stream_id, reading.read_cache_bytes)

    def epoch(self, number: int) -> _Epoch:
        """Return the expected schema of an epoch's segments, and the columns to decode."""
        found = self._epochs.get(number)
        if found is None:
            schema = decode_schema(self.reading.epochs[number])
            known = set(schema.names)
            columns = [name for name in self.stored.names if name in known]
            columns = columns or [schema.names[0]]
            found = _Epoch(schema, columns, fingerprint(schema), len(columns) / len(schema))
            self._epochs[number] = found
        return found

    def keys(self, number: int, frames: Sequence[FrameEntry]) -> tuple[Key, ...]:
        """Return the keys to look up in frames of an epoch; none if no frame has Bloom filters."""
        if not any(map(_filters_of, frames)):
            return ()  # hashing thousands of values takes longer than to read a small segment
        found = self._keys.get(number)
        if found is None:
            found = find_keys(self.pruning, self.epoch(number).schema)
            self._keys[number] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SliceDecoder:
    """Decodes one slice, from whichever storage holds its segment.

    `opened` is its segment in the stream's own storage, if that was opened ahead.
    """

    decoder: Decoder
    slice: Slice
    times: CommitTimes | None
    opened: OpenSegment | None = None

    def steps(self, storage: Storage) -> Iterator[Step]:
        """Fetch the wanted frames in order, and yield a step for each."""
        return chain.from_iterable(steps for _, steps in self.runs(storage))

    def runs(self, storage: Storage) -> Iterator[tuple[int, Iterator[Step]]]:
        """Yield runs of frames: their size once decoded, and their steps, which fetch them."""
        if not self.decoder.reading.needs_data:
            yield 0, self._steps_without_data()
            return
        decoder, number = self.decoder, self.slice.entry.epoch
        own, epoch = storage is decoder.reading.storage, decoder.epoch(number)
        segment = self.opened if own and self.opened else self._open(storage, epoch)
        frames = segment.index.frames
        keys = decoder.keys(number, frames)
        rows = dict(plan_frames(segment.index, self.slice, decoder.pruning, decoder.stored, keys))
        engine = self._engine if decoder.engine else None
        groups = segment.plan_fetches([*rows], epoch.columns, decoder.fetches)
        for numbers in [[*rows]] if engine and segment.whole and rows else groups:
            raw_bytes = sum([frames[number].raw_bytes for number in numbers])
            yield raw_bytes, self._steps_of(segment, epoch, numbers, rows, engine)

    @property
    def _engine(self) -> Engine | None:
        """The engine that decodes the segment, if it is a large Parquet file as engines read it."""
        decoder, entry = self.decoder, self.slice.entry
        if entry.format != PARQUET or entry.rows <= ENGINE_ROWS:
            return None
        if decoder.reading.stored:  # an engine knows only stored names
            return None
        known = {column.name: column for column in decoder.epoch(entry.epoch).schema}
        fits = all(
            column.name in known and known[column.name].equals(column) for column in decoder.needed
        )
        return decoder.engine if fits else None

    def _steps_of(
        self,
        segment: OpenSegment,
        epoch: _Epoch,
        numbers: Sequence[int],
        rows: Mapping[int, int],
        engine: Engine | None,
    ) -> Iterator[Step]:
        found = self._fetch(segment, numbers, epoch.columns)
        if engine is not None:
            yield self._for_engine(engine, segment, epoch, dict(found), rows)
            return
        for number, data in found:
            decode = partial(self._decode, segment, epoch, number, rows[number], data)
            yield segment.index.frames[number].raw_bytes, decode

    def _fetch(
        self, segment: OpenSegment, numbers: Sequence[int], columns: Sequence[str]
    ) -> Iterator[tuple[int, list[pa.Buffer]]]:
        """Yield what `fetch_frames` does; the error of a damaged frame names its offsets."""
        done = 0
        try:
            for found in fetch_frames(segment, numbers, columns):
                done += 1
                yield found
        except CorruptionError as error:
            frames = segment.frames[: numbers[done] + 1]
            end = self.slice.start + sum(frame.rows for frame in frames)
            error.tell(offsets=f"[{end - frames[-1].rows}, {end})")
            raise

    def _for_engine(
        self,
        engine: Engine,
        segment: OpenSegment,
        epoch: _Epoch,
        data: Mapping[int, Sequence[pa.Buffer]],
        rows: Mapping[int, int],
    ) -> Step:
        def decode(number: int) -> pa.RecordBatch | None:
            return self._decode(segment, epoch, number, rows[number], data[number])

        fetched = Fetched(self.slice, segment, epoch.columns, rows, data, decode)
        raw_bytes = sum(segment.frames[number].raw_bytes for number in data)
        return raw_bytes, partial(engine, fetched)

    def _steps_without_data(self) -> Iterator[Step]:
        """Yield steps for rows that the plan alone gives; each row is claimed by one task."""
        start = max(self.slice.rows[0], self.slice.claim[0])
        end = min(self.slice.rows[1], self.slice.claim[1])
        for row in range(start, end, ROWS_WITHOUT_DATA):
            empty = pa.record_batch({"": pa.nulls(min(end - row, ROWS_WITHOUT_DATA))}).select([])
            yield 0, partial(self._finish, empty, self.slice.start + row)

    def open_ahead(self) -> "SliceDecoder":
        """Return this decoder with its segment open; unopened after an error, to try in turn."""
        epoch = self.decoder.epoch(self.slice.entry.epoch)
        try:
            return replace(self, opened=self._open(self.decoder.reading.storage, epoch))
        except (FormatError, StorageError):
            return self

    def _open(self, storage: Storage, epoch: _Epoch) -> OpenSegment:
        decoder = self.decoder
        # Only objects of the stream's own folder are cached: a copy has another location.
        own = storage is decoder.reading.storage
        entry = self.slice.entry
        shared = decoder.cache if own and entry.frame is None else None
        kept = shared.object(entry) if shared else None
        place = names.segment_place(entry.path, decoder.reading.version)
        return _open(
            storage,
            self.slice,
            where=storage.describe(place),
            whole=not decoder.looks_up,
            columns=epoch.share,
            cache=kept,
        )

    @property
    def opening_bytes(self) -> int:
        """The bytes that are fetched when the segment is opened."""
        entry, decoder = self.slice.entry, self.decoder
        share = decoder.epoch(entry.epoch).share
        whole = entry.bytes <= whole_bytes(decoder.reading.storage, share)
        return entry.bytes if whole and not decoder.looks_up else entry.footer_bytes

    def batches(self, storage: Storage) -> Iterator[pa.RecordBatch]:
        """Yield the slice's batches; the same bytes always give the same batches."""
        return decode_steps(self.steps(storage))

    def _decode(
        self, segment: OpenSegment, epoch: _Epoch, number: int, row: int, data: Sequence[pa.Buffer]
    ) -> pa.RecordBatch | None:
        frame = segment.index.frames[number]
        if frame.fingerprint != epoch.fingerprint:
            raise CorruptionError(
                "frame has a different schema than its epoch",
                where=segment.where,
                start=frame.start,
            )
        batch = segment.decode(number, data, schema=epoch.schema, columns=epoch.columns)
        first = max(self.slice.rows[0] - row, 0)
        last = min(self.slice.rows[1] - row, frame.rows)
        if (first, last) != (0, frame.rows):
            batch = slice_for_readers(batch, first, last - first)
        batch = lift(batch, self.decoder.stored)
        if self.decoder.reading.stored:
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.decoder.needed)
        batch = self._finish(batch, self.slice.start + row + first)
        return batch if batch.num_rows else None

    def _finish(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """Add the extra columns to events from the offset `start` on, then filter and project."""
        reading, rows = self.decoder.reading, batch.num_rows
        if reading.offset_column is not None:
            batch = batch.append_column(reading.offset_column, pa.arange(start, start + rows))
        if reading.segment_column is not None:
            segment = pa.scalar(self.slice.entry.segment_id, pa.int64())
            batch = batch.append_column(reading.segment_column, pa.repeat(segment, rows))
        if reading.commit_time_column is not None and self.times is not None:
            times = self.times.column(start, rows)
            batch = batch.append_column(reading.commit_time_column, times)
        if reading.stream is not None:
            column, name = reading.stream
            batch = batch.append_column(column, pa.repeat(pa.scalar(name, pa.string()), rows))
        if reading.filters:
            batch = reading.filters.apply(batch)
        names = self.decoder.names
        return batch if batch.schema.names == names else batch.select(names)


def decode_steps(steps: Iterator[Step]) -> Iterator[pa.RecordBatch]:
    """Decode frames one after the other, each when its batch is needed."""
    for _, decode in steps:
        batch = decode()
        if batch is not None:
            yield batch


def read_frames(
    storage: Storage, slice_: Slice, *, where: str
) -> Iterator[tuple[FrameEntry, Piece, memoryview]]:
    """Yield the stored, checked bytes of a slice's frames, with index entry and statistics."""
    segment = _open(storage, slice_, where=where)
    pieces = frame_stats(segment, slice_.entry)
    numbers = [number for number, _ in plan_frames(segment.index, slice_, Filters())]
    for number, (data,) in fetch_frames(segment, numbers):
        yield segment.frames[number], pieces[number], memoryview(data)


def _open(storage: Storage, slice_: Slice, **how: Any) -> OpenSegment:
    segment = open_segment(storage, slice_.entry, **how)
    if sum([frame.rows for frame in segment.index.frames]) != slice_.entry.rows:
        raise CorruptionError("segment has the wrong number of rows", where=segment.where)
    return segment
