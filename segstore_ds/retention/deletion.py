"""The engine of deletion: carries a plan out, and reports what went and what stays.

`maintain` does all of it, or forgets versions or deletes objects alone; rounds of upkeep take the
same steps in small pieces, see `retention.upkeep`. The order is:

1. List the objects, while the stream is there: after a drop another may begin in its folder. Then
   commit `log_start` and the staging floor, raised. A commit in flight of objects staged below the
   floor either lands first, so that what it lists is seen in 3, or is refused.
2. Delete the log's files below `log_start` in ascending order, so a missing name means that every
   name below it is missing, too.
3. Read all that the newest root refers to. Unreadable metadata stops it: an unreadable list is not
   an empty one.
4. Delete what `status.deletable` allows. Segments go before the parts that name them, so that a
   crash leaves no segment that only a deleted list could name.
5. Commit `retired` without what is deleted.

Every step may be repeated, and two deletions may run at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from segstore_ds.compact.merges import run_due_merge
from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.policies import DEFAULT_POLICY, upkeep_of
from segstore_ds.format.root import LastUpkeep, PartRef, Retired, Root
from segstore_ds.log.commit import NOTHING, Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.seen import hint_of
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.options.quantities import to_moment
from segstore_ds.retention.plan import Item, Maintenance, plan_objects, plan_temporaries
from segstore_ds.retention.versions import (
    plan_log_start,
    plan_policy_start,
    version_at,
)
from segstore_ds.status.deletable import Horizon, plan_horizon
from segstore_ds.status.references import References, list_objects, read_references
from segstore_ds.status.slot import Slot
from segstore_ds.storage import ObjectInfo

LEAST_GRACE_S = 86_400.0
FREE_S = 300.0  # readers and jobs of the last minutes go on even where a full disk is freed
_MOST_MERGES = 1000


@dataclass(frozen=True, slots=True)
class Aim:
    """What a deletion commits before it deletes."""

    start: int = 0  # the oldest version to keep; 0 to forget none
    keep: int = 1  # how many of the newest versions stay in any case
    until_us: int | None = None  # objects go that were dropped before; None for none
    floor: int = 0  # the newest version stamped before that time
    version_age_s: float = 0.0  # at which a version is forgotten
    object_age_s: float = 0.0  # at which an object goes that a commit dropped

    def raised(self, root: Root, version: int) -> Root:
        """Return what version `version` would be; the same root if nothing changes. Pure."""
        start = max(root.log_start, min(self.start, version - self.keep))
        floor = max(root.staging_floor, min(self.floor, root.version))
        return replace(root, log_start=start, staging_floor=floor)


@dataclass(slots=True)
class Gone:
    """Retired rows whose objects are deleted, and the parts that hold some of them."""

    rows: set[Retired] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)

    def add(self, part: PartRef | None, row: Retired) -> None:
        """Note that the objects of a row, which a part or the root holds, are deleted."""
        self.rows.add(row)
        if part is not None:
            self.parts.add(part.path)

    def forgotten(self, context: StreamContext, root: Root, slot: Slot) -> Root:
        """Return a root without the rows; others keep their order."""
        table, changes = context.status.retired, dict[str, list[PartRef]]()
        for part in table.parts(root):
            if part.path in self.parts:
                left = tuple(row for row in table.part(part) if row not in self.rows)
                changes[part.path] = [table.put(root.version, left)] if left else []
        kept = tuple(row for row in root.retired if row not in self.rows)
        if len(kept) == len(root.retired) and not changes:
            return root
        pruned = table.replace(replace(root, retired=kept), slot, changes)
        return context.status.tidy(pruned, slot)


# --- the forms -----------------------------------------------------------------------------------


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
    """Forget versions or delete objects of the ages given; without one, all by the stream's policy.

    `Stream.maintain` describes it. Versions from `keep_from` on stay. If the storage fails, what
    was deleted stays deleted.
    """
    if grace_s is not None and grace_s < LEAST_GRACE_S and not short_grace:
        raise InvalidInputError(
            "grace is shorter than a day",
            remedy="readers and jobs that run longer than the grace fail; set "
            "short_grace=True if there are none",
            grace=grace_s,
        )
    if free_now and not (keep_s is None and grace_s is None):
        raise InvalidInputError("free_now has ages of its own", remedy="leave keep and grace out")
    whole, start = keep_s is None and grace_s is None and not free_now, 0
    alone = keep_s is not None and grace_s is None  # versions are
    root = context.log.refresh() if alone else context.log.reopen()
    # The store's time is that of an object just written; a dry run writes none.
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
    aim = Aim(start) if grace_s is None else _aim_at_objects(context, start, now_us, grace_s)
    hour_s = context.log.grace_s
    version_age_s = FREE_S if free_now else max(hour_s, policy.keep_s if keep_s is None else keep_s)
    object_age_s = max(version_age_s, policy.grace_s if grace_s is None else grace_s)
    aim = replace(aim, keep=min_versions, version_age_s=version_age_s, object_age_s=object_age_s)
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


def _aim_at_objects(context: StreamContext, start: int, now_us: int, grace_s: float) -> Aim:
    until_us = now_us - int(max(grace_s, 0) * 1e6)
    floor = version_at(context, context.log.root, until_us)
    return Aim(start, until_us=until_us, floor=floor)


# --- the steps -----------------------------------------------------------------------------------


def run_deletion(
    context: StreamContext, aim: Aim, *, dry_run: bool = False, progress: Progress = unheard
) -> Maintenance:
    """Do what an aim says; a dry run only reports it."""
    base = root = context.log.root
    objects = [] if aim.until_us is None else [*list_objects(context.storage)]
    if dry_run:
        root = aim.raised(root, root.version + 1)
    else:
        context.log.refresh()  # dropped before it is listed, the folder may be another stream's
        root = _raise(context, aim, objects)
        if aim.start:
            # By the age of each file: `log_start` may have been raised over younger ones.
            before_us = context.log.store_now_us() - int(context.log.grace_s * 1e6)
            gone = context.log.files.superseded(root.log_start, before_us)
            trim_log(context, root, lambda files: files.purge(gone[-1] + 1 if gone else 0))
    versions = root.log_start - base.log_start
    report = Maintenance(dry_run, root.version, root.log_start, versions)
    report = _with_waiting_log(context, root, aim, report)
    if aim.until_us is None:
        return report
    context = context.fresh()
    horizon = plan_horizon(root, floor=aim.floor, until_us=aim.until_us)
    refs = read_references(
        context.status, root, gone_before=horizon.version, gone_until_us=horizon.time_us
    )
    operations = _operations(context, root, refs)
    deleted, kept = plan_objects(refs, horizon, objects, operations)
    deleted += plan_temporaries(context.storage.temporaries(), horizon.time_us)
    dropped_us = [
        refs.retired[item.path].time_us
        for item in kept
        if item.path in refs.retired and not horizon.is_pinned(refs.retired[item.path])
    ]
    until = _later(report.until, max(dropped_us, default=0), aim.object_age_s)
    report = replace(report, deleted=tuple(deleted), kept=tuple(kept), until=until)
    if dry_run:
        return report
    for count, item in enumerate(deleted, 1):
        context.storage.delete(item.path)
        progress(count, len(deleted))
    mirrors = _clear_mirrors(context, root, refs, horizon)
    version = _forget(context, root, horizon).version
    return replace(report, version=version, mirrors=mirrors)


def _raise(context: StreamContext, aim: Aim, objects: Sequence[ObjectInfo]) -> Root:
    """Commit what an aim raises."""

    def build(root: Root, slot: Slot) -> Change[None]:
        raised = aim.raised(root, slot.version)
        # Objects staged on the newest version can't be told from objects being staged now. This
        # commit makes them older than objects staged later, so that a later deletion can.
        newest = any(names.staged_version(info.path) == root.version for info in objects)
        if raised == root and not newest:
            return NOTHING
        swept = root.upkeep.swept if root.upkeep else 0
        last = LastUpkeep(slot.version, slot.time_us, swept)
        return Change(
            replace(raised, upkeep=last, operation=Operation.UPKEEP, client=context.client)
        )

    # Where nothing changes, the log still asks whether the mirrors follow, before anything goes.
    return context.log.commit(build).root


def _with_waiting_log(
    context: StreamContext, root: Root, aim: Aim, report: Maintenance
) -> Maintenance:
    """Return a report with the commit files that stay although a later one was made."""
    sizes = [
        info.size
        for info in context.storage.list(names.LOG_FOLDER)
        if (number := names.parse_log_name(info.path.rpartition("/")[2])) is not None
        and number < root.version
        and not (report.dry_run and number < root.log_start)
    ]
    age_s = max(aim.version_age_s, context.log.grace_s)
    until = _later(None, root.time_us if sizes else 0, age_s)
    return replace(report, log_files=len(sizes), log_bytes=sum(sizes), until=until)


def _later(known: datetime | None, since_us: int, age_s: float) -> datetime | None:
    """Return the later of a moment and of when something of an age has another one; 0 is none."""
    found = to_moment(since_us + int(age_s * 1e6)) if since_us else known
    return max(found, known) if found and known else found


def trim_log(
    context: StreamContext, root: Root, delete_of: Callable[[MetadataLog[Root]], object]
) -> None:
    """Delete files below a root's `log_start`, here and in the mirrors."""

    def delete_copy(files: MetadataLog[Root]) -> None:
        files.put_hint(hint_of(root))
        delete_of(files)

    # Advance the hint before deleting, or an open could follow it to a leftover version.
    context.log.files.put_hint(hint_of(root))
    delete_of(context.log.files)
    context.log.seams.in_copies(root, "forgotten versions", delete_copy)


