"""The long-lived appender: takes events one by one or in batches, commits by size, time or call.

Until a flush, events are staged as in any write: encoded, in the write cache or in objects that no
commit names. Each can be read back at once by its place; the commit assigns its offset.

Events are gathered in a *group*, and one commit commits one group. Meanwhile the next events are
gathered in the next group, so an append does not wait for a commit. Threads that `wait` share
commits: one thread, the lead, commits for all of them. While no event is due, the lead has only a
weak reference to the appender, so an unused appender can be garbage-collected.

The first failure is kept, and every later append and flush raises it until `resume`: only the
caller can decide whether to repeat. Reading back still works. `close` never commits. These do:
`flush`, the end of a `with` block without an error, the end of the process, and garbage collection.
"""

import bisect
import logging
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.service import FirstError
from segstore_ds.errors import (
    MAYBE_COMMITTED,
    ClosedError,
    ConflictError,
    InvalidInputError,
    SegstoreError,
)
from segstore_ds.format.schema.conversion import conform, conform_pieces, may_hold_decimals
from segstore_ds.format.schema.widening import in_units_of, plan_schema
from segstore_ds.log.clock import Clock
from segstore_ds.status.writers import Commit
from segstore_ds.write.event_group import EventGroup
from segstore_ds.write.event_rows import EventRows
from segstore_ds.write.inputs import ArrowInput, Data, as_input
from segstore_ds.write.job import WriteJob
from segstore_ds.write.open_appenders import DROPPED, note_open
from segstore_ds.write.staged import StagedTask

if TYPE_CHECKING:
    from segstore_ds.write.awaited import AsyncAppender

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_BUSY_S = 60.0  # longest wait; the end of the commit in flight wakes the lead up before
_AFTER_FAILURE = (
    "when the cause has passed, call resume() of this appender: it keeps the events that are not "
    "committed for the next flush"
)


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """When to flush automatically."""

    bytes: int  # unflushed bytes, before compression
    rows: int  # unflushed events
    seconds: float | None  # age of the oldest unflushed event; None for no limit
    linger_s: float  # how long a commit that threads wait for may wait for more threads


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """The functions of a stream that an appender uses."""

    schema: pa.Schema  # the stored schema of the stream's events
    # Plans the write of the next group, on the newest version if True; may run during `commit`.
    plan: Callable[[bool], WriteJob]
    # Commits the staged task; deletes none of its objects on failure.
    commit: Callable[[WriteJob, StagedTask], Commit]
    # Finds and acknowledges the commit of a job, by its rows and the version where it failed;
    # returns None if there is none, raises CommitUnknownError if that is not known.
    settle: Callable[[WriteJob, int, int | None], Commit | None]
    # Reads the events of an offset range, as of the newest version; may run during `commit`.
    read: Callable[[int, int], Iterable[pa.RecordBatch]]


