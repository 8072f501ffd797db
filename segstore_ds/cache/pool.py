"""The pool: buffers of one size, which the objects of a task or of a copy share."""

import threading

from segstore_ds.cache.buffer import Buffer
from segstore_ds.errors import ClosedError, InvalidInputError


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
        """Free the memory now, or when taken buffers come back; safe to repeat."""
        with self._lock:
            self._closed = True
            for buffer in self._free:
                buffer.reset(keep_memory=False)
