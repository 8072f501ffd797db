"""What a buffer of either layout is: its states, its references, and its records.

A flush neither syncs nor empties: flushed records stay readable until the buffer is reset. A failed
flush is never repeated, because the channel may have taken any part of the buffer.

Source: Blazegraph's WriteCache, whose two modes share a class as well.
"""

import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from segstore_ds.cache.record import LAST_OFFSET, Record
from segstore_ds.cache.views import BufferView, as_view
from segstore_ds.errors import ClosedError, CorruptionError, InvalidInputError

ChannelT = TypeVar("ChannelT")


class Buffer(ABC, Generic[ChannelT]):
    """A buffer for a channel of one type. Safe to use from several threads.

    *Sealed* is closed for writes, *flushed* means that the channel has the bytes. While a buffer is
    referenced it is not reset. `capacity` is its size in bytes, which is also the largest record it
    takes. After `close` everything but `close` itself raises ClosedError.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInputError(
                "a buffer needs a capacity of at least one byte", capacity=capacity
            )
        self._capacity = capacity
        self._changed = threading.Condition()
        self._references = 0
        self._sealed = self._flushed = self._closed = False
        self._records: dict[int, Record] = {}
        self._views: dict[int, BufferView] = {}
        self._bytes = 0
        self._failure: BaseException | None = None

    # --- what it holds -----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @property
    def flushed(self) -> bool:
        """True if the channel has the bytes."""
        self._check_open()
        return self._flushed

    @property
    def references(self) -> int:
        """The number of holders; the buffer is reset only when it is 0."""
        self._check_open()
        return self._references

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

    def content(self) -> BufferView:
        """Return a view of all bytes; the caller holds a reference while it uses the view."""
        with self._changed:
            self._check_open()
            return self._content()

    def acquire(self) -> None:
        """Hold the buffer so that it is not reset."""
        with self._changed:
            self._check_open()
            self._references += 1

    def release(self) -> None:
        """Release a hold on the buffer."""
        with self._changed:
            if not self._references:
                raise InvalidInputError("buffer was released more often than acquired")
            self._references -= 1
            self._changed.notify_all()

    # --- writing and reading -----------------------------------------------------------------

    def write(
        self, offset: int, data: Any, crc: int | None = None, *, frozen: bool = False
    ) -> bool:
        """Take a record; return False, with nothing changed, if there is no room left.

        `offset` is the record's place in the object. `crc` is trusted if given, and computed
        otherwise. With `frozen` the caller promises that the bytes never change, so a large record
        is held by reference; otherwise it is copied.
        """
        view = as_view(data)
        length = view.length
        if crc is None:
            crc = view.crc32()
        with self._changed:
            self._check_open()
            if self._sealed:
                raise ClosedError("write cache is closed for writes", offset=offset)
            if not 1 <= length <= self._capacity:
                raise InvalidInputError(
                    "record is empty or larger than the buffer",
                    bytes=length,
                    capacity=self._capacity,
                )
            gained = self._lay(offset, length)
            if not 0 <= offset <= LAST_OFFSET - length:
                raise InvalidInputError("record is not inside an object", offset=offset)
            if gained > self._capacity - self._bytes:
                return False
            self._views[offset] = self._hold(offset, view, frozen=frozen)
            self._records[offset] = Record(offset, length, crc)
            self._bytes += gained
            return True

    def close_for_writes(self) -> None:
        """Freeze bytes and record map until `reset`; safe to repeat."""
        with self._changed:
            self._check_open()
            self._sealed = True

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

    def flush(self, channel: ChannelT) -> None:
        """Write the buffer to a channel; neither syncs nor empties.

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
        failure: BaseException | None = None
        try:
            self._write_to(channel)
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                # Before the release: afterwards another thread may reset and refill the buffer.
                self._flushed, self._failure = failure is None, failure
                self.release()

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
                self._free()
            return dropped

    def close(self) -> None:
        """End the use of the cache: drops the content without a write. Safe to repeat."""
        with self._changed:
            self._closed = True
            self._clear()
            # Views that still use the memory keep it alive.
            self._free()

    # --- what a layout decides, with the lock held ---------------------------------------------

    @abstractmethod
    def _lay(self, offset: int, nbytes: int) -> int:
        """Check a record's place; return how many bytes the buffer will hold more."""

    @abstractmethod
    def _hold(self, offset: int, view: BufferView, *, frozen: bool) -> BufferView:
        """Keep a record's bytes, and return the view that reads use."""

    @abstractmethod
    def _content(self) -> BufferView:
        """Return a view of all bytes in their order."""

    @abstractmethod
    def _write_to(self, channel: ChannelT) -> None:
        """Write everything; called without the lock, on a sealed and referenced buffer."""

    def _free(self) -> None:
        """Free memory of its own."""

    def _clear(self) -> None:
        self._records, self._views = {}, {}
        self._bytes = 0
        self._sealed = self._flushed = False
        self._failure = None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("write cache was closed")
