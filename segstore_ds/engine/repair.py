"""Repair: build again what metadata can be built from metadata that is left. It deletes nothing.

- A lost or wrong hint is written anew.
- A lost status part, or list of parts, is put together from what kept versions list of its range;
  a commit puts it in the place of the lost one. Nothing is guessed: offsets, numbers of segments
  and the objects themselves have to fit.
- What a follower holds comes back from there: commits first, then objects.
- A lost newest commit can't be built again: only with `allow_loss` the stream goes on from the
  newest commit that can be read, as another generation, so that every position from before says so.
  It goes on without followers: those hold what was left behind, or lack the number that it had.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from segstore_ds.engine.commit import StreamLog
from segstore_ds.engine.epochs import epoch_schema
from segstore_ds.engine.history import LOST, NO_NOTE, describe_commit
from segstore_ds.engine.origins import share_origins
from segstore_ds.engine.repair_from_followers import (
    refuse_promoted,
    restore_commits,
    restore_objects,
)
from segstore_ds.engine.replicas import PROPERTY, followers_of
from segstore_ds.engine.state import Slot, broken_invariants
from segstore_ds.engine.table_status import PlacedSegment, TableStatus
from segstore_ds.errors import (
    ConflictError,
    CorruptionError,
    FormatError,
    InternalError,
    MissingObjectError,
    NotFoundError,
)
from segstore_ds.format import names
from segstore_ds.format.history_rows import HistoryPart, HistoryRow
from segstore_ds.format.root import PartRef, Root

NUMBERS_SKIPPED = 1 << 16  # what a lost commit may have given out
_ROOTS_KEPT = 64


class _Placed(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


T = TypeVar("T", bound=_Placed)


@dataclass(slots=True)
class RepairReport:
    """What `repair` found and did.

    Attributes:
        repaired: What was built again.
        lost: The versions that can't be read and were left behind.
        damaged: What can't be built again; `salvage` reads what is around it.
        version: The newest version from now on.
        generation: Its generation; grown where versions were left behind.
    """

    repaired: list[str] = field(default_factory=list)
    lost: range = range(0)
    damaged: list[str] = field(default_factory=list)
    version: int = 0
    generation: int = 0

    @property
    def ok(self) -> bool:
        """True when nothing is damaged any more, as far as metadata go; see `verify` for events."""
        return not self.damaged


def run_repair(
    log: StreamLog, *, allow_loss: bool, client: str, ignore_followers: bool = False
) -> RepairReport:
    """Build again what can be built; safe to repeat. Stop writers first.

    Raises:
        NotFoundError: There is no stream, or no commit of it can be read.
        CorruptionError: The newest commits can't be read, and loss is not allowed; names them.
        FencedError: They can't be read, and a follower was promoted in this folder's place.
        ConflictError: Other writers came first every time.
        CommitUnknownError: A repair may or may not be in the log.
        StorageError: The storage failed; or they can't be read, a follower can't tell whether it
            was promoted, and followers are not ignored.
    """
    report = RepairReport()
    base, lost = newest_readable(log)
    _refuse_strays(log, base)
    report.repaired += restore_commits(log, base)
    if report.repaired:
        base, lost = newest_readable(log)
    if lost:
        report.lost = lost
        if not allow_loss:
            raise CorruptionError(
                "the newest commits can't be read",
                remedy="put the files back from a backup; or repair with allow_loss=True goes on "
                "from the version before, and what they committed is lost. Where nothing but "
                f"{names.HINT_PATH} speaks of them, and may be wrong, delete that",
                url=log.storage.url,
                lost=len(lost),
                first=lost[0],
                last=lost[-1],
                version=base.version,
            )
        refuse_promoted(log, base, ignore_followers=ignore_followers)
        _go_on(log, base, client=client)
        report.repaired.append(f"the log goes on from version {base.version}")
        for url in followers_of(base):
            report.repaired.append(f"it has no followers: add {url} again, emptied")
    root = log.reopen()
    report.repaired += restore_objects(log, root)
    _repair_status(log, TableStatus(log.storage), root, report, client)
    if log.files.read_hint() != log.root.version:
        log.files.write_hint(log.root.version)
        report.repaired.append("the hint")
    report.version, report.generation = log.root.version, log.root.generation
    return report


def newest_readable(log: StreamLog) -> tuple[Root, range]:
    """Return the newest commit that can be read, and the versions behind it that can't.

    Numbers too far behind it to be of commits are passed over: one flipped bit makes them.

    Raises:
        NotFoundError: There is no commit, or none can be read.
        StorageError: The storage failed.
    """
    hint, numbers = log.files.read_hint(), log.files.numbers()
    for number in reversed(numbers):
        try:
            root = log.files.get(number)
        except FormatError:
            continue
        # A file under another number than its own is no commit of this log.
        if root is not None and root.version == number and not list(broken_invariants(root)):
            log.check_open(root)
            share_origins(log.storage, root)
            told = [*numbers, hint or 0]
            newest = max(one for one in told if one <= number + NUMBERS_SKIPPED)
            return root, range(number + 1, max(newest, number) + 1)
    raise NotFoundError("no commit that can be read", url=log.storage.url, versions=numbers[:20])


def _refuse_strays(log: StreamLog, base: Root) -> None:
    """Refuse files behind all commits: whoever lists the log takes the last one for the newest.

    Raises:
        CorruptionError: Names them.
        StorageError: The storage failed.
    """
    numbers = log.files.numbers()
    strays = [number for number in numbers if number > base.version + NUMBERS_SKIPPED]
    if strays:
        raise CorruptionError(
            "files far behind the newest commit are none of the stream's",
            remedy="move them out of the log, then repair again",
            url=log.storage.url,
            paths=[log.files.path(number) for number in strays[:20]],
            version=base.version,
        )


def _go_on(log: StreamLog, base: Root, *, client: str) -> None:
    # The first free number: behind a gap it would never be found by name.
    version = max(log.files.numbers()) + 1
    root = replace(
        base,
        version=version,
        parent=base.transaction,
        transaction=log.clock.new_id(),
        time_us=max(base.time_us, log.clock.wall_us()),
        generation=base.generation + 1,
        properties={name: text for name, text in base.properties.items() if name != PROPERTY},
        next_segment=base.next_segment + NUMBERS_SKIPPED,
        operation="repair",
        client=client,
    )
    row = replace(describe_commit(base, root, NO_NOTE), segments=0, bytes=0)
    before = log.history.tidy(
        replace(base, history=(*base.history, *_rows_of_lost(base, row))),
        Slot(version, root.time_us, 0),
    )
    root = replace(
        root,
        history=(*before.history, row),
        history_parts=before.history_parts,
        history_lists=before.history_lists,
        retired=before.retired,
    )
    broken = list(broken_invariants(root))
    if broken:
        raise InternalError("repair would break the stream", rules=broken)
    if not log.files.add(root.version, root):
        raise ConflictError("another writer came first", version=root.version)
    log.files.write_hint(root.version)


def _rows_of_lost(base: Root, row: HistoryRow) -> Iterator[HistoryRow]:
    """Yield a row for each version between the base and the repair, which are left behind."""
    if base.history:
        for version in range(base.version + 1, row.version):
            yield replace(row, version=version, operation=LOST)


# --- the table status ------------------------------------------------------------------------


def _repair_status(
    log: StreamLog, status: TableStatus, root: Root, report: RepairReport, client: str
) -> None:
    lists = {index.path for index in root.indexes if not _reads(partial(status.part_list, index))}
    lost = sorted(path for path, read in _single_objects(log, status, root) if not _reads(read))
    report.damaged += [f"{path} can't be built again" for path in lost]
    kept = _Kept(log, status, root)
    parts = _whole_parts(status, root, lists, kept)
    if parts is None:
        report.damaged += sorted(lists)
        return
    rebuilt: dict[str, list[PlacedSegment]] = {}
    for part in parts:
        if _reads(partial(status.part, part)):
            continue
        found = kept.segments(part)
        if found is None:
            report.damaged.append(f"{part.path} of [{part.start}, {part.end}) can't be built again")
        else:
            rebuilt[part.path] = found
    if not rebuilt and not lists:
        return

    def build(newest: Root, slot: Slot) -> Root | None:
        if newest.version != root.version:
            raise ConflictError("another writer came first", remedy="stop writers, then repair")
        placed = tuple(
            _put(status, newest, part, rebuilt[part.path]) if part.path in rebuilt else part
            for part in parts
        )
        gone = [*rebuilt, *(index.path for index in root.indexes)]
        retired = tuple(slot.retire("status", path) for path in gone)
        changed = replace(
            newest,
            indexes=(),
            parts=placed,
            retired=(*newest.retired, *retired),
            operation="repair",
            client=client,
        )
        return status.tidy(changed, slot)

    log.commit(build, transaction=log.clock.new_id())
    report.repaired += [*sorted(lists), *sorted(rebuilt)]


def _single_objects(
    log: StreamLog, status: TableStatus, root: Root
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the objects of which there is no second one, and how to read each."""
    for epoch in root.epochs:
        if epoch.blob is not None:
            yield epoch.blob.path, partial(epoch_schema, status, epoch)
    for blob in root.retired_blobs:
        yield blob.path, partial(status.retired_blob, blob)
    if root.writers_blob is not None:
        yield root.writers_blob.path, partial(status.writers_blob, root.writers_blob)
    if root.tags_blob is not None:
        yield root.tags_blob.path, partial(status.tags_blob, root.tags_blob)
    history: list[HistoryPart] = [*root.history_parts]
    for ref in root.history_lists:
        yield ref.path, partial(log.history.part_list, ref)
        history += log.history.part_list(ref) if _reads(partial(log.history.part_list, ref)) else ()
    for ref in history:
        yield ref.path, partial(log.history.part, ref)


