"""Purge: deletes old versions of a stream's log.

A commit raises `log_start` first. Then names below it are deleted in ascending order, so a missing
name means that every name below it is missing, too. A version that was superseded within the grace
is never purged, because a handle may still use it.
"""

from collections.abc import Callable
from dataclasses import replace

from segstore_ds.errors import InvalidInputError, SnapshotExpiredError
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.commit import NOTHING, Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import find_moment
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.seen import hint_of
from segstore_ds.read.reader_records import store_now_us
from segstore_ds.status.slot import Slot
from segstore_ds.write.inputs import as_integer


def plan_purge(context: StreamContext, *, older_than_s: float) -> int:
    """Return the oldest version to keep: the base of the newest one stamped before the age.

    A stamp may be older than its commit: the writer slept, or its put arrived late. But the base of
    a commit was in the log when the commit was stamped, so every version below the base had been
    superseded by then. `older_than_s` counts from being superseded and is at least the log's grace.
    """
    root, now_us = context.log.refresh(), store_now_us(context)
    return find_log_start(context, root, older_than_s, now_us)


def find_log_start(context: StreamContext, root: Root, older_than_s: float, now_us: int) -> int:
    """Return the oldest version of a root to keep at a time by the store's clock; see above."""
    age_s = max(older_than_s, context.log.grace_s)
    try:
        kept = find_moment(context.log, root, now_us - int(age_s * 1e6))
    except SnapshotExpiredError:
        return root.log_start
    if kept is None or kept.version <= root.log_start:
        return root.log_start
    start = max(context.log.history.base_of(root, kept.version), root.log_start)
    return _lower(context, root, start, now_us - int(context.log.grace_s * 1e6))


def _lower(context: StreamContext, root: Root, start: int, before_us: int) -> int:
    """Return the newest version up to `start` that existed at a time by the store's clock.

    The versions that it superseded have been superseded since that time. Stamps say so too, but a
    machine whose clock is behind stamps its commits too early, and no handle may lose the version
    that it uses.
    """
    low, high = root.log_start, start
    while low < high:
        middle = (low + high + 1) // 2
        # Try `start` first: it is nearly always the answer.
        version = start if high == start else middle
        if context.storage.info(context.log.files.path(version)).modified_us <= before_us:
            low = version
        else:
            high = version - 1
    return low


def may_delete_below(context: StreamContext, root: Root) -> bool:
    """Tell whether all versions below a root's `log_start` were superseded before the log's grace.

    Those of a stream that was dropped in this folder may be younger.
    """
    first = context.storage.info(context.log.files.path(root.log_start))
    return first.modified_us <= store_now_us(context) - int(context.log.grace_s * 1e6)


def run_purge(
    context: StreamContext,
    *,
    older_than_s: float,
    keep_versions: int = 1,
    most: int | None = None,
    dry_run: bool = False,
) -> int:
    """Delete the versions superseded more than `older_than_s` ago; safe to repeat after a crash.

    The newest `keep_versions` (>= 1) always stay, and so do versions from `most` on. Returns the
    oldest version kept; a dry run deletes nothing.

    Raises:
        InvalidInputError: Fewer than one version would stay.
        ConflictError: Every race was lost; nothing was deleted.
        CommitUnknownError: `log_start` may or may not be raised; nothing was deleted.
    """
    keep_versions = as_integer(keep_versions, "keep_versions")
    if keep_versions < 1:
        raise InvalidInputError(
            "the newest version can't be purged",
            remedy="keep at least one version",
            keep=keep_versions,
        )
    target = plan_purge(context, older_than_s=older_than_s)
    target = target if most is None else min(target, most)

    def lowest(version: int) -> int:
        return min(target, version - 1, version - keep_versions)

    if dry_run:
        newest = context.log.root
        return max(lowest(newest.version + 1), newest.log_start)

    def build(root: Root, slot: Slot) -> Change[None]:
        start = lowest(slot.version)
        if start <= root.log_start:
            return NOTHING
        return Change(replace(root, log_start=start, operation=Operation.PURGE))

    done = context.log.commit(build)
    root = done.root
    # Advance the hint before deleting, or an open could follow it to a leftover version.
    context.log.files.put_hint(hint_of(root))
    if done.written or may_delete_below(context, root):
        context.log.files.purge(root.log_start)
        purge_copies(context, root, lambda files: files.purge(root.log_start))
    return root.log_start


def purge_copies(
    context: StreamContext, root: Root, delete: Callable[[MetadataLog[Root]], object]
) -> None:
    """Delete purged versions from mirrors; one that fails keeps them."""

    def purge(files: MetadataLog[Root]) -> None:
        files.put_hint(hint_of(root))  # first: it must not point to a deleted version
        delete(files)

    context.log.seams.in_copies(root, "purged versions", purge)
