"""The commit protocol: how a change gets into a stream's log (FORMAT.md 4).

Invariants of this module; breaking any one of them can lose data:

- A commit is acknowledged only if it is in the newest contiguous run of the log. A writer that was
  suspended may create a name that was purged long ago. So if more than `CONFIRM_S` passed between
  confirming the base and the return of the put, the newest root is found by listing, and the commit
  counts only if `log_start` has not passed its base. A lost race that is seen so late proves
  nothing either: the name may be a leftover, and our own commit may have been purged before it.
- An old root found through the hint is confirmed by a listing before a commit is built on it.
- The commit time is read before the base is confirmed to be the newest, so a leftover is always at
  least as old as the suspension that caused it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Generic, TypeVar

from segstore_ds.errors import (
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    MissingObjectError,
    SegstoreError,
    StorageError,
)
from segstore_ds.format.operation import RELISTING
from segstore_ds.format.root import Root, check_writable
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.copy_record import check_commit
from segstore_ds.log.late_hints import LATE_HINTS
from segstore_ds.log.log_line import log_commit
from segstore_ds.log.lost_attempts import discard_lost
from segstore_ds.log.newest import (
    CONFIRM_S,
    LOG_GRACE_S,
    REOPEN_ATTEMPTS,
    Base,
    FollowedLog,
)
from segstore_ds.log.place import first_version
from segstore_ds.log.seams import SEAMS
from segstore_ds.log.seen import Seen, hint_of
from segstore_ds.log.transition import check_first, check_transition
from segstore_ds.log.turns import Turns
from segstore_ds.log.watch import await_version, read_ahead
from segstore_ds.status.history import NO_NOTE, History, Note, describe_commit
from segstore_ds.status.slot import Slot
from segstore_ds.storage import Storage
from segstore_ds.storage.base import StorageStats

CLOCK_LIMIT_US = 5 * 60 * 1_000_000
CLOCK_CHECK_S = 600.0
CLOCK_MOVED_S = 5.0  # more than a correction by NTP, or the time between two readings
HINT_EVERY_S = 1.0
COMMIT_ATTEMPTS = 200
LOOKS = 16  # of a writer that waits for its turn


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What a verb makes of a root.

    Attributes:
        root: The next root, whose place in the log is filled in by the commit; None when there is
            nothing to commit.
        result: What the verb learned on that root and returns to its caller.
        note: What the history records about the change beyond what the root says.
    """

    root: Root | None
    result: T = None  # type: ignore[assignment]  # None for a verb that returns nothing
    note: Note = NO_NOTE


NOTHING: Change[None] = Change(None)


@dataclass(frozen=True, slots=True)
class Committed(Generic[T]):
    """A commit's result: the root, what the verb returned, and whether this call wrote the root."""

    root: Root
    result: T
    written: bool
    attempts: int


@dataclass(frozen=True, slots=True)
class _Spent:
    """What a commit cost up to its put: columns of its history row."""

    attempts: int
    races_lost: int
    requests: int
    request_bytes: int


def _restored(base: Root, planned: Root, slot: Slot) -> int | None:
    """Return the newest version that listed again what was retired; None if that is not known."""
    known = base.restored is not None
    return slot.version if known and planned.operation in RELISTING else base.restored


class _Meter:
    """Counts what a commit costs."""

    def __init__(self, stats: StorageStats) -> None:
        self._stats = stats
        self._before = (stats.total, stats.bytes_written)
        self.races_lost = 0

    def read(self, attempt: int) -> _Spent:
        """Return the cost up to now, with the put that follows."""
        requests, size = self._before
        return _Spent(
            attempts=attempt + 1,
            races_lost=self.races_lost,
            requests=self._stats.total - requests + 1,
            request_bytes=self._stats.bytes_written - size,
        )


