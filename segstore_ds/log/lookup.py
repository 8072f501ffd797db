"""Looks up the version at a time, a transaction, and which versions may be forgotten.

A version that was superseded within the log's grace is never purged, because a handle may use it.
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
    """Return the newest root committed at or before a time, or None if there is none.

    Raises SnapshotExpiredError when that version was forgotten.
    """
    found = find_moment(log, log.refresh(), time_us)
    return None if found is None else log.read_version(found.version)


def find_moment(log: StreamLog, newest: Root, time_us: int) -> Moment | None:
    """Return the newest version committed at or before a time, or None if there is none.

    It is looked up in the history of the newest root, so it may be purged or abandoned by a repair.
    Reads at most one part.
    """
    if newest.time_us <= time_us:
        return Moment(newest.version, newest.time_us, newest.tail)
    return log.history.latest(newest, time_us)


def find_outcome(log: StreamLog, transaction: str, version: int | None = None) -> Outcome:
    """Tell whether a transaction is in the log; `Stream.outcome` describes it.

    It is looked up in the history, which has purged versions, too. UNKNOWN if no row has the
    transaction and `version` is not given, or is still free: a late put may take it.
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
    """Return the oldest version to keep: the base of the newest one with a time before the age.

    A commit's time may be earlier than its put: the writer slept, or its put arrived late. But its
    base was in the log at that time, so every version below the base had been superseded by then.
    `older_than_s` counts from that moment, by the store's clock, and is at least the log's grace.
    With `least_s` in the place of that grace the base may be forgotten, too: the caller must keep
    the files of the log, and the next version's file shows when the base was superseded.
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
    """Return the oldest version to keep by a policy and by the log's own grace."""
    start = plan_log_start(context, root, policy.keep_s, now_us)
    excess = root.version + 1 - policy.keep_versions
    if excess > start:
        start = max(start, min(excess, plan_log_start(context, root, 0, now_us)))
    return start


def number_at(context: StreamContext, root: Root, time_us: int) -> int:
    """Return the number of the newest version with a time at or before `time_us`; 0 for none."""
    found = find_moment(context.log, root, time_us)
    return found.version if found else 0


def may_delete_below(context: StreamContext, root: Root) -> bool:
    """Tell whether all versions below a root's `log_start` were superseded before the log's grace.

    They may not be if a stream was dropped in this folder before, or versions were forgotten early.
    """
    first = context.storage.info(context.log.files.path(root.log_start))
    return first.modified_us <= context.log.store_now_us() - int(context.log.grace_s * 1e6)


def _lower(context: StreamContext, root: Root, start: int, before_us: int) -> int:
    """Return the newest version up to `start` that existed at a time by the store's clock.

    So all versions below it were superseded by then. The times in roots are not enough: a machine
    whose clock is behind commits with too early times, and no handle may lose its version.
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
