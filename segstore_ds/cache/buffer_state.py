"""What a buffer of any layout has: its states and its reference count."""

import threading

from segstore_ds.errors import ClosedError, InvalidInputError


class BufferState:
    """The states of one buffer; changed under the lock of `_changed`.

    *Sealed* is closed for writes, *flushed* means that the channel has the bytes. While a buffer is
    referenced it is not reset.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._references = 0
        self._sealed = self._flushed = self._closed = False

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

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("write cache was closed")
