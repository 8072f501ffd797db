"""The buffer: records within one range of an object, which go to the channel in one write.

A record is held by reference, or its producer writes it into the buffer's own memory (`allocate`).
The checksum of each record is in the record map, not among the bytes. A sealed buffer does not
change until it is reset.

Source: Blazegraph's WriteCache. Held references replace its direct buffers and reference counts,
and positions in the object replace the prefixes of its scattered mode.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import pyarrow as pa

from segstore_ds.cache.views import EMPTY, BufferView, ByteArraySegment, join
from segstore_ds.checksum import crc32
from segstore_ds.errors import ClosedError, CorruptionError, InvalidInputError

LAST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """A record's range in its object, and the CRC-32 of its bytes."""

    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length

    def check(self, data: bytes) -> bytes:
        """Return the record's bytes, or raise CorruptionError if length or checksum differ."""
        self.compare(len(data), crc32(data))
        return data

    def compare(self, length: int, crc: int) -> None:
        """Raise CorruptionError unless this is the length and the CRC-32 of the record."""
        if (length, crc) != (self.length, self.crc):
            raise CorruptionError(
                "a record fails its checksum",
                offset=self.offset,
                length=self.length,
                expected=self.crc,
                actual=crc,
                actual_length=length,
            )


class Buffer:
    """Records within `capacity` bytes of an object, from `base` on.

    Not thread-safe: the service that uses it has a lock. Its own memory is allocated on first use
    and kept for the next object. `number` is its place in the order of writes. `charged` holds the
    pool's buffers whose share of memory a large record uses.
    """

    __slots__ = ("_held", "_memory", "_sealed", "base", "capacity", "charged", "filled", "number")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInputError(
                "a buffer needs a capacity of at least one byte", capacity=capacity
            )
        self.capacity = capacity
        self.base: int | None = None
        self.filled = 0
        self.number = -1
        self.charged: list[Buffer] = []
        self._held: dict[int, tuple[Record, BufferView | None]] = {}
        self._memory: memoryview | None = None
        self._sealed = False

    @classmethod
    def received(cls, start: int, records: Iterable[Record], payload: BufferView) -> "Buffer":
        """Rebuild the record map of a buffer from its bytes, which are checked and not copied."""
        buffer = cls(max(payload.length, 1))
        pieces, rest = payload.buffers(), memoryview(b"")
        for record in records:
            segments: list[ByteArraySegment] = []
            missing = record.length
            while missing > 0 and (rest := rest or next(pieces, rest)):
                segments.append(ByteArraySegment(rest[:missing]))
                rest = rest[missing:]
                missing -= segments[-1].length
            view = join(segments)
            record.compare(view.length, view.crc32())
            if record.offset != start + buffer.filled or not view.length:
                break
            buffer.write(record, view)
        else:
            if buffer.filled == payload.length:
                return buffer
        raise CorruptionError(
            "the records of a buffer do not fill it",
            start=start,
            bytes=payload.length,
            filled=buffer.filled,
        )

    @property
    def records(self) -> Mapping[int, Record]:
        """The record map: offset to record."""
        return MappingProxyType({offset: record for offset, (record, _) in self._held.items()})

    @property
    def end(self) -> int:
        """The offset after the last byte, if the records lie side by side."""
        return (self.base or 0) + self.filled

    @property
    def room(self) -> int:
        """The largest record that still fits, in bytes."""
        return 0 if self._sealed else self.capacity - self.filled

    def spans(self, offset: int) -> bool:
        """Tell whether an offset lies in the buffer's range."""
        return self.base is not None and self.base <= offset < self.base + self.capacity

    def write(self, record: Record, view: BufferView) -> bool:
        """Add a record, or return False and change nothing if it does not fit.

        It replaces a record of the same range. The bytes are not copied: their owner promises that
        they never change.
        """
        self._check(record)
        base = record.offset if self.base is None else self.base
        if not 0 <= record.offset - base <= self.capacity - record.length:
            return False
        self.base = base
        self._keep(record, view)
        return True

    def allocate(self, offset: int, nbytes: int) -> memoryview | None:
        """Return memory for a record, which `accept` then adds; None if there is no room."""
        if not 0 < nbytes <= self.room:
            return None
        return self._own(offset - (offset if self.base is None else self.base), nbytes)

    def accept(self, record: Record) -> None:
        """Add a record whose bytes lie in the memory that `allocate` returned."""
        self._check(record)
        self.base = record.offset if self.base is None else self.base
        self._keep(record, None)

    def read(self, offset: int) -> bytes | None:
        """Return an unchecked copy of the record that starts at an offset, or None."""
        if offset not in self._held:
            return None
        record, view = self._held[offset]
        return bytes(self._bytes(offset, record.end)) if view is None else view.copy()

    def seal(self) -> None:
        """Close for writes until `reset`; safe to repeat."""
        self._sealed = True

    def content(self) -> BufferView:
        """Return a view of all bytes in the order of offsets; there must be no gap."""
        pieces: list[BufferView] = []
        own: int | None = None  # where the last run of records in own memory begins
        for offset in chain(sorted(self._held), [self.end]):
            _, view = self._held.get(offset, (None, EMPTY))
            if view is None:
                own = offset if own is None else own
                continue
            if own is not None:
                pieces.append(ByteArraySegment(self._bytes(own, offset)))
                own = None
            pieces.append(view)
        return join(pieces)

    def reset(self, *, keep_memory: bool = True) -> None:
        """Drop all records; the buffer takes new ones."""
        self._held = {}
        self.base, self.filled = None, 0
        self._sealed = False
        if not keep_memory:
            self._memory = None

    def _keep(self, record: Record, view: BufferView | None) -> None:
        if record.offset not in self._held:
            self.filled += record.length
        self._held[record.offset] = record, view

    def _check(self, record: Record) -> None:
        if self._sealed:
            raise ClosedError("buffer is closed for writes", offset=record.offset)
        if not 1 <= record.length <= self.capacity:
            raise InvalidInputError(
                "record is empty or larger than the buffer",
                bytes=record.length,
                capacity=self.capacity,
            )
        if not 0 <= record.offset <= LAST_OFFSET - record.length:
            raise InvalidInputError("record is not inside an object", offset=record.offset)

    def _own(self, start: int, nbytes: int) -> memoryview:
        if self._memory is None:
            # Arrow's pool reuses pages; the page faults of new memory cost 0.4 s per GiB.
            self._memory = memoryview(pa.allocate_buffer(self.capacity)).cast("B")
        return self._memory[start : start + nbytes]

    def _bytes(self, start: int, end: int) -> memoryview:
        base = self.base or 0
        return self._own(start - base, end - start)