class LiveAppender:
    """Appends to a stream until it is closed; made by `Stream.appender`.

    Each event gets a *place*: its number among the events of this appender, from 0. It gets its
    offset in the stream when a flush commits it. Threads may share an appender; a forked child gets
    InvalidInputError. A `with` block flushes at its end, unless an error ended it. An appender that
    is left open is flushed when the process ends, within 10 seconds, or when nobody refers to it.

    Examples:
        >>> with stream.appender() as appender:
        ...     place = appender.append([{"user": "ada", "n": 4}, {"user": "bob", "n": 5}])
        ...     place, appender.wait(place)
        (0, 3)
    """

    def __init__(self, ends: StreamEnds, limits: FlushLimits, clock: Clock) -> None:
        self._ends = ends
        self._limits = limits
        self._clock = clock
        self._process = os.getpid()
        # No code of the caller runs with the lock held, so no thread takes it twice.
        self._lock = threading.RLock()
        # Wakes the lead up. `__del__` puts the appender itself here: unlike a lock, a SimpleQueue
        # may be used in the garbage collector.
        self._calls: queue.SimpleQueue[LiveAppender | None] = queue.SimpleQueue()
        self._asked = False  # a flush timed out before it got the lock
        self._landed = threading.Condition(self._lock)  # other threads wait here for the lead
        self._counters = CacheCounters()  # of committed groups
        self._open: EventGroup | None = None  # gets the next events
        self._flying: EventGroup | None = None  # being committed, or failed
        self._finishing = False  # the task in flight writes its last bytes and can't be read
        self._flushed = self._next = 0
        self._runs: list[tuple[int, int, int]] = []  # flushed runs: place, offset, rows
        self._crowd = 0  # how many threads waited when the last commit landed
        self._lead: threading.Thread | None = None
        self._failure = FirstError()
        self._closed = False
        self._decimals = may_hold_decimals(ends.schema)  # which `conform` has to check
        note_open(self)

    @property
    def next_place(self) -> int:
        """The place that the next event gets."""
        return self._next

    @property
    def flushed_place(self) -> int:
        """Every event below this place is committed."""
        return self._flushed

    @property
    def counters(self) -> CacheCounters:
        """A copy of the write cache's counters for this appender."""
        with self._here():
            total = self._counters.snapshot()
            for group in self._groups():
                total.add(group.counters)
            return total

    def append(self, data: Data) -> int:
        """Take one event or many; flushes when a limit is reached.

        The events can be read by `read` at once, but are durable only after a flush, or when `wait`
        has returned. Does not wait for commits, unless a limit is reached.

        Args:
            data: One event as a mapping of column names to values, where a missing column is
                null; or data as for `Stream.append`. The caller may change its memory as soon as
                this returns, or a generator's before each next batch.

        Returns:
            The place of the first of these events.

        Raises:
            SchemaMismatchError: A column or a value does not fit; none of these events was taken.
            InvalidInputError: The data is neither an event nor Arrow data, or an event breaks a
                rule of the stream; none was taken.
            ClosedError: The appender was closed.
            SegstoreError: This flush or an earlier one failed; see `flush`.

        Examples:
            >>> with stream.appender() as appender:
            ...     appender.append({"user": "ada", "n": 4})
            0
        """
        event: Mapping[str, Any] = {}
        batches = None
        if type(data) is dict or isinstance(data, Mapping):
            event = data if type(data) is dict else dict(data)
        else:
            given = as_input(data, self._ends)
            batches = self._taken(given)
        with self._here():
            self._check()
            place = self._next
            if self._open is None:
                # Plan before an event is taken, so that a failure changes nothing.
                self._open = self._plan(self._next)
                self._call_lead()
            group = self._open
            group.check(event if batches is None else batches)
            if batches is None:
                group.rows.add(event)
                group.count += 1
                if group.rows.full:
                    self._keeping(group.stage_rows)
            else:
                self._append_batches(batches, group)
            self._next = group.end
            if group.due_s is None and self._limits.seconds is not None and group.count:
                group.due_s = self._clock.boot_s() + self._limits.seconds
                self._calls.put(None)
            if group.bytes >= self._limits.bytes or group.count >= self._limits.rows:
                self._flush(self._next)
            return place

    def wait(self, place: int, timeout: float | None = None) -> int:
        """Wait until an event is durable and visible; all threads that wait share commits.

        One commit takes all events that were appended before it begins, by any thread. If
        several threads waited for the last commit, the next one gathers as many before it begins,
        for `linger` seconds at most. A thread that waits alone never lingers.

        Args:
            place: The event's place, as `append` returned it.
            timeout: Seconds to wait; None for as long as it takes.

        Returns:
            The event's offset in the stream.

        Raises:
            TimeoutError: It is not durable yet. This cancels nothing: call `wait` again.
            CommitUnknownError: The commit that took the event may or may not be in the log;
                `Stream.outcome` tells. Every thread that waits for this commit gets it.
            SegstoreError: That commit failed; see `flush`.
            ClosedError: The event is not committed and will not be: the appender was closed, or the
                commit of an earlier event failed.
            InvalidInputError: No event has this place yet.

        Examples:
            >>> with stream.appender() as appender:
            ...     appender.wait(appender.append({"user": "ada", "n": 4}))
            3
        """
        limit_s = None if timeout is None else self._clock.boot_s() + timeout
        with self._here():
            while (group := self._group_of(place)) is not None:
                left_s = None if limit_s is None else limit_s - self._clock.boot_s()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"event at place {place} is not durable yet")
                self._add_waiter(group)
                try:
                    self._landed.wait(left_s)
                finally:
                    group.waiters -= 1
            return self._offset(place)

    def watch(self, place: int, wake: Callable[[], object]) -> int | None:
        """Return an event's offset once it is durable; before that None, and `wake` is called then.

        It is also called when that became impossible: the next call raises what `wait` does.

        Args:
            place: The event's place, as `append` returned it.
            wake: Called once, by the thread that commits; it must not block.

        Returns:
            The event's offset in the stream, or None.

        Raises:
            SegstoreError: As `wait`.

        Examples:
            >>> import threading
            >>> woken = threading.Event()
            >>> with stream.appender() as appender:
            ...     place = appender.append({"user": "ada", "n": 4})
            ...     first = appender.watch(place, woken.set)
            ...     _ = woken.wait()
            ...     first, appender.watch(place, woken.set)
            (None, 3)
        """
        with self._here():
            group = self._group_of(place)
            if group is None:
                return self._offset(place)
            group.watchers.append(wake)
            self._add_waiter(group)
            return None

    def flush(self, timeout: float | None = None) -> Commit | None:
        """Commit all events taken so far, and wait for commits in flight.

        They are durable and visible when it returns.

        Args:
            timeout: Seconds to wait, whatever the storage does; None for as long as it takes.

        Returns:
            The last commit, which took the newest of these events; None if none were left. Where no
            other thread flushes or waits and no limit was reached, its `start` and `end` are the
            offsets of the events since the previous flush.

        Raises:
            TimeoutError: Not all events are committed yet. Nothing is lost or cancelled: they are
                committed in the background, and another call waits for that.
            SegstoreError: As `Stream.append`. Every later append and flush raises the same error,
                until `resume`.
            ClosedError: The appender was closed.

        Examples:
            >>> with stream.appender() as appender:
            ...     _ = appender.append({"user": "ada", "n": 4})
            ...     print(appender.flush().end)
            4
        """
        if timeout is not None:
            return self._flush_within(timeout)
        with self._here():
            self._check()
            return self._flush(self._next)

    def _flush_within(self, timeout: float) -> Commit | None:
        """Let the lead commit, so that neither the storage nor the lock delays this thread."""
        limit_s, lock = self._clock.boot_s() + timeout, self._here()
        ended = False
        if lock.acquire(timeout=max(timeout, 0)):
            try:
                self._check()
                groups = [group for group in self._groups() if group.count]
                if not groups:
                    return None
                group = groups[-1]
                group.due_s = self._clock.boot_s()
                self._calls.put(None)
            finally:
                lock.release()
            ended = group.ended.wait(max(limit_s - self._clock.boot_s(), 0))
        else:
            self._asked = True
            self._calls.put(None)
        if not ended:
            raise TimeoutError("not all events are committed yet: none is lost, call flush again")
        if group.commit is None:
            self._check()
        return group.commit

    def resume(self) -> int:
        """Go on after a failure: no call raises it any more, and the next flush commits again.

        Asks the log first whether the commit that failed is in it: then it is acknowledged now. All
        other events keep their places. An `append` that raised took events only if `next_place`
        counts them. Without a failure it does nothing.

        Returns:
            How many events wait for the next flush.

        Raises:
            UnderReplicatedError: The commit is in the log, and can't be acknowledged yet.
            CommitUnknownError: It is not known whether the commit is in the log.
            SegstoreError: The cause has not passed. Nothing has changed: call again.
            ClosedError: The appender was closed.

        Examples:
            >>> with stream.appender() as appender:
            ...     _ = appender.append({"user": "ada", "n": 4})
            ...     appender.resume()  # nothing has failed
            1
        """
        with self._here():
            self._landed.wait_for(lambda: self._flying is None or self._flying.error is not None)
            self._check_open()
            if self._failure.error is not None:
                self._settle()
                self._stage_again()
                self._failure = FirstError()
                self._calls.put(None)
            return self._next - self._flushed

    def _flush_at_exit(self, timeout: float) -> None:
        """Flush, or warn how many events end with the process; never raises."""
        if os.getpid() != self._process or self._closed or self._next == self._flushed:
            return
        try:
            self._flush_within(timeout)
        except (SegstoreError, TimeoutError) as error:
            if waiting := self._next - self._flushed:
                _LOG.warning("%d events of an appender end with the process: %s", waiting, error)

    def read(self, start: int | None = None, end: int | None = None) -> pa.RecordBatchReader:
        """Read this appender's own events by their places, flushed or not.

        Args:
            start: The first place; None for the first unflushed one.
            end: The place after the last; None for `next_place`.

        Returns:
            The events in order. Unflushed events are decoded before this returns.

        Raises:
            InvalidInputError: The range is not within the places assigned so far.
            ClosedError: The appender was closed.

        Examples:
            >>> with stream.appender() as appender:
            ...     place = appender.append({"user": "ada", "n": 4})
            ...     appender.read(place).read_all()["n"].to_pylist()  # before it is flushed
            [4]
        """
        with self._here():
            self._landed.wait_for(lambda: not self._finishing)
            self._check_open()
            start = self._flushed if start is None else start
            end = self._next if end is None else end
            if not 0 <= start <= end <= self._next:
                raise InvalidInputError(
                    "no such places", start=start, end=end, next_place=self._next
                )
            groups = self._groups()
            schema = groups[-1].task.schema if groups else self._ends.schema
            runs = list(self._runs)
            fresh = [conform(batch, schema) for group in groups for batch in group.read(start, end)]

        def batches() -> Iterator[pa.RecordBatch]:
            for place, offset, rows in runs:
                first, last = max(start, place), min(end, place + rows)
                if first < last:
                    shift = offset - place
                    for batch in self._ends.read(first + shift, last + shift):
                        yield conform(batch, schema)
            yield from fresh

        return pa.RecordBatchReader.from_batches(schema, batches())

    def close(self) -> None:
        """Close the appender and drop unflushed events; safe to repeat.

        Waits for a commit in flight; no other begins. In a forked child it does nothing: what is
        staged is its parent's.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._open is not None:
                self._open.end_wait()
            self._landed.wait_for(lambda: self._flying is None or self._flying.error is not None)
            if dropped := self._next - self._flushed:
                what = "are dropped" if self._surely_uncommitted() else "may be committed"
                _LOG.warning("appender closed: %d events that were not flushed %s", dropped, what)
            for group in self._groups():
                # Once the task is finished, a commit may name its objects.
                if not group.task.finished or self._surely_uncommitted():
                    group.task.abort()
            self._calls.put(None)
            self._landed.notify_all()
            lead = self._lead
        if lead is not None and lead is not threading.current_thread():
            lead.join()

    async def __aenter__(self) -> "AsyncAppender":
        from segstore_ds.write.awaited import AsyncAppender  # noqa: PLC0415 - few use asyncio

        return AsyncAppender(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from segstore_ds.write.awaited import finish_in_thread  # noqa: PLC0415 - few use asyncio

        end = partial(self.__exit__, kind, error, traceback)
        await finish_in_thread(end, cancelled="the appender is flushed and closed all the same")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # Ctrl-C and `sys.exit` end the process, but do not undo an append.
            ends = kind is not None and not issubclass(kind, Exception)
            if not self._closed and (kind is None or (ends and self._failure.error is None)):
                self.flush()
        finally:
            self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidInputError(
            "an appender can't be pickled or copied",
            remedy="pickle the stream, and open an appender there",
        )

    def __del__(self) -> None:
        # `flush` and `close` may wait, which `__del__` must not: the lead calls them.
        if self._lead is not None and not self._closed and os.getpid() == self._process:
            DROPPED.add(self)
            self._calls.put(self)
            if waiting := self._next - self._flushed:
                text = f"an appender with {waiting} unflushed events was not closed"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _here(self) -> threading.RLock:
        """Return the lock, or raise in a forked child, where it may be held forever."""
        if os.getpid() != self._process:
            raise InvalidInputError(
                "the appender was opened before the process was forked",
                remedy="open an appender in the process that appends",
            )
        return self._lock

    def _taken(self, given: ArrowInput) -> list[pa.RecordBatch]:
        """Return all rows converted to the stream's schema."""
        stored = self._ends.schema
        try:
            # As in `Stream.append`: `conform` alone would fill a missing column with nulls.
            if not given.schema.equals(stored, check_metadata=True):
                plan_schema(stored, in_units_of(stored, given.schema), merge=False)
            elif not (given.lent or self._decimals):
                return [*given]
            pieces = (piece for batch in given for piece in conform_pieces(batch, stored))
            return [pa.concat_batches([piece]) for piece in pieces] if given.lent else [*pieces]
        except SegstoreError as error:
            given.explain(error)
            raise

    # Everything below runs with the lock held.

    def _group_of(self, place: int) -> EventGroup | None:
        """Return the group of an event that is not committed; None if it is."""
        if not 0 <= place < self._next:
            raise InvalidInputError("no such place", place=place, next_place=self._next)
        if place < self._flushed:
            return None
        group = next(group for group in self._groups() if place < group.end)
        self._check_hope(group)
        return group

    def _add_waiter(self, group: EventGroup) -> None:
        group.waiters += 1
        if group.waiters in (1, self._crowd):
            self._calls.put(None)

    def _settle(self) -> None:
        """Mark the failed group as committed if the log has it; raise if that is not known."""
        group = self._flying
        if group is None or not group.task.finished:
            return
        error = group.error
        if isinstance(error, SegstoreError) and not isinstance(error, MAYBE_COMMITTED):
            return
        version = error.fields.get("version") if isinstance(error, SegstoreError) else None
        commit = self._ends.settle(group.job, group.count, version)
        if commit is not None:
            self._land(group, commit)

    def _stage_again(self) -> None:
        """Put all events that are not flushed into a new open group."""
        groups = self._groups()
        fresh = None if self._flushed == self._next else self._plan(self._flushed, look=True)
        if fresh is not None:
            try:
                for group in groups:
                    for batch in group.read(self._flushed, self._next):
                        fresh.add(batch)
            except BaseException:
                fresh.task.abort()
                raise
            if self._limits.seconds is not None:
                fresh.due_s = self._clock.boot_s() + self._limits.seconds
        for group in groups:
            group.task.abort()
        self._open, self._flying = fresh, None

    def _plan(self, start: int, *, look: bool = False) -> EventGroup:
        job = self._ends.plan(look)
        attempt, counters = self._clock.new_id()[:8], CacheCounters()
        task = job.open_task(0, attempt, readable=True, counters=counters)
        return EventGroup(job, task, EventRows(self._ends.schema), counters, start)

    def _groups(self) -> list[EventGroup]:
        """Return the groups that are not flushed, in the order of their places."""
        return [group for group in (self._flying, self._open) if group is not None]

    def _append_batches(self, batches: list[pa.RecordBatch], group: EventGroup) -> None:
        self._keeping(group.stage_rows)
        for batch in batches:
            self._keeping(partial(group.add, batch))

    def _flush(self, place: int) -> Commit | None:
        """Return when all events below a place are committed, by this thread or by another."""
        commit = None
        while self._flushed < place:
            group = self._groups()[0]
            if group is not self._flying:
                commit = self._commit(group)
                continue
            while group is self._flying and group.error is None:
                self._landed.wait()
            self._check()
            commit = group.commit
        return commit

    def _commit(self, group: EventGroup) -> Commit:
        """Commit the open group while none is in flight; release the lock for requests."""
        self._keeping(group.stage_rows)
        self._open, self._flying, self._finishing = None, group, True
        try:
            with self._unlocked():
                staged = group.task.finish()
            self._finishing = False
            self._landed.notify_all()
            with self._unlocked():
                commit = self._commit_by_rules(group, staged)
            self._land(group, commit)
        except BaseException as error:
            group.error = error
            self._keep(error)
            raise
        finally:
            self._finishing = False
            self._landed.notify_all()
            self._calls.put(None)
        return commit

    def _commit_by_rules(self, group: EventGroup, staged: StagedTask) -> Commit:
        """Commit what is staged; if the rules have changed, check it again and repeat."""
        try:
            return self._ends.commit(group.job, staged)
        except ConflictError:
            now = self._ends.plan(False)
            before, rules = group.job.rules, now.rules
            if (before and before.text) == (rules and rules.text):
                raise
            if rules is not None:
                schema, events = now.target.given, group.task.read(0, group.count)
                rules.check([conform(batch, schema) for batch in events])
            group.job = replace(group.job, rules=rules, transaction=now.transaction)
            return self._ends.commit(group.job, staged)

    def _land(self, group: EventGroup, commit: Commit) -> None:
        group.commit = commit
        self._counters.add(group.counters)
        self._add_run(group.start, commit.start, commit.rows)
        self._flying, self._flushed = None, group.end
        self._crowd = group.waiters + (self._open.waiters if self._open else 0)
        group.end_wait()

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _add_run(self, place: int, offset: int, rows: int) -> None:
        if self._runs:
            last_place, last_offset, last_rows = self._runs[-1]
            if last_offset + last_rows == offset:
                self._runs[-1] = last_place, last_offset, last_rows + rows
                return
        self._runs.append((place, offset, rows))

    def _offset(self, place: int) -> int:
        run = self._runs[bisect.bisect_right(self._runs, place, key=lambda run: run[0]) - 1]
        return run[1] + place - run[0]

    def _call_lead(self) -> None:
        if self._lead is None:
            self._lead = threading.Thread(
                target=_run_lead,
                args=(weakref.ref(self), self._calls),
                name="segstore-appender",
                daemon=True,
            )
            self._lead.start()

    def _lead_commits(self) -> float | None:
        """Commit what is due or waited for; return the seconds until the next is due, or None."""
        while not self._closed and self._failure.error is None:
            group, left_s = self._open, None
            if self._asked and group is not None and group.count:
                group.due_s = self._clock.boot_s()
            self._asked = False
            if group is not None and group.due_s is not None:
                left_s = group.due_s - self._clock.boot_s()
            due = left_s is not None and left_s <= 0
            if group is None or self._flying is not None or not (due or group.waiters):
                return _BUSY_S if due else left_s
            if due or self._has_gathered(group):
                try:
                    self._commit(group)
                except SegstoreError:
                    # Every call that waits, appends or flushes raises the kept failure.
                    _LOG.exception("appender could not commit")
        return None

    def _has_gathered(self, group: EventGroup) -> bool:
        """Wait for as many threads as waited for the last commit; False if another one began."""
        until_s = self._clock.boot_s() + self._limits.linger_s
        while group is self._open and not self._closed:
            left_s = until_s - self._clock.boot_s()
            if group.waiters >= self._crowd or left_s <= 0:
                return self._flying is None
            with self._unlocked(), suppress(queue.Empty):
                self._calls.get(timeout=left_s)
        return False

    def _keeping(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException as error:
            self._keep(error)
            raise

    def _keep(self, error: BaseException) -> None:
        if isinstance(error, SegstoreError) and not isinstance(error, MAYBE_COMMITTED):
            error.refuse_retry(_AFTER_FAILURE)
        self._failure.keep(error)
        self._landed.notify_all()
        for group in self._groups():
            group.end_wait()

    def _surely_uncommitted(self) -> bool:
        error = self._failure.error
        # An interrupt or a bug may raise after the commit became durable.
        unknown = isinstance(error, MAYBE_COMMITTED)
        return error is None or (isinstance(error, SegstoreError) and not unknown)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("appender was closed") from self._failure.error

    def _check(self) -> None:
        self._check_open()
        self._failure.check()

    def _check_hope(self, group: EventGroup) -> None:
        """Raise unless a group may still be committed."""
        if group.error is not None:
            self._failure.check()
        if group is self._flying:
            return
        self._check_open()
        if self._failure.error is not None:
            raise ClosedError(
                "an earlier call failed, so this event is not committed", remedy=_AFTER_FAILURE
            ) from self._failure.error


def _run_lead(
    known: "weakref.ref[LiveAppender]", calls: "queue.SimpleQueue[LiveAppender | None]"
) -> None:
    """Commit for an appender until it is closed; flush and close it if it was not."""
    while True:
        appender, left_s = known(), None
        if appender is not None:
            with appender._lock:  # noqa: SLF001 - its thread
                if appender._closed:  # noqa: SLF001
                    return
                left_s = appender._lead_commits()  # noqa: SLF001
        if left_s is None:
            appender = None  # keep it alive only while events are due
        try:
            dropped = calls.get(timeout=left_s)
        except queue.Empty:
            continue
        if dropped is not None:
            with suppress(SegstoreError):
                dropped.flush()
            dropped.close()
            DROPPED.discard(dropped)
            return
