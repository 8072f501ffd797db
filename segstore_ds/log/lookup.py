"""Looks up the past: the version at a time, a transaction, and which versions may be forgotten.

A version that was superseded within the log's grace is never purged, because a handle may still use
it.
"""

import enum
from dataclasses import dataclass

from segstore_ds.errors import InvalidInputError, MissingObjectError
from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.arguments import check_whole
from segstore_ds.status.history import Moment


class OutcomeState(enum.Enum):
    """What is known about a transaction."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a transaction was committed; `version` is its commit's version, if known."""

    state: OutcomeState
    version: int | None = None


def version_at(log: StreamLog, time_us: int) -> Root | None:
    """Return the newest root committed at or before a time, or None if all came later.

    Raises SnapshotExpiredError when that version was forgotten.
    """
    found = find_moment(log, log.refresh(), time_us)
    return None if found is None else log.read_version(found.version)


def find_moment(log: StreamLog, newest: Root, time_us: int) -> Moment | None:
    """Return the newest version committed at or before a time, or None if all came later.

    The history of the newest root answers this, even for versions that were purged or abandoned by
    a repair; at most one of its parts is read.
    """
    if newest.time_us <= time_us:
        return Moment(newest.version, newest.time_us, newest.tail)
    return log.history.latest(newest, time_us)


def find_outcome(log: StreamLog, transaction: str, version: int | None = None) -> Outcome:
    """Tell whether a transaction is in the log; `Stream.outcome` describes it.

    The history answers, so purged versions are known as well. UNKNOWN when the slot is free (a late
    put may still fill it), or when no row has the transaction.
    """
    if not isinstance(transaction, str) or not transaction:
        raise InvalidInputError(
            "not a transaction",
            remedy="pass fields['transaction'] of the CommitUnknownError",
            transaction=transaction,
        )
    version = check_whole("version", version, optional=True)
    newest = log.reopen()
    found = log.history.find_transaction(newest, transaction, version)
    if found is not None:
        log.seams.of(log.root).before_ack(log.root)
        return Outcome(OutcomeState.COMMITTED, found)
    decided = version is not None and log.history.moment(newest, version)
    return Outcome(OutcomeState.NOT_COMMITTED if decided else OutcomeState.UNKNOWN)


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
    kept = number_at(context, root, now_us - int(max(older_than_s, grace_s) * 1e6))
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


def number_at(context: StreamContext, root: Root, time_us: int) -> int:
    """Return the number of the newest version stamped at or before a time; 0 for none."""
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
