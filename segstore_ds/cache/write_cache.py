"""The write cache: one buffer that gathers records and goes to the channel in one write.

Append-only layout: records lie side by side, so the buffer's bytes are the object's bytes, and the
checksum of each record stands in the record map beside them, not among them. Records come in the
order of their offsets; who writes serialises that. Small records are copied into memory of the
buffer's own. Large ones whose owner promises not to change them are held by reference: they count
against the capacity all the same, and the write gathers them without a copy.

Its states are in `buffer_state.py`. A flush that failed is never tried again, since nobody knows
how much of the buffer the channel took.

Source: Blazegraph's WriteCache, append-only (WORM) mode; held references and gathering writes take
the place of its direct buffers. A scattered layout would differ in `_lay` and `flush` alone.
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

REFERENCE_BYTES = 16 << 10  # below it a copy costs less than one more piece of a write


class WriteCache(BufferState):
    """One buffer, its record map, and the way to a channel. Safe to use from several threads.

    After `close` everything but `close` itself raises ClosedError.

    Args:
        capacity: Size of the buffer in bytes, which is the largest record it takes. Its own memory
            is taken with the first record that is copied.
        checksum: Keep a checksum of all bytes as they are written.
        now: A clock in seconds, for timeouts.

    Raises:
        InvalidInputError: The capacity is not positive.
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
        self._piece_start: int | None = None  # of the last piece, where it is a copy
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
        """The largest record that can be written."""
        self._check_open()
        return self._capacity

    @property
    def bytes_written(self) -> int:
        """How many bytes lie in the buffer."""
        self._check_open()
        return self._bytes

    @property
    def room(self) -> int:
        """How large a record would still fit."""
        self._check_open()
        return 0 if self._sealed else self._capacity - self._bytes

    @property
    def records(self) -> Mapping[int, Record]:
        """The record map as of now: offset to record."""
        with self._changed:
            self._check_open()
            return MappingProxyType(dict(self._records))

    @property
    def first_offset(self) -> int | None:
        """Offset of the first record; None when there is none."""
        self._check_open()
        return self._first

    @property
    def last_offset(self) -> int | None:
        """Offset of the last record; None when there is none."""
        with self._changed:
            self._check_open()
            return next(reversed(self._records), None)

    @property
    def end_offset(self) -> int | None:
        """The offset behind the last byte; None when there is no record."""
        with self._changed:
            self._check_open()
            return None if self._first is None else self._first + self._bytes

    @property
    def checksum(self) -> int:
        """CRC-32 of all bytes, kept up to date with every write.

        Raises:
            InvalidInputError: It was not asked for when the cache was made.
        """
        self._check_open()
        if not self._wants_checksum:
            raise InvalidInputError("cache keeps no checksum", remedy="make it with checksum=True")
        return self._crc

    def recompute_checksum(self) -> int:
        """Return the CRC-32 of all bytes, computed anew."""
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
        """Take a record.

        Args:
            offset: The record's place in the object: the end of what lies in the buffer.
            data: Bytes or a view.
            crc: Their CRC-32; computed when not given, believed when given.
            frozen: The caller promises that the bytes never change: a large record is then held by
                reference. Otherwise it is copied, and its bytes may change afterwards.

        Returns:
            False when there is no room left; nothing has changed then.

        Raises:
            InvalidInputError: No bytes, more than the capacity, or not the next offset.
            ClosedError: The cache is closed, or closed for writes.
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
        """Reserve room for a record that is read or encoded straight into the buffer.

        Nothing else can be written until it is published or discarded.

        Returns:
            The room, or None when there is not enough; an exact fit is enough.

        Raises:
            As `write`.
        """
        with self._changed:
            if not self._lay(offset, nbytes):
                return None
            self._allocation = Allocation(self, offset, self._room(nbytes))
            return self._allocation

    def close_for_writes(self) -> None:
        """Freeze bytes and record map until `reset`; safe to repeat.

        Raises:
            ClosedError: The cache is closed.
            InvalidInputError: Room is reserved and not yet published.
        """
        with self._changed:
            self._check_open()
            self._refuse_allocation()
            self._sealed = True

    # --- reading -----------------------------------------------------------------------------

    def read(self, offset: int) -> bytes | None:
        """Return a copy of a record, verified.

        Returns:
            Its bytes, or None when no record starts there.

        Raises:
            CorruptionError: The bytes fail the record's checksum; other records are not affected.
            ClosedError: The cache is closed.
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
        """Write the buffer on a channel in one write; neither syncs nor empties.

        Closes for writes first. Safe to repeat: flushed bytes are not written again.

        Returns:
            True when the channel has all bytes; False when reserved room was not published in time.

        Raises:
            StorageError: The channel failed; raised by every later flush, which writes nothing.
            ClosedError: The cache is closed.
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
        """Return a view of all bytes; hold a reference as long as it is looked at."""
        with self._changed:
            self._check_open()
            return join(self._pieces)

    def reset(self, *, keep_memory: bool = True) -> int:
        """Drop all records, written through or not, and take new ones.

        Args:
            keep_memory: False gives the memory back as well, until the next record.

        Returns:
            How many records were dropped.

        Raises:
            InvalidInputError: Somebody holds a reference, or reserved room.
            ClosedError: The cache is closed.
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
        """Take the cache out of service: never writes, drops what it holds. Safe to repeat."""
        with self._changed:
            self._closed = True
            self._clear()
            # Whoever still looks at the memory keeps it alive.
            self._memory = None
            self._allocation = None
            self._changed.notify_all()

    # --- inside ------------------------------------------------------------------------------

    def _lay(self, offset: int, nbytes: int) -> bool:
        """Check a record that is to follow, and tell whether there is room for it."""
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
            # Pages of an anonymous map cost nothing before they are touched.
            self._memory = memoryview(mmap.mmap(-1, self._capacity))
        return self._memory[self._copied : self._copied + nbytes]

    def _keep(self, nbytes: int) -> ByteArraySegment:
        """Make a piece of the bytes that were just copied, or a part of the piece before."""
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
    """Room for one record in a buffer: fill `data`, then `publish` or `discard` it, once."""

    __slots__ = ("_cache", "data", "offset")

    def __init__(self, cache: WriteCache, offset: int, data: memoryview) -> None:
        self._cache = cache
        self.offset = offset
        self.data = data

    def publish(self, crc: int | None = None) -> Record:
        """Make the record readable; its bytes must not change any more.

        Raises:
            ClosedError: The cache was closed meanwhile, or the room was given up.
        """
        return self._cache._publish(self, crc)  # noqa: SLF001 - two halves of one thing

    def discard(self) -> None:
        """Give the room back; safe to repeat, never raises."""
        self._cache._give_up(self)  # noqa: SLF001
