"""One stream's log: its newest root as a handle knows it, and the commit protocol (FORMAT.md 4).

Invariants of a commit; breaking any one of them can lose data:

- A commit is acknowledged only if it is in the newest contiguous run of the log. A writer that was
  suspended may create a name that was purged long ago. So if more than `CONFIRM_S` passed between
  confirming the base and the return of the put, the newest root is found by listing, and the commit
  counts only if `log_start` has not passed its base. A lost race that is seen so late proves
  nothing, either: the name may be a leftover, and our own commit may have been purged before.
- An old root found through the hint is confirmed by a listing before a commit is built on it.
- The commit time is read before the base is confirmed to be the newest, so a leftover is always at
  least as old as the suspension that caused it.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from segstore_ds.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    SegstoreError,
    StorageError,
)
from segstore_ds.format.inline import frame_is_sound
from segstore_ds.format.names import LOG_FOLDER
from segstore_ds.format.root import Root, SegmentEntry, check_writable
from segstore_ds.log.clock import CLOCK_LIMIT_US, SYSTEM_CLOCK, Clock, Skew
from segstore_ds.log.commit import (
    COMMIT_ATTEMPTS,
    Change,
    Committed,
    Meter,
    complete_root,
    discard_lost,
    log_commit,
    log_lost_race,
    winner_of,
)
from segstore_ds.log.late_hints import HintPace
from segstore_ds.log.metadata_log import MARK_BYTES, MetadataLog
from segstore_ds.log.newest import (
    CONFIRM_S,
    LOG_GRACE_S,
    ROOT_CODEC,
    Base,
    LostError,
    check_root,
    climb,
    find_listed,
    not_before,
    readable,
    stands,
)
from segstore_ds.log.origins import share_origins
from segstore_ds.log.place import first_version
from segstore_ds.log.seams import Seams
from segstore_ds.log.seen import Seen, forgotten_version, hint_of, is_behind, seen_by_hint
from segstore_ds.log.transition import check_first
from segstore_ds.log.turns import Turns, await_version, read_ahead
from segstore_ds.status.history import History
from segstore_ds.status.table import Slot
from segstore_ds.storage import Storage

REOPEN_ATTEMPTS = 10
LOOKS = 16  # how often a writer that waits for its turn reads a version, at most

T = TypeVar("T")


class _Locks:
    """The locks of one process: a forked child makes its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.state, self.commit = threading.Lock(), threading.RLock()


