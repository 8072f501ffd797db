"""What the services of both strategies share: one object's records, on their way to its channel.

After a failure of the channel nothing more is written, and reads continue. Closing never commits.
"""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from segstore_ds.cache.buffer import Buffer
from segstore_ds.cache.channel_writer import LargeRecord
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.first_error import FirstError
from segstore_ds.cache.read_through import verified
from segstore_ds.cache.record import Record
from segstore_ds.errors import ClosedError, InvalidInputError

H = TypeVar("H", bound="Buffer[Any] | LargeRecord")


class ObjectCache(ABC, Generic[H]):
    """The records of one object and their holders. Safe to use from several threads.

    As a context manager it closes, which aborts an object that was not committed. Successive
    objects may share `counters`.
    """

    def __init__(self, counters: CacheCounters | None) -> None:
        self._counters = counters or CacheCounters()
        self._changed = threading.Condition(threading.Lock())  # which nobody takes twice
        self._map: dict[int, tuple[Record, H]] = {}
        self._finished = self._closed = False

    @property
    def counters(self) -> CacheCounters:
        """A copy of the counters."""
        with self._changed:
            return self._counters.snapshot()

    def read(self, record: Record) -> bytes | None:
        """Return a verified copy of a record, from a buffer or from the channel.

        Works after a failure of the channel and after `commit`. Returns None if no buffer holds the
        record any more and there is no loader.

        Raises:
            CorruptionError: The bytes fail their checksum; other records are not affected.
        """
        counted = False
        while True:
            with self._changed:
                self._check_open()
                known, holder = self._map.get(record.offset, (record, None))
                if known != record or not 0 <= record.offset < record.end <= self._written_to():
                    raise InvalidInputError(
                        "no such record", offset=record.offset, end=self._written_to()
                    )
                if not counted:
                    self._counters.hits += holder is not None
                    self._counters.misses += holder is None
                counted = True
                if isinstance(holder, Buffer):
                    holder.acquire()
            if holder is None:
                return self._load_back(record)
            if isinstance(holder, LargeRecord):
                return verified(holder.view.copy(), record)
            try:
                data: bytes | None = holder.read(record.offset)
            finally:
                with self._changed:
                    holder.release()
                    self._changed.notify_all()
            if data is not None:
                return data
            # It was packed into another buffer meanwhile.

    def abort(self) -> None:
        """Discard an object that is not committed; a committed one stays. Never raises."""
        with self._changed:
            if self._is_committed():
                return
        self.close()

    def close(self) -> None:
        """End the service and return the buffers; an object that is not committed is aborted.

        Threads that wait in other calls get a ClosedError. Safe to repeat, never raises.
        """
        with self._changed:
            first = not self._closed
            self._closed = True
            self._changed.notify_all()
            if first:
                self._end()
        self._join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- what a strategy decides, with the lock held -----------------------------------------

    @abstractmethod
    def _failure(self) -> FirstError:
        """Return the channel's first failure."""

    @abstractmethod
    def _is_committed(self) -> bool:
        """Tell whether the object is durable."""

    @abstractmethod
    def _written_to(self) -> int:
        """Return the end of the last record that can exist."""

    @abstractmethod
    def _end(self) -> None:
        """Abort the channel unless it is committed, and return the buffers."""

    def _join(self) -> None:
        """Wait for threads, without the lock."""

    def _load_back(self, record: Record) -> bytes | None:  # noqa: ARG002
        """Read a record that no buffer holds, without the lock."""
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("write cache service was closed") from self._failure().error

    def _check_writable(self) -> None:
        self._check_open()
        self._failure().check()
        if self._finished:
            raise ClosedError("object was committed, or is being committed")
