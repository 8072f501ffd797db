"""The channels of a write cache, and the placements of records in the object that they write.

An object and its copies are written at the same time. A placement decides the offset of the next
record, and which buffer to write: pure bookkeeping, under the lock of the service.

Source: the two modes of Blazegraph's WriteCacheService, append-only (WORM) and scattered (RW).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from segstore_ds.cache.buffer import LAST_OFFSET, Buffer, Record
from segstore_ds.cache.views import BufferView
from segstore_ds.errors import FormatError, InvalidInputError, StorageError

_LOG = logging.getLogger(__name__)
_COPY_ERRORS = (StorageError, FormatError, InvalidInputError)
_MOST_NAMED = 4


class Channel(Protocol):
    """Takes the bytes of one object, in order; after a failure only `abort` may be called."""

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Append pieces as one write; their memory may be reused once it returns."""

    def commit(self) -> int:
        """Make the object whole and durable, and return its size; a failure may leave half."""

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""


class ScatteredChannel(Protocol):
    """Takes the parts of one object in any order, from several threads."""

    def write_at(self, start: int, pieces: Sequence[memoryview]) -> None:
        """Write pieces one after the other as one write, over bytes written there before."""

    def commit(self) -> int:
        """Make the object whole and durable, and return its size."""

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""


@dataclass(frozen=True, slots=True)
class FlushedBuffer:
    """A buffer on its way to the channel, as the channels of copies get it."""

    sequence: int  # its number, dense from 0; empty buffers take none
    start: int  # position of its first byte in the object
    records: tuple[Record, ...]  # its records without gaps, each with its checksum
    payload: BufferView  # its bytes, not copied; valid until the channel has returned


class CopyChannel(Protocol):
    """Takes a copy of the object, buffer by buffer, each from its own thread."""

    url: str  # where the copy is

    def receive(self, buffer: FlushedBuffer) -> None:
        """Write the next buffer."""

    def commit(self, size: int) -> None:
        """Make the copy whole and durable; an error if it has another size."""

    def abort(self) -> None:
        """Discard the copy; never raises, safe to repeat."""


class Copies:
    """The channels of an object's copies, which take each buffer while its own channel does.

    The next buffer waits for all of them: a slow copy slows the writer down, and the buffers bound
    the memory. If a copy fails, it is discarded and gets nothing more; the object does not fail.
    """

    def __init__(self, channels: Sequence[CopyChannel]) -> None:
        self._channels = list(channels)
        self._threads = ThreadPoolExecutor(len(channels), "segstore-copies") if channels else None
        self.whole: tuple[str, ...] = ()  # the folders that have all of a committed object

    @contextmanager
    def receiving(self, message: Callable[[], FlushedBuffer]) -> Iterator[None]:
        """Send a buffer to all channels during the block; leaving it waits for them."""
        if not self._channels:
            yield
            return
        buffer = message()
        with self._each(lambda channel: channel.receive(buffer)):
            yield

    @contextmanager
    def committing(self, size: int) -> Iterator[None]:
        """Commit all copies during the block; leaving it waits, and ends the threads."""
        try:
            with self._each(lambda channel: channel.commit(size)):
                yield
        finally:
            self.whole = tuple(channel.url for channel in self._channels)
            self._end()

    def abort(self) -> None:
        """Discard the copies that are not committed; never raises, safe to repeat."""
        for channel in self._channels:
            channel.abort()
        self._end()

    def _end(self) -> None:
        self._channels = []
        if self._threads is not None:
            self._threads.shutdown()

    @contextmanager
    def _each(self, work: Callable[[CopyChannel], None]) -> Iterator[None]:
        # Wait for all after any failure, too: the buffer's memory is reused afterwards.
        with ExitStack() as ends:
            for channel in self._channels:
                ends.callback(self._await, channel, self._begin(work, channel))
            yield

    def _await(self, channel: CopyChannel, end: Callable[[], None]) -> None:
        try:
            end()
        except _COPY_ERRORS as error:
            self._channels.remove(channel)
            channel.abort()
            _LOG.warning("the copy of an object in %s failed: %s", channel.url, error)

    def _begin(
        self, work: Callable[[CopyChannel], None], channel: CopyChannel
    ) -> Callable[[], None]:
        """Start work in a thread and return what waits for it; without a thread that does it."""
        if self._threads is not None:
            with suppress(RuntimeError):  # no thread can start while the process ends
                return self._threads.submit(work, channel).result
        return partial(work, channel)


