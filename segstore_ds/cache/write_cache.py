"""The write cache: one buffer that gathers records and is written to the channel in one write.

Append-only layout: records lie side by side, so the buffer's bytes are the object's bytes. The
checksum of each record is in the record map, not among the bytes. Records come in the order of
their offsets, which the caller ensures. Small records are copied into the buffer's own memory.
Large ones are held by reference if their owner promises not to change them: they still count
against the capacity, and the write gathers them without a copy.

Its states are in `buffer_state.py`. A failed flush is never repeated, because the channel may have
taken any part of the buffer.

Source: Blazegraph's WriteCache, append-only (WORM) mode; held references and gathering writes
replace its direct buffers. A scattered layout would differ only in `_lay` and `flush`.
"""

import mmap
import time
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from segstore_ds.cache.buffer_state import BufferState
from segstore_ds.cache.channel import Channel
from segstore_ds.cache.composite import join
from segstore_ds.cache.record import LAST_OFFSET, Record
from segstore_ds.cache.views import BufferView, ByteArraySegment, as_view
from segstore_ds.errors import ClosedError, CorruptionError, InvalidInputError

REFERENCE_BYTES = 16 << 10  # a smaller record is cheaper to copy than to write as a separate piece


class WriteCache(BufferState):
    """One buffer, its record map, and its flush to a channel. Safe to use from several threads.

    `capacity` is the buffer's size in bytes, which is also the largest record it takes; its memory
    is allocated when the first record is copied. `checksum` keeps a checksum of all bytes as they
    are written. `now` is a clock in seconds, for timeouts. After `close` everything but `close`
    itself raises ClosedError.
    """

    def __init__(
        self,
        capacity: int,
        *,
        checksum: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1:
            raise InvalidInputError("a buffer holds at least one byte", capacity=capacity)
        self._capacity = capacity
        self._wants_checksum = checksum
        self._now = now
        super().__init__()
        self._memory: memoryview | None = None
        self._copied = 0
        self._piece_start: int | None = None  # start of the last piece if that is a copy
        self._pieces: list[BufferView] = []
        self._records: dict[int, Record] = {}
        self._views: dict[int, BufferView] = {}
        self._first: int | None = None
        self._bytes = 0
        self._crc = 0
        self._allocation: Allocation | None = None
        self._failure: BaseException | None = None

    # --- what it holds -----------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """The largest record that can be written, in bytes."""
        self._check_open()
        return self._capacity

    @property
    def bytes_written(self) -> int:
        """The number of bytes in the buffer."""
        self._check_open()
        return self._bytes

    @property
    def room(self) -> int:
        """The largest record that still fits, in bytes."""
        self._check_open()
        return 0 if self._sealed else self._capacity - self._bytes

    @property
    def records(self) -> Mapping[int, Record]:
        """A copy of the record map: offset to record."""
        with self._changed:
            self._check_open()
            return MappingProxyType(dict(self._records))

    @property
    def first_offset(self) -> int | None:
        """Offset of the first record; None without records."""
        self._check_open()
        return self._first

    @property
    def last_offset(self) -> int | None:
        """Offset of the last record; None without records."""
        with self._changed:
            self._check_open()
            return next(reversed(self._records), None)

    @property
    def end_offset(self) -> int | None:
        """The offset after the last byte; None without records."""
        with self._changed:
            self._check_open()
            return None if self._first is None else self._first + self._bytes

    @property
    def checksum(self) -> int:
        """CRC-32 of all bytes, updated on every write; only if the cache was made with it."""
        self._check_open()
        if not self._wants_checksum:
            raise InvalidInputError("cache keeps no checksum", remedy="make it with checksum=True")
        return self._crc

    def recompute_checksum(self) -> int:
        """Return the CRC-32 of all bytes, recomputed."""
        with self._changed:
            self._check_open()
            return join(self._pieces).crc32()

    def contains(self, offset: int) -> bool:
        """Tell whether a record starts at an offset."""
        self._check_open()
        return offset in self._records

    # --- writing -----------------------------------------------------------------------------

    def write(
        self, offset: int, data: Any, crc: int | None = None, *, frozen: bool = False
    ) -> bool:
        """Take a record; return False, with nothing changed, if there is no room left.

        `offset` is the record's place in the object and must be the end of the buffer's records.
        `crc` is trusted if given, and computed otherwise. With `frozen` the caller promises that
        the bytes never change, so a large record is held by reference; otherwise it is copied.
        """
        view = as_view(data)
        length = view.length
        if crc is None:
            crc = view.crc32()
        with self._changed:
            if not self._lay(offset, length):
                return False
            if frozen and length >= REFERENCE_BYTES:
                self._pieces.append(view)
                self._piece_start = None
            else:
                view.copy_to(self._room(length))
                view = self._keep(length)
            self._enter(Record(offset, length, crc), view)
            return True

    def allocate(self, offset: int, nbytes: int) -> "Allocation | None":
        """Reserve room for a record that is read or encoded directly into the buffer.

        Returns None if there is not enough room; an exact fit is enough. Until the room is
        published or discarded, nothing else can be written.
        """
        with self._changed:
            if not self._lay(offset, nbytes):
                return None
            self._allocation = Allocation(self, offset, self._room(nbytes))
            return self._allocation

    def close_for_writes(self) -> None:
        """Freeze bytes and record map until `reset`; safe to repeat.

        Reserved room must be published or discarded before.
        """
        with self._changed:
            self._check_open()
            self._refuse_allocation()
            self._sealed = True

    # --- reading -----------------------------------------------------------------------------

    def read(self, offset: int) -> bytes | None:
        """Return a verified copy of a record, or None if no record starts at the offset.

        Raises:
            CorruptionError: The bytes fail the record's checksum; other records are not affected.
        """
        with self._changed:
            self._check_open()
            record = self._records.get(offset)
            if record is None:
                return None
            view = self._views[offset]
            self._references += 1
        try:
            data = view.copy()
        finally:
            self.release()
        actual = zlib.crc32(data)
        if actual != record.crc:
            raise CorruptionError(
                "a cached record fails its checksum",
                offset=offset,
                length=record.length,
                expected=record.crc,
                actual=actual,
            )
        return data

    # --- out of the cache --------------------------------------------------------------------

    def flush(self, channel: Channel, *, timeout_s: float | None = None) -> bool:
        """Write the buffer to a channel in one write; neither syncs nor empties.

        Closes for writes first. Safe to repeat: flushed bytes are not written again. Returns False
        if reserved room was not published in time. After a StorageError every later flush raises it
        again and writes nothing.
        """
        deadline = None if timeout_s is None else self._now() + timeout_s
        with self._changed:
            self._check_open()
            while self._allocation is not None:
                left = None if deadline is None else deadline - self._now()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
                self._check_open()
            if self._failure is not None:
                raise self._failure
            if self._flushed or not self._bytes:
                return True
            self._sealed = True
            self._references += 1
            pieces = list(self.content().buffers())
        try:
            channel.write_all(pieces)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self.release()
        self._flushed = True
        return True

    def content(self) -> BufferView:
        """Return a view of all bytes; the caller holds a reference while it uses the view."""
        with self._changed:
            self._check_open()
            return join(self._pieces)

    def reset(self, *, keep_memory: bool = True) -> int:
        """Drop all records, flushed or not, and return how many; the buffer takes new ones.

        `keep_memory=False` also frees the memory until the next record. Raises InvalidInputError
        while the buffer is held or room is reserved.
        """
        with self._changed:
            self._check_open()
            self._refuse_allocation()
            if self._references:
                raise InvalidInputError("buffer is in use", references=self._references)
            dropped = len(self._records)
            self._recycled = self._recycled or dropped > 0
            self._clear()
            if not keep_memory:
                self._memory = None
            return dropped

    def close(self) -> None:
        """End the use of the cache: drops the content without a write. Safe to repeat."""
        with self._changed:
            self._closed = True
            self._clear()
            # Views that still use the memory keep it alive.
            self._memory = None
            self._allocation = None
            self._changed.notify_all()

    # --- inside ------------------------------------------------------------------------------

    def _lay(self, offset: int, nbytes: int) -> bool:
        """Check the next record, and tell whether there is room for it."""
        self._check_open()
        if self._sealed:
            raise ClosedError("write cache is closed for writes", offset=offset)
        self._refuse_allocation()
        if not 1 <= nbytes <= self._capacity:
            raise InvalidInputError(
                "record is empty or larger than the buffer", bytes=nbytes, capacity=self._capacity
            )
        due = offset if self._first is None else self._first + self._bytes
        if offset != due or not 0 <= offset <= LAST_OFFSET - nbytes:
            raise InvalidInputError(
                "record does not follow the one before", offset=offset, expected=due
            )
        return nbytes <= self._capacity - self._bytes

    def _room(self, nbytes: int) -> memoryview:
        if self._memory is None:
            # Pages of an anonymous map use no memory until they are touched.
            self._memory = memoryview(mmap.mmap(-1, self._capacity))
        return self._memory[self._copied : self._copied + nbytes]

    def _keep(self, nbytes: int) -> ByteArraySegment:
        """Return a view of the bytes just copied, added to the last piece if that is a copy."""
        start = self._copied
        self._copied += nbytes
        view = ByteArraySegment(self._memory, start, self._copied)
        if self._piece_start is None:
            self._piece_start = start
            self._pieces.append(view)
        else:
            self._pieces[-1] = ByteArraySegment(self._memory, self._piece_start, self._copied)
        return view

    def _enter(self, record: Record, view: BufferView) -> None:
        if self._wants_checksum:
            self._crc = view.crc32(self._crc)
        if self._first is None:
            self._first = record.offset
            self._recycled = False
        self._bytes += record.length
        self._records[record.offset] = record
        self._views[record.offset] = view

    def _publish(self, allocation: "Allocation", crc: int | None) -> Record:
        with self._changed:
            self._check_open()
            if self._allocation is not allocation:
                raise ClosedError("room was published or given up", offset=allocation.offset)
            if crc is None:
                crc = zlib.crc32(allocation.data)
            record = Record(allocation.offset, len(allocation.data), crc)
            self._enter(record, self._keep(record.length))
            self._allocation = None
            self._changed.notify_all()
            return record

    def _give_up(self, allocation: "Allocation") -> None:
        with self._changed:
            if self._allocation is allocation:
                self._allocation = None
                self._changed.notify_all()

    def _clear(self) -> None:
        self._records, self._views, self._pieces = {}, {}, []
        self._first = None
        self._bytes = self._crc = self._copied = 0
        self._piece_start = None
        self._sealed = False
        self._flushed = self._durable = self._visible = False
        self._failure = None

    def _refuse_allocation(self) -> None:
        if self._allocation is not None:
            raise InvalidInputError(
                "room is reserved", remedy="publish or discard it first", offset=self._first
            )


class Allocation:
    """Room for one record in a buffer: fill `data`, then call `publish` or `discard` once."""

    __slots__ = ("_cache", "data", "offset")

    def __init__(self, cache: WriteCache, offset: int, data: memoryview) -> None:
        self._cache = cache
        self.offset = offset
        self.data = data

    def publish(self, crc: int | None = None) -> Record:
        """Make the record readable; its bytes must not change afterwards.

        Raises ClosedError if the cache was closed meanwhile, or the room was discarded.
        """
        return self._cache._publish(self, crc)  # noqa: SLF001 - two halves of one thing

    def discard(self) -> None:
        """Return the room; safe to repeat, never raises."""
        self._cache._give_up(self)  # noqa: SLF001