class StreamLog:
    """The batch metadata log of one stream, with the newest root this handle has seen.

    A superseded version keeps its name in the log for `grace_s` seconds. `damaged` also opens a
    stream whose log lacks versions. Threads may share a log: no thread replaces the newest root by
    an older one.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock = SYSTEM_CLOCK,
        grace_s: float = LOG_GRACE_S,
        damaged: bool = False,
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.grace_s = grace_s
        self.damaged = damaged
        self.files = MetadataLog(storage, LOG_FOLDER, ROOT_CODEC, clock=clock)
        self.history = History(storage)
        self.seams = Seams(self.files, clock)
        self._base: Base | None = None
        self._seen: Seen | None = None  # kept when an unknown outcome clears the base
        self._compared: tuple[SegmentEntry, ...] = ()  # of the last base, with checked frames
        self._hints = HintPace(storage, clock)
        self._skew = Skew(clock)
        self._turns = Turns(clock)
        self._own_locks = _Locks()

    @property
    def root(self) -> Root:
        """The newest root this handle has seen; opens the log if it has seen none."""
        base = self._base
        return base.root if base else self.open()

    def adopt(self, root: Root) -> None:
        """Take a root that was seen elsewhere; the next search for newer ones starts by listing."""
        share_origins(self.storage, root)
        self._base, self._seen = Base(root, float("-inf"), float("-inf"), b""), Seen.of(root)

    def follow_from(self, other: Self) -> None:
        """Start with the newest root that another handle of this process knows."""
        with other._locks.state:
            self._base, self._seen = other._base, other._seen

    def open(self) -> Root:
        """Find the newest root in three requests: the hint, the names from it on, and the root.

        Raises:
            NotFoundError: There is no stream, or another one than this handle has seen.
            MissingObjectError: Versions are missing, or commits that were seen are gone.
            FormatError: The newest root can't be read; an older one is never used instead.
        """
        return self._confirm(self._open_hinted)

    def reopen(self) -> Root:
        """Find the newest root by listing the whole log; raises as `open` does."""
        return self._confirm(partial(self._newest_from, 0))

    def refresh(self) -> Root:
        """Return the newest root, by following the log from the last one; raises as `open` does."""
        base = self._base
        if base is None:
            return self.open()
        if not self._is_recent(base):
            return self._confirm(partial(self._newest_from, base.root.version))
        return self._confirm(partial(self._climb, base), known_s=base.confirmed_s)

    def recent(self) -> Root:
        """Return a root that was the newest within the last minute; raises as `open` does."""
        base = self._base
        return base.root if base is not None and self._is_recent(base) else self.refresh()

    def follow(self) -> Root:
        """Return the newest root, in one request if nothing has changed; raises as `open` does.

        A root that was confirmed within half of the grace period can't have been purged, so a
        missing next version alone proves that it is the newest. A full refresh once a minute
        detects a folder that was deleted without `drop`; on local disk every call does.
        """
        base = self._base
        if base is None or not self._is_recent(base):
            return self.refresh()
        following = self.files.read(base.root.version + 1)
        if following is not None:
            return self._confirm(partial(self._climb, base, following), known_s=base.confirmed_s)
        if self.storage.profile.is_far or stands(self.files, base):
            return base.root
        return self.refresh()

    def read_version(self, version: int) -> Root:
        """Return the root of a version; NotFoundError, or SnapshotExpiredError if forgotten."""
        newest = self.root
        if version > newest.version:
            newest = self.refresh()
        if version == newest.version:
            return newest
        if not 0 <= version < newest.version:
            raise NotFoundError(
                "no such version", url=self.storage.url, version=version, newest=newest.version
            )
        data = self.files.read(version) if version >= newest.log_start else None
        if data is not None:
            return self._checked(version, data)
        newest = self.reopen()
        if version >= newest.log_start:
            raise CorruptionError(
                "version is missing in the log", url=self.storage.url, version=version
            )
        kept = newest.kept_version(version)
        if kept is None:
            raise forgotten_version(version, newest.log_start, url=self.storage.url)
        return kept

    def check_open(self, root: Root) -> None:
        """Raise NotFoundError for a dropped stream, because its objects may be deleted."""
        if root.dropped:
            raise NotFoundError(
                "stream was dropped",
                remedy="if objects are left, call segstore.drop(url, confirm=url) again to "
                "delete them",
                url=self.storage.url,
                version=root.version,
            )

    def create(self, first: Root, at: int | None = None) -> Root | None:
        """Put the first commit of a stream and return it; None if there already is a stream.

        `first` has version 0. In the folder of a dropped stream it gets the version after the last
        commit there, so an older handle finds the slot after its base taken. With `at` it gets this
        version, or None is returned if another stream has taken it meanwhile.

        Raises:
            InternalError: The root breaks a rule of FORMAT.md.
            CommitUnknownError: No answer of the storage says whether the commit is in the log.
        """
        check_first(first)
        self.storage.ensure_exclusive()
        began = self.clock.boot_s()
        version = first_version(self.files)
        if version is None or at not in (None, version):
            return None
        rows = tuple(replace(row, version=version) for row in first.history)
        root = replace(first, version=version, log_start=version, history=rows)
        check_first(root)
        if not self.files.add(version, root):
            return None
        # After a suspension, this version may be below those of a stream that has purged it.
        if self.clock.boot_s() - began > CONFIRM_S:
            newest = self.reopen()
            # The id alone does not show it: two runs of one copy use the same stream id.
            if newest.stream_id != root.stream_id or newest.log_start > version:
                return None
        self._rebase(Base(root, began, began, self.files.added_mark))
        self._hint(root)
        return root

    def commit(
        self,
        build: Callable[[Root, Slot], Change[T]],
        *,
        transaction: str | None = None,
        attempts: int = COMMIT_ATTEMPTS,
    ) -> Committed[T]:
        """Commit a change; plan it again on the newest root whenever another commit came first.

        Threads that share this handle commit one after the other.

        `build` is called again after each lost race, so its only side effect may be to put objects
        under fresh names. `transaction` is the id of this commit for all attempts, a new one by
        default.

        Raises:
            ConflictError: Every attempt lost its race; nothing was committed.
            CommitUnknownError: The change may or may not be in the log; names version and
                transaction.
            InvalidInputError: This machine's clock is off.
            StorageError: The storage failed before anything was put.
            SegstoreError: A seam refused; from `before_ack` the change is in the log.
        """
        with self._locks.commit:
            self.storage.ensure_exclusive()
            called_s, meter = self.clock.boot_s(), Meter(self.storage.stats)
            transaction = transaction or self.new_transaction()
            self._wait_turn()
            for attempt in range(attempts):
                # The base was the newest root after the time in `slot` was taken.
                base, slot = self._begin(attempt)
                # Build the change: what the new root refers to is durable before it is put.
                try:
                    change = build(base.root, slot)
                except ConflictError:
                    # The base may be a minute old; the change may be possible on a newer root.
                    if base.confirmed_s > called_s or self.refresh().version == base.root.version:
                        raise
                    continue
                # A folder that was restored or emptied meanwhile no longer holds the base.
                if not self._stands_now(base):
                    self.reopen()
                    continue
                if change.root is None:
                    # Raises if the stream was dropped since; the folder may have been promoted.
                    newest = self.follow()
                    self.seams.of(newest).before_ack(newest)  # again, for an earlier commit
                    return Committed(base.root, change.result, written=False, attempts=attempt)
                # Complete the root, and refuse it if the step from its base breaks a rule.
                root = complete_root(
                    self.history, base.root, change, slot, transaction=transaction, meter=meter
                )
                # Before the put: a failure here commits nothing.
                seam = self.seams.of(base.root, root)
                seam.before_put(base.root, root)
                # Put the root under the next version, if absent: this decides the race.
                if self._try(base, root, meter):
                    seam.before_ack(root)
                    # Acknowledged. The hint only makes the next open cheaper.
                    self._hint(root)
                    log_commit(self.storage.url, root.history[-1])
                    return Committed(root, change.result, written=True, attempts=attempt + 1)
                # Lost: delete objects that only this root names, and continue on the winner.
                discard_lost(self.files, base, root, self.clock)
            raise ConflictError(
                "other writers committed first on every attempt",
                url=self.storage.url,
                attempts=attempts,
                **winner_of(self.root),
            )

    def acknowledged(self) -> Root:
        """Return the newest root seen that no mirror lacks; it has all acknowledged commits."""
        return self.read_version(self.seams.of(self.root).acknowledged(self.root))

    def new_transaction(self) -> str:
        """Return the id of a new transaction, which begins with digits of this writer."""
        return self._turns.new_transaction()

    def check_clock(self, staged: str | None = None) -> None:
        """Raise InvalidInputError if this machine's clock is over 5 minutes off the store's.

        The store's time is that of `staged`, an object that this process has just put, or else of
        the hint, which is written for it.
        """
        if self._skew.is_known():
            return
        try:
            apart = self._skew.compare(partial(self._ask_time, staged))
            if apart and staged is not None:  # the object may be older: ask again with the hint
                apart = self._skew.compare(partial(self._ask_time, None))
        except MissingObjectError:
            return  # another process is deleting the stream, which the commit will detect
        if apart:
            raise InvalidInputError(
                "this machine's clock differs from the store's by more than 5 minutes",
                remedy="correct this machine's clock",
                clock_us=apart[0],
                store_us=apart[1],
                url=self.storage.url,
            )

    def _ask_time(self, staged: str | None) -> int:
        if staged is not None:
            return self.storage.info(staged).modified_us
        base = self._base
        if base is None or not self._stands_now(base):
            self.refresh()  # with a hint of a commit that is gone, nobody could open the stream
        return self.store_now_us()

    def store_now_us(self) -> int:
        """Return the store's time: write the log's hint and read its modification time.

        On a disk, power loss can remove a commit whose writer ended before its sync. So there an
        existing hint keeps its content, and a new hint names no transaction and proves nothing.
        """
        hint = hint_of(self.root)
        if not self.storage.profile.is_far:
            hint = self.files.read_hint() or replace(hint, transaction="")
        self.files.put_hint(hint)
        return self.storage.info(self.files.hint_path).modified_us

    def write_hint(self, root: Root) -> None:
        """Record where the newest root is; ignore a failure."""
        self.files.write_hint(hint_of(root))

    def _begin(self, attempt: int) -> tuple[Base, Slot]:
        """Return a recently confirmed base, and the place of a commit on it."""
        for _ in range(REOPEN_ATTEMPTS):
            now_us = self.clock.wall_us()  # before the check: see the module's last invariant
            base = self._base
            if base is not None and self._is_recent(base):
                break
            self.refresh()
        else:
            raise StorageError(
                "the storage is too slow to commit to",
                remedy="repeat the write when it answers faster",
                url=self.storage.url,
            )
        check_writable(base.root)
        if abs(now_us - base.root.time_us) > CLOCK_LIMIT_US or self._skew.has_moved():
            # Either the stream was idle or a clock is wrong: compare with the store's clock.
            self.check_clock()
        base = self._with_sound_frames(base)
        return base, Slot(base.root.version + 1, max(base.root.time_us, now_us), attempt)

    def _with_sound_frames(self, base: Base) -> Base:
        """Return the base, read again if a frame is damaged: the next commit repeats its bytes."""
        known, self._compared = {*map(id, self._compared)}, base.root.entries
        new = [frame for each in self._compared if id(each) not in known and (frame := each.frame)]
        if all(map(frame_is_sound, new)):
            return base
        again = self.files.get(base.root.version)
        if again is None or again.transaction != base.root.transaction:
            return base  # no longer in the log, which the commit will detect
        self._compared = again.entries
        with self._locks.state:
            found = replace(base, root=again)
            self._base = found if self._base is base else self._base
        return found

    def _try(self, base: Base, root: Root, meter: Meter) -> bool:
        began = self.clock.boot_s()
        try:
            found = self.files.add_or_read(root.version, root)
        except CommitUnknownError as error:
            self._base = None
            raise CommitUnknownError(
                error.fact, transaction=root.transaction, **error.fields
            ) from error.__cause__
        won, put_s = found is None, self.clock.boot_s() - began
        # A won race counts only while the base is fresh, a lost one while nothing can be purged.
        if self.clock.boot_s() - (base.confirmed_s if won else began) > CONFIRM_S:
            won = self._settle_late(root, began, won=won)
        elif found is not None:
            self._learn(base, found, meter, took_s=put_s)
        if won:
            self._rebase(Base(root, began, began, self.files.added_mark))
            self._turns.won(root, put_s)
        else:
            meter.races_lost += 1
            log_lost_race(self.storage.url, partial(readable, self.files, root.version, found))
        return won

    def _settle_late(self, root: Root, began: float, *, won: bool) -> bool:
        """Tell whether a commit is in the log although its slot may have been purged meanwhile.

        `began` is a time before the first put. `won` says whether the slot held this commit or
        another one.
        """
        unknown = CommitUnknownError(
            "the commit came too late to tell whether it is in the log",
            url=self.storage.url,
            version=root.version,
            transaction=root.transaction,
        )
        try:
            newest = self.reopen()
        except SegstoreError as error:
            self._base = None
            raise unknown from error
        if newest.log_start < root.version <= newest.version:
            return won
        # A superseded commit keeps its name for the grace period: ours would still be there.
        if root.version <= newest.log_start and self.clock.boot_s() - began <= CONFIRM_S:
            return False
        self._base = None
        raise unknown

    def _wait_turn(self) -> None:
        """Wait until it is this handle's turn to commit; it decides nothing."""
        for _ in range(LOOKS):
            base = self._base
            look = None if base is None else self._turns.next_look(base.root)
            if base is None or look is None:
                return
            data, fresh = await_version(self.files, self.clock, look)
            version = look.version
            if data is None and version > base.root.version + 1:
                # The others are slower than expected: find their newest version.
                version, data = read_ahead(self.files, self.clock, base.root.version, None, 0.0)
            if data is None:
                return
            if not self._rebase_on(base, data, version):
                self.refresh()
            self._turns.found(self.root, fresh=fresh)
            start = self._turns.first_unknown(self.root.version)
            if start < self.root.history[0].version:
                self._turns.note(self.history.transactions(self.root, start))

    def _learn(self, base: Base, winner: bytes, meter: Meter, *, took_s: float) -> None:
        """Rebase on the commit that won the slot after the base, or on a later one."""
        version, data = base.root.version + 1, winner
        until_s = self._turns.lost(took_s)
        if until_s is None:
            self.refresh()
            return
        # After an earlier lost race, this handle is probably behind by more than one commit.
        if meter.races_lost:
            version, found = read_ahead(self.files, self.clock, version, winner, until_s)
            data = found or b""
        if not self._rebase_on(base, data, version):
            self.refresh()
        elif meter.races_lost:
            # Rebase on the second commit of the winner's turn, too.
            self._turns.found(self.root, fresh=True)
            look = self._turns.look_for_second(self.root)
            following = None if look is None else await_version(self.files, self.clock, look)[0]
            if look is not None and following is not None:
                self._rebase_on(replace(base, root=self.root), following, look.version)

    def _hint(self, root: Root) -> None:
        self._hints.write(
            partial(self.write_hint, root), self._hint_newest, writers=self._turns.writers
        )

    def _hint_newest(self) -> None:
        base = self._base
        # If the folder was restored meanwhile, a hint of a lost commit would block every open.
        if base is not None and stands(self.files, base):
            self.write_hint(base.root)

    @property
    def _locks(self) -> _Locks:
        if self._own_locks.pid != os.getpid():
            self._own_locks = _Locks()
        return self._own_locks

    def _is_recent(self, base: Base) -> bool:
        return self.clock.boot_s() - base.confirmed_s <= CONFIRM_S

    def _stands_now(self, base: Base) -> bool:
        """Tell whether the log still holds a base, by a request unless it was seen just before.

        On an object store that is within `trust_s`, which with the time of the put leaves a window
        in which a replaced folder is not noticed. On local disk it is checked each time.
        """
        age_s = self.clock.boot_s() - base.seen_s
        return age_s < self.storage.profile.trust_s or stands(self.files, base)

    def _rebase(self, base: Base) -> Root:
        """Set the base unless another thread has set a newer one; return the newest root known."""
        with self._locks.state:
            known = self._base
            if known is None or not known.is_newer(base):
                known = self._base = base
                self._seen = Seen.of(base.root)
            return known.root

    def _rebase_on(self, base: Base, data: bytes, version: int) -> bool:
        """Rebase on a later commit; False without a proof that it follows the base.

        No name after the base existed when the base was confirmed, and purge keeps a name for the
        grace period. So within `CONFIRM_S` of that moment none of them can be a leftover. A commit
        whose history names the base is then as good a base, confirmed at the same moment, even if
        it is not the newest any more.
        """
        later = readable(self.files, version, data)
        # After a drop another stream may follow, which a search finds.
        if later is None or later.dropped or not is_behind(self.history, later, base.root):
            return False
        self._check(later, version)
        if not self._is_recent(base):
            return False
        now_s = self.clock.boot_s()
        self._rebase(Base(later, base.confirmed_s, now_s, data[:MARK_BYTES]))
        return True

    def _refuse_base(self) -> None:
        """Stop all threads from committing on the base, even if it was just confirmed."""
        with self._locks.state:
            if self._base is not None:
                self._base = replace(self._base, confirmed_s=float("-inf"))

    def _confirm(self, find: Callable[[], Base | None], known_s: float | None = None) -> Root:
        """Find the newest root by `find`, which may start from a base confirmed at `known_s`."""
        alarmed = False
        for _ in range(REOPEN_ATTEMPTS):
            began, seen = self.clock.boot_s(), self._seen
            limit_s = (began if known_s is None else known_s) + self.grace_s / 2
            # The result of a search after `limit_s` is void: names may have been purged meanwhile.
            try:
                found = find() if began <= limit_s else None
                if found is not None and seen is not None:
                    found = not_before(self.files, self._checked, found, seen)
            except NotFoundError:
                self._refuse_base()  # the stream is gone: no commit may use it any more
                raise
            except LostError as error:
                if alarmed:
                    self._refuse_base()
                    raise error.found from None
                # Only a second search with the same result proves it.
                alarmed = True
                find, known_s = find if known_s is None else self._open_hinted, None
                continue
            if found is not None and self.clock.boot_s() <= limit_s:
                return self._rebase(replace(found, confirmed_s=began, seen_s=began))
            find, known_s = self._open_hinted, None
        raise StorageError(
            "the log changes faster than it can be read", remedy="try again", url=self.storage.url
        )

    def _open_hinted(self) -> Base | None:
        hint = self.files.read_hint()
        found = self._newest_from(0 if hint is None else hint.number)
        seen = None if hint is None else seen_by_hint(hint)
        if found is None or seen is None:
            return found
        return not_before(self.files, self._checked, found, seen, hint)

    def _newest_from(self, start: int) -> Base | None:
        return find_listed(self.files, self._checked, start, damaged=self.damaged)

    def _climb(self, base: Base, data: bytes | None = None) -> Base | None:
        return climb(self.files, self._checked, base, data)

    def _checked(self, version: int, data: bytes) -> Root:
        root = self.files.decode(version, data)
        self._check(root, version)
        return root

    def _check(self, root: Root, version: int) -> None:
        """Refuse a root that contradicts its name or itself, or that this handle can't use."""
        check_root(self.files, root, version)
        self.check_open(root)
        share_origins(self.storage, root)
