"""Deletes what a stream no longer needs: one plan, and one runner with a budget.

The plan is `status.deletable`: why each object may be deleted, or what it waits for. It depends on
committed roots alone, so no later commit can list a deleted object. Three calls run it:

- `maintain` lists the objects before it refreshes the root (after a drop another stream may begin
  in the folder). It commits a raised `log_start` and staging floor. A concurrent commit of objects
  staged below the floor either lands first, and then the references that are read next have them,
  or is refused. Then it deletes log files below `log_start` and all deletable objects, and commits
  `retired` without these.
- A round of upkeep (`retention.upkeep`) lists nothing. It deletes what the roots of earlier rounds
  allow until its budget is used up, and makes one commit that allows the next round more.
- A drop (`retention.drop`) makes the last commit, then lists and deletes all objects of the stream.

Segments are deleted before the parts that name them, so a crash leaves no segment that only a
deleted part named. Log files are deleted in ascending order, so below a missing version all are
missing. Unreadable metadata stops a deletion: an unreadable list is not an empty one. Each step may
be repeated, and two deletions may run at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from segstore_ds.compact.run import run_due_merge
from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.policies import DEFAULT_POLICY, upkeep_of
from segstore_ds.format.root import LastUpkeep, PartRef, Retired, Root
from segstore_ds.log.commit import Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import number_at, plan_log_start, plan_policy_start
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.seen import hint_of
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.options.quantities import to_moment
from segstore_ds.retention.report import Maintenance
from segstore_ds.status.deletable import Horizon, Item, plan_deletion, plan_horizon
from segstore_ds.status.references import (
    References,
    find_unlisted,
    list_objects,
    read_references,
    retired_objects,
)
from segstore_ds.status.table import Slot
from segstore_ds.storage import ObjectInfo, Storage

LEAST_GRACE_S = 86_400.0
FREE_S = 300.0  # `free_now` spares readers and jobs of the last minutes
MOST_DELETED = 4_000  # most log files, and most objects, that one round deletes
_MOST_MERGES = 1000
_MIRRORED = "objects that were deleted here"
# Retired rows whose objects are deleted, by the path of their part; "" for those in the root.
Gone = dict[str, set[Retired]]


@dataclass(frozen=True, slots=True)
class Aim:
    """What to forget and delete, as `commit_aim` commits it before anything is deleted."""

    start: int = 0  # the oldest version to keep; 0 to forget none
    keep: int = 1  # how many of the newest versions stay in any case
    until_us: int | None = None  # delete what was dropped before this time; None: delete no objects
    floor: int = 0  # the newest version committed before that time
    version_age_s: float = 0.0  # the age at which a version is forgotten
    object_age_s: float = 0.0  # the age at which a dropped object is deleted

    def raised(self, root: Root, version: int) -> Root:
        """Return the root to commit as `version`; the same root if nothing changes. Pure."""
        start = max(root.log_start, min(self.start, version - self.keep))
        floor = max(root.staging_floor, min(self.floor, root.version))
        return replace(root, log_start=start, staging_floor=floor)


def run_maintain(
    context: StreamContext,
    *,
    keep_s: int | None = None,
    keep_from: int | None = None,
    min_versions: int = 1,
    grace_s: float | None = None,
    short_grace: bool = False,
    free_now: bool = False,
    dry_run: bool = False,
    progress: Progress = unheard,
) -> Maintenance:
    """Forget versions or delete objects of the given ages; without ages, by the stream's policy.

    See `Stream.maintain`. Versions from `keep_from` on stay. If the storage fails, objects that
    were deleted stay deleted.
    """
    if grace_s is not None and grace_s < LEAST_GRACE_S and not short_grace:
        raise InvalidInputError(
            "the grace is shorter than a day",
            remedy="readers and jobs that run longer than the grace fail; set "
            "short_grace=True if there are none",
            grace=grace_s,
        )
    if free_now and not (keep_s is None and grace_s is None):
        raise InvalidInputError(
            "free_now can't be combined with keep or grace", remedy="leave keep and grace out"
        )
    whole, start = keep_s is None and grace_s is None and not free_now, 0
    versions_only = keep_s is not None and grace_s is None
    root = context.log.refresh() if versions_only else context.log.reopen()
    # The store's time is read from an object just written; a dry run writes none.
    now_us = context.clock.wall_us() if dry_run else context.log.store_now_us()
    policy = upkeep_of(root) or DEFAULT_POLICY
    if free_now:
        grace_s = FREE_S
        start = plan_log_start(context, root, FREE_S, now_us, least_s=FREE_S)
    elif whole:
        start, grace_s = plan_policy_start(context, root, policy, now_us), policy.grace_s
    elif keep_s is not None:
        start = plan_log_start(context, root, keep_s, now_us)
    start = start if keep_from is None else min(start, keep_from)
    kept_s = max(context.log.grace_s, policy.keep_s if keep_s is None else keep_s)
    aim = Aim(start, min_versions, version_age_s=FREE_S if free_now else kept_s)
    if grace_s is not None:
        until_us = now_us - int(max(grace_s, 0) * 1e6)
        floor = number_at(context, context.log.root, until_us)
        age_s = max(aim.version_age_s, grace_s)
        aim = replace(aim, until_us=until_us, floor=floor, object_age_s=age_s)
    done = run_deletion(context, aim, dry_run=dry_run, progress=progress)
    if dry_run or not whole:
        return done
    merges = 0
    while merges < _MOST_MERGES:
        version = context.log.refresh().version
        run_due_merge(context, complete=True)
        if context.log.root.version == version:
            break
        merges += 1
    return replace(done, merges=merges, version=context.log.root.version)


def run_deletion(
    context: StreamContext, aim: Aim, *, dry_run: bool = False, progress: Progress = unheard
) -> Maintenance:
    """Commit an aim and delete what it allows; a dry run only reports that."""
    base = root = context.log.root
    objects = [] if aim.until_us is None else [*list_objects(context.storage)]
    if dry_run:
        root = aim.raised(root, root.version + 1)
    else:
        context.log.refresh()  # raises if the stream was dropped before the list of objects
        root = commit_aim(context, aim, objects=objects).root
        if aim.start:
            below = _forgotten(context, root, context.log.store_now_us())
            trim_log(context, root, lambda files: files.purge(below))
    versions = root.log_start - base.log_start
    report = Maintenance(dry_run, root.version, root.log_start, versions)
    report = _with_waiting_log(context, root, aim, report)
    if aim.until_us is None:
        return report
    age_us = int(aim.object_age_s * 1e6)
    horizon = plan_horizon(root, floor=aim.floor, until_us=aim.until_us, age_us=age_us)
    context = context.fresh()
    runner = Runner(context, root, horizon)
    deleted, kept = runner.plan(chain(objects, temporaries(context.storage)))
    moments = [report.until, *(item.until for item in kept)]
    until = max((moment for moment in moments if moment), default=None)
    report = replace(report, deleted=tuple(deleted), kept=tuple(kept), until=until)
    if dry_run:
        return report
    runner.delete(deleted, progress)
    mirrors = runner.clear_mirrors()
    version = commit_aim(context, Aim(), gone=runner.past()).root.version
    return replace(report, version=version, mirrors=mirrors)


def temporaries(storage: Storage) -> Iterator[ObjectInfo]:
    """List the temporary objects of a stream's own folders."""
    return (info for info in storage.temporaries() if names.is_temporary(info.path))


