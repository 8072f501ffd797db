"""Vacuum: deletes objects that no version, no pin and no commit in flight can need any more.

Three rules, each against a sequence of events that loses data:

- Vacuum commits before it deletes: the staging floor is raised first. A commit in flight of objects
  staged below the floor either lands first, so that vacuum plans again and sees them listed, or is
  refused.
- Ages count from retirement, by the store's clock, never from an object's creation: a month-old
  segment that a compaction replaced a minute ago is a minute old. Only temporary objects, which no
  commit can name, count from when they were written.
- Unreadable metadata stops vacuum: an unreadable list is not an empty one.

A retired object is deleted if the commit that dropped it is at or before `log_start` and before
every pin, and longer ago than the grace. Segments are deleted before the parts that name them, so
that a crash leaves no segment that only a deleted list could name. Then a second commit removes the
deleted objects from `retired`. Every step may be repeated, and two vacuums may run at once.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from segstore_ds.errors import InvalidInputError, SnapshotExpiredError
from segstore_ds.format import names
from segstore_ds.format.clones import all_pins
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Retired, Root
from segstore_ds.log.commit import NOTHING, Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import find_moment
from segstore_ds.log.transition import GRACE_S, ObjectState, check_move
from segstore_ds.options.progress import Progress, unheard
from segstore_ds.read.reader_records import store_now_us
from segstore_ds.status.references import (
    References,
    read_references,
)
from segstore_ds.status.slot import Slot
from segstore_ds.storage import ObjectInfo, Storage

_LOG = logging.getLogger(__name__)
LEAST_GRACE_S = 86_400.0
_FOLDERS = (names.SEGMENTS_FOLDER, names.STATUS_FOLDER)


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object that vacuum deleted, or would delete, and why it may; see `Kept` for `dropped`."""

    path: str
    bytes: int
    state: ObjectState
    why: str
    dropped: int | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """An object that no current version lists, and why it is kept for now.

    `dropped` is the version that dropped it, None if no commit ever listed it.
    """

    path: str
    bytes: int
    why: str
    dropped: int | None = None


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What vacuum did, or would do.

    Attributes:
        dry_run: True if nothing was changed.
        version: The version that it was planned on.
        staging_floor: Objects staged on an older version can no longer be committed.
        deleted: Objects that were deleted, or would be.
        kept: Objects that are not listed and are kept for now.
    """

    dry_run: bool
    version: int
    staging_floor: int
    deleted: tuple[Deleted, ...]
    kept: tuple[Kept, ...]

    @property
    def bytes(self) -> int:
        """Total bytes of the deleted objects."""
        return sum(entry.bytes for entry in self.deleted)

    def __str__(self) -> str:
        verb = "would delete" if self.dry_run else "deleted"
        lines = [f"{verb} {len(self.deleted)} objects, {self.bytes} bytes, at {self.version}"]
        lines += [f"  {entry.path} ({entry.bytes} bytes): {entry.why}" for entry in self.deleted]
        lines += [
            f"  stays: {entry.path} ({entry.bytes} bytes): {entry.why}" for entry in self.kept
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Horizon:
    """What may be deleted: dropped at or before a version and a time, or staged below a floor.

    Attributes:
        version: The oldest version that is kept or pinned.
        time_us: Now less the grace, by the store's clock, in microseconds.
        floor: The staging floor.
        pinned: Whether a pin, not `log_start`, sets the version.
        copied: Ids of the copies that made the stream: unlisted objects of theirs are leftovers.
    """

    version: int
    time_us: int
    floor: int
    pinned: bool
    copied: frozenset[str] = frozenset()


def plan_horizon(root: Root, *, floor: int, until_us: int) -> Horizon:
    """Return what may be deleted as of a root. Pure."""
    pins = all_pins(root).values()
    # For the grace, readers of a clone's older versions need objects that the clone does not.
    held = [pin.version for pin in pins if pin.released_us is None or pin.released_us > until_us]
    oldest = min([root.log_start, *held])
    return Horizon(
        oldest,
        until_us,
        max(floor, root.staging_floor),
        oldest < root.log_start,
        frozenset(root.copies),
    )


def plan_vacuum(
    refs: References, horizon: Horizon, objects: Iterable[ObjectInfo]
) -> tuple[list[Deleted], list[Kept]]:
    """Decide which objects to delete. Pure.

    `refs` is everything that the newest root refers to; `objects` are those in the folders of
    segments and status objects. Returns the objects to delete, segments first, and the unlisted
    objects to keep.
    """
    deleted: list[Deleted] = []
    kept: list[Kept] = []
    objects = list(objects)
    written = _last_written(objects)
    for info in objects:
        if info.path in refs.live:
            continue
        retired = refs.retired.get(info.path)
        if retired is None and not names.is_object(info.path):
            may, why = False, "not the name of a stream's object: segstore did not create it"
        elif retired is None:
            may, why = _judge_staged(info.path, horizon, written)
        else:
            may, why = _judge_retired(retired.version, retired.time_us, horizon)
        state = ObjectState.STAGED if retired is None else ObjectState.RETIRED
        dropped = retired.version if retired else None
        if may:
            deleted.append(Deleted(info.path, info.size, state, why, dropped))
        else:
            kept.append(Kept(info.path, info.size, why, dropped))
    deleted.sort(key=lambda entry: (entry.path.startswith(names.STATUS_FOLDER), entry.path))
    return deleted, kept


def plan_temporaries(objects: Iterable[ObjectInfo], until_us: int) -> list[Deleted]:
    """Return the temporary objects that interrupted calls left before a time. Pure.

    Only here an object's own age counts: no commit can name a temporary, and if its process is
    still running, it finds the temporary gone and tries again.
    """
    why = "temporary file of an interrupted call, older than the grace"
    return [
        Deleted(info.path, info.size, ObjectState.STAGED, why)
        for info in objects
        if info.modified_us <= until_us and names.is_temporary(info.path)
    ]


def run_vacuum(
    context: StreamContext,
    *,
    dry_run: bool = True,
    grace_s: float = GRACE_S,
    short_grace: bool = False,
    progress: Progress = unheard,
) -> VacuumReport:
    """Delete objects that can't be needed any more; a dry run (the default) only reports them.

    If the storage fails, objects that were deleted stay deleted.

    Raises:
        InvalidInputError: The grace is less than a day, and `short_grace` is False.
        ConflictError: Every race was lost; nothing was deleted.
        CommitUnknownError: The floor may or may not be raised; nothing was deleted.
    """
    if grace_s < LEAST_GRACE_S and not short_grace:
        raise InvalidInputError(
            "grace is shorter than a day",
            remedy="readers and jobs that run longer than the grace fail; set "
            "short_grace=True if there are none",
            grace_s=grace_s,
        )
    context = context.fresh()
    context.log.reopen()
    # The store's time is that of an object just written; a dry run writes none.
    now_us = context.clock.wall_us() if dry_run else store_now_us(context)
    until_us = now_us - int(max(grace_s, 0) * 1e6)
    floor = plan_floor(context, until_us)
    objects = [info for folder in _FOLDERS for info in context.storage.list(folder)]
    root = context.log.root if dry_run else _raise_floor(context, floor, objects)
    horizon = plan_horizon(root, floor=floor, until_us=until_us)
    refs = read_references(
        context.status, root, gone_before=horizon.version, gone_until_us=horizon.time_us
    )
    deleted, kept = plan_vacuum(refs, horizon, objects)
    deleted += plan_temporaries(context.storage.temporaries(), until_us)
    if not dry_run:
        for count, entry in enumerate(deleted, 1):
            check_move(entry.path, entry.state, ObjectState.DELETED)
            context.storage.delete(entry.path)
            progress(count, len(deleted))
        context.log.seams.in_copies(
            root, "vacuumed objects", lambda files: _vacuum_copy(files.storage, refs, horizon)
        )
        _forget(context, horizon)
    return VacuumReport(dry_run, root.version, horizon.floor, tuple(deleted), tuple(kept))


def plan_floor(context: StreamContext, until_us: int) -> int:
    """Return the newest version older than a time, which bounds whatever was planned earlier."""
    try:
        found = find_moment(context.log, context.log.refresh(), until_us)
    except SnapshotExpiredError:
        return (
            context.log.root.staging_floor
        )  # the versions of that time are purged, so the floor is unknown
    return max(found.version if found else 0, context.log.root.staging_floor)


def _vacuum_copy(storage: Storage, refs: References, horizon: Horizon) -> None:
    """Delete from a mirror by the same rules."""
    objects = [info for folder in _FOLDERS for info in storage.list(folder)]
    deleted = plan_vacuum(refs, horizon, objects)[0]
    deleted += plan_temporaries(storage.temporaries(), horizon.time_us)
    for entry in deleted:
        storage.delete(entry.path)


def _raise_floor(context: StreamContext, floor: int, objects: list[ObjectInfo]) -> Root:
    def build(root: Root, _slot: Slot) -> Change[None]:
        raised = max(root.staging_floor, min(floor, root.version))
        # Objects staged on the newest version can't be told from objects being staged now. This
        # commit makes them older than objects staged later, so that a later vacuum can.
        newest = any(staged_version(info.path) == root.version for info in objects)
        if raised == root.staging_floor and not newest:
            return NOTHING
        return Change(
            replace(root, staging_floor=raised, operation=Operation.VACUUM, client=context.client)
        )

    return context.log.commit(build).root


def _forget(context: StreamContext, horizon: Horizon) -> None:
    """Remove judged objects from `retired`; live or newly retired objects are listed again."""

    def is_kept(item: Retired) -> bool:
        return item.version > horizon.version or item.time_us > horizon.time_us

    def build(root: Root, slot: Slot) -> Change[None]:
        table = context.status.retired
        items = list(table.all(root))
        kept = tuple(item for item in items if is_kept(item))
        if len(kept) == len(items):
            return NOTHING
        pruned = replace(root, retired=kept, operation=Operation.VACUUM, client=context.client)
        pruned = table.replace(pruned, slot, {part.path: () for part in table.parts(root)})
        return Change(context.status.tidy(pruned, slot))

    context.log.commit(build)


def _judge_retired(version: int, time_us: int, horizon: Horizon) -> tuple[bool, str]:
    if version > horizon.version:
        holder = "a pin" if horizon.pinned else "a version that is kept (purge drops versions)"
        return False, f"dropped by version {version}, and {holder} still needs it"
    if time_us > horizon.time_us:
        return False, f"dropped by version {version} within the grace"
    return True, f"dropped by version {version}, before the oldest version kept and the grace"


def _copy_of(path: str) -> str:
    """Return the id of the copy that staged an object, as its name says; "" for other names."""
    return names.parse_copy_token(names.segment_token(path.partition("/")[2])) or ""


def _last_written(objects: Iterable[ObjectInfo]) -> dict[str, int]:
    """Return when something was last written for each copy, by its id."""
    written: dict[str, int] = {}
    for info in objects:
        copy_id = _copy_of(info.path)
        written[copy_id] = max(info.modified_us, written.get(copy_id, 0))
    return written


def _judge_staged(path: str, horizon: Horizon, written: Mapping[str, int]) -> tuple[bool, str]:
    version = staged_version(path)
    if version is None:
        return _judge_copied(_copy_of(path), horizon, written)
    if version >= horizon.floor:
        return False, f"staged on version {version}, which may still be committed"
    return True, f"staged on version {version}, below the staging floor, and never committed"


def _judge_copied(copy_id: str, horizon: Horizon, written: Mapping[str, int]) -> tuple[bool, str]:
    """Judge what no version names, by the copy that staged it.

    No copy can commit it: a copy makes a stream's first root, and there is one.
    """
    if copy_id in horizon.copied:
        return True, "left by an attempt at a finished copy, and never committed"
    if written[copy_id] > horizon.time_us:
        return False, "staged by a copy that was still running within the grace"
    return True, "left by a copy that lost this location to another one, before the grace"


def staged_version(path: str) -> int | None:
    """Return the version that an object was staged on, as its name says; None for other names."""
    if path.startswith(names.STATUS_FOLDER):
        return names.parse_status_version(path)
    return names.parse_token_version(names.segment_token(path.partition("/")[2]))
