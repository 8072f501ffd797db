"""The tables of segments, of writers and of retired objects, by their parts.

Segments are kept in memory as columns; an entry becomes a Python object only when a caller asks for
it, and statistics and filters are read when they are needed. The parts of the other tables are read
whole. A writer id may have rows in several parts and in the root: the newest row counts. Rows of
retired objects are removed when the objects are deleted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np

from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.format.parts.columns import SegmentColumns, concat
from segstore_ds.format.parts.kinds import RETIRED, SEGMENTS, WRITERS
from segstore_ds.format.parts.segments import (
    Part,
    SegmentFilters,
    build_part,
    read_filters,
    read_stats,
)
from segstore_ds.format.root import PartRef, Retired, Root, SegmentEntry, Writer
from segstore_ds.format.statistics import Stats
from segstore_ds.format.statistics import concat as concat_stats
from segstore_ds.status import table
from segstore_ds.status.store import ObjectStore, RowCache
from segstore_ds.status.table import Fields, RowsTable, Slot, Table

WHOLE_SEGMENTS = 4096  # a part with at most as many segments is read in one request, not in three


class SegmentsTable(Table):
    """The segments of one stream, in parts of adjacent ranges."""

    limits = table.SEGMENTS
    fields = Fields("entries", "parts", "lists")

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._stats = RowCache()

    def entries(self, ref: PartRef) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part with their statistics."""
        return tuple(self.columns(ref).entries(self.stats(ref).texts()))

    def columns(self, ref: PartRef, *, whole: bool = False) -> SegmentColumns:
        """Return the segments of a part; `whole` also fetches their statistics and filters."""
        return self._load(ref)[0].columns if whole else self._part(ref).columns

    def stats(self, ref: PartRef) -> Stats:
        """Return the statistics of a part's segments, and cache them."""
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
        """Tell whether a part is in memory, as it is in the process that has just written it."""
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
        """Return the filters of segments of some parts by segment id, if they were collected."""
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
        """Write a part again with the filters of up to `most` segments that lacked them."""
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
    """Return the statistics of entries; unreadable ones count as unknown."""
    return Stats.of_texts([entry.stats for entry in entries])


def _events(columns: SegmentColumns) -> int:
    # Each value is below 2^63, but the sum may not be: an overflow would produce a false range.
    low = int(np.sum(columns.rows & 0xFFFFFFFF, dtype=np.uint64))
    return low + (int(np.sum(columns.rows >> 32, dtype=np.uint64)) << 32)


class RetiredTable(RowsTable[tuple[Retired, ...]]):
    """The objects that commits dropped, in the order of these commits."""

    kind, limits, tiled = RETIRED, table.RETIRED, False
    fields = Fields("retired", "retired_parts", "retired_lists")

    def groups(self, root: Root) -> Iterator[tuple[PartRef | None, tuple[Retired, ...]]]:
        """Yield the retired objects, oldest first, with their part; None for those in the root."""
        for ref in self.parts(root):
            yield ref, self.part(ref)
        if root.retired:
            yield None, root.retired

    def all(self, root: Root) -> Iterator[Retired]:
        """Yield the retired objects, oldest first."""
        return chain.from_iterable(items for _, items in self.groups(root))

    def tidy(self, root: Root, slot: Slot) -> Root:
        """Move the rows of a root to a part if there are too many."""
        size = sum([len(item.path) for item in root.retired])
        if root.retired and self.limits.are_passed(slot, rows=len(root.retired), text_bytes=size):
            part = self.put(root.version, root.retired)
            root = replace(root, retired=(), retired_parts=(*root.retired_parts, part))
        return self.spill(root, slot)

    def ref_of(self, path: str, size: int, rows: tuple[Retired, ...]) -> PartRef:
        """Return the reference to a part. Pure."""
        versions, times = [item.version for item in rows], [item.time_us for item in rows]
        ends = (min(versions), max(versions) + 1)
        return PartRef(path, *ends, len(rows), size, min(times), max(times))

    def join(self, parts: Sequence[tuple[Retired, ...]]) -> tuple[Retired, ...]:
        """Return the rows of several parts as those of one. Pure."""
        return tuple(chain.from_iterable(parts))


class WritersTable(RowsTable[Mapping[str, Writer]]):
    """The last batch of each writer id."""

    kind, limits, tiled = WRITERS, table.WRITERS, False
    fields = Fields("writers", "writers_parts", "writers_lists")

    def find(self, root: Root, name: str) -> Writer | None:
        """Return the last batch of a writer id, from the root or the newest part that has it."""
        if (found := root.writers.get(name)) is not None:
            return found
        refs = reversed([*self.parts(root)])
        return next((each for ref in refs if (each := self.part(ref).get(name))), None)

    def all(self, root: Root) -> dict[str, Writer]:
        """Return the last batch of every writer id."""
        found: dict[str, Writer] = {}
        for ref in self.parts(root):
            found.update(self.part(ref))
        found.update(root.writers)
        return found

    def tidy(self, root: Root, slot: Slot) -> Root:
        """Move the writers that committed longest ago to a part if there are too many."""
        passed = partial(self.limits.are_passed, slot)
        if root.writers and passed(rows=len(root.writers), text_bytes=text_bytes(root.writers)):
            by_age = sorted(root.writers.items(), key=_age)
            first = max(0, len(by_age) - self.limits.rows // 4)
            while text_bytes(dict(by_age[first:])) > self.limits.text_bytes // 4:
                first += 1
            # Writers of this commit stay in the root, so all that moves is in the parent root, too.
            own = sum(1 for _, writer in by_age if writer.version == slot.version)
            first = min(first, len(by_age) - own)
            if first:
                part = self.put(root.version, dict(by_age[:first]))
                parts = (*root.writers_parts, part)
                root = replace(root, writers=dict(by_age[first:]), writers_parts=parts)
        return self.spill(root, slot)

    def ref_of(self, path: str, size: int, rows: Mapping[str, Writer]) -> PartRef:
        """Return the reference to a part. Pure."""
        versions = [writer.version for writer in rows.values()]
        return PartRef(path, min(versions), max(versions) + 1, len(rows), size)

    def join(self, parts: Sequence[Mapping[str, Writer]]) -> Mapping[str, Writer]:
        """Return the rows of several parts as those of one, with each name's newest. Pure."""
        found: dict[str, Writer] = {}
        for part in parts:
            found.update(part)
        return dict(sorted(found.items(), key=_age))


def _age(item: tuple[str, Writer]) -> tuple[int, str]:
    return item[1].version, item[0]


def text_bytes(writers: Mapping[str, Writer]) -> int:
    """Return about how many bytes the names, owners and fingerprints of writers take. Pure."""
    texts = [text for name, each in writers.items() for text in (name, each.owner)]
    size = len("".join(texts).encode("utf-8", "surrogatepass"))
    return size + sum([len(each.fingerprint) for each in writers.values()])
