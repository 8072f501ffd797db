"""What a stream is, without any storage: the reference that property tests compare with.

Events in a list, every version's answer kept. It knows nothing of commits, segments or frames.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """A stream as of one commit: range, columns, and when it was made."""

    head: int
    tail: int
    columns: tuple[str, ...]
    time_us: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A writer's last batch and where it lies."""

    batch_id: int
    version: int
    start: int
    end: int


@dataclass(slots=True)
class ModelStream:
    """A stream in memory.

    Attributes:
        columns: Of the newest version, in order.
        events: Every event ever appended; an event's place in the list is its offset.
        versions: Every version, the purged ones too; a version's place in the list is its number.
        writers: Writer id -> its last batch.
        log_start: The oldest version that was not purged.
        tags: Name -> offset.
        readers: Name -> offset of a reader that was not released.
    """

    columns: tuple[str, ...]
    now_us: int
    events: list[Event] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    writers: dict[str, Batch] = field(default_factory=dict)
    log_start: int = 0
    head: int = 0
    sealed: bool = False
    tags: dict[str, int] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make version 0, the empty stream."""
        self._commit()

    @property
    def tail(self) -> int:
        """The offset that the next event gets."""
        return len(self.events)

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.versions) - 1

    def knows(self, writer_id: str, batch_id: int) -> Batch | None:
        """Return a writer's batch if it is its last one."""
        last = self.writers.get(writer_id)
        return last if last is not None and last.batch_id == batch_id else None

    def is_stale(self, writer_id: str, batch_id: int) -> bool:
        """Tell whether a batch is older than the writer's last one."""
        last = self.writers.get(writer_id)
        return last is not None and batch_id < last.batch_id

    def write(
        self,
        events: list[Event],
        *,
        columns: tuple[str, ...] = (),
        overwrite: bool = False,
        writer: tuple[str, int] | None = None,
    ) -> Batch | None:
        """Append or overwrite; a batch that is known changes nothing.

        Args:
            events: What is written.
            columns: Columns of it; those the stream lacks are added behind its own.
            overwrite: Move the head to the tail first.
            writer: Writer id and batch id.

        Returns:
            Where the events lie; None when there was nothing to commit.
        """
        known = self.knows(*writer) if writer else None
        if known is not None:
            return known
        added = tuple(name for name in columns if name not in self.columns)
        if not events and not added and writer is None and not overwrite:
            return None
        start = self.tail
        self.head = start if overwrite else self.head
        self.columns += added
        self.events += events
        self._commit()
        batch = Batch(writer[1] if writer else 0, self.version, start, self.tail)
        if writer:
            self.writers[writer[0]] = batch
        return batch

    def truncate(self, offset: int) -> None:
        """Move the head up."""
        if offset > self.head:
            self.head = offset
            self._commit()

    def seal(self) -> None:
        """End the stream."""
        if not self.sealed:
            self.sealed = True
            self._commit()

    def tag(self, name: str, offset: int) -> None:
        """Set or move a tag."""
        if self.tags.get(name) != offset:
            self.tags[name] = offset
            self._commit()

    def retain(self) -> None:
        """Drop everything that neither a tag nor a reader needs."""
        tagged = [offset for offset in self.tags.values() if offset >= self.head]
        self.truncate(max(min([self.tail, *tagged, *self.readers.values()]), self.head))

    def restore(self, version: int, hidden: int) -> None:
        """Bring a version back behind the tail.

        Args:
            version: Its number.
            hidden: How many events its first segment holds from before its head.
        """
        old = self.versions[version]
        blank: list[Event] = [{}] * hidden
        self.head = self.tail + hidden
        self.events += blank + self.events[old.head : old.tail]
        self.columns = old.columns
        self._commit()

    def follow(self, version: int) -> None:
        """Take note of commits that change nothing a reader of events sees."""
        while self.version < version:
            self._commit()

    def read(
        self,
        start: int,
        end: int,
        *,
        columns: tuple[str, ...] | None = None,
        keep: Callable[[Event], bool] = lambda _: True,
    ) -> list[tuple[int, Event]]:
        """Return offsets and events of ``[start, end)`` that are kept, in order."""
        wanted = self.columns if columns is None else columns
        found = []
        for offset in range(start, end):
            event = {name: self.events[offset].get(name) for name in (*self.columns, *wanted)}
            if keep(event):
                found.append((offset, {name: event[name] for name in wanted}))
        return found

    def tail_at(self, time_us: int) -> int:
        """Return the tail as of a time, purged versions included; 0 before the first commit."""
        found = [one for one in self.versions if one.time_us <= time_us]
        return found[-1].tail if found else 0

    def purge(self, older_than_s: float) -> bool:
        """Forget versions as the engine does: all below the last but one of those so old.

        Returns:
            Whether there was anything to forget.
        """
        limit_us = self.now_us - int(older_than_s * 1e6)
        old = [number for number, one in enumerate(self.versions) if one.time_us <= limit_us]
        target = max(old[-1] - 1, 0) if old else 0
        if target <= self.log_start:
            return False
        self._commit()
        self.log_start = target
        return True

    def _commit(self) -> None:
        self.versions.append(Version(self.head, self.tail, self.columns, self.now_us))