class Dense:
    """Places each record after the one before; buffers are written in that order."""

    in_order = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.end = 0  # the offset of the next record
        self.open: Buffer | None = None

    def place(self, at: int | None, length: int) -> int:
        """Return the offset of a new record."""
        if at is not None or not 0 < length <= LAST_OFFSET - self.end:
            raise InvalidInputError(
                "record is empty, ends after the last offset, or has an offset of its own",
                bytes=length,
                offset=self.end if at is None else at,
            )
        return self.end

    def buffer_for(self, record: Record) -> Buffer | None:
        """Return the open buffer if the record fits in, else None."""
        return self.open if self.open is not None and self.open.room >= record.length else None

    def take_full(self) -> Buffer | None:
        """Return the open buffer, to be written before another one is opened."""
        if self.open is None or not self.open.filled:
            return None
        full, self.open = self.open, None
        return full

    def opened(self, buffer: Buffer, record: Record) -> None:
        """Take an empty buffer for this and later records."""
        del record
        self.open = buffer

    def added(self, record: Record) -> Buffer | None:
        """Note a record; return None, as only the next record shows whether a buffer is full."""
        self.end = record.end
        return None

    def check_whole(self) -> None:
        """Raise InvalidInputError if bytes of the object are missing."""

    def send(self, buffer: Buffer) -> None:
        """Write a buffer to the channel, without the lock."""
        self._channel.write_all(list(buffer.content().buffers()))


class Scattered:
    """Takes records in any order; each lies within one of the parts that the object is cut into.

    A part is as large as a buffer, and is written once it is complete. A record replaces an earlier
    one of the same range; if that part was written, all of it has to be sent again. An object with
    a hole can't be committed.
    """

    in_order = False

    def __init__(self, channel: ScatteredChannel, size: int, part_bytes: int) -> None:
        if size < 1:
            raise InvalidInputError("an object needs at least one byte", size=size)
        self._channel = channel
        self.end = size
        self._part_bytes = part_bytes
        self._open: dict[int, Buffer] = {}
        self._missing = set(range(-(-size // part_bytes)))  # parts that are not complete

    def place(self, at: int | None, length: int) -> int:
        """Return the offset of a new record, checked to lie within one part."""
        start = 0 if at is None else at
        part = start // self._part_bytes
        if at is None or not 0 <= at < at + length <= min(self._end_of(part), self.end):
            raise InvalidInputError(
                "record is empty or not inside one part of the object",
                offset=at,
                bytes=length,
                part_bytes=self._part_bytes,
                size=self.end,
            )
        return start

    def buffer_for(self, record: Record) -> Buffer | None:
        """Return the buffer of the record's part, or None; refuse a record that overlaps one."""
        buffer = self._open.get(record.offset // self._part_bytes)
        for other in buffer.records.values() if buffer else ():
            same = (other.offset, other.length) == (record.offset, record.length)
            if not same and other.offset < record.end and record.offset < other.end:
                raise InvalidInputError(
                    "record overlaps another one of a different range", offset=record.offset
                )
        return buffer

    def take_full(self) -> Buffer | None:
        """Return None: a part is written as soon as it is complete."""
        return None

    def opened(self, buffer: Buffer, record: Record) -> None:
        """Take an empty buffer for the record's part."""
        part = record.offset // self._part_bytes
        buffer.base = part * self._part_bytes
        self._open[part] = buffer
        self._missing.add(part)

    def added(self, record: Record) -> Buffer | None:
        """Note a record; return the buffer of its part if that is now complete."""
        part = record.offset // self._part_bytes
        buffer = self._open[part]
        if buffer.end < min(self._end_of(part), self.end):
            return None
        del self._open[part]
        self._missing.discard(part)
        return buffer

    def check_whole(self) -> None:
        """Raise InvalidInputError if parts are missing."""
        if self._missing:
            first = sorted(self._missing)[:_MOST_NAMED]
            raise InvalidInputError(
                "an object has holes",
                missing=[
                    (part * self._part_bytes, min(self._end_of(part), self.end)) for part in first
                ],
                parts=len(self._missing),
            )

    def send(self, buffer: Buffer) -> None:
        """Write a part to the channel, without the lock."""
        self._channel.write_at(buffer.base or 0, list(buffer.content().buffers()))

    def _end_of(self, part: int) -> int:
        return (part + 1) * self._part_bytes
