"""Reading segment objects: their index, and the byte ranges of frames and columns.

The entry names the segment's format; nothing here depends on a particular format.

All scans of a process share the read cache. Its key is the stream's id, a digest of location and
credentials, an object's name, the checksum of its footer, and a range of bytes. Names are never
reused, and the footer holds the checksums of all frames. So a key means the same bytes forever,
even if a stream is dropped and created again, salvaged or repaired. Spark runs the jobs of several
users in one worker, but a scan is given only bytes that were read with its own credentials.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

import pyarrow as pa

from segstore_ds.cache.read_cache import Loaded, Piece, ReadCache, ReadCounters
from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.errors import CorruptionError, FormatError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.bounds import Bounds
from segstore_ds.format.inline import index_of
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import SegmentIndex, find_format
from segstore_ds.format.statistics import parse_piece
from segstore_ds.storage import Storage

WHOLE_OBJECT_BYTES = 1 << 20  # up to this size one request for the object beats two for parts of it
READ_BYTES = 2 << 20  # adjacent ranges are fetched together up to this size
GAP_BYTES = 128 << 10  # up to this size reading an unwanted gap beats another request
# All three are `Profile.fetch_factor` times as large where requests take time.
MOST_COLUMNS = 0.5  # if a larger share of columns is read, a far store's object is fetched whole
SMALL_FETCHES = 8  # the first fetches of a scan are small, the next 8 twice as large, and so on

Span = tuple[int, int]
_Key = tuple[tuple[tuple[str, str], str, int], Span]

PROCESS_CACHE: ReadCache[_Key] = ReadCache()
os.register_at_fork(after_in_child=PROCESS_CACHE.reset)


def read_cache_counters() -> ReadCounters:
    """Return what the read cache of this process did so far, and what it holds now.

    Examples:
        >>> segstore.read_cache_counters().misses
        0
    """
    return PROCESS_CACHE.counters


@dataclass(frozen=True, slots=True)
class ScanCache:
    """The read cache as one scan may use it.

    `scope` is the stream's id and the digest of location and credentials. `place` is the path and
    footer checksum of one object.
    """

    scope: tuple[str, str]
    limit_bytes: int
    place: tuple[str, int] = ("", 0)

    @classmethod
    def of(cls, storage: Storage, stream_id: str, limit_bytes: int) -> "ScanCache | None":
        """Return the cache for a stream; None if it is off or credentials can't be compared."""
        rights = storage.rights() if limit_bytes else None
        return None if rights is None else cls((stream_id, rights), limit_bytes)

    def object(self, entry: SegmentEntry) -> "ScanCache":
        """Return the cache of one segment."""
        return replace(self, place=(entry.path, entry.footer_crc))

    def fetch(
        self, spans: Sequence[Span], load: Callable[[Sequence[Span]], Sequence[Loaded]]
    ) -> list[Loaded]:
        """Return the verified bytes of ranges of the object, or errors; see `ReadCache.fetch`."""
        place = (self.scope, *self.place)
        return PROCESS_CACHE.fetch(
            [(place, span) for span in spans],
            lambda keys: load([span for _, span in keys]),
            limit_bytes=self.limit_bytes,
        )


