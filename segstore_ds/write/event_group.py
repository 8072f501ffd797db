"""The events that one commit of the long-lived appender takes."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.format.rows import slice_for_readers
from segstore_ds.format.schema.conversion import conform
from segstore_ds.status.writers import Commit
from segstore_ds.write.event_rows import EventRows
from segstore_ds.write.job import WriteJob
from segstore_ds.write.task_writer import TaskWriter


@dataclass(slots=True, eq=False)
class EventGroup:
    """The events of one commit; `start` is the place of the first.

    Attributes:
        job: The planned write.
        task: What stages the events.
        rows: Single events that are not in the task yet.
        counters: The write cache's counters of this group.
        count: How many events it holds.
        staged_bytes: Bytes that were given to the task, before compression.
        due_s: When it is to be committed at the latest; None for never.
        waiters: How many threads wait for it.
        commit: Its commit, once it has landed.
        error: Why its commit failed.
        ended: Set once it is known whether it was committed.
    """

    job: WriteJob
    task: TaskWriter
    rows: EventRows
    counters: CacheCounters
    start: int
    count: int = 0
    staged_bytes: int = 0
    due_s: float | None = None
    waiters: int = 0
    commit: Commit | None = None
    error: BaseException | None = field(default=None, repr=False)
    ended: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def end(self) -> int:
        """The place after the last event."""
        return self.start + self.count

    @property
    def bytes(self) -> int:
        """Bytes before compression."""
        return self.staged_bytes + self.rows.bytes

    def stage_rows(self) -> None:
        """Give the single events to the task."""
        if len(self.rows):
            batch = conform(self.rows.peek(), self.task.schema)
            self.task.take(batch)
            self.rows.clear()
            self.staged_bytes += batch.nbytes

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the group's events of a range of places."""
        first, last = max(start - self.start, 0), min(end - self.start, self.count)
        staged = self.task.rows
        if first < min(last, staged):
            yield from self.task.read(first, min(last, staged))
        if last > max(first, staged):
            begin = max(first - staged, 0)
            yield slice_for_readers(self.rows.peek(), begin, last - staged - begin)
