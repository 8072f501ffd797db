"""Looks up the past: the version at a time, and whether a transaction is in the log."""

import enum
from dataclasses import dataclass

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Root
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
        log.seams.before_ack(log.root)
        return Outcome(OutcomeState.COMMITTED, found)
    decided = version is not None and log.history.moment(newest, version)
    return Outcome(OutcomeState.NOT_COMMITTED if decided else OutcomeState.UNKNOWN)
