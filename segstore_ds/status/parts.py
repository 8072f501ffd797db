"""Status parts: segments as columns, with their statistics and filters behind them.

Parts are kept in memory as columns; an entry becomes an object only where a caller asks for it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import numpy as np

from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.format.parts.columns import SegmentColumns, concat
from segstore_ds.format.parts.kinds import SEGMENTS
from segstore_ds.format.parts.segments import (
    Part,
    SegmentFilters,
    build_part,
    read_filters,
    read_stats,
)
from segstore_ds.format.root import PartRef, SegmentEntry
from segstore_ds.format.statistics import Stats
from segstore_ds.format.statistics import concat as concat_stats
from segstore_ds.status.store import ObjectStore, RowCache
from segstore_ds.status.table import SEGMENTS as LIMITS
from segstore_ds.status.table import Fields, Table

WHOLE_SEGMENTS = 4096  # up to so many, one request for a whole part beats three for pieces of it


class SegmentsTable(Table):
    """The segments of one stream, in parts of adjacent ranges."""

    limits = LIMITS
    fields = Fields("entries", "parts", "lists")

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._stats = RowCache()

    def entries(self, ref: PartRef) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part with their statistics."""
        return tuple(self.columns(ref).entries(self.stats(ref).texts()))

    def columns(self, ref: PartRef, *, whole: bool = False) -> SegmentColumns:
        """Return the segments of a part; `whole` fetches all behind them in the same request."""
        return self._load(ref)[0].columns if whole else self._part(ref).columns

    def stats(self, ref: PartRef) -> Stats:
        """Return the statistics of a part's segments; kept, as parts never change."""
        found: Stats | None = self._stats.get(ref.path)
        if found is None:
            part = self._part(ref)
            parse = partial(read_stats, part, where=self._store.where(ref))
            if not part.filters.bytes:
                self._load(ref)  # all of it, in one request
            found = self._store.behind(ref, 0, part.stats.bytes, parse)
            self._stats.keep(ref.path, found.rows, found)
        return found

    def filters(self, ref: PartRef) -> list[SegmentFilters]:
        """Return the filters of a part's segments; None where they were not collected yet."""
        part = self._part(ref)
        parse = partial(read_filters, part, where=self._store.where(ref))
        return self._store.behind(ref, part.stats.bytes, part.behind_bytes, parse)

    def holds(self, ref: PartRef) -> bool:
        """Tell whether a part is in memory, as it is where it was just written."""
        return self._store.holds(ref)

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

    def put(
        self,
        version: int,
        start: int,
        columns: SegmentColumns,
        stats: Stats,
        filters: Sequence[SegmentFilters] = (),
    ) -> PartRef:
        """Write a part whose first event is at offset `start`.

        `version` is the newest version that the writer has seen.
        """
        part, behind = build_part(columns, stats, filters)
        stored = self._store.put(version, SEGMENTS, part, behind)
        return PartRef(stored.path, start, start + _events(columns), len(columns), stored.bytes)

    def filters_by_id(self, refs: Sequence[PartRef]) -> dict[int, SegmentFilters]:
        """Return the filters of segments of some parts, by id, where they were collected."""
        found: dict[int, SegmentFilters] = {}
        for ref in refs:
            part = self._part(ref)
            if part.looked:
                ids = (part.columns.epochs << 32 | part.columns.numbers).tolist()
                pairs = zip(ids, self.filters(ref), strict=True)
                found.update(pair for pair in pairs if pair[1] is not None)
        return found

    def lacks_filters(self, ref: PartRef) -> bool:
        """Tell whether a part has a segment whose filters were not collected yet."""
        part = self._part(ref)
        return part.looked < len(part)

    def put_joined(self, version: int, refs: Sequence[PartRef]) -> PartRef:
        """Write the segments of neighbouring parts as one part."""
        columns = concat(self._load(ref)[0].columns for ref in refs)
        stats = concat_stats([self.stats(ref) for ref in refs])
        filters = [found for ref in refs for found in self.filters(ref)]
        return self.put(version, refs[0].start, columns, stats, filters)

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
        filters = self.filters(ref)
        rows = list(islice((n for n, found in enumerate(filters) if found is None), most))
        looked = find([columns.entry(row) for row in rows])
        if all(found is None for found in looked):
            return None
        for row, found in zip(rows, looked, strict=True):
            filters[row] = found
        return self.put(version, ref.start, columns, self.stats(ref), filters)

    def _part(self, ref: PartRef) -> Part:
        return self._checked(ref, self._store.get(ref, SEGMENTS))

    def _load(self, ref: PartRef) -> tuple[Part, bytes]:
        part, behind = self._store.get_all(ref, SEGMENTS)
        return self._checked(ref, part), behind

    def _checked(self, ref: PartRef, part: Part) -> Part:
        found, events = len(part), _events(part.columns)
        if found != ref.count or events != ref.end - ref.start:
            raise CorruptionError(
                "status part contradicts the root",
                where=self._store.where(ref),
                segments=(ref.count, found),
                rows=(ref.end - ref.start, events),
            )
        return part


def stats_of(entries: Sequence[SegmentEntry]) -> Stats:
    """Return the statistics of entries; unreadable ones are unknown: the events may be sound."""
    return Stats.of_texts([entry.stats for entry in entries])


def _events(columns: SegmentColumns) -> int:
    # Each value is below 2^63, but the sum may not be: an overflow would produce a false range.
    low = int(np.sum(columns.rows & 0xFFFFFFFF, dtype=np.uint64))
    return low + (int(np.sum(columns.rows >> 32, dtype=np.uint64)) << 32)
