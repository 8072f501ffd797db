"""Which versions may be forgotten: those that were superseded long enough ago.

A version that was superseded within the log's grace is never purged, because a handle may still use
it.
"""

from segstore_ds.errors import MissingObjectError
from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import find_moment


def plan_log_start(
    context: StreamContext,
    root: Root,
    older_than_s: float,
    now_us: int | None = None,
    *,
    least_s: float | None = None,
) -> int:
    """Return the oldest version to keep: the base of the newest one stamped before the age.

    A stamp may be older than its commit: the writer slept, or its put arrived late. But the base of
    a commit was in the log when the commit was stamped, so every version below the base had been
    superseded by then. `older_than_s` counts from being superseded and is at least the log's grace.
    The time is the store's. With `least_s` instead of that grace, the files of the log must stay,
    and the base may be forgotten, too: its successor's file tells by itself how long ago.
    """
    now_us = context.log.store_now_us() if now_us is None else now_us
    grace_s = context.log.grace_s if least_s is None else least_s
    kept = version_at(context, root, now_us - int(max(older_than_s, grace_s) * 1e6))
    if kept <= root.log_start:
        return root.log_start
    base = context.log.history.base_of(root, kept) if least_s is None else kept
    try:
        return _lower(context, root, max(base, root.log_start), now_us - int(grace_s * 1e6))
    except MissingObjectError:
        start = context.log.refresh().log_start  # another process may have forgotten them meanwhile
        if start == root.log_start:
            raise
        return start


def plan_policy_start(context: StreamContext, root: Root, policy: UpkeepPolicy, now_us: int) -> int:
    """Return the oldest version to keep by a policy; the log's own grace outranks it."""
    start = plan_log_start(context, root, policy.keep_s, now_us)
    excess = root.version + 1 - policy.keep_versions
    if excess > start:
        start = max(start, min(excess, plan_log_start(context, root, 0, now_us)))
    return start


def version_at(context: StreamContext, root: Root, time_us: int) -> int:
    """Return the newest version stamped at or before a time; 0 for none."""
    found = find_moment(context.log, root, time_us)
    return found.version if found else 0


def may_delete_below(context: StreamContext, root: Root) -> bool:
    """Tell whether all versions below a root's `log_start` were superseded before the log's grace.

    Those of a stream that was dropped in this folder may be younger, or forgotten early.
    """
    first = context.storage.info(context.log.files.path(root.log_start))
    return first.modified_us <= context.log.store_now_us() - int(context.log.grace_s * 1e6)


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