class BufferPool:
    """Bounds the memory of the services that take its buffers.

    Each buffer's memory is allocated on first use and kept from one service to the next. With a
    single buffer, encoding waits while that buffer is written.
    """

    def __init__(self, buffers: int, buffer_bytes: int) -> None:
        if buffers < 1 or buffer_bytes < 1:
            raise InvalidInputError(
                "a pool needs at least one buffer of at least one byte",
                buffers=buffers,
                buffer_bytes=buffer_bytes,
            )
        self.buffers = buffers
        self.buffer_bytes = buffer_bytes
        self._free = [Buffer(buffer_bytes) for _ in range(buffers)]
        self._lock = threading.Lock()
        self._closed = False

    @property
    def free(self) -> int:
        """How many buffers can be taken now."""
        return len(self._free)

    def take(self) -> Buffer | None:
        """Return an empty buffer, or None if all are taken; raises ClosedError after `close`."""
        with self._lock:
            if self._closed:
                raise ClosedError("buffer pool was closed")
            return self._free.pop() if self._free else None

    def give(self, buffer: Buffer, *, keep_memory: bool = True) -> None:
        """Take a buffer back and drop its content; a closed pool frees its memory."""
        with self._lock:
            buffer.reset(keep_memory=keep_memory and not self._closed)
            self._free.append(buffer)

    def close(self) -> None:
        """Free the memory, that of taken buffers when they come back; safe to repeat."""
        with self._lock:
            self._closed = True
            for buffer in self._free:
                buffer.reset(keep_memory=False)