def _put(status: TableStatus, root: Root, part: PartRef, found: list[PlacedSegment]) -> PartRef:
    return status.put_part(root.version, part.start, [placed.entry for placed in found])


def _whole_parts(
    status: TableStatus, root: Root, lost_lists: set[str], kept: "_Kept"
) -> list[PartRef] | None:
    parts: list[PartRef] = []
    for index in root.indexes:
        if index.path not in lost_lists:
            parts += status.part_list(index)
            continue
        found = kept.parts(index.start, index.end)
        if found is None or len(found) != index.parts:
            return None
        parts += found
    return [*parts, *root.parts]


class _Kept:
    """What kept versions list, newest first, as far as it can be read."""

    def __init__(self, log: StreamLog, status: TableStatus, root: Root) -> None:
        self._log = log
        self._status = status
        self._root = root
        self._roots: dict[int, Root] = {}

    def parts(self, start: int, end: int) -> list[PartRef] | None:
        found: dict[int, PartRef] = {}
        for root in self._older():
            for part in self._parts_of(root):
                found.setdefault(part.start, part)
        return tile(found, start, end)

    def segments(self, part: PartRef) -> list[PlacedSegment] | None:
        found: dict[int, PlacedSegment] = {}
        for root in self._older():
            spans = [one for one in self._parts_of(root) if one.path != part.path]
            for one in spans:
                if one.start < part.end and one.end > part.start:
                    alone = replace(root, indexes=(), parts=(one,), entries=())
                    self._note(found, alone, one.start, one.end)
            self._note(found, replace(root, indexes=(), parts=()), root.inline_start, root.tail)
            tiled = tile(found, part.start, part.end)
            if tiled is not None and len(tiled) == part.segments and self._are_there(tiled):
                return tiled
        return None

    def _note(self, found: dict[int, PlacedSegment], root: Root, start: int, end: int) -> None:
        try:
            for placed in self._status.segments(root, start, end):
                found.setdefault(placed.start, placed)
        except FormatError:
            return  # another version may list the same

    def _are_there(self, tiled: list[PlacedSegment]) -> bool:
        for placed in tiled:
            try:
                info = self._log.storage.info(names.segment_object(placed.entry.path))
            except MissingObjectError:
                return False
            if info.size != placed.entry.bytes:
                return False
        return True

    def _parts_of(self, root: Root) -> list[PartRef]:
        try:
            return list(self._status.parts(root))
        except FormatError:
            return list(root.parts)

    def _older(self) -> Iterator[Root]:
        """Yield the kept roots, each read when its turn comes: few are asked for, as a rule."""
        for number in reversed(self._log.files.numbers()):
            if not self._root.log_start <= number < self._root.version:
                continue
            root = self._roots.get(number)
            if root is None:
                try:
                    root = self._log.files.get(number)
                except FormatError:
                    continue
                if root is None or root.version != number:
                    continue
                if len(self._roots) < _ROOTS_KEPT:
                    self._roots[number] = root
            yield root


def tile(found: Mapping[int, T], start: int, end: int) -> list[T] | None:
    """Return the pieces that follow on one another from start to end, or None. Pure."""
    tiled: list[T] = []
    while start < end:
        piece = found.get(start)
        if piece is None or piece.end > end:
            return None
        tiled.append(piece)
        start = piece.end
    return tiled


def _reads(read: Callable[[], object]) -> bool:
    try:
        read()
    except FormatError:
        return False
    return True
