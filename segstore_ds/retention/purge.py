"""Purge: forgetting old versions of a stream's log.

A commit raises `log_start` first; then names below it are deleted, in ascending order, so that a
name that is gone says that every name below it is gone. A version that was superseded less than
the grace ago is never purged, because a handle may still stand on it.
"""

from dataclasses import replace

from segstore_ds.commit.commit import StreamLog
from segstore_ds.commit.lookup import moment_at
from segstore_ds.errors import InvalidInputError, SnapshotExpiredError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.seen import hint_of
from segstore_ds.log.transition import Slot
from segstore_ds.read.reader_records import store_now_us
from segstore_ds.replication.followers import purge_followers
from segstore_ds.write.inputs import as_integer


def plan_purge(log: StreamLog, *, older_than_s: float) -> int:
    """Return the oldest version to keep: the last but one of those stamped `older_than_s` ago.

    A stamp may be older than the commit that bears it: its writer slept, or its put came late. But
    a commit's base was in the log when the commit was stamped, so whatever lies below the base had
    been superseded by then.

    Args:
        log: The stream's log.
        older_than_s: Least age of being superseded; the log's grace at least counts.

    Raises:
        FormatError: A version can't be read.
        StorageError: The storage failed.
    """
    age_s = max(older_than_s, log.grace_s)
    now_us = store_now_us(log)
    try:
        kept = moment_at(log, now_us - int(age_s * 1e6))
    except SnapshotExpiredError:
        return log.root.log_start
    if kept is None or kept.version <= log.root.log_start:
        return log.root.log_start
    start = max(log.history.base_of(log.root, kept.version), log.root.log_start)
    return _lower(log, start, now_us - int(log.grace_s * 1e6))


def _lower(log: StreamLog, start: int, before_us: int) -> int:
    """Return the newest version up to `start` that by the store's clock was there at a time.

    What it superseded has been superseded since. Stamps say so too, but a machine whose clock is
    behind stamps what it commits too early; and no handle may lose the version that it stands on.
    """
    low, high = log.root.log_start, start
    while low < high:
        middle = (low + high + 1) // 2
        # The first guess is nearly always right.
        version = start if high == start else middle
        if log.storage.info(log.files.path(version)).modified_us <= before_us:
            low = version
        else:
            high = version - 1
    return low


def run_purge(log: StreamLog, *, older_than_s: float, keep_versions: int = 1) -> int:
    """Forget the versions superseded longer ago than that; safe to repeat after a crash.

    Args:
        log: The stream's log.
        older_than_s: Least time since they were superseded.
        keep_versions: How many of the newest versions stay in any case (>= 1).

    Returns:
        The oldest version kept.

    Raises:
        InvalidInputError: Fewer than one version would stay.
        ConflictError: Every race was lost; nothing was deleted.
        CommitUnknownError: It is unknown whether log_start was raised; nothing was deleted.
        FormatError: A version can't be read; nothing was deleted.
        StorageError: The storage failed.
    """
    keep_versions = as_integer(keep_versions, "keep_versions")
    if keep_versions < 1:
        raise InvalidInputError(
            "a stream keeps its newest version", remedy="keep one at least", keep=keep_versions
        )
    target = plan_purge(log, older_than_s=older_than_s)

    def build(root: Root, slot: Slot) -> Root | None:
        start = min(target, slot.version - 1, slot.version - keep_versions)
        if start <= root.log_start:
            return None
        return replace(root, log_start=start, operation="purge")

    root = log.commit(build, transaction=log.clock.new_id()).root
    # The hint must not stay behind what is deleted now, or an open could follow it to a leftover.
    log.storage.put(log.files.hint_path, names.build_hint(hint_of(root)))
    log.files.purge(root.log_start)
    purge_followers(log, root)
    return root.log_start
