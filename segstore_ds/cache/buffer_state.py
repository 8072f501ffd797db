"""The states of a buffer, and who holds on to it.

A buffer's content passes four states that do not follow from one another at once: *flushed* (the
channel has it), *durable* (the channel was committed), *visible* (a commit names it), *recycled*
(the buffer has dropped it). Flushing neither syncs nor empties: flushed records stay readable until
the buffer is reset.
"""

import threading

from segstore_ds.errors import ClosedError, InvalidInputError


class BufferState:
    """What a buffer may be used for; changed under the lock of `_changed`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bytes = 0
        self._references = 0
        self._sealed = self._closed = False
        self._flushed = self._durable = self._visible = self._recycled = False

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @property
    def closed_for_writes(self) -> bool:
        """True when neither bytes nor record map change any more, until `reset`."""
        self._check_open()
        return self._sealed

    @property
    def flushed(self) -> bool:
        """True when the channel took the bytes."""
        self._check_open()
        return self._flushed

    @property
    def durable(self) -> bool:
        """True when the channel was committed."""
        self._check_open()
        return self._durable

    @property
    def visible(self) -> bool:
        """True when a commit names the object."""
        self._check_open()
        return self._visible

    @property
    def recycled(self) -> bool:
        """True from a `reset` that dropped records to the next write."""
        self._check_open()
        return self._recycled

    def mark_durable(self) -> None:
        """Note that the channel was committed.

        Raises:
            InvalidInputError: The bytes are not flushed.
        """
        self._mark("_flushed", "_durable")

    def mark_visible(self) -> None:
        """Note that a commit names the object.

        Raises:
            InvalidInputError: The bytes are not durable.
        """
        self._mark("_durable", "_visible")

    @property
    def references(self) -> int:
        """How many hold the buffer; it is not reset before there are none."""
        self._check_open()
        return self._references

    def acquire(self) -> None:
        """Hold the buffer so that it is not reset.

        Raises:
            ClosedError: The cache is closed.
        """
        with self._changed:
            self._check_open()
            self._references += 1

    def release(self) -> None:
        """Let go of the buffer.

        Raises:
            InvalidInputError: Nobody held it.
        """
        with self._changed:
            if not self._references:
                raise InvalidInputError("buffer was released more often than acquired")
            self._references -= 1
            self._changed.notify_all()

    def _mark(self, needed: str, state: str) -> None:
        with self._changed:
            self._check_open()
            if self._bytes and not getattr(self, needed):
                raise InvalidInputError(f"buffer is not {needed[1:]}", wanted=state[1:])
            setattr(self, state, True)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("write cache was closed")
