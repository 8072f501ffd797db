"""Pools: the buffers of one writing task, and buffers that the objects of a copy share."""

import threading

from segstore_ds.cache.scattered_cache import ScatteredCache
from segstore_ds.cache.write_cache import WriteCache
from segstore_ds.errors import ClosedError, InvalidInputError


class BufferPool:
    """Buffers of one size, lent to one service at a time.

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
        self._caches = [WriteCache(buffer_bytes) for _ in range(buffers)]
        self._lent = False
        self._closed = False

    def lend(self) -> list[WriteCache]:
        """Lend all buffers, empty; raises InvalidInputError if another service has them."""
        if self._closed:
            raise ClosedError("buffer pool was closed")
        if self._lent:
            raise InvalidInputError(
                "the buffers are in use by another service", remedy="close that service first"
            )
        self._lent = True
        return list(self._caches)

    def give_back(self) -> None:
        """Take the buffers back and drop their content; a closed pool frees their memory."""
        for cache in self._caches:
            if cache.closed:
                continue
            if self._closed:
                cache.close()
            else:
                cache.reset()
        self._lent = False

    def close(self) -> None:
        """Free the memory now, or when lent buffers come back; safe to repeat."""
        self._closed = True
        if not self._lent:
            self.give_back()


class SharedPool:
    """Bounds the scattered buffers of several objects that are written at the same time.

    Their records are held by reference, so a buffer has no memory of its own to reuse.
    """

    def __init__(self, buffers: int, buffer_bytes: int) -> None:
        if buffers < 1 or buffer_bytes < 1:
            raise InvalidInputError(
                "a pool needs at least one buffer of at least one byte",
                buffers=buffers,
                buffer_bytes=buffer_bytes,
            )
        self.buffer_bytes = buffer_bytes
        self._left = buffers
        self._lock = threading.Lock()

    def take(self) -> ScatteredCache:
        """Return an empty buffer.

        Raises:
            InvalidInputError: All buffers are taken. To wait would be in vain, because what they
                hold can only be written once more records have come.
        """
        with self._lock:
            if not self._left:
                raise InvalidInputError(
                    "the buffers are full of parts that are not whole",
                    remedy="write records nearer each other, or take a larger pool",
                    part_bytes=self.buffer_bytes,
                )
            self._left -= 1
        return ScatteredCache(self.buffer_bytes)

    def give(self, buffer: ScatteredCache) -> None:
        """Take a buffer back and drop its content."""
        buffer.close()
        with self._lock:
            self._left += 1
