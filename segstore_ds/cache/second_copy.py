"""The second copy: every flushed buffer as a message with its payload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from segstore_ds.cache.views import BufferView


@dataclass(frozen=True, slots=True)
class FlushedBuffer:
    """A buffer or large record that the channel has just taken.

    Attributes:
        sequence: Its number, dense from 0; empty buffers take none.
        start: Position of its first byte in the object.
        size: Bytes in the object.
        checksum: CRC-32 of `payload`.
        payload: Its bytes, not copied; valid only during the call.
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


# Called in the writing thread, in order; its exceptions count as failures of the channel.
Observer = Callable[[FlushedBuffer], None]
