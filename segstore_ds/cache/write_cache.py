"""The write cache: one buffer that gathers records and is written to the channel in one write.

Append-only layout: records lie side by side, so the buffer's bytes are the object's bytes. The
checksum of each record is in the record map, not among the bytes. Records come in the order of
their offsets, which the caller ensures. Small records are copied into the buffer's own memory.
Large ones are held by reference if their owner promises not to change them: they still count
against the capacity, and the write gathers them without a copy.

A flush neither syncs nor empties: flushed records stay readable until the buffer is reset. A failed
flush is never repeated, because the channel may have taken any part of the buffer.

Source: Blazegraph's WriteCache, append-only (WORM) mode; held references and gathering writes
replace its direct buffers.
"""

import mmap
import zlib
from collections.abc import Mapping
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
    is allocated when the first record is copied. After `close` everything but `close` itself raises
    ClosedError.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInputError(
                "a buffer needs a capacity of at least one byte", capacity=capacity
            )
        super().__init__()
        self._capacity = capacity
        self._memory: memoryview | None = None
        self._copied = 0
        self._piece_start: int | None = None  # start of the last piece if that is a copy
        self._pieces: list[BufferView] = []
        self._records: dict[int, Record] = {}
        self._views: dict[int, BufferView] = {}
        self._first: int | None = None
        self._bytes = 0
        self._failure: BaseException | None = None

    # --- what it holds -----------------------------------------------------------------------

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

    def close_for_writes(self) -> None:
        """Freeze bytes and record map until `reset`; safe to repeat."""
        with self._changed:
            self._check_open()
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

    def flush(self, channel: Channel) -> None:
        """Write the buffer to a channel in one write; neither syncs nor empties.

        Closes for writes first. Safe to repeat: flushed bytes are not written again. After a
        StorageError every later flush raises it again and writes nothing.
        """
        with self._changed:
            self._check_open()
            if self._failure is not None:
                raise self._failure
            if self._flushed or not self._bytes:
                return
            self._sealed = True
            self._references += 1
            pieces = list(self.content().buffers())
        failure: BaseException | None = None
        try:
            channel.write_all(pieces)
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                # Before the release: afterwards another thread may reset and refill the buffer.
                self._flushed, self._failure = failure is None, failure
                self.release()

    def content(self) -> BufferView:
        """Return a view of all bytes; the caller holds a reference while it uses the view."""
        with self._changed:
            self._check_open()
            return join(self._pieces)

    def reset(self, *, keep_memory: bool = True) -> int:
        """Drop all records, flushed or not, and return how many; the buffer takes new ones.

        `keep_memory=False` also frees the memory until the next record. Raises InvalidInputError
        while the buffer is held.
        """
        with self._changed:
            self._check_open()
            if self._references:
                raise InvalidInputError("buffer is in use", references=self._references)
            dropped = len(self._records)
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

    # --- inside ------------------------------------------------------------------------------

    def _lay(self, offset: int, nbytes: int) -> bool:
        """Check the next record, and tell whether there is room for it."""
        self._check_open()
        if self._sealed:
            raise ClosedError("write cache is closed for writes", offset=offset)
        if not 1 <= nbytes <= self._capacity:
            raise InvalidInputError(
                "record is empty or larger than the buffer", bytes=nbytes, capacity=self._capacity
            )
        due = offset if self._first is None else self._first + self._bytes
        if offset != due or not 0 <= offset <= LAST_OFFSET - nbytes:
            raise InvalidInputError(
                "record does not start where the previous one ends", offset=offset, expected=due
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
        if self._first is None:
            self._first = record.offset
        self._bytes += record.length
        self._records[record.offset] = record
        self._views[record.offset] = view

    def _clear(self) -> None:
        self._records, self._views, self._pieces = {}, {}, []
        self._first = None
        self._bytes = self._copied = 0
        self._piece_start = None
        self._sealed = self._flushed = False
        self._failure = None
