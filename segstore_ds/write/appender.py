"""The long-lived appender: takes events one by one or in batches, commits by size, time or call.

Until a flush, events are staged as in any write: encoded, in the write cache or in objects that no
commit names. Each event has a *place*, counted from 0 without gaps in the order of the calls, by
which it can be read back at once. It gets its offset when a flush commits it. One flush is one
commit.

The first failure is kept, and every later append and flush raises it: only the caller can decide
whether to repeat. Reading back still works. Closing never commits: `flush` does, and so does
leaving a `with` block without an error.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.first_error import FirstError
from segstore_ds.errors import MAYBE_COMMITTED, ClosedError, InvalidInputError, SegstoreError
from segstore_ds.format.schema.codec import conform, conform_pieces, normalise_schema, plan_schema
from segstore_ds.log.clock import Clock
from segstore_ds.status.writers import Commit
from segstore_ds.write.event_rows import EventRows
from segstore_ds.write.inputs import as_input
from segstore_ds.write.job import WriteJob
from segstore_ds.write.task_writer import StagedTask, TaskWriter

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_AFTER_FAILURE = (
    "this appender takes no more events: read them back by their places, and append those "
    "that are not committed through a new appender"
)


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """When to flush automatically.

    Attributes:
        bytes: Unflushed bytes, before compression.
        rows: Unflushed events.
        seconds: Age of the oldest unflushed event; None for never.
    """

    bytes: int
    rows: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """What the appender uses of its own stream handle.

    Attributes:
        schema: The stored schema of the stream's events.
        plan: Plans the write of the next flush.
        commit: Commits the staged task; deletes none of its objects on failure.
        read: Reads the events of an offset range, as of the newest version.
    """

    schema: pa.Schema
    plan: Callable[[], WriteJob]
    commit: Callable[[WriteJob, StagedTask], Commit]
    read: Callable[[int, int], Iterable[pa.RecordBatch]]


class LiveAppender:
    """Appends to a stream until it is closed; created by `Stream.appender`.

    Safe to use from several threads; their appends run one at a time. As a context manager it
    flushes at the end, unless the block failed.

    Args:
        ends: The stream.
        limits: When to flush.
        clock: Time and ids.
    """

    def __init__(self, ends: StreamEnds, limits: FlushLimits, clock: Clock) -> None:
        self._ends = ends
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._counters = CacheCounters()
        self._rows = EventRows(ends.schema)
        self._open: tuple[WriteJob, TaskWriter] | None = None  # what the next flush commits
        self._flushed = self._next = 0
        self._staged_bytes = 0
        self._runs: list[tuple[int, int, int]] = []  # (place, offset, rows) that was flushed
        self._due_s: float | None = None
        self._timer: threading.Thread | None = None
        self._failure = FirstError()
        self._closed = False

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
        with self._changed:
            return self._counters.snapshot()

    def append(self, data: Any) -> int:
        """Take one event or many; flushes when a limit is reached.

        The events can be read by `read` at once, but are durable only after a flush.

        Args:
            data: One event as a mapping of column names to values, where a missing column is
                null; or Arrow data as for `Stream.append`.

        Returns:
            The place of the first of these events.

        Raises:
            SchemaMismatchError: A column or a value does not fit; none of these events was taken.
            InvalidInputError: The data is neither an event nor Arrow data.
            ClosedError: The appender was closed.
            SegstoreError: This flush or an earlier one failed; see `flush`.
        """
        with self._changed:
            self._check()
            place = self._next
            if self._open is None:
                # Plan before taking any event, so that a failure here changes nothing.
                self._open = self._plan()
            if type(data) is dict or isinstance(data, Mapping):
                self._rows.add(data)
                self._next += 1
                if self._rows.full:
                    self._keeping(self._stage_rows)
            else:
                self._append_batches(data, self._open[1])
            if self._due_s is None and self._limits.seconds is not None and self._next > place:
                self._set_timer(self._limits.seconds)
            unflushed = self._next - self._flushed
            full = self._staged_bytes + self._rows.bytes >= self._limits.bytes
            if full or unflushed >= self._limits.rows:
                self._keeping(self._flush)
            return place

    def flush(self) -> Commit | None:
        """Commit all events taken so far, in one commit.

        They are durable and visible when it returns.

        Returns:
            The commit, whose `start` and `end` are the offsets of the events since the previous
            flush; None if there were none.

        Raises:
            SegstoreError: As `Stream.append`. Every later append and flush raises the same error.
                If `Stream.outcome` or the error says that the events are not committed, read them
                back by their places and append them through a new appender.
            ClosedError: The appender was closed.
        """
        with self._changed:
            self._check()
            return self._keeping(self._flush)

    def read(self, start: int | None = None, end: int | None = None) -> pa.RecordBatchReader:
        """Read this appender's own events by their places, flushed or not.

        Args:
            start: The first place; None for the first unflushed one.
            end: The place after the last; None for `next_place`.

        Returns:
            The events in order. Unflushed events are decoded before this returns.

        Raises:
            InvalidInputError: The range is not within the places assigned so far.
            FormatError: Stored bytes are damaged or missing.
            StorageError: The storage failed.
            ClosedError: The appender was closed.
        """
        with self._changed:
            self._check_open()
            start = self._flushed if start is None else start
            end = self._next if end is None else end
            if not 0 <= start <= end <= self._next:
                raise InvalidInputError(
                    "no such places", start=start, end=end, next_place=self._next
                )
            schema = self._ends.schema if self._open is None else self._open[1].schema
            runs = list(self._runs)
            fresh = [conform(batch, schema) for batch in self._unflushed(start, end)]

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
        """Close the appender and drop unflushed events; safe to repeat."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            dropped = self._next - self._flushed
            if dropped:
                _LOG.warning("appender was closed with %d events that were not flushed", dropped)
            task = self._open[1] if self._open is not None else None
            # Once the task is finished, a commit may name its objects.
            if task is not None and (not task.finished or self._surely_uncommitted()):
                task.abort()
            self._changed.notify_all()
            timer = self._timer
        if timer is not None and timer is not threading.current_thread():
            timer.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._closed:
                self.flush()
        finally:
            self.close()

    # Everything below runs with the lock held.

    def _plan(self) -> tuple[WriteJob, TaskWriter]:
        job = self._ends.plan()
        attempt = self._clock.new_id()[:8]
        return job, job.open_task(0, attempt, readable=True, counters=self._counters)

    def _append_batches(self, data: Any, task: TaskWriter) -> None:
        given = as_input(data)
        try:
            # The rules of `Stream.append`: `conform` alone would read a missing column as null.
            plan_schema(self._ends.schema, normalise_schema(given.schema), merge=False)
            # Conform all batches before the task takes any, as it would: all are taken, or none.
            batches = [piece for batch in given for piece in conform_pieces(batch, task.schema)]
        except SegstoreError as error:
            given.explain(error)
            raise
        self._keeping(self._stage_rows)
        for batch in batches:
            self._keeping(partial(task.append, batch))
            self._staged_bytes += batch.nbytes
            self._next += batch.num_rows

    def _stage_rows(self) -> None:
        if self._open is not None and len(self._rows):
            task = self._open[1]
            batch = self._rows.peek()
            task.append(batch)
            self._rows.clear()
            self._staged_bytes += batch.nbytes

    def _flush(self) -> Commit | None:
        self._due_s = None
        if self._open is None or self._next == self._flushed:
            return None
        self._stage_rows()
        job, task = self._open
        commit = self._ends.commit(job, task.finish())
        self._open = None
        self._staged_bytes = 0
        self._add_run(self._flushed, commit.start, commit.rows)
        self._flushed = self._next
        return commit

    def _add_run(self, place: int, offset: int, rows: int) -> None:
        if self._runs:
            last_place, last_offset, last_rows = self._runs[-1]
            if last_offset + last_rows == offset:
                self._runs[-1] = last_place, last_offset, last_rows + rows
                return
        self._runs.append((place, offset, rows))

    def _unflushed(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        first, last = max(start - self._flushed, 0), max(end - self._flushed, 0)
        staged = 0
        if self._open is not None:
            task = self._open[1]
            staged = task.rows
            yield from task.read(first, min(last, staged))
        if last > staged:
            rows = self._rows.peek()
            begin = max(first - staged, 0)
            yield rows.slice(begin, last - staged - begin)

    def _set_timer(self, seconds: float) -> None:
        self._due_s = self._clock.boot_s() + seconds
        if self._timer is None:
            self._timer = threading.Thread(
                target=self._run_timer, name="segstore-appender", daemon=True
            )
            self._timer.start()
        self._changed.notify_all()

    def _run_timer(self) -> None:
        with self._changed:
            while not self._closed and self._failure.error is None:
                left = None if self._due_s is None else self._due_s - self._clock.boot_s()
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                try:
                    self._keeping(self._flush)
                except SegstoreError:
                    # The failure is kept: the next append or flush raises it.
                    _LOG.exception("appender could not flush in time")

    def _keeping(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException as error:
            if isinstance(error, SegstoreError) and not isinstance(error, MAYBE_COMMITTED):
                error.refuse_retry(_AFTER_FAILURE)
            self._failure.keep(error)
            raise

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
