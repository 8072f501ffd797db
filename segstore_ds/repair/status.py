"""Repair what a root names: history, blobs, lists of parts and parts. It deletes nothing.

An object that is found again byte for byte is written under its own name. This repairs every
version that names it, at once and without a commit. What is found without that proof gets another
name, and one commit replaces all lost references with the new ones. If a list of dropped objects is
lost, the same commit drops those objects again: they are deleted later than necessary, and nothing
else is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Any, TypeVar

from segstore_ds.errors import ConflictError, FormatError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import HISTORY, KINDS, LIST, Kind, encode_object
from segstore_ds.format.root import BlobRef, PartRef, Retired, Root
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.repair.kept_versions import KeptVersions
from segstore_ds.repair.rebuild_parts import FoundPart, PartRebuilder
from segstore_ds.repair.rebuild_rest import (
    Found,
    HistoryRebuilder,
    find_epoch,
    find_writers,
    read_facts,
)
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.history import History
from segstore_ds.status.references import list_objects, read_references
from segstore_ds.status.slot import Slot
from segstore_ds.status.store import is_proven, object_path
from segstore_ds.status.table import Table, readable_parts, readable_rows
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage

Ref = TypeVar("Ref", PartRef, BlobRef)


@dataclass(slots=True)
class Findings:
    """What a repair of the status did: what was rebuilt, and what could not be."""

    repaired: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def repair_status(context: StreamContext, root: Root, *, allow_loss: bool) -> Findings:
    """Rebuild what a root names and that can't be read; safe to repeat.

    With `allow_loss`, history rows that are not known are marked as unknown; Spark's own types are
    dropped if only segments hold the schema; and owners and fingerprints of writers are dropped if
    only the history holds their batches.
    """
    return _StatusRepair(context, root, allow_loss=allow_loss).run()


class _StatusRepair:
    def __init__(self, context: StreamContext, root: Root, *, allow_loss: bool) -> None:
        self._context = context
        self._root = root  # the newest version
        self._planned = root  # what replaces it, if anything changes
        self._allow_loss = allow_loss
        self._gone: list[str] = []
        self._findings = Findings()
        self._start_over()

    def run(self) -> Findings:
        status, history = self._context.status, self._history
        self._repair_table(history, self._find_history_list, self._rows)
        self._repair_epochs()
        # No version that is kept is old enough to name the parts of a list of writers.
        self._repair_table(status.writers, lambda _ref: None, self._writers)
        self._repair_table(status.table, lambda ref: self._rebuilder().find_list(ref), self._part)
        dropped = self._lost_retired()
        if self._planned != self._root or dropped is not None:
            self._commit(dropped)
        return self._findings

    def _start_over(self) -> None:
        """Read everything again: an object that was just restored may help to find the next one."""
        self._context = self._context.fresh()
        self._history = History(self._context.storage)
        self._kept = KeptVersions(self._context, self._root)
        self._rebuilder = cache(
            lambda: PartRebuilder(self._kept, read_facts(self._history, self._planned))
        )

    def _repair_table(
        self,
        table: Table,
        find_list: Callable[[PartRef], tuple[PartRef, ...] | None],
        repair: Callable[[PartRef], PartRef],
    ) -> None:
        """Repair the lists of a table, then its parts."""
        lists = [self._repair_list(ref, table, find_list) for ref in table.lists(self._planned)]
        changes: dict[str, Any] = {table.fields.lists: tuple(lists)}
        self._planned = replace(self._planned, **changes)
        self._start_over()
        changes[table.fields.parts] = tuple(map(repair, table.inline(self._planned)))
        changes[table.fields.lists] = tuple(
            self._repair_listed(ref, table, repair) for ref in lists
        )
        self._planned = replace(self._planned, **changes)
        self._start_over()

    def _repair_list(
        self, ref: PartRef, table: Table, find: Callable[[PartRef], tuple[PartRef, ...] | None]
    ) -> PartRef:
        """Return a reference to a list that can be read, or the same one if nobody knows it."""
        if _reads(partial(table.members, ref)):
            return ref
        parts = find(ref)
        if parts is None:
            self._findings.damaged.append(
                f"{ref.path} of [{ref.start}, {ref.end}) can't be built again"
            )
            return ref
        return self._put(ref, LIST, encode_object(LIST, parts))

    def _repair_listed(
        self, ref: PartRef, table: Table, repair: Callable[[PartRef], PartRef]
    ) -> PartRef:
        """Repair the parts of a list, if it can be read."""
        if not _reads(partial(table.members, ref)):
            return ref
        listed = table.members(ref)
        repaired = tuple(map(repair, listed))
        return ref if repaired == listed else self._put(ref, LIST, encode_object(LIST, repaired))

    # --- one object ------------------------------------------------------------------------------

    def _find_history_list(self, ref: PartRef) -> tuple[PartRef, ...] | None:
        return HistoryRebuilder(self._kept).find_list(ref)

    def _rows(self, ref: PartRef) -> PartRef:
        if _reads(partial(self._history.part, ref)):
            return ref
        refs = readable_parts(self._history, self._planned)
        before = next((other for other in refs if other.end == ref.start), None)
        data, unknown = HistoryRebuilder(self._kept).find_rows(ref, before)
        if unknown and not self._allow_loss:
            self._findings.damaged.append(
                f"{ref.path} can't be built again: nothing tells the rows of versions "
                f"{_ranges(unknown)}; allow_loss=True marks them as unknown"
            )
            return ref
        note = f", versions {_ranges(unknown)} marked as unknown" if unknown else ""
        return self._put(ref, HISTORY, data, note=note)

    def _repair_epochs(self) -> None:
        epochs = list(self._planned.epochs)
        for number, epoch in enumerate(epochs):
            known = partial(epoch_schema, self._context.status, epoch)
            if epoch.blob is not None and not _reads(known):
                found = find_epoch(self._kept, epoch, epoch.blob)
                lacks = "segments tell the schema, but not Spark's own types"
                epochs[number] = replace(epoch, blob=self._repair_blob(epoch.blob, found, lacks))
        self._planned = replace(self._planned, epochs=tuple(epochs))

    def _writers(self, part: PartRef) -> PartRef:
        if _reads(partial(self._context.status.writers.part, part)):
            return part
        lacks = "the history tells each writer's last batch, not its owner and fingerprint"
        found = find_writers(self._kept, lambda: read_facts(self._history, self._planned), part)
        return self._repair_blob(part, found, lacks)

    def _repair_blob(self, blob: Ref, found: Found | None, lacks: str) -> Ref:
        """Return a reference to what was found, or the same one; `lacks` says what is not known."""
        if found is None or (found[1] and not self._allow_loss):
            why = f": {lacks}; allow_loss=True continues without those" if found else ""
            self._findings.damaged.append(f"{blob.path} can't be built again{why}")
            return blob
        return self._put(blob, KINDS[names.parse_status_kind(blob.path) or ""], found[0])

    def _part(self, part: PartRef) -> PartRef:
        status = self._context.status
        table = status.table
        reads = (partial(read, part) for read in (table.check_size, table.entries, table.filters))
        if all(map(_reads, reads)):
            return part
        found = self._rebuilder().find(part)
        if found.data is not None:
            self._put_back(part.path, found.data)
            return part
        if not found.entries:
            self._findings.damaged.append(_unproven(part, found))
            return part
        self._gone.append(part.path)
        self._findings.repaired.append(part.path)
        schema_of = self._rebuilder().schema_of
        return status.put_part(self._root, part.start, found.entries, schema_of=schema_of)

    # --- what was dropped ----------------------------------------------------------------------

    def _lost_retired(self) -> tuple[Retired, ...] | None:
        """Return the known dropped objects if some of their lists are lost; else None."""
        status, lost = self._context.status, list[str]()
        rows = readable_rows(status.retired, self._root, lambda path, _error: lost.append(path))
        known = [*chain.from_iterable(rows)]
        for item in (*known, *self._root.retired):
            if item.kind != "part" or _reads(partial(status.table.retired, item.path)):
                continue
            if not self._put_back_retired(item):
                lost.append(item.path)
        if not lost:
            return None
        if self._findings.damaged:
            self._findings.damaged += [
                f"{path} can't be built again before what the newest version lists can be read"
                for path in lost
            ]
            return None
        self._findings.repaired += [
            f"{path}: the objects that it listed are dropped once more" for path in lost
        ]
        held = (*self._root.retired_lists, *readable_parts(status.retired, self._root))
        self._gone += [ref.path for ref in held]
        return tuple(
            replace(item, kind="status") if item.path in lost else item
            for item in (*known, *self._planned.retired)
        )

    def _put_back_retired(self, item: Retired) -> bool:
        """Restore a dropped part if the version before its drop proves it."""
        root = self._kept.at(item.version - 1)
        listed = self._kept.parts_of(root) if root is not None else []
        for part in (other for other in listed if other.path == item.path):
            found = self._rebuilder().find(part)
            if found.data is not None:
                self._put_back(part.path, found.data)
                return True
        return False

    def _drop_again(self, planned: Root, known: tuple[Retired, ...], slot: Slot) -> Root:
        """Return the root with everything dropped that neither it nor a readable list names."""
        bare = replace(planned, retired=known, retired_parts=(), retired_lists=())
        status = TableStatus(self._context.storage)
        refs = read_references(status, bare)
        named = refs.live | {*refs.retired}
        prefix = f"{names.SEGMENTS_FOLDER}/"
        added = [
            slot.retire("segment", info.path.removeprefix(prefix))
            if info.path.startswith(prefix)
            else slot.retire("status", info.path)
            for info in list_objects(self._context.storage)
            if info.path not in named
        ]
        return replace(bare, retired=(*known, *added))

    # --- writing -------------------------------------------------------------------------------

    def _commit(self, dropped: tuple[Retired, ...] | None) -> None:
        status = self._context.status
        planned = replace(self._planned, operation=Operation.REPAIR, client=self._context.client)

        def build(newest: Root, slot: Slot) -> Change[None]:
            if newest.version != self._root.version:
                raise ConflictError(
                    "another writer committed first", remedy="stop writers, then repair"
                )
            changed = planned
            if dropped is not None:
                changed = self._drop_again(planned, dropped, slot)
            gone = {path: slot.retire("status", path) for path in self._gone}
            items = {*(item.path for item in changed.retired)}
            added = tuple(item for path, item in gone.items() if path not in items)
            return Change(status.tidy(replace(changed, retired=(*changed.retired, *added)), slot))

        self._context.log.commit(build)

    def _put_back(self, path: str, data: bytes) -> None:
        """Replace the damaged object in one step, and read it back."""
        put_back(self._context.storage, path, data)
        if self._context.storage.get(path) == data:
            self._findings.repaired.append(path)
        else:
            self._findings.damaged.append(f"{path} was restored, but has different content")

    def _put(self, ref: Ref, kind: Kind[Any], data: bytes, *, note: str = "") -> Ref:
        """Put an object back if it is the lost one; else write it under another name."""
        if is_proven(ref, data):
            self._put_back(ref.path, data)
            return ref
        path = object_path(self._root.version, kind, data)
        self._context.storage.put_named(path, data)
        self._gone.append(ref.path)
        self._findings.repaired.append(ref.path + note)
        return replace(ref, path=path, bytes=len(data))


def put_back(storage: Storage, path: str, data: bytes) -> None:
    """Write an object over whatever its name holds, in one step: a failure leaves old or new."""
    with storage.open_staged(path, replace=True) as writer:
        writer.write(data)
        writer.commit()


def _unproven(part: PartRef, found: FoundPart) -> str:
    text = f"{part.path} of [{part.start}, {part.end}) can't be built again"
    ranges = ", ".join(f"[{start}, {end})" for start, end in found.missing)
    return f"{text}: nothing proves which segments hold {ranges}" if ranges else text


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return ascending numbers as ranges.

    >>> _ranges((1, 2, 3, 7))
    '1 to 3, 7'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, dict.fromkeys(run))) for run in runs)


def _reads(read: Callable[[], object]) -> bool:
    try:
        read()
    except FormatError:
        return False
    return True
