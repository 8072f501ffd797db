"""Rebuild status parts and lists of parts from what is left. This module writes nothing.

A part lists the segments that were live in its range when it was made. It was made by the version
after the one in its name. The kept version before that lists the same segments, except those that
this one commit added. Those are found by their names, by their own footers, and by what the history
says about the commit. A result is *proven* if its bytes have the digest that the root names: then
it is the lost object itself. Without that proof (another zstd release compresses to other bytes) a
result counts only if kept versions name every segment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.key_columns import key_columns_of
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.key_filters import SegmentFilters
from segstore_ds.format.parts.kinds import SEGMENTS
from segstore_ds.format.root import PartRef, Retired, SegmentEntry
from segstore_ds.repair.history_facts import HistoryFacts
from segstore_ds.repair.kept_versions import KeptVersions
from segstore_ds.repair.lists import find_list
from segstore_ds.repair.segment_schemas import epochs_by_fingerprint
from segstore_ds.repair.tiling import covers, tile, tile_known
from segstore_ds.repair.unlisted import (
    Unlisted,
    choose_committed,
    choose_neighbours,
    describe,
    find_unlisted,
    is_there,
)
from segstore_ds.status.key_filters import find_filters
from segstore_ds.status.parts import build_part
from segstore_ds.status.store import is_proven
from segstore_ds.status.table_status import PlacedSegment, TableStatus

_MOST_TRIED = 500  # whole parts that are encoded to compare their digests
_MOST_BLOCKS = 5000  # steps of the search for the parts that were merged

Added = tuple[int | None, Unlisted]  # the version that added a segment, where that is known


@dataclass(slots=True)
class FoundPart:
    """What was found of a lost part.

    Attributes:
        entries: All of its segments; empty if they are not all known.
        data: The lost object itself, byte for byte; None if that is not proven.
        placed: The segments that are certain, in offset order.
        missing: The ranges about which nothing is certain.
    """

    entries: tuple[SegmentEntry, ...] = ()
    data: bytes | None = None
    placed: list[PlacedSegment] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)


class PartRebuilder:
    """Rebuilds the lost parts of one root from kept versions and the history."""

    def __init__(self, kept: KeptVersions, facts: HistoryFacts) -> None:
        self._kept = kept
        self._facts = facts
        self._unlisted: list[Unlisted] | None = None
        self._numbers: set[int] = set()
        self._knows_dropped = True
        self._filters: dict[str, SegmentFilters] = {}

    def find(self, part: PartRef) -> FoundPart:
        """Find the segments of a part."""
        made = names.parse_status_version(part.path) or 0
        known = self._own(part) or self._told(part, made)
        runs, missing = tile_known(known, part.start, part.end)
        for chosen in self._fillings(part, made, runs, missing):
            entries = self._entries(part, made, runs, missing, chosen)
            data = None if entries is None else self._packed(part, entries)
            if entries is not None and data is not None:
                return FoundPart(entries, data, _place(part.start, entries))
        if missing:
            for entries in self._blocks(part, made):
                if (data := self._packed(part, entries)) is not None:
                    return FoundPart(entries, data, _place(part.start, entries))
        return self._unproven(part, runs)

    def find_list(self, ref: PartRef) -> tuple[PartRef, ...] | None:
        """Find the parts of a list; None if they are not known."""
        told = (self._kept.parts_of(root) for root in self._kept.older())
        return find_list(ref, told, self._neighbours(ref))

    def _neighbours(self, ref: PartRef) -> Iterator[tuple[PartRef, ...]]:
        """Yield the stored parts that may be a list's, by where they begin."""
        stored = self._lying_parts()
        for first in range(len(stored)):
            if parts := _from_offset(stored[first:], ref):
                yield parts

    def _lying_parts(self) -> list[PartRef]:
        """Return the stored parts that the root does not name, by segment number."""
        named = {part.path for part in self._kept.parts_of(self._kept.newest)}
        dropped = self._dropped(kinds=("status", "part"))
        found: list[tuple[int, PartRef]] = []
        for info in self._kept.objects(names.STATUS_FOLDER):
            other = info.path in named or info.path in dropped
            if names.parse_status_kind(info.path) != SEGMENTS.name or other:
                continue
            try:
                entries, size = self._kept.status.whole_part(info.path)
            except FormatError:
                continue
            rows = sum(entry.rows for entry in entries)
            part = PartRef(info.path, 0, rows, len(entries), size)
            found.append((entries[0].segment_id & 0xFFFFFFFF, part))
        return [part for _, part in sorted(found, key=lambda item: item[0])]

    # --- what is listed ------------------------------------------------------------------------

    def _own(self, part: PartRef) -> dict[int, PlacedSegment] | None:
        """Return what the part itself still says: perhaps only its statistics are damaged."""
        alone = replace(self._kept.newest, lists=(), parts=(part,), entries=())
        try:
            bare = list(
                TableStatus(self._kept.storage).segments(
                    alone, part.start, part.end, with_stats=False
                )
            )
        except FormatError:
            return None
        recorded = {
            segment.entry.segment_id: segment.entry for segment in self._told(part).values()
        }
        found: dict[int, PlacedSegment] = {}
        for segment in bare:
            entry = recorded.get(segment.entry.segment_id)
            if entry is None or replace(entry, stats=None) != segment.entry:
                read = describe(self._kept.storage, segment.entry.path, segment.entry.bytes)
                entry = (
                    segment.entry
                    if read is None
                    else replace(segment.entry, stats=read.entry.stats)
                )
            found[segment.start] = PlacedSegment(segment.start, entry)
        return found

    def _told(self, part: PartRef, made: int | None = None) -> dict[int, PlacedSegment]:
        """Return the segments that versions before the part list in its range, by offset.

        A segment is left out if it was dropped after the version that listed it, up to the part's
        own commit.
        """
        made = names.parse_status_version(part.path) or 0 if made is None else made
        dropped = self._dropped()
        found: dict[int, PlacedSegment] = {}
        for root in self._kept.older(made):
            listed = {
                segment.start: segment
                for segment in self._kept.segments_of(root, part.start, part.end, beside=part.path)
            }
            for start, segment in listed.items():
                gone = dropped.get(segment.entry.path, ())
                if not any(root.version < version <= made + 1 for version in gone):
                    found.setdefault(start, segment)
            first, last = max(part.start, root.listed_start), min(part.end, root.tail)
            # This version lists the range without a gap, so older versions add nothing.
            if tile(found, part.start, part.end) is not None or covers(listed, first, last):
                break
        return found

    def _dropped(self, kinds: Sequence[str] = ("segment",)) -> dict[str, list[int]]:
        """Return the versions that dropped an object of some kinds, by the object's path."""
        found: dict[str, list[int]] = {}
        for item in self._retired:
            if item.kind in kinds:
                found.setdefault(item.path, []).append(item.version)
        return found

    @cached_property
    def _retired(self) -> list[Retired]:
        """The objects that were dropped, as far as they can be read."""
        root, items = self._kept.newest, list(self._kept.newest.retired)
        for blob in root.retired_blobs:
            try:
                items += self._kept.status.retired_blob(blob)
            except FormatError:
                self._knows_dropped = False
        return items

    # --- what is not listed --------------------------------------------------------------------

    def _fillings(
        self,
        part: PartRef,
        made: int,
        runs: Sequence[PlacedSegment],
        missing: Sequence[tuple[int, int]],
    ) -> Iterator[tuple[tuple[Added, ...], ...]]:
        """Yield what may fill the gaps: for each gap its segments, in order."""
        if part.count - len(runs) < len(missing):
            return
        ways = [list(islice(self._ways(gap, made), _MOST_TRIED)) for gap in missing]
        yield from islice(product(*ways), _MOST_TRIED)

    def _ways(self, gap: tuple[int, int], made: int) -> Iterator[tuple[Added, ...]]:
        commits = self._commits(gap, made)
        if commits is not None:
            yield from islice(product_of(commits), _MOST_TRIED)
        if self._facts.operation(made + 1) == Operation.RESTORE:
            yield from self._restored(gap, made)
        unlisted = [segment for segment in self._all_unlisted() if segment.version <= made]
        complete = self._kept.at(made) is not None
        for run in choose_neighbours(unlisted, gap[1] - gap[0]):
            yield tuple(
                (made + 1 if complete else self._facts.compacted_after(segment.version), segment)
                for segment in run
            )

    def _restored(self, gap: tuple[int, int], made: int) -> Iterator[tuple[Added, ...]]:
        """Yield what a restore can have listed again: the segments of each kept version."""
        for root in self._kept.older(made):
            listed = list(self._kept.segments_of(root, root.head, root.tail))
            if sum(segment.entry.rows for segment in listed) == gap[1] - gap[0]:
                yield tuple(
                    (made + 1, Unlisted(segment.entry, "", made, (), epoch=segment.entry.epoch))
                    for segment in listed
                )

    def _commits(self, gap: tuple[int, int], made: int) -> list[list[tuple[Added, ...]]] | None:
        """Return, for each commit that appended to the gap, the segments it can have added.

        It returns None if the history does not say which commits those are.
        """
        rows = self._facts.appended(*gap, before=made + 2)
        if rows is None:
            return None
        unlisted = self._all_unlisted()
        ways: list[list[tuple[Added, ...]]] = []
        for row in rows:
            chosen = choose_committed(
                unlisted, before=row.version, segments=row.segments, rows=row.rows, nbytes=row.bytes
            )
            ways.append(
                [
                    tuple((row.version, segment) for segment in candidate)
                    for candidate in islice(chosen, 8)
                ]
            )
        return ways

    def _blocks(self, part: PartRef, made: int) -> Iterator[tuple[SegmentEntry, ...]]:
        """Yield the merge results of parts that no root lists any more.

        A merge drops the parts that it takes, and vacuum deletes them later than purge deletes the
        commits.
        """
        blocks = [
            block
            for info in self._kept.objects(names.STATUS_FOLDER)
            if names.parse_status_kind(info.path) == SEGMENTS.name
            and info.path != part.path
            and (names.parse_status_version(info.path) or 0) <= made
            and (block := self._block(info.path, part))
        ]
        blocks.sort(key=lambda block: block[0].segment_id & 0xFFFFFFFF)
        steps = [_MOST_BLOCKS]

        def search(
            first: int, rows: int, segments: int
        ) -> Iterator[tuple[tuple[SegmentEntry, ...], ...]]:
            if not rows:
                if not segments:
                    yield ()
                return
            for place in range(first, len(blocks)):
                steps[0] -= 1
                block = blocks[place]
                size = sum(entry.rows for entry in block)
                if steps[0] > 0 and size <= rows and len(block) <= segments:
                    for rest in search(place + 1, rows - size, segments - len(block)):
                        yield (block, *rest)

        for chosen in islice(search(0, part.end - part.start, part.count), _MOST_TRIED):
            yield tuple(entry for block in chosen for entry in block)

    def _block(self, path: str, part: PartRef) -> tuple[SegmentEntry, ...]:
        try:
            entries, _ = self._kept.status.whole_part(path)
        except FormatError:
            return ()
        fits = sum(entry.rows for entry in entries) < part.end - part.start
        return entries if fits and len(entries) < part.count else ()

    def _all_unlisted(self) -> list[Unlisted]:
        """Return the segments that the newest version does not list and nobody dropped."""
        if self._unlisted is None:
            root = self._kept.newest
            placed = self._kept.segments_of(root, root.listed_start, root.tail)
            listed = {segment.entry.path: segment.entry for segment in placed}
            self._numbers = {entry.segment_id & 0xFFFFFFFF for entry in listed.values()}
            objects = self._kept.objects(names.SEGMENTS_FOLDER)
            known = {*listed, *self._dropped()}
            self._unlisted = find_unlisted(self._kept.storage, objects, known)
        return self._unlisted

    # --- putting together ----------------------------------------------------------------------

    def _entries(
        self,
        part: PartRef,
        made: int,
        runs: Sequence[PlacedSegment],
        missing: Sequence[tuple[int, int]],
        chosen: Sequence[Sequence[Added]],
    ) -> tuple[SegmentEntry, ...] | None:
        """Return a part's segments in order, found ones with numbers and epochs; None on a misfit.

        A commit assigns its numbers in offset order.
        """
        if len(runs) + sum(map(len, chosen)) != part.count:
            return None
        paths = [segment.entry.path for added in chosen for _, segment in added]
        if len(set(paths)) != len(paths):
            return None
        used = {segment.entry.segment_id & 0xFFFFFFFF for segment in runs}
        if missing:
            self._all_unlisted()
            used |= self._numbers
        free: dict[int, list[int]] = {}
        committed = self._kept.at(made + 1) or self._kept.newest
        epochs = epochs_by_fingerprint(self._kept, committed)
        found: dict[int, PlacedSegment] = {segment.start: segment for segment in runs}
        for (cursor, _), added in zip(missing, chosen, strict=True):
            for version, segment in added:
                if segment.copied:
                    entry = segment.entry
                else:
                    epoch = (
                        epochs.get(segment.fingerprint) if segment.epoch is None else segment.epoch
                    )
                    if version is None or epoch is None:
                        return None
                    numbers = self._facts.numbers(version)
                    if version not in free:
                        free[version] = [n for n in numbers or () if n not in used]
                    if not free[version]:
                        return None
                    number = free[version].pop(0)
                    segment_id = epoch << 32 | number
                    entry = replace(segment.entry, segment_id=segment_id)
                found[cursor] = PlacedSegment(cursor, entry)
                cursor += entry.rows  # noqa: PLW2901 - the place of the next segment
        tiled = tile(found, part.start, part.end)
        return None if tiled is None else tuple(segment.entry for segment in tiled)

    def _packed(self, part: PartRef, entries: Sequence[SegmentEntry]) -> bytes | None:
        """Return the part as an object if it has the digest that its reference names."""
        data, rest = build_part(entries)
        if not is_proven(part, data) and key_columns_of(self._kept.newest):
            data, rest = build_part(entries, self._filters_of(entries))
        return data + rest if is_proven(part, data) else None

    def _filters_of(self, entries: Sequence[SegmentEntry]) -> list[SegmentFilters]:
        new = [entry for entry in entries if entry.path not in self._filters]
        found = find_filters(self._kept.storage, new)
        self._filters.update(zip((entry.path for entry in new), found, strict=True))
        return [self._filters[entry.path] for entry in entries]

    def _unproven(self, part: PartRef, runs: list[PlacedSegment]) -> FoundPart:
        """Return what kept versions list: the whole part, if the number of segments is right.

        Segments found for a gap never count here: a killed job may have left segments of the same
        sizes.
        """
        missing = tile_known({segment.start: segment for segment in runs}, part.start, part.end)[1]
        found = FoundPart(placed=runs, missing=missing)
        there = all(is_there(self._kept.storage, segment.entry) for segment in runs)
        if not missing and len(runs) == part.count and there and self._knows_dropped:
            found.entries = tuple(segment.entry for segment in runs)
        return found


def _place(start: int, entries: Sequence[SegmentEntry]) -> list[PlacedSegment]:
    placed = []
    for entry in entries:
        placed.append(PlacedSegment(start, entry))
        start += entry.rows
    return placed


def _from_offset(parts: Sequence[PartRef], ref: PartRef) -> tuple[PartRef, ...]:
    """Return the first parts that fill a list's range, with their offsets in it; () on a misfit."""
    placed, start = [], ref.start
    for part in parts:
        placed.append(replace(part, start=start, end=start + part.end - part.start))
        start = placed[-1].end
        if start >= ref.end:
            break
    return tuple(placed) if start == ref.end else ()


def product_of(ways: Sequence[Sequence[tuple[Added, ...]]]) -> Iterator[tuple[Added, ...]]:
    """Yield every way to take one choice for each commit, as one sequence."""
    for chosen in product(*ways):
        yield tuple(item for choice in chosen for item in choice)
