"""The events of one commit of the long-lived appender."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.format.rows import slice_for_readers
from segstore_ds.format.schema.conversion import conform
from segstore_ds.status.writers import Commit
from segstore_ds.write.event_rows import EventRows
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import size_of
from segstore_ds.write.task_writer import TaskWriter


@dataclass(slots=True, eq=False)
class EventGroup:
    """The events of one commit; `start` is the place of the first."""

    job: WriteJob  # the planned write
    task: TaskWriter  # stages the events
    rows: EventRows  # single events that are not in the task yet
    counters: CacheCounters  # the write cache's counters of this group
    start: int
    count: int = 0  # how many events it has
    staged_bytes: int = 0  # bytes passed to the task, before compression
    due_s: float | None = None  # when it must be committed; None if there is no such time
    waiters: int = 0  # how many threads and tasks wait for it
    commit: Commit | None = None  # its commit, once it is made
    error: BaseException | None = field(default=None, repr=False)  # why its commit failed
    # Set once it is known whether it was committed.
    ended: threading.Event = field(default_factory=threading.Event, repr=False)
    watchers: list[Callable[[], object]] = field(default_factory=list, repr=False)
    one: EventRows | None = field(default=None, repr=False)  # a single event, to check rules

    @property
    def end(self) -> int:
        """The place after the last event."""
        return self.start + self.count

    @property
    def bytes(self) -> int:
        """Bytes before compression."""
        return self.staged_bytes + self.rows.bytes

    def check(self, given: Mapping[str, Any] | list[pa.RecordBatch]) -> None:
        """Raise InvalidInputError if an event, or a row of batches, breaks a rule of the stream."""
        if (rules := self.job.rules) is None:
            return
        if isinstance(given, list):
            self.task.check(given)
            return
        if self.one is None:  # with only the columns that rules name
            fields = [self.task.schema.field(name) for name in rules.columns]
            self.one = EventRows(pa.schema(fields))
        self.one.add({name: given.get(name) for name in self.one.schema.names})
        one = self.one.peek()
        self.one.clear()
        rules.check([one])

    def add(self, batch: pa.RecordBatch) -> None:
        """Pass rows to the task, which copies those that it gathers."""
        self.task.take(batch, lent=True)
        self.staged_bytes += size_of(batch)
        self.count += batch.num_rows

    def stage_rows(self) -> None:
        """Pass the single events to the task."""
        if len(self.rows):
            batch = conform(self.rows.peek(), self.task.schema)
            self.task.take(batch)
            self.rows.clear()
            self.staged_bytes += batch.nbytes

    def end_wait(self) -> None:
        """Wake those who wait until it is known whether the group was committed."""
        self.ended.set()
        watchers, self.watchers = self.watchers, []
        for wake in watchers:
            with suppress(RuntimeError):  # its event loop is closed
                wake()

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the group's events of a range of places."""
        first, last = max(start - self.start, 0), min(end - self.start, self.count)
        staged = self.task.rows
        if first < min(last, staged):
            yield from self.task.read(first, min(last, staged))
        if last > max(first, staged):
            begin = max(first - staged, 0)
            yield slice_for_readers(self.rows.peek(), begin, last - staged - begin)
