"""The tables of writers and of retired objects, whose parts are read whole.

A writer that has committed again is in the root or in a newer part, too: the newest row counts.
Retired objects leave their table when they are deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from segstore_ds.format.parts.kinds import RETIRED, WRITERS
from segstore_ds.format.root import PartRef, Retired, Root, Writer
from segstore_ds.status import table
from segstore_ds.status.table import Fields, RowsTable, Slot


class RetiredTable(RowsTable[tuple[Retired, ...]]):
    """The objects that commits dropped, in the order in which they did."""

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
        """Return what a writer id committed last, wherever it is stored."""
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
            # This commit's writers stay inline, so all that moves is also in the parent root.
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
        """Return the rows of several parts as those of one, the newer ones of a name. Pure."""
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
