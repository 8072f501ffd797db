"""Upkeep: bounded rounds of deletion after commits, by the stream's policy.

A round has three steps. It may stop anywhere, and two rounds may run at once:

1. Delete what the roots of earlier rounds allow. That is retired objects at or before the committed
   `log_start`, staging floor and pins, older than the grace; and orphans staged below the committed
      floor. No later commit can list one of them.
2. Commit once: raise `log_start` and the floor, remove the retired rows of deleted objects, and
   note how far orphans were swept. It notes only what is already done.
3. Write the hint, and delete log files below `log_start` in ascending order. If the round stops,
   the rest lies directly below `log_start`, where the next round looks.

A round lists only the objects of some versions, once an hour. The root says when the last round
was, so all writers of a stream share one round a minute.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from segstore_ds.format import names
from segstore_ds.format.policies import UpkeepPolicy, upkeep_of
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import may_delete_below, number_at, plan_policy_start
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.seams import best_effort
from segstore_ds.retention.deletion import (
    MOST_DELETED,
    Aim,
    Runner,
    commit_aim,
    may_go,
    swept_by,
    trim_log,
)
from segstore_ds.retention.report import Maintenance
from segstore_ds.status.deletable import plan_horizon
from segstore_ds.status.references import OBJECT_FOLDERS

EVERY_US = 60_000_000
IDLE_US = 3_600_000_000  # between two rounds of a stream with few commits
WORTH_COMMITS = 64  # so many commits are worth a round a minute
MOST_SWEPT = 10_000  # versions that one round sweeps
_time_of = attrgetter("time_us")
BRIEF_S, LONG_S = 5.0, 45.0  # budgets of a round: with a caller that waits for it, and without


def is_due(root: Root) -> bool:
    """Tell whether enough time has passed since the last round, by commit times. Pure."""
    last = root.upkeep
    if last is None:
        return True
    age_us = root.time_us - last.time_us
    worth = root.version - last.version >= WORTH_COMMITS
    return age_us >= IDLE_US or (worth and age_us >= EVERY_US)


def may_have_work(root: Root, policy: UpkeepPolicy) -> bool:
    """Tell from the root alone whether a round may have something to do. Pure."""
    if root.version - root.log_start > policy.keep_versions:
        return True
    # Commit times never decrease, so the time of the second kept version decides.
    if (second := root.log_start + 1) < root.version:
        refs = (*root.history_lists, *root.history_parts)
        place = second - root.history[0].version
        if place < 0:
            kept_us = next(ref.time_us for ref in refs if ref.end > second)
        else:
            kept_us = root.history[place].time_us
        if kept_us <= root.time_us - policy.keep_s * 1_000_000:
            return True
    dropped = chain(root.retired_lists, root.retired_parts, root.retired)
    dropped_us: int = next(map(_time_of, dropped), root.time_us)
    return dropped_us <= root.time_us - policy.grace_s * 1_000_000


def has_work(context: StreamContext, root: Root, policy: UpkeepPolicy) -> bool:
    """Tell whether a round has something to do; reads two status objects at most."""
    if root.version - root.log_start > policy.keep_versions:
        return True
    with_age = number_at(context, root, root.time_us - policy.keep_s * 1_000_000)
    if with_age - 1 > root.log_start:
        return True
    oldest = next(context.status.retired.groups(root), None)
    if oldest is None:
        return False
    horizon = plan_horizon(root, floor=0, until_us=root.time_us - policy.grace_s * 1_000_000)
    return any(may_go(item, root, horizon) for item in oldest[1][:1])


def run_upkeep(context: StreamContext, *, budget_s: float = LONG_S) -> Maintenance | None:
    """Run a round if one is due; return what it did, or None if it committed nothing.

    Safe to repeat, to kill at any point, and to run concurrently with everything else. After
    `budget_s` it deletes nothing more; the next round continues.
    """
    late = deadline(context, budget_s)
    root = context.log.refresh()
    policy = upkeep_of(root)
    if policy is None or root.dropped or not is_due(root) or not has_work(context, root, policy):
        return None
    # Raises if a mirror was promoted, or does not confirm that it is one: delete nothing there.
    context.log.seams.of(root).before_ack(root)
    now_us = context.log.store_now_us()
    grace_us = policy.grace_s * 1_000_000
    # Only what earlier rounds have committed decides what may be deleted now.
    horizon = plan_horizon(root, floor=0, until_us=now_us - grace_us)
    runner = Runner(context, root, horizon, late)
    swept = _sweep(context, root, runner, now_us - 2 * grace_us, late)
    gone = runner.delete_retired()
    start = root.log_start
    low = context.log.files.lowest(start)
    aim = Aim(
        start=min(plan_policy_start(context, root, policy, now_us), low + MOST_DELETED),
        floor=number_at(context, root, now_us - grace_us),
    )
    committed = commit_aim(context, aim, gone=gone, sweep=(root.upkeep, swept))
    if not committed.written:
        return None
    done = committed.root

    def trim(files: MetadataLog[Root]) -> None:
        first = low if files is context.log.files else files.lowest(start)
        files.trim(first, done.log_start, until=late)

    # No other round committed in between, so a raised `log_start` is the one planned above.
    if done.log_start > start or may_delete_below(context, done):
        trim_log(context, done, trim)
    versions = done.log_start - start
    return Maintenance(False, done.version, done.log_start, versions, deleted=tuple(runner.deleted))


def _sweep(
    context: StreamContext, root: Root, runner: Runner, until_us: int, late: Callable[[], bool]
) -> int:
    """Delete the orphans of some more versions; return the version where the next sweep begins.

    It runs once an hour, twice the grace behind the newest version. By then nearly all objects of
    those versions are listed or deleted, so the other metadata is rarely read.
    """
    last, start = root.upkeep, swept_by(root.upkeep)
    if last is not None and last.time_us // IDLE_US == root.time_us // IDLE_US:
        return start
    end = min(number_at(context, root, until_us), root.staging_floor, start + MOST_SWEPT)
    if end <= start:
        return start
    objects = [
        info
        for folder in OBJECT_FOLDERS
        for prefix in names.version_prefixes(start, end)
        if not late()
        for info in context.storage.list(folder, prefix)
        if start <= (names.staged_version(info.path) or 0) < end
    ]
    return end if not late() and runner.delete_orphans(objects) else start


@dataclass(frozen=True, slots=True)
class Round:
    """Background work after commits: `may_be_due` reads only the root, `run` has a budget (s).

    With a `property`, it runs only for streams that have the property.
    """

    what: str
    may_be_due: Callable[[Root], bool]
    run: Callable[[StreamContext, float], object]
    property: str | None = None


def _may_keep_up(root: Root) -> bool:
    policy = upkeep_of(root)
    return policy is not None and is_due(root) and may_have_work(root, policy)


UPKEEP = Round("upkeep", _may_keep_up, lambda own, budget_s: run_upkeep(own, budget_s=budget_s))


class AutoUpkeep:
    """Starts rounds after the commits of one handle, with a log of their own, one at a time."""

    def __init__(self, context: StreamContext, rounds: Sequence[Round] = (UPKEEP,)) -> None:
        self._context = context
        self._rounds = rounds
        self._own: StreamContext | None = None
        self._tried_s = float("-inf")
        self._turn = threading.Lock()  # held while rounds start and run; nobody waits for it

    def start_if_due(self) -> None:
        """Start the rounds that may be due; sends no request if none is."""
        if not self._turn.acquire(blocking=False):
            return
        clock, held = self._context.log.clock, True
        try:
            due = self._due(clock.boot_s())
            if due:
                own = self._own = self._own or self._context.apart()
                own.log.follow_from(self._context.log)
                held = clock.background  # `_run` releases it, unless the thread does not start
                with suppress(RuntimeError):  # the process ends: a later writer runs the rounds
                    clock.start(lambda: self._run(own, due), "segstore-upkeep")
                    held = False
        finally:
            if held:
                self._turn.release()

    def _due(self, now_s: float) -> list[Round]:
        if now_s - self._tried_s < EVERY_US / 1e6:
            return []
        root = self._context.log.root
        known = {None, *root.properties}
        due = [item for item in self._rounds if item.property in known and item.may_be_due(root)]
        self._tried_s = now_s if due else self._tried_s
        return due

    def _run(self, own: StreamContext, due: Sequence[Round]) -> None:
        budget_s = LONG_S if self._context.clock.background else BRIEF_S
        try:
            for item in due:
                with best_effort(item.what):
                    try:
                        item.run(own, budget_s)
                    except RuntimeError:
                        # A filesystem that must connect can start no thread when a process ends.
                        if not _process_ends():
                            raise
        finally:
            self._turn.release()


def deadline(context: StreamContext, budget_s: float) -> Callable[[], bool]:
    """Return a function that tells whether a round that begins now has used up its budget."""
    began_s = context.clock.boot_s()

    def late() -> bool:
        # A process that ends waits for this thread, so the round gets less time.
        left_s = min(budget_s, BRIEF_S) if _process_ends() else budget_s
        return context.clock.boot_s() - began_s > left_s

    return late


def _process_ends() -> bool:
    return not threading.main_thread().is_alive()