def fetch_through(
    cache: ScanCache | None,
    spans: Sequence[Span],
    load: Callable[[Sequence[Span]], Sequence[Loaded]],
) -> Sequence[Loaded]:
    """Return the verified bytes of ranges, or errors; without a cache load all of them."""
    return load(spans) if cache is None else cache.fetch(spans, load)


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment whose index was read.

    `whole` is the object's bytes if they are in memory; `verified` says that all of them were
    checked. Other ranges are fetched through `cache`, if there is one.
    """

    storage: Storage
    name: str
    where: str
    index: SegmentIndex
    whole: memoryview | None
    verified: bool = False
    cache: ScanCache | None = None

    @property
    def frames(self) -> tuple[FrameEntry, ...]:
        """The index entries of the frames."""
        return self.index.frames

    def plan_fetches(
        self, numbers: Sequence[int], columns: Sequence[str] | None, fetches: Iterator[int]
    ) -> Iterable[list[int]]:
        """Group frames whose columns are fetched together; in a whole object each is a group.

        `fetches` counts the groups of a scan. The first ones are small, so that the first events
        come soon.
        """
        if self.whole is not None:
            return [[number] for number in numbers]
        spans = []
        for number in numbers:
            found = self.index.spans(number, columns)
            spans.append((number, (found[0][0], found[-1][1])))
        factor = self.storage.profile.fetch_factor
        most = (min(1 + number // SMALL_FETCHES, factor) * READ_BYTES for number in fetches)
        return ([number for number, _ in run] for run in plan_runs(spans, most))

    def stored(self, number: int) -> pa.Buffer:
        """Fetch one whole frame, unchecked."""
        frame = self.frames[number]
        if self.whole is not None:
            return pa.py_buffer(self.whole[frame.start : frame.end])
        return pa.py_buffer(self.storage.get_range(self.name, frame.start, frame.end))

    def checked(self, spans: Sequence[tuple[int, Span]]) -> Iterator[tuple[int, pa.Buffer]]:
        """Fetch ranges of frames, each with its frame's number, and check them."""
        for run in self._runs(spans):
            numbers = {span: number for number, span in run}
            found = fetch_through(self.cache, [*numbers], partial(self._load, numbers))
            yield from zip(numbers.values(), map(_sound, found), strict=True)

    def held(self, number: int, span: Span) -> pa.Buffer:
        """Return a range of a frame of a whole object, checked."""
        data = pa.py_buffer((self.whole or memoryview(b""))[span[0] : span[1]])
        if not self.verified:
            self.index.check(number, span, data, where=self.where)
        return data

    def _runs(self, spans: Sequence[tuple[int, Span]]) -> Iterator[list[tuple[int, Span]]]:
        factor = self.storage.profile.fetch_factor
        return plan_runs(spans, repeat(READ_BYTES * factor), GAP_BYTES * factor)

    def _load(self, numbers: Mapping[Span, int], spans: Sequence[Span]) -> list[Loaded]:
        """Fetch and check ranges for the cache; each damaged one gives its own error."""
        loaded: list[Loaded] = []
        for run in self._runs([(numbers[span], span) for span in spans]):
            start, end = run[0][1][0], run[-1][1][1]
            fetched = ByteArraySegment(self.storage.get_range(self.name, start, end))
            holder = fetched.to_arrow()
            for number, span in run:
                # Not copied: an uncompressed batch refers to the fetched bytes.
                data = fetched.slice(span[0] - start, span[1] - start).to_arrow()
                try:
                    self.index.check(number, span, data, where=self.where)
                except CorruptionError as error:
                    loaded.append(error)
                else:
                    loaded.append(Piece(data, holder))
        return loaded

    def decode(
        self,
        number: int,
        data: Sequence[pa.Buffer],
        *,
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """Decode a frame from bytes that were checked."""
        return self.index.decode(number, data, schema=schema, columns=columns, where=self.where)

    def read_frame(self, number: int, *, schema: pa.Schema) -> pa.RecordBatch:
        """Fetch, check and decode all columns of one frame."""
        ((_, data),) = fetch_frames(self, [number])
        return self.decode(number, data, schema=schema)


def fetch_frames(
    segment: OpenSegment, numbers: Sequence[int], columns: Sequence[str] | None = None
) -> Iterator[tuple[int, list[pa.Buffer]]]:
    """Yield frames by number, each with the checked bytes of its columns, for `decode`.

    Every read of committed events passes through here. `numbers` ascend; `columns` of None means
    all columns, whose bytes are one buffer.
    """
    if segment.whole is not None:
        for number in numbers:
            ranges = segment.index.spans(number, columns)
            yield number, [segment.held(number, span) for span in ranges]
        return
    wanted = [(number, segment.index.spans(number, columns)) for number in numbers]
    spans = [(number, span) for number, ranges in wanted for span in ranges]
    counts = {number: len(ranges) for number, ranges in wanted}
    ready: list[pa.Buffer] = []
    for number, data in segment.checked(spans):
        ready.append(data)
        if len(ready) == counts[number]:
            yield number, ready
            ready = []


def plan_runs(
    spans: Sequence[tuple[int, Span]], most_bytes: Iterator[int], gap_bytes: int = 1 << 62
) -> Iterator[list[tuple[int, Span]]]:
    """Group byte ranges with gaps of at most `gap_bytes` into runs. Pure.

    `spans` are pairs of a number and its range, with ascending ranges. `most_bytes` yields the most
    bytes of each run, which a single range may exceed.
    """
    run: list[tuple[int, Span]] = []
    most = 0
    for number, (start, end) in spans:
        if run and (start - run[-1][1][1] > gap_bytes or end - run[0][1][0] > most):
            yield run
            run = []
        most = most if run else next(most_bytes)
        run.append((number, (start, end)))
    if run:
        yield run


def frame_stats(segment: OpenSegment, entry: SegmentEntry) -> list[dict[str, Bounds]]:
    """Return the statistics of each frame; the entry has those of an inline segment."""
    if entry.frame is not None:
        return [parse_piece(entry.stats, where=segment.where)]
    return segment.index.stats.pieces()


def whole_bytes(storage: Storage, columns: float) -> int:
    """Return the size up to which an object is fetched whole, to read a share of its columns."""
    return WHOLE_OBJECT_BYTES * (storage.profile.fetch_factor if columns > MOST_COLUMNS else 1)


def open_segment(
    storage: Storage,
    entry: SegmentEntry,
    *,
    where: str | None = None,
    whole: bool = True,
    columns: float = 0.0,
    cache: ScanCache | None = None,
) -> OpenSegment:
    """Read the index of a segment.

    `where` names the object in errors; None means its URL. With `whole`, a small object is fetched
    in one request; errors then do not tell a damaged index from other damage. `columns` is the
    share of columns that will be read. With `cache`, bytes that it holds are not fetched again. An
    inline segment is in memory.
    """
    if (frame := entry.frame) is not None:
        name = names.segment_object(entry.path)
        inline, data = index_of(entry, frame), memoryview(frame.data)
        return OpenSegment(storage, name, where or storage.describe(name), inline, data)
    source = _Source(storage, entry, where)
    if not (whole and entry.bytes <= whole_bytes(storage, columns)):
        (tail,) = fetch_through(cache, [source.end], source.load_end)
        index = source.index or source.parse(bytes(_sound(tail)))
        return OpenSegment(storage, source.name, source.where, index, None, cache=cache)
    found = None if cache is None else cache.fetch([(0, entry.bytes)], source.load_whole)[0]
    # If a part is damaged, each frame is checked when it is read: the others are still readable.
    verified = isinstance(found, Piece)
    view = memoryview(found.data if isinstance(found, Piece) else source.fetch_whole())
    index = source.index or source.parse(bytes(view[slice(*source.end)]))
    return OpenSegment(storage, source.name, source.where, index, view, verified=verified)


class _Source:
    """A segment object that is being opened; `index` is set once it is parsed."""

    def __init__(self, storage: Storage, entry: SegmentEntry, where: str | None) -> None:
        self.name = names.segment_object(entry.path)
        self.where = where or storage.describe(self.name)
        self.index: SegmentIndex | None = None
        self._storage = storage
        self._entry = entry
        self._form = find_format(entry.format, where=self.where)
        if entry.footer_bytes > entry.bytes:
            raise CorruptionError("footer is larger than its segment", where=self.where)
        self.end = (entry.bytes - entry.footer_bytes, entry.bytes)

    def parse(self, tail: bytes) -> SegmentIndex:
        """Parse the index from the end of the object."""
        entry = self._entry
        self.index = self._form.parse_index(
            tail, object_bytes=entry.bytes, where=self.where, footer_crc=entry.footer_crc
        )
        return self.index

    def load_end(self, spans: Sequence[Span]) -> list[Loaded]:
        """Fetch and check the end of the object."""
        (span,) = spans
        tail = self._storage.get_range(self.name, *span)
        self.parse(tail)
        return [_kept(tail)]

    def fetch_whole(self) -> bytes:
        """Fetch the object in one request."""
        entry = self._entry
        found = self._storage.get(self.name, limit_bytes=entry.bytes)
        if len(found) < entry.bytes:
            raise TruncatedObjectError(
                "segment is shorter than committed",
                where=self.where,
                expected=entry.bytes,
                actual=len(found),
            )
        return found

    def load_whole(self, spans: Sequence[Span]) -> list[Loaded]:
        """Fetch the object, and check its index and all frames."""
        del spans
        data = self.fetch_whole()
        view = ByteArraySegment(data)
        try:
            index = self.parse(view.slice(*self.end).copy())
            for number, frame in enumerate(index.frames):
                span = (frame.start, frame.end)
                index.check(number, span, view.slice(*span).to_arrow(), where=self.where)
        except FormatError as error:
            return [error]
        return [_kept(data)]


def _kept(data: bytes) -> Piece:
    """Return a whole fetch as a piece."""
    buffer = pa.py_buffer(data)
    return Piece(buffer, buffer)


def _sound(found: Loaded) -> pa.Buffer:
    if isinstance(found, FormatError):
        raise found
    return found.data
