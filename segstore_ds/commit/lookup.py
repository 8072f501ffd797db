"""Looking up the past: the version of a time, and whether a transaction is in the log."""

import enum
from dataclasses import dataclass

from segstore_ds.commit.commit import StreamLog
from segstore_ds.errors import SnapshotExpiredError
from segstore_ds.format.root import Root
from segstore_ds.status.history import Moment


class OutcomeState(enum.Enum):
    """What is known of a transaction."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to "did it land?"; `version` is where, when it did."""

    state: OutcomeState
    version: int | None = None


def version_at(log: StreamLog, time_us: int) -> Root | None:
    """Return the newest root committed at or before a time, or None if all came later.

    Raises:
        SnapshotExpiredError: It was purged.
        FormatError: A file can't be read.
        StorageError: The storage failed.
    """
    found = moment_at(log, time_us)
    return None if found is None else log.read_version(found.version)


def moment_at(log: StreamLog, time_us: int) -> Moment | None:
    """Return the newest version committed at or before a time, or None if all came later.

    The history knows it, whatever was purged or left behind by a repair; one part of it is read
    at most.

    Raises:
        SnapshotExpiredError: It was purged, and is older than the history.
        FormatError: A file can't be read.
        StorageError: The storage failed.
    """
    newest = log.refresh()
    if newest.time_us <= time_us:
        return Moment(newest.version, newest.time_us, newest.tail)
    first = log.history.first_version(newest)
    found = log.history.latest(newest, time_us)
    return found if found is not None or first == 0 else _search(log, newest, first, time_us)


def outcome(log: StreamLog, transaction: str, version: int | None = None) -> Outcome:
    """Tell whether a transaction is in the log.

    Args:
        log: The stream's log.
        transaction: Its id, as CommitUnknownError names it.
        version: The slot it was put to, as CommitUnknownError names it; without it every
            version that is kept is read, newest first.

    Returns:
        COMMITTED with the version; NOT_COMMITTED when its slot holds another commit or was
        left behind by a repair; UNKNOWN while the slot is free (a late put may still fill it)
        or purged.

    Raises:
        FormatError: A file can't be read.
        StorageError: The storage failed.
    """
    newest = log.reopen()
    if version is not None:
        if not newest.log_start <= version <= newest.version:
            return Outcome(OutcomeState.UNKNOWN)
        lost = log.history.lost(newest, version, version + 1)
        if not lost and log.read_version(version).transaction == transaction:
            return Outcome(OutcomeState.COMMITTED, version)
        return Outcome(OutcomeState.NOT_COMMITTED)
    lost = log.history.lost(newest, newest.log_start, newest.version)
    for number in range(newest.version, newest.log_start - 1, -1):
        if number not in lost and log.read_version(number).transaction == transaction:
            return Outcome(OutcomeState.COMMITTED, number)
    return Outcome(OutcomeState.UNKNOWN)


def _search(log: StreamLog, newest: Root, first: int | None, time_us: int) -> Moment | None:
    """Search the versions older than the history: commit times never go back."""
    low, high = newest.log_start, newest.version if first is None else first
    found = None
    while low < high:
        middle = (low + high) // 2
        root = log.read_version(middle)
        if root.time_us <= time_us:
            low, found = middle + 1, Moment(middle, root.time_us, root.tail)
        else:
            high = middle
    if found is None and newest.log_start > 0:
        raise SnapshotExpiredError(
            "the versions of that time were purged",
            url=log.storage.url,
            oldest=newest.log_start,
        )
    return found
