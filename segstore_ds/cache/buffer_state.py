"""The states of a buffer, and its reference count.

A buffer's content passes through four states, none of which implies the next: *flushed* (the
channel has it), *durable* (the channel was committed), *visible* (a commit names the object),
*recycled* (the buffer has dropped it). A flush neither syncs nor empties: flushed records stay
readable until the buffer is reset.
"""

import threading

from segstore_ds.errors import ClosedError, InvalidInputError


class BufferState:
    """The states of one buffer; changed under the lock of `_changed`."""

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
        """True if bytes and record map stay unchanged until `reset`."""
        self._check_open()
        return self._sealed

    @property
    def flushed(self) -> bool:
        """True if the channel has the bytes."""
        self._check_open()
        return self._flushed

    @property
    def durable(self) -> bool:
        """True if the channel was committed."""
        self._check_open()
        return self._durable

    @property
    def visible(self) -> bool:
        """True if a commit names the object."""
        self._check_open()
        return self._visible

    @property
    def recycled(self) -> bool:
        """True from a `reset` that dropped records until the next write."""
        self._check_open()
        return self._recycled

    def mark_durable(self) -> None:
        """Record that the channel was committed; the bytes must be flushed."""
        self._mark("_flushed", "_durable")

    def mark_visible(self) -> None:
        """Record that a commit names the object; the bytes must be durable."""
        self._mark("_durable", "_visible")

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

    def _mark(self, needed: str, state: str) -> None:
        with self._changed:
            self._check_open()
            if self._bytes and not getattr(self, needed):
                raise InvalidInputError(f"buffer is not {needed[1:]}", wanted=state[1:])
            setattr(self, state, True)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("write cache was closed")
