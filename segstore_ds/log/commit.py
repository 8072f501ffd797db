"""A commit as values: the change that a verb plans, its result and its cost.

An attempt that lost its race leaves status objects and outlined segments, which are deleted. The
name of such an object has the version that it was planned on, and the commit that first names it
has the next version. If that version holds another attempt's commit, no later commit can name an
object that was planned on the same base and that the winner does not name. Names are digests, so
two writers may have put the same object: what the winner names is kept. If the winner's root alone
does not show all that it names, the objects are left for upkeep.
"""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from segstore_ds.errors import FormatError, StorageError
from segstore_ds.format import names
from segstore_ds.format.operation import RELISTING
from segstore_ds.format.root import HistoryRow, Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import CONFIRM_S, Base
from segstore_ds.log.transition import check_transition
from segstore_ds.status.history import NO_NOTE, History, Note, describe_commit
from segstore_ds.status.references import status_objects
from segstore_ds.status.table import Slot
from segstore_ds.storage.base import StorageStats

_LOG = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What a verb plans on a root."""

    # The next root, without its place in the log; None when there is nothing to commit.
    root: Root | None
    # What the verb returns to its caller.
    result: T = None  # type: ignore[assignment]  # None for a verb that returns nothing
    note: Note = NO_NOTE  # what the history records beyond what the root says


@dataclass(frozen=True, slots=True)
class Committed(Generic[T]):
    """A commit's result: the root, what the verb returned, and whether this call wrote the root."""

    root: Root
    result: T
    written: bool
    attempts: int


class Meter:
    """Counts what a commit costs."""

    def __init__(self, stats: StorageStats) -> None:
        self._stats = stats
        self._requests, self._bytes = stats.cost()
        self.races_lost = 0

    def cost(self, attempt: int) -> dict[str, int]:
        """Return the costs in a history row: those up to now, and of the put that follows."""
        requests, written = self._stats.cost()
        return {
            "attempts": attempt + 1,
            "races_lost": self.races_lost,
            "requests": requests - self._requests + 1,
            "request_bytes": written - self._bytes,
        }


def complete_root(
    history: History, base: Root, change: Change[Any], slot: Slot, *, transaction: str, meter: Meter
) -> Root:
    """Return the root to put: the planned change, its place in the log and its history row."""
    planned = change.root or base
    kept = history.tidy(planned, slot)
    relists = base.restored is not None and planned.operation in RELISTING
    place: dict[str, Any] = {
        "version": slot.version,
        "time_us": slot.time_us,
        "transaction": transaction,
    }
    row = describe_commit(base, kept, change.note, **place, **meter.cost(slot.attempt))
    root = kept.changed(
        **place,
        parent=base.transaction,
        restored=slot.version if relists else base.restored,
        history=(*kept.history, row),
    )
    check_transition(base, root)
    return root


def log_commit(url: str, row: HistoryRow, fact: str = "commit") -> None:
    """Log a commit at DEBUG, as `name=value` and in the record's field `segstore`."""
    if _LOG.isEnabledFor(logging.DEBUG):
        fields = {"url": url, **asdict(row)}
        if (row.merged or "").startswith("{"):
            fields["changed"] = fields.pop("merged")
        known = {name: value for name, value in fields.items() if value not in (None, "")}
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in known.items())
        _LOG.debug("%s %s", fact, text, extra={"segstore": known})


def winner_of(root: Root) -> dict[str, Any]:
    """Return the fields of a ConflictError about the newest commit that came first."""
    return {"version": root.version, "operation": root.operation, "client": root.client}


def log_lost_race(url: str, find_winner: Callable[[], Root | None]) -> None:
    """Log the commit that took the slot first, unless it can't be read, as `log_commit` does."""
    if _LOG.isEnabledFor(logging.DEBUG) and (winner := find_winner()) is not None:
        log_commit(url, winner.history[-1], "lost a race to")


def plan_discard(base: Root, lost: Root, winner: Root) -> list[str]:
    """Return the objects that only `lost` names, after `winner` took its version. Pure."""
    moved = {_lists(base), _lists(lost), _lists(winner)}
    if winner.parent != base.transaction or len(moved) > 1:
        return []  # parts may have moved to lists or out of them
    made = {*_made_on(base, lost)}
    if winner.parts != base.parts:
        made.difference_update(_outlined(lost))  # a new part may list them
    return sorted(made.difference(status_objects(winner), _outlined(winner)))


def _made_on(base: Root, root: Root) -> Iterator[str]:
    paths = (*status_objects(root), *_outlined(root))
    return (path for path in paths if names.staged_version(path) == base.version)


def _outlined(root: Root) -> Iterator[str]:
    paths = (entry.path for entry in root.entries if names.is_outlined(entry.path))
    return map(names.segment_object, paths)


def _lists(root: Root) -> tuple[object, ...]:
    return root.lists, root.history_lists, root.retired_lists, root.writers_lists


def discard_lost(files: MetadataLog[Root], base: Base, lost: Root, clock: Clock) -> None:
    """Delete objects that a lost attempt put and no commit can name; best effort, never raises."""
    if not any(_made_on(base.root, lost)):
        return
    try:
        winner = files.get(lost.version)
        # After a suspension, that version may have been purged and put again by another writer.
        if winner is not None and clock.boot_s() - base.confirmed_s <= CONFIRM_S:
            for path in plan_discard(base.root, lost, winner):
                files.storage.delete(path)
    except (FormatError, StorageError) as error:
        _LOG.warning(
            "objects of a lost attempt could not be deleted; upkeep will delete them: %s", error
        )
