"""Tables of a root: rows spill to parts, parts are merged by levels and moved to lists.

Segments, history rows, writers and retired objects are such tables. The newest rows are in the
root. When there are many, they spill to a part. `Limits.fan_in` parts of one level are merged into
one of the next, until a part is final. Old parts are moved, in groups, to lists of parts. So a root
names few parts and few lists, however many rows there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Generic, NamedTuple

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format.bounds import Piece, merge
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import LIST, Kind, T
from segstore_ds.format.root import PartRef, Retired, Root
from segstore_ds.format.statistics import build_text, parse_piece
from segstore_ds.status.store import ObjectStore

Wanted = Callable[[PartRef], bool]


def _all(_ref: PartRef) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a commit: its version, its time, and how many races it has lost before."""

    version: int
    time_us: int
    attempt: int

    def retire(self, kind: str, path: str) -> Retired:
        """Return the record of an object that the commit drops."""
        return Retired(kind, path, self.version, self.time_us)


@dataclass(slots=True)
class Limits:
    """How many rows of a table a root holds, and how large its parts grow."""

    rows: int  # most rows in a root
    hard: int  # most rows after a lost race, and in a part of the lowest level
    text_bytes: int  # most bytes of the rows' texts in a root; twice as many after a lost race
    parts: int = 96  # most parts in a root; twice as many after a lost race
    listed: int = 1024  # most parts in a list
    fan_in: int = 10  # how many parts of one level are merged into one of the next
    # Parts with this many rows are not merged any more. Merged parts have at most twice as many.
    final: int = 32_768

    def are_passed(self, slot: Slot, *, rows: int, text_bytes: int) -> bool:
        """Tell whether rows of a root have to move to a part."""
        if slot.attempt == 0:
            return rows > self.rows or text_bytes > self.text_bytes
        return rows > self.hard or text_bytes > 2 * self.text_bytes

    def level(self, count: int) -> int:
        """Return the level of a part with `count` rows."""
        level, limit = 0, self.hard
        while count > limit:
            level, limit = level + 1, limit * self.fan_in
        return level


SEGMENTS = Limits(64, 160, 8_000)
HISTORY = Limits(56, 160, 3_000, parts=64)
WRITERS = Limits(256, 512, 9_000, parts=32, fan_in=2)  # few: a new writer id is looked up in all
RETIRED = Limits(192, 384, 16_000, parts=40)


class Fields(NamedTuple):
    """The fields of a root that hold a table."""

    rows: str
    parts: str
    lists: str