def _operations(context: StreamContext, root: Root, refs: References) -> dict[int, str]:
    """Return what the commits did that dropped something; nothing if the history is damaged."""
    versions = {retired.version for retired in refs.retired.values()}
    try:
        return context.log.history.operations(root, versions)
    except FormatError:
        return {}


def _clear_mirrors(
    context: StreamContext, root: Root, refs: References, horizon: Horizon
) -> dict[str, tuple[Item, ...] | None]:
    """Delete from mirrors by the same rules; one that fails keeps its objects."""
    left = dict[str, tuple[Item, ...] | None]()

    def clear(files: MetadataLog[Root]) -> None:
        storage = files.storage
        left[storage.url] = None
        deleted, kept = plan_objects(refs, horizon, list_objects(storage))
        deleted += plan_temporaries(storage.temporaries(), horizon.time_us)
        for item in deleted:
            storage.delete(item.path)
        left[storage.url] = tuple(kept)

    context.log.seams.in_copies(root, "objects that were deleted here", clear)
    return left


def _forget(context: StreamContext, root: Root, horizon: Horizon) -> Root:
    """Commit `retired` without what is past; what is live again was listed again."""
    gone = Gone()
    for part, rows in context.status.retired.groups(root):
        for row in filter(horizon.is_past, rows):
            gone.add(part, row)

    def build(newest: Root, slot: Slot) -> Change[None]:
        pruned = gone.forgotten(context, newest, slot)
        if pruned == newest:
            return NOTHING
        return Change(replace(pruned, operation=Operation.UPKEEP, client=context.client))

    return context.log.commit(build).root