class StreamLog(FollowedLog):
    """The batch metadata log of one stream, for writing to it; arguments as in `FollowedLog`."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock = SYSTEM_CLOCK,
        grace_s: float = LOG_GRACE_S,
        incomplete: bool = False,
        damaged: bool = False,
    ) -> None:
        super().__init__(
            storage, clock=clock, grace_s=grace_s, incomplete=incomplete, damaged=damaged
        )
        self.history = History(storage)
        self._hinted_s = float("-inf")
        self._clock_checked_s = float("-inf")
        self._clock_offset_s = self._offset_s()
        self._turns = Turns(clock)
        self.seams = [make(self.files, clock) for make in SEAMS]

    def create(self, first: Root) -> Root | None:
        """Put the first commit of a stream and return it; None when there already is a stream.

        `first` has version 0. In the folder of a dropped stream it gets the version behind the last
        commit there, so that an older handle finds the slot after its base taken.

        Raises:
            InternalError: The root breaks a rule of FORMAT.md.
            CommitUnknownError: The storage never answered whether the commit is in the log.
        """
        check_first(first)
        self.storage.ensure_exclusive()
        began = self.clock.boot_s()
        version = first_version(self.files)
        if version is None:
            return None
        rows = tuple(replace(row, version=version) for row in first.history)
        root = replace(first, version=version, log_start=version, history=rows)
        check_first(root)
        if not self.files.add(version, root):
            return None
        # A suspended creator may have put a version into a stream that had purged its own.
        if self.clock.boot_s() - began > CONFIRM_S:
            newest = self.reopen()
            # Two runs of one clone use the same stream id, so a purged log also marks a leftover.
            if newest.stream_id != root.stream_id or newest.log_start > version:
                return None
        self._stand_on(Base(root, began, began, self.files.added_mark))
        self._hint(root)
        return root

    def commit(
        self,
        build: Callable[[Root, Slot], Change[T]],
        *,
        transaction: str | None = None,
        attempts: int = COMMIT_ATTEMPTS,
        shipped: Mapping[str, frozenset[str]] | None = None,
    ) -> Committed[T]:
        """Commit a change; plan it again on the newest root whenever another commit came first.

        Threads that share this handle take turns.

        `build` is called again after each lost race, so its only side effect may be to put objects
        under fresh names. `transaction` is the id of this logical commit over all attempts, a new
        one by default. `shipped` maps segments of this commit to the followers that acknowledged
        them.

        Raises:
            ConflictError: Every attempt lost its race; nothing was committed.
            CommitUnknownError: The change may or may not be in the log; names version and
                transaction.
            InvalidInputError: This machine's clock is off.
            StorageError: The storage failed before anything was put.
            UnderReplicatedError: The change is in the log, but a follower lacks it.
            FencedError: This folder is not the primary; or a follower was promoted, perhaps after
                the put.
        """
        with self._committing:
            return self._commit(build, transaction, attempts, shipped or {})

    def _commit(
        self,
        build: Callable[[Root, Slot], Change[T]],
        transaction: str | None,
        attempts: int,
        shipped: Mapping[str, frozenset[str]],
    ) -> Committed[T]:
        self.storage.ensure_exclusive()
        called_s, meter = self.clock.boot_s(), _Meter(self.storage.stats)
        transaction = transaction or self.new_transaction()
        self._wait_turn()
        for attempt in range(attempts):
            # Stand on a root that was the newest a moment ago, and take the time before that.
            base, slot = self._begin(attempt)
            # Build the change on it: what it refers to is durable before the root is put.
            try:
                change = build(base.root, slot)
            except ConflictError:
                # The base may be a minute old, so the condition may hold on a newer root.
                if base.confirmed_s > called_s or self.refresh().version == base.root.version:
                    raise
                continue
            # A folder that was restored or emptied meanwhile no longer holds the base.
            if not self._stands_now(base):
                self.reopen()
                continue
            if change.root is None:
                self.acknowledge(base.root)  # an earlier commit, again
                return Committed(base.root, change.result, written=False, attempts=attempt)
            # Complete the root, and refuse it if the step from its base breaks a rule.
            root = self._next_root(
                base.root,
                change.root,
                slot,
                transaction=transaction,
                note=change.note,
                spent=meter.read(attempt),
            )
            # What the root refers to is durable wherever it must be: a failure commits nothing.
            for seam in self.seams:
                seam.before_put(base.root, root, shipped)
            # Put the root under the next version, if absent: this decides the race.
            if self._try(base, root, meter):
                self.acknowledge(root)
                # Acknowledged. The hint only makes the next open cheaper.
                self._hint(root)
                log_commit(self.storage.url, root.history[-1])
                return Committed(root, change.result, written=True, attempts=attempt + 1)
            # Lost: delete what only this root named, and go on from the winner.
            discard_lost(self.files, base, root, self.clock)
        raise ConflictError(
            "other writers committed first on every attempt",
            url=self.storage.url,
            attempts=attempts,
        )

    def check_staging(self, root: Root) -> None:
        """Refuse to stage for a commit on a root that could not be committed."""
        for seam in self.seams:
            seam.before_staging(root)

    def acknowledge(self, root: Root) -> None:
        """Let a commit that is in the log be acknowledged, perhaps not for the first time.

        Raises:
            UnderReplicatedError: The commit is in the log, but a follower lacks it.
            FencedError: A follower was promoted.
        """
        for seam in self.seams:
            seam.before_ack(root)

    def _stands_now(self, base: Base) -> bool:
        """Tell whether the log still holds a base that was seen too long ago to be relied on.

        On local disk it is looked at each time. On object stores a commit right after the look that
        found the base relies on it, which leaves `trust_s` and the time of the put as a window.
        """
        age_s = self.clock.boot_s() - base.seen_s
        return age_s < self.storage.trust_s or self._stands(base)

    def new_transaction(self) -> str:
        """Return the id of a new transaction, which also tells writers of one stream apart."""
        return self._turns.new_transaction()

    def _begin(self, attempt: int) -> tuple[Base, Slot]:
        """Return a base that may be committed on, and the place of a commit on it."""
        base, now_us = self._fresh_base()
        check_writable(base.root)
        if abs(now_us - base.root.time_us) > CLOCK_LIMIT_US or self._clock_moved():
            # Either the stream was idle or a clock is wrong; the store's clock tells which.
            self.check_clock()
        return base, Slot(base.root.version + 1, max(base.root.time_us, now_us), attempt)

    def _next_root(
        self,
        base: Root,
        planned: Root,
        slot: Slot,
        *,
        transaction: str,
        note: Note,
        spent: _Spent,
    ) -> Root:
        """Return the root to put: the planned change, its place in the log and its history row."""
        check_commit(base, planned, url=self.storage.url)
        kept = self.history.tidy(planned, slot)
        root = replace(
            kept,
            version=slot.version,
            parent=base.transaction,
            transaction=transaction,
            time_us=slot.time_us,
            restored=_restored(base, planned, slot),
        )
        row = describe_commit(base, root, note)
        root = replace(root, history=(*kept.history, replace(row, **asdict(spent))))
        check_transition(base, root)
        return root

    def check_clock(self, staged: str | None = None) -> None:
        """Refuse to commit when this machine's clock is far from the store's.

        The clocks are compared at most once per `CLOCK_CHECK_S`, and whenever this machine's clock
        was set meanwhile. `staged` is an object that this process has just put; without one the
        hint is written and used. Raises InvalidInputError when the clocks are more than 5 minutes
        apart.
        """
        recent = self.clock.boot_s() - self._clock_checked_s < CLOCK_CHECK_S
        if recent and not self._clock_moved():
            return
        asked_us, offset_s = self.clock.wall_us(), self._offset_s()
        try:
            if staged is None:
                base = self._base
                if base is None or not self._stands_now(base):
                    self.refresh()  # a hint of a commit that is gone would close the stream
                self.files.put_hint(hint_of(self.root))
            store_us = self.storage.info(staged or self.files.hint_path).modified_us
        except MissingObjectError:
            return  # another process deletes the stream; the commit itself will detect that
        # This process may have been suspended between the two readings of the clock.
        if not asked_us - CLOCK_LIMIT_US <= store_us <= self.clock.wall_us() + CLOCK_LIMIT_US:
            if staged is not None:
                self.check_clock()  # the object may be too old; ask with a fresh hint
                return
            raise InvalidInputError(
                "this machine's clock differs from the store's by more than 5 minutes",
                remedy="correct this machine's clock",
                clock_us=asked_us,
                store_us=store_us,
                url=self.storage.url,
            )
        self._clock_checked_s, self._clock_offset_s = self.clock.boot_s(), offset_s

    def _clock_moved(self) -> bool:
        """Tell whether this machine's clock was set since it was compared; the boot clock tells."""
        return abs(self._offset_s() - self._clock_offset_s) > CLOCK_MOVED_S

    def _offset_s(self) -> float:
        return self.clock.wall_us() / 1e6 - self.clock.boot_s()

    # --- inside ------------------------------------------------------------------------------

    def _try(self, base: Base, root: Root, meter: _Meter) -> bool:
        began = self.clock.boot_s()
        try:
            found = self.files.add_or_read(root.version, root)
        except CommitUnknownError as error:
            self._base = None
            raise CommitUnknownError(
                error.fact, transaction=root.transaction, **error.fields
            ) from error.__cause__
        won, put_s = found is None, self.clock.boot_s() - began
        # A won race counts while the base is fresh; a lost one while nothing can have been purged.
        if self.clock.boot_s() - (base.confirmed_s if won else began) > CONFIRM_S:
            won = self._settle_late(root, began, won=won)
        elif found is not None:
            self._learn(base, found, meter, took_s=put_s)
        if won:
            self._stand_on(Base(root, began, began, self.files.added_mark))
            self._turns.won(root, put_s)
        else:
            meter.races_lost += 1
        return won

    def _wait_turn(self) -> None:
        """Wait until it is this handle's turn to commit; only ever a delay, not a decision."""
        for _ in range(LOOKS):
            base = self._base
            look = None if base is None else self._turns.next_look(base.root)
            if base is None or look is None:
                return
            data, fresh = await_version(self.files, self.clock, look)
            version = look.version
            if data is None and version > base.root.version + 1:
                # They are slower than expected: look where they are.
                version, data = read_ahead(self.files, self.clock, base.root.version, None, 0.0)
            if data is None:
                self._turns.nobody_came()
                return
            if not self._stand_on_later(base, data, version):
                self.refresh()
            self._turns.found(self.root, fresh=fresh)
            start = self._turns.first_unknown(self.root.version)
            if start < self.root.history[0].version:
                self._turns.note(self.history.transactions(self.root, start))

    def _is_behind(self, later: Root, root: Root) -> bool:
        if super()._is_behind(later, root):
            return True
        seen = Seen.of(root)
        if later.version <= root.version or seen.is_in(later) is not None:
            return False
        if not seen.is_same_history(later):
            return False
        # Its row was moved to a part meanwhile.
        found = dict(self.history.transactions(later, root.version, root.version + 1))
        return found.get(root.version) == root.transaction

    def _learn(self, base: Base, winner: bytes, meter: _Meter, *, took_s: float) -> None:
        """Stand on the commit that won the slot after the base, or on a later one."""
        version = base.root.version + 1
        until_s = self._turns.lost(took_s)
        if until_s is None:
            self.refresh()
        elif not meter.races_lost:
            if not self._stand_on_later(base, winner, version):
                self.refresh()
        else:
            self._catch_up(base, *read_ahead(self.files, self.clock, version, winner, until_s))

    def _catch_up(self, base: Base, version: int, data: bytes | None) -> None:
        """Stand on a commit that is probably the newest, or on the other one of its turn."""
        # Who lost before is probably behind by more than one commit.
        if not self._stand_on_later(base, data, version):
            self.refresh()
            return
        self._turns.found(self.root, fresh=True)
        look = self._turns.look_for_second(self.root)
        if look is not None:
            data, _ = await_version(self.files, self.clock, look)
            if data is not None:
                self._stand_on_later(replace(base, root=self.root), data, look.version)

    def _settle_late(self, root: Root, began: float, *, won: bool) -> bool:
        """Tell whether a commit is in the log although its slot may have been purged meanwhile.

        `began` is a time before the first put. `won` says whether the slot was seen to hold this
        commit; otherwise it was seen to hold another one.
        """
        try:
            newest = self.reopen()
        except SegstoreError as error:
            raise self._unknown(root) from error
        if newest.log_start < root.version <= newest.version:
            return won
        # A superseded commit keeps its name for the grace period: ours would still be there.
        if root.version <= newest.log_start and self.clock.boot_s() - began <= CONFIRM_S:
            return False
        raise self._unknown(root)

    def _unknown(self, root: Root) -> CommitUnknownError:
        self._base = None
        return CommitUnknownError(
            "the commit came too late to tell whether it is in the log",
            url=self.storage.url,
            version=root.version,
            transaction=root.transaction,
        )

    def _fresh_base(self) -> tuple[Base, int]:
        for _ in range(REOPEN_ATTEMPTS):
            now_us = self.clock.wall_us()  # before the check: see the module's last invariant
            base = self._base
            if base is not None and self.clock.boot_s() - base.confirmed_s <= CONFIRM_S:
                return base, now_us
            self.refresh()
        raise StorageError("the storage is too slow to commit to", url=self.storage.url)

    def _hint(self, root: Root) -> None:
        now_s, url = self.clock.boot_s(), self.storage.url
        wait_s = self._hinted_s + HINT_EVERY_S * self._turns.writers - now_s
        # On local disk a hint takes less time than to remember that one is due.
        if wait_s <= 0 or not self.storage.trust_s:
            self._hinted_s = now_s
            LATE_HINTS.forget(url)
            self.write_hint(root)
        else:
            due_s = time.monotonic() + wait_s
            LATE_HINTS.note(url, due_s, self._hint_newest, background=self.clock.background)

    def _hint_newest(self) -> None:
        base = self._base
        # In a folder that was restored meanwhile, a hint of what was there would close the stream.
        if base is not None and self._stands(base):
            self._hinted_s = self.clock.boot_s()
            self.write_hint(base.root)