class Table(ABC):
    """The parts of one table, adjacent if it is `tiled`, and the lists of its older parts."""

    fields: ClassVar[Fields]
    limits: ClassVar[Limits]
    tiled: ClassVar[bool] = True

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @abstractmethod
    def put_joined(self, version: int, refs: Sequence[PartRef]) -> PartRef:
        """Write the rows of neighbouring parts as one part."""

    def lists(self, root: Root) -> tuple[PartRef, ...]:
        """Return the lists of a root."""
        found: tuple[PartRef, ...] = getattr(root, self.fields.lists)
        return found

    def inline(self, root: Root) -> tuple[PartRef, ...]:
        """Return the parts that the root itself names, not those in lists."""
        found: tuple[PartRef, ...] = getattr(root, self.fields.parts)
        return found

    def parts(
        self, root: Root, start: int = 0, end: int = 1 << 63, wanted: Wanted = _all
    ) -> Iterator[PartRef]:
        """Yield the `wanted` parts with rows of ``[start, end)``, also those in `wanted` lists."""

        def meets(ref: PartRef) -> bool:
            return ref.start < end and ref.end > start and wanted(ref)

        for ref in filter(meets, self.lists(root)):
            yield from filter(meets, self.members(ref))
        yield from filter(meets, self.inline(root))

    def members(self, ref: PartRef) -> tuple[PartRef, ...]:
        """Return the parts of a list."""
        parts = self._store.get(ref, LIST)
        if self.tiled and any(part.end != after.start for part, after in pairwise(parts)):
            raise CorruptionError("parts of a list are not adjacent", where=self._store.where(ref))
        found = list_ref(ref.path, ref.bytes, parts)
        if found != ref or ref.stats not in (None, found.stats):
            raise CorruptionError("list contradicts the root", where=self._store.where(ref))
        return parts

    def put_list(self, version: int, parts: tuple[PartRef, ...]) -> PartRef:
        """Write a list of parts."""
        stored = self._store.put(version, LIST, parts)
        return list_ref(stored.path, stored.bytes, parts)

    def change(
        self,
        root: Root,
        slot: Slot,
        gone: Sequence[PartRef],
        *,
        lists: Sequence[PartRef] | None = None,
        parts: Sequence[PartRef] | None = None,
    ) -> Root:
        """Return the root with other lists and parts, and the objects in `gone` retired."""
        changes: dict[str, Any] = {}
        if lists is not None:
            changes[self.fields.lists] = tuple(lists)
        if parts is not None:
            changes[self.fields.parts] = tuple(parts)
        retired = (slot.retire("status", ref.path) for ref in gone)
        return replace(root, retired=(*root.retired, *retired), **changes)

    def spill(self, root: Root, slot: Slot) -> Root:
        """Move the older parts to lists if there are too many; the last list is filled up first."""
        most, listed = self.limits.parts, self.limits.listed
        parts: tuple[PartRef, ...] = getattr(root, self.fields.parts)
        if len(parts) <= (most if slot.attempt == 0 else 2 * most):
            return root
        if root.operation == Operation.MERGE:
            return root  # seams expect the part that a merge wrote in the root itself
        kept = parts[-(most // 2) :]
        moved, lists = parts[: len(parts) - len(kept)], list(self.lists(root))
        gone: list[PartRef] = []
        if lists and len(self.members(lists[-1])) < listed:
            gone.append(lists.pop())
            moved = (*self.members(gone[0]), *moved)
        groups = (moved[at : at + listed] for at in range(0, len(moved), listed))
        lists.extend(self.put_list(root.version, group) for group in groups)
        return self.change(root, slot, gone, lists=lists, parts=kept)

    def replace(
        self, root: Root, slot: Slot, changes: Mapping[str, Sequence[PartRef]], *, start: int = 0
    ) -> Root:
        """Return the root with parts replaced as `changes` says by path, and the old ones retired.

        All lists from the first one with such a part on are dissolved, and `spill` writes new ones.
        A list that ends at or before `start` has none and is not read.
        """
        if not changes:
            return root
        kept, opened = list[PartRef](), list[PartRef]()
        gone = list[PartRef]()
        for ref in self.lists(root):
            held = opened or (
                ref.end > start and any(part.path in changes for part in self.members(ref))
            )
            (opened if held else kept).append(ref)
        parts = (*(part for ref in opened for part in self.members(ref)), *self.inline(root))
        found = list[PartRef]()
        for part in parts:
            if part.path in changes:
                gone.append(part)
                found += changes[part.path]
            else:
                found.append(part)
        return self.change(root, slot, [*opened, *gone], lists=kept, parts=found)

    def due(self, root: Root) -> tuple[str, ...] | None:
        """Return the paths of neighbouring parts to merge; None when nothing is due. Pure."""
        parts = getattr(root, self.fields.parts)
        return plan_merge(parts, self.limits) if len(parts) >= self.limits.fan_in else None

    def merge(self, root: Root, paths: tuple[str, ...], slot: Slot) -> Root | None:
        """Replace neighbouring parts by one; None if the root no longer has them like that."""
        parts = self.inline(root)
        first = find_run([part.path for part in parts], paths)
        if first is None:
            return None
        last = first + len(paths)
        merged = self.put_joined(root.version, parts[first:last])
        merged = replace(merged, stats=join_stats(parts[first:last]))
        return self.change(
            root, slot, parts[first:last], parts=(*parts[:first], merged, *parts[last:])
        )


class RowsTable(Table, Generic[T]):
    """A table whose parts are read whole; a reference follows from the rows of its part."""

    kind: Kind[T]

    def part(self, ref: PartRef) -> T:
        """Return the rows of a part."""
        found = self._store.get(ref, self.kind)
        if not len(found) or self.ref_of(ref.path, ref.bytes, found) != ref:
            raise CorruptionError("part contradicts the root", where=self._store.where(ref))
        return found

    def put(self, version: int, rows: T) -> PartRef:
        """Write rows as a part; `version` is the newest version that the writer has seen."""
        stored = self._store.put(version, self.kind, rows)
        return self.ref_of(stored.path, stored.bytes, rows)

    def put_joined(self, version: int, refs: Sequence[PartRef]) -> PartRef:
        """Write the rows of neighbouring parts as one part."""
        return self.put(version, self.join([*map(self.part, refs)]))

    @abstractmethod
    def ref_of(self, path: str, size: int, rows: T) -> PartRef:
        """Return the reference to a part. Pure."""

    @abstractmethod
    def join(self, parts: Sequence[T]) -> T:
        """Return the rows of several parts as those of one. Pure."""


Damaged = Callable[[str, FormatError], None]


def _unheard(_path: str, _error: FormatError) -> None:
    """Ignore damage."""


def readable_parts(table: Table, root: Root, damaged: Damaged = _unheard) -> Iterator[PartRef]:
    """Yield the parts of a root in order; call `damaged` for a list that can't be read."""
    for ref in table.lists(root):
        try:
            yield from table.members(ref)
        except FormatError as error:
            damaged(ref.path, error)
    yield from table.inline(root)


def readable_rows(table: RowsTable[T], root: Root, damaged: Damaged = _unheard) -> Iterator[T]:
    """Yield the rows of each part of a root; call `damaged` for what can't be read."""
    for part in readable_parts(table, root, damaged):
        try:
            rows = table.part(part)
        except FormatError as error:
            damaged(part.path, error)
        else:
            yield rows


def list_ref(path: str, size: int, parts: Sequence[PartRef]) -> PartRef:
    """Return the reference to a list of parts. Pure."""
    ends = (min(part.start for part in parts), max(part.end for part in parts))
    count = sum(part.count for part in parts)
    times = (parts[0].time_us, parts[-1].last_us)
    return PartRef(path, *ends, count, size, *times, join_stats(parts))


def join_stats(parts: Sequence[PartRef]) -> str | None:
    """Return the joined statistics of several parts; None if one has none. Pure."""
    found = [(part.end - part.start, stats_of(part)) for part in parts]
    return build_text(merge(found))


def stats_of(part: PartRef) -> Piece:
    """Return the statistics in the reference to a part."""
    return parse_piece(part.stats, where=part.path)


def plan_merge(parts: Sequence[PartRef], limits: Limits) -> tuple[str, ...] | None:
    """Return the paths of neighbouring parts to merge, in order, or None when nothing is due.

    The newest `fan_in` parts are merged when they are of one level. But large parts, from large
    commits, can separate smaller ones. So when too many small parts have accumulated, the
    neighbours with the fewest rows in total are merged, whatever their levels.
    """
    fan_in = limits.fan_in
    if len(parts) < fan_in:
        return None
    run = parts[-fan_in:]
    one_level = len({limits.level(part.count) for part in run}) == 1
    if one_level and _fits(run, limits):
        return tuple(part.path for part in run)
    small = sum(1 for part in parts if part.count < limits.final)
    if small <= 4 * fan_in:
        return None
    runs = (parts[first : first + fan_in] for first in range(len(parts) - fan_in + 1))
    fitting = [run for run in runs if _fits(run, limits)]
    if not fitting:
        return None
    best = min(fitting, key=lambda run: sum(part.count for part in run))
    return tuple(part.path for part in best)


def _fits(run: Sequence[PartRef], limits: Limits) -> bool:
    return (
        all(part.count < limits.final for part in run)
        and sum(part.count for part in run) <= 2 * limits.final
    )


def find_run(listed: Sequence[str], paths: Sequence[str]) -> int | None:
    """Return where `paths` appear next to each other in `listed`, or None.

    >>> find_run(["a", "b", "c"], ["b", "c"]), find_run(["a", "x", "b"], ["a", "b"])
    (1, None)
    """
    if not paths or paths[0] not in listed:
        return None
    first = listed.index(paths[0])
    return first if list(listed[first : first + len(paths)]) == list(paths) else None
