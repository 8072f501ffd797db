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

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from segstore_ds.commit.lost_attempts import discard_lost
from segstore_ds.commit.replicas import Replicas
from segstore_ds.errors import (
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    MissingObjectError,
    SegstoreError,
    StorageError,
)
from segstore_ds.format import names
from segstore_ds.format.root import Root, check_writable
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.copy_record import check_commit
from segstore_ds.log.newest import (
    CONFIRM_S,
    LOG_GRACE_S,
    REOPEN_ATTEMPTS,
    ROOT_CODEC,
    Base,
    FollowedLog,
)
from segstore_ds.log.seen import hint_of
from segstore_ds.log.transition import Slot, check_transition
from segstore_ds.status.history import NO_NOTE, History, Note, describe_commit
from segstore_ds.storage import Storage

CLOCK_LIMIT_US = 5 * 60 * 1_000_000
CLOCK_CHECK_S = 600.0
HINT_EVERY_S = 1.0
COMMIT_ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit's result: the root, whether this call wrote it, and how many attempts it took."""

    root: Root
    written: bool
    attempts: int


@dataclass(frozen=True, slots=True)
class _Spent:
    """What a commit cost up to its put: columns of its history row."""

    attempts: int
    races_lost: int
    requests: int
    request_bytes: int


class StreamLog(FollowedLog):
    """The batch metadata log of one stream, for writing to it; arguments as in `FollowedLog`."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock = SYSTEM_CLOCK,
        grace_s: float = LOG_GRACE_S,
        incomplete: bool = False,
    ) -> None:
        super().__init__(storage, clock=clock, grace_s=grace_s, incomplete=incomplete)
        self.history = History(storage)
        self._hinted_s = float("-inf")
        self._clock_checked_s = float("-inf")
        self.replicas = Replicas(storage, self.files, ROOT_CODEC, clock)

    def create(self, root: Root) -> bool:
        """Put the first commit; False when the stream already exists.

        Raises:
            CommitUnknownError: The storage never answered whether the commit is in the log.
        """
        self.storage.ensure_exclusive()
        began = self.clock.boot_s()
        if self.files.newest_listed() is not None or not self.files.add(0, root):
            return False
        # A suspended creator may have put version 0 into a stream that had purged its own.
        if self.clock.boot_s() - began > CONFIRM_S:
            newest = self.reopen()
            # Two runs of one clone use the same stream id, so a purged log also marks a leftover.
            if newest.stream_id != root.stream_id or newest.log_start > 0:
                return False
        self._stand_on(Base(root, began, sound=True))
        self._hint(root)
        return True

    def commit(
        self,
        build: Callable[[Root, Slot], Root | None],
        *,
        transaction: str,
        attempts: int = COMMIT_ATTEMPTS,
        shipped: Mapping[str, frozenset[str]] | None = None,
        note: Note = NO_NOTE,
    ) -> Committed:
        """Commit a change; plan it again on the newest root whenever another commit came first.

        Args:
            build: Takes the newest root and the slot. Returns the next root (version, parent,
                transaction and time are filled in here), or None when there is nothing to do. It is
                called again after each lost race, so its only side effect may be to put objects
                under fresh names.
            transaction: The id of this logical commit, the same for all attempts.
            attempts: How many lost races to accept before giving up.
            shipped: Segments of this commit, each with the followers that already have it.
            note: What the history records about the change beyond what the root says.

        Returns:
            The root that holds the change; `written` is False when `build` returned None.

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
        self.storage.ensure_exclusive()
        called_s = self.clock.boot_s()
        stats, races_lost = self.storage.stats, 0
        before = (stats.total, stats.bytes_written)
        for attempt in range(attempts):
            base, now_us = self._fresh_base()
            check_writable(base.root)
            if abs(now_us - base.root.time_us) > CLOCK_LIMIT_US:
                # Either the stream was idle or a clock is wrong; the store's clock tells which.
                self.check_clock()
            time_us = max(base.root.time_us, now_us)
            try:
                planned = build(base.root, Slot(base.root.version + 1, time_us, attempt))
            except ConflictError:
                # The base may be a minute old, so the condition may hold on a newer root.
                if base.confirmed_s > called_s or self.refresh().version == base.root.version:
                    raise
                continue
            if planned is None:
                # This acknowledges an earlier commit again, so the followers must have it.
                self.replicas.ship(base.root)
                return Committed(base.root, written=False, attempts=attempt)
            spent = _Spent(
                attempts=attempt + 1,
                races_lost=races_lost,
                requests=stats.total - before[0] + 1,  # plus the put that follows
                request_bytes=stats.bytes_written - before[1],
            )
            check_commit(base.root, planned, url=self.storage.url)
            slot = Slot(base.root.version + 1, time_us, attempt)
            root = self._next_root(
                base.root, planned, slot, transaction=transaction, note=note, spent=spent
            )
            check_transition(base.root, root)
            if root.operation != "promote":
                self.replicas.check_primary(base.root)
            self.replicas.prepare(base.root, root)
            if self._try(base, root):
                # The commit is in the log; it is acknowledged once the followers have it.
                self.replicas.ship(root, shipped or {}, prepared=True)
                return Committed(root, written=True, attempts=attempt + 1)
            discard_lost(self.files, base, root, self.clock)
            races_lost += 1
            self.clock.backoff(min(attempt, 6), base_s=0.004, most_s=0.25)
        raise ConflictError(
            "other writers came first every time", url=self.storage.url, attempts=attempts
        )

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
        kept = self.history.tidy(planned, slot)
        root = replace(
            kept,
            version=slot.version,
            parent=base.transaction,
            transaction=transaction,
            time_us=slot.time_us,
        )
        row = describe_commit(base, root, note)
        return replace(root, history=(*kept.history, replace(row, **asdict(spent))))

    def check_clock(self, staged: str | None = None) -> None:
        """Refuse to commit when this machine's clock is far from the store's.

        The clocks are compared at most once per `CLOCK_CHECK_S`. `staged` is an object that this
        process has just put; without one the hint is written and used. Raises InvalidInputError
        when the clocks are more than 5 minutes apart.
        """
        if self.clock.boot_s() - self._clock_checked_s < CLOCK_CHECK_S:
            return
        asked_us = self.clock.wall_us()
        try:
            if staged is None:
                self.storage.put(self.files.hint_path, names.build_hint(hint_of(self.root)))
            store_us = self.storage.info(staged or self.files.hint_path).modified_us
        except MissingObjectError:
            return  # another process deletes the stream; the commit itself will detect that
        # This process may have been suspended between the two readings of the clock.
        if not asked_us - CLOCK_LIMIT_US <= store_us <= self.clock.wall_us() + CLOCK_LIMIT_US:
            if staged is not None:
                self.check_clock()  # the object may be too old; ask with a fresh hint
                return
            raise InvalidInputError(
                "this machine's clock is more than 5 minutes off the store's",
                remedy="set the clock",
                clock_us=asked_us,
                store_us=store_us,
                url=self.storage.url,
            )
        self._clock_checked_s = self.clock.boot_s()

    # --- inside ------------------------------------------------------------------------------

    def _try(self, base: Base, root: Root) -> bool:
        began = self.clock.boot_s()
        try:
            won = self.files.add(root.version, root)
        except CommitUnknownError as error:
            self._base = None
            raise CommitUnknownError(
                error.fact, transaction=root.transaction, **error.fields
            ) from error.__cause__
        # A won race counts while the base is fresh; a lost one while nothing can have been purged.
        if self.clock.boot_s() - (base.confirmed_s if won else began) > CONFIRM_S:
            won = self._settle_late(root, began, won=won)
        elif not won:
            # The slot after the base is taken, so the base was the newest until then: refresh.
            self._base = base
            self.refresh()
        if won:
            self._stand_on(Base(root, began, sound=True))
            self._hint(root)
        return won

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
            if base is not None and not base.sound:
                self.reopen()
            elif base is not None and self.clock.boot_s() - base.confirmed_s <= CONFIRM_S:
                return base, now_us
            else:
                self.refresh()
        raise StorageError("the storage is too slow to commit to", url=self.storage.url)

    def _hint(self, root: Root) -> None:
        now = self.clock.boot_s()
        if now - self._hinted_s >= HINT_EVERY_S:
            self._hinted_s = now
            self.write_hint(root)
