"""The second copy: every flushed buffer as a message with its payload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from segstore_ds.cache.views import BufferView


@dataclass(frozen=True, slots=True)
class FlushedBuffer:
    """A buffer or large record on its way to the channel.

    Attributes:
        sequence: Its number, dense from 0; empty buffers take none.
        start: Position of its first byte in the object.
        size: Bytes in the object.
        checksum: CRC-32 of `payload`.
        payload: Its bytes, not copied; valid until the wait for it has ended.
    """

    sequence: int
    start: int
    size: int
    checksum: int
    payload: BufferView

    @classmethod
    def of(cls, view: BufferView, sequence: int, start: int) -> Self:
        """Return the message for a view of the buffer's bytes."""
        return cls(sequence, start, view.length, view.crc32(), view)


# Begins to send a buffer and returns what waits until it is sent. Both are called in the writing
# thread, in order; their exceptions count as failures of the channel.
Observer = Callable[[FlushedBuffer], Callable[[], None]]
