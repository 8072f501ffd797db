"""The reference model of a stream, which property tests compare with.

Events are in a list, and the answer of every version is kept. It has no storage, commits, segments
or frames.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """A stream as of one commit: range, columns, and commit time."""

    head: int
    tail: int
    columns: tuple[str, ...]
    time_us: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A writer's last batch and its place."""

    batch_id: int
    version: int
    start: int
    end: int


@dataclass(slots=True)
class ModelStream:
    """A stream in memory.

    Attributes:
        columns: Of the newest version, in order.
        events: Every event ever appended; an event's index in the list is its offset.
        versions: Every version, purged ones included; a version's index in the list is its number.
        writers: Writer id -> its last batch.
        log_start: The oldest version that was not purged.
        tags: Name -> offset.
        readers: Name -> offset of a reader that was not released.
        first: The version with which the stream began.
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
    first: int = field(init=False)

    def __post_init__(self) -> None:
        """Commit the first version, of an empty stream; another one may have been here before."""
        self.first = len(self.versions)
        self._commit()

    @property
    def tail(self) -> int:
        """The offset of the next event."""
        return len(self.events)

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.versions) - 1

    def knows(self, writer_id: str, batch_id: int) -> Batch | None:
        """Return a writer's batch if it is its last one."""
        last = self.writers.get(writer_id)
        return last if last is not None and last.batch_id == batch_id else None

    def write(
        self,
        events: list[Event],
        *,
        columns: tuple[str, ...] = (),
        overwrite: bool = False,
        writer: tuple[str, int] | None = None,
    ) -> Batch | None:
        """Append or overwrite; return the place of the events, or None without a commit.

        A repeated batch changes nothing. Columns that the stream lacks are added after its own. An
        overwrite moves the head to the tail first. `writer` is writer id and batch id.
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
        """Drop all events before the first one that a tag or a reader needs."""
        tagged = [offset for offset in self.tags.values() if offset >= self.head]
        self.truncate(max(min([self.tail, *tagged, *self.readers.values()]), self.head))

    def restore(self, version: int, hidden: int) -> None:
        """Append the events of a version again and move the head to them.

        `hidden` is how many events before its head the version's first segment holds.
        """
        old = self.versions[version]
        blank: list[Event] = [{}] * hidden
        self.head = self.tail + hidden
        self.events += blank + self.events[old.head : old.tail]
        self.columns = old.columns
        self._commit()

    def follow(self, version: int) -> None:
        """Count commits that change nothing visible to a reader of events."""
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
        """Return offsets and events of ``[start, end)`` that pass `keep`, in order."""
        wanted = self.columns if columns is None else columns
        found = []
        for offset in range(start, end):
            event = {name: self.events[offset].get(name) for name in (*self.columns, *wanted)}
            if keep(event):
                found.append((offset, {name: event[name] for name in wanted}))
        return found

    def tail_at(self, time_us: int) -> int:
        """Return the tail as of a time, purged versions included; 0 before the first commit."""
        found = [earlier for earlier in self.versions[self.first :] if earlier.time_us <= time_us]
        return found[-1].tail if found else 0

    def purge(self, older_than_s: float) -> bool:
        """Forget versions below the last but one that is old enough, as the engine does.

        Returns whether there was anything to forget.
        """
        limit_us = self.now_us - int(older_than_s * 1e6)
        old = [
            number for number, earlier in enumerate(self.versions) if earlier.time_us <= limit_us
        ]
        target = max(old[-1] - 1, 0) if old else 0
        if target <= self.log_start:
            return False
        self._commit()
        self.log_start = target
        return True

    def _commit(self) -> None:
        self.versions.append(Version(self.head, self.tail, self.columns, self.now_us))
