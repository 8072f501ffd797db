"""Status parts: segments as columns, with their statistics and filters behind them.

Parts are kept in memory as columns; an entry becomes an object only where a caller asks for it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.format.parts.columns import SegmentColumns, concat, from_entries
from segstore_ds.format.parts.key_filters import SegmentFilters
from segstore_ds.format.parts.kinds import SEGMENTS, encode_object
from segstore_ds.format.parts.segments import (
    CHUNK_ROWS,
    Part,
    decode_chunks,
    decode_filter_chunk,
    encode_chunks,
    encode_filter_chunks,
    join_filter_chunks,
)
from segstore_ds.format.root import PartRef, SegmentEntry
from segstore_ds.status.store import ObjectStore

WHOLE_SEGMENTS = 4096  # with filters of so many, one request for a part beats three for parts of it


class Parts:
    """Reads and writes the status parts of one stream."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def columns(self, ref: PartRef, *, whole: bool = False) -> SegmentColumns:
        """Return the segments of a part; `whole` fetches all behind them in the same request."""
        return self._load(ref)[0].columns if whole else self._part(ref).columns

    def stats(self, ref: PartRef) -> Sequence[str | None]:
        """Return the statistics of a part's segments."""
        part = self._part(ref)
        if part.filters:
            behind = self._store.behind(ref, 0, part.stats_bytes)
        else:
            part, behind = self._load(ref)
        return decode_chunks(part, behind, where=self._store.where(ref))

    def filters(self, ref: PartRef) -> Iterator[Sequence[SegmentFilters]]:
        """Yield the filters of a part's segments, chunk by chunk."""
        part = self._part(ref)
        if not part.filters:
            yield [None] * len(part.columns)
        cursor = part.stats_bytes
        for chunk in part.filters:
            data = self._store.behind(ref, cursor, cursor + chunk.bytes)
            cursor += chunk.bytes
            yield decode_filter_chunk(chunk, data, where=self._store.where(ref))

    def check_size(self, ref: PartRef) -> None:
        """Raise CorruptionError if a part has another length than it says: reads go by it."""
        self._store.check_size(ref, SEGMENTS)

    def retired(self, path: str, *, required: bool = False) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part that no root names, without statistics.

        A deleted part has no entries, unless it is `required`: then MissingObjectError is raised.
        """
        try:
            part, _ = self._store.read(path, SEGMENTS)
        except MissingObjectError:
            if required:
                raise
            return ()
        return tuple(part.columns.entries())

    def whole(self, path: str) -> tuple[tuple[SegmentEntry, ...], int]:
        """Return all of a part's entries and its envelope's length, even if no root names it."""
        part, behind = self._store.read(path, SEGMENTS)
        size = len(encode_object(SEGMENTS, part))
        where = f"{self._store.storage.url}/{path}"
        stats = decode_chunks(part, behind[: part.stats_bytes], where=where)
        return tuple(part.columns.entries(stats)), size

    def put(
        self,
        version: int,
        start: int,
        columns: SegmentColumns,
        stats: Sequence[str | None],
        filters: Sequence[SegmentFilters] = (),
    ) -> PartRef:
        """Write a part whose first event is at offset `start`.

        `version` is the newest version that the writer has seen.
        """
        part, behind = _with_chunks(columns, stats, filters)
        return self._put(version, start, part, behind)

    def filters_by_id(self, refs: Sequence[PartRef]) -> dict[int, SegmentFilters]:
        """Return the filters of those segments of some parts that have been looked at."""
        found: dict[int, SegmentFilters] = {}
        for ref in refs:
            part = self._part(ref)
            if part.filters:
                ids = (part.columns.epochs << 32 | part.columns.numbers).tolist()
                known = (each for chunk in self.filters(ref) for each in chunk)
                found.update(pair for pair in zip(ids, known, strict=True) if pair[1] is not None)
        return found

    def lacks_filters(self, ref: PartRef) -> bool:
        """Tell whether a part has a segment whose frames' filters nobody has looked at."""
        part = self._part(ref)
        return sum(chunk.looked for chunk in part.filters) < len(part.columns)

    def join(self, version: int, refs: Sequence[PartRef]) -> PartRef:
        """Write the segments of neighbouring parts as one part.

        Beyond `CHUNK_ROWS` segments the chunks of statistics and filters are copied without
        decoding them.
        """
        loaded = [self._load(ref) for ref in refs]
        columns = concat(part.columns for part, _ in loaded)
        if len(columns) <= CHUNK_ROWS:
            stats = [text for ref in refs for text in self.stats(ref)]
            filters = [found for ref in refs for chunk in self.filters(ref) for found in chunk]
            return self.put(version, refs[0].start, columns, stats, filters)
        chunks = tuple(chunk for part, _ in loaded for chunk in part.chunks)
        behind = b"".join(tail[: part.stats_bytes] for part, tail in loaded)
        filter_chunks, rest = join_filter_chunks(loaded)
        part = Part(columns, chunks, filter_chunks)
        return self._put(version, refs[0].start, part, behind + rest)

    def add_filters(
        self,
        version: int,
        ref: PartRef,
        find: Callable[[Sequence[SegmentEntry]], Sequence[SegmentFilters]],
        most: int,
    ) -> PartRef | None:
        """Write a part again, with the filters that `find` returns of `most` of its segments.

        None if it returns none.
        """
        columns = self._part(ref).columns
        filters = [found for chunk in self.filters(ref) for found in chunk]
        rows = list(islice((n for n, found in enumerate(filters) if found is None), most))
        looked = find([columns.entry(row) for row in rows])
        if all(found is None for found in looked):
            return None
        for row, found in zip(rows, looked, strict=True):
            filters[row] = found
        return self.put(version, ref.start, columns, self.stats(ref), filters)

    def _put(self, version: int, start: int, part: Part, behind: bytes) -> PartRef:
        stored = self._store.put(version, SEGMENTS, part, behind)
        end = start + _events(part.columns)
        return PartRef(stored.path, start, end, len(part.columns), stored.bytes)

    def _part(self, ref: PartRef) -> Part:
        return self._checked(ref, self._store.get(ref, SEGMENTS))

    def _load(self, ref: PartRef) -> tuple[Part, bytes]:
        part, behind = self._store.get_all(ref, SEGMENTS)
        return self._checked(ref, part), behind

    def _checked(self, ref: PartRef, part: Part) -> Part:
        found, events = len(part.columns), _events(part.columns)
        if found != ref.count or events != ref.end - ref.start:
            raise CorruptionError(
                "status part contradicts the root",
                where=self._store.where(ref),
                segments=(ref.count, found),
                rows=(ref.end - ref.start, events),
            )
        return part


def build_part(
    entries: Sequence[SegmentEntry], filters: Sequence[SegmentFilters] = ()
) -> tuple[bytes, bytes]:
    """Return a part's object as two pieces: the bytes its digest covers, and what lies behind."""
    part, behind = _with_chunks(from_entries(entries), [e.stats for e in entries], filters)
    return encode_object(SEGMENTS, part), behind


def _with_chunks(
    columns: SegmentColumns, stats: Sequence[str | None], filters: Sequence[SegmentFilters]
) -> tuple[Part, bytes]:
    chunks, behind = encode_chunks(stats)
    filter_chunks, rest = encode_filter_chunks(filters)
    return Part(columns, chunks, filter_chunks), behind + rest


def _events(columns: SegmentColumns) -> int:
    # Each value is below 2^63, but the sum may not be: an overflow would produce a false range.
    low = int(np.sum(columns.rows & 0xFFFFFFFF, dtype=np.uint64))
    return low + (int(np.sum(columns.rows >> 32, dtype=np.uint64)) << 32)