def commit_aim(
    context: StreamContext,
    aim: Aim,
    *,
    gone: Gone | None = None,
    objects: Iterable[ObjectInfo] = (),
    sweep: tuple[LastUpkeep | None, int] | None = None,
) -> Committed[None]:
    """Commit an aim, and remove the retired rows in `gone`, whose objects are deleted.

    `sweep` is of a round: the previous round, and the version below which orphans are swept. If
    another round came first, it commits nothing.
    """

    def next_root(root: Root, slot: Slot) -> Root | None:
        before = swept_by(root.upkeep)
        if sweep is not None and root.upkeep != sweep[0]:
            return None
        planned = aim.raised(_forget(context, root, slot, gone or {}), slot.version)
        # Objects staged on the newest version may still be committed. Commit a version anyway, so
        # that a later deletion can tell them from objects that are staged from now on.
        newest = any(names.staged_version(info.path) == root.version for info in objects)
        swept = before if sweep is None else sweep[1]
        if planned == root and swept == before and not newest:
            return None
        last = LastUpkeep(slot.version, slot.time_us, swept)
        return replace(planned, upkeep=last, operation=Operation.UPKEEP)

    # Even if nothing changes, this checks that the mirrors follow, before anything is deleted.
    return context.commit(next_root)


def swept_by(last: LastUpkeep | None) -> int:
    """Return the version below which orphans were swept."""
    return last.swept if last else 0


