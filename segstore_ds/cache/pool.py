"""The pool: the buffers of one writing task, reused for each object it writes."""

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