def _forget(context: StreamContext, root: Root, slot: Slot, gone: Gone) -> Root:
    """Return a root without the retired rows in `gone`; other rows keep their order."""
    table, changes = context.status.retired, dict[str, list[PartRef]]()
    for part in table.parts(root):
        if part.path in gone:
            left = tuple(row for row in table.part(part) if row not in gone[part.path])
            changes[part.path] = [table.put(root.version, left)] if left else []
    kept = tuple(row for row in root.retired if row not in gone.get("", ()))
    if len(kept) == len(root.retired) and not changes:
        return root
    pruned = table.replace(replace(root, retired=kept), slot, changes)
    return context.status.tidy(pruned, slot)


def _with_waiting_log(
    context: StreamContext, root: Root, aim: Aim, report: Maintenance
) -> Maintenance:
    """Return a report with the commit files of older versions that stay."""
    goes = report.dry_run and aim.start
    below = _forgotten(context, root, context.clock.wall_us()) if goes else 0
    sizes = [
        info.size
        for info in context.storage.list(names.LOG_FOLDER)
        if (number := names.parse_log_name(info.path.rpartition("/")[2])) is not None
        and below <= number < root.version
    ]
    age_us = int(max(aim.version_age_s, context.log.grace_s) * 1e6)
    until = to_moment(root.time_us + age_us) if sizes else None
    return replace(report, log_files=len(sizes), log_bytes=sum(sizes), until=until)


def _forgotten(context: StreamContext, root: Root, now_us: int) -> int:
    """Return the version below which commit files go, as they were superseded an hour ago.

    It goes by each file, since another call may have raised `log_start` beyond it.
    """
    before_us = now_us - int(context.log.grace_s * 1e6)
    return max(context.log.files.superseded(root.log_start, before_us), default=-1) + 1


def trim_log(
    context: StreamContext, root: Root, delete_of: Callable[[MetadataLog[Root]], object]
) -> None:
    """Delete files below a root's `log_start`, here and in the mirrors."""

    def delete_copy(files: MetadataLog[Root]) -> None:
        files.put_hint(hint_of(root))
        delete_of(files)

    # Advance the hint first: otherwise an open could follow it to a version that is left over.
    context.log.files.put_hint(hint_of(root))
    delete_of(context.log.files)
    context.log.seams.in_copies(root, "forgotten versions", delete_copy)


class Runner:
    """Plans and deletes what a root allows, here and in its mirrors, until `is_late`."""

    def __init__(
        self,
        context: StreamContext,
        root: Root,
        horizon: Horizon,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._context, self._root, self._horizon = context, root, horizon
        self._is_late = is_late
        self._references: References | None = None
        self.deleted: list[Item] = []

    def plan(self, objects: Iterable[ObjectInfo]) -> tuple[list[Item], list[Item]]:
        """Return which of some objects may be deleted, and which unlisted ones stay for now."""
        objects, refs = list(objects), self._read_references()
        retired = (refs.retired.get(info.path) for info in objects)
        versions = {row.version for row in retired if row is not None}
        try:
            operations = self._context.log.history.operations(self._root, versions)
        except FormatError:  # a damaged history stops no deletion
            operations = {}
        items = plan_deletion(refs, self._horizon, objects, operations)
        free = [item for item in items if not item.waits_for]
        return free, [item for item in items if item.waits_for]

    def delete(self, items: Sequence[Item], progress: Progress = unheard) -> None:
        """Delete objects here, however long it takes."""
        for count, item in enumerate(items, 1):
            self._context.storage.delete(item.path)
            progress(count, len(items))

    def clear_mirrors(self) -> dict[str, tuple[Item, ...] | None]:
        """Delete from mirrors by the same plan; return what stays in each, None if it failed."""
        left = dict[str, tuple[Item, ...] | None]()

        def clear(files: MetadataLog[Root]) -> None:
            storage = files.storage
            left[storage.url] = None
            deleted, kept = self.plan(chain(list_objects(storage), temporaries(storage)))
            for item in deleted:
                storage.delete(item.path)
            left[storage.url] = tuple(kept)

        self._context.log.seams.in_copies(self._root, _MIRRORED, clear)
        return left

    def past(self) -> Gone:
        """Return all retired rows before the horizon, also those whose objects are listed again."""
        groups = self._context.status.retired.groups(self._root)
        return {
            part.path if part else "": {row for row in rows if self._horizon.is_past(row)}
            for part, rows in groups
        }

    def delete_retired(self) -> Gone:
        """Delete retired objects, oldest first; return the rows whose objects are deleted."""
        gone, root = Gone(), self._root
        for part, rows in self._context.status.retired.groups(root):
            for row in rows:
                most = len(self.deleted) >= MOST_DELETED
                if most or self._is_late() or not may_go(row, root, self._horizon):
                    return gone
                paths = list(retired_objects(self._context.status, row))
                if root.restored is None or row.version <= root.restored:
                    # A restore or a repair since then may have listed it again.
                    paths = [path for path in paths if self._is_last(path, row)]
                why = "dropped by a commit"
                if not self._delete([Item(path, None, why, row.version) for path in paths]):
                    return gone  # a later round deletes the rest
                gone.setdefault(part.path if part else "", set()).add(row)
        return gone

    def delete_orphans(self, objects: Sequence[ObjectInfo]) -> bool:
        """Delete the orphans among some objects; return whether none of them is left."""
        suspects = find_unlisted(self._context.status, self._root, {info.path for info in objects})
        if not suspects:
            return True
        orphans = self.plan(info for info in objects if info.path in suspects)[0]
        return all(not self._is_late() and self._delete([orphan]) for orphan in orphans)

    def _delete(self, items: Sequence[Item]) -> bool:
        """Delete objects in mirrors, then here; return False if a mirror failed.

        An object stays here while a mirror has it, because a later round finds it by this one.
        """

        def delete(storage: Storage) -> None:
            for item in items:
                storage.delete(item.path)

        seams = self._context.log.seams
        if not seams.in_copies(self._root, _MIRRORED, lambda files: delete(files.storage)):
            return False
        delete(self._context.storage)
        self.deleted += items
        return True

    def _is_last(self, path: str, row: Retired) -> bool:
        """Tell whether nothing lists an object, and nothing dropped it later."""
        refs = self._read_references()
        newest = refs.retired.get(path)
        return path not in refs.live and (newest is None or newest.version <= row.version)

    def _read_references(self) -> References:
        if self._root.dropped:
            return References()  # reads nothing: a stream whose metadata is damaged can be dropped
        if self._references is None:
            before, until_us = self._horizon.version, self._horizon.time_us
            self._references = read_references(
                self._context.status, self._root, gone_before=before, gone_until_us=until_us
            )
        return self._references


def may_go(row: Retired, root: Root, horizon: Horizon) -> bool:
    """Tell whether a round, which lists nothing, may delete the objects of a row."""
    # Below the floor no job can commit a segment of that time again.
    return horizon.is_past(row) and row.version <= root.staging_floor
