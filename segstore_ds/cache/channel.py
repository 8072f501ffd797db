"""The channels of a write cache (in segstore, staged objects), and what their observers get."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from segstore_ds.cache.buffer import Record
from segstore_ds.cache.views import BufferView


class Channel(Protocol):
    """Takes the bytes of one object, in order.

    After a failure only `abort` may be called: the object may end in the middle of a buffer.
    """

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Append pieces as one write; their memory may be reused once it returns."""

    def commit(self) -> int:
        """Make the object whole and durable, and return its size.

        After a StorageError the object may be incomplete.
        """

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""


class ScatteredChannel(Protocol):
    """Takes the parts of one object in any order, from several threads."""

    def write_at(self, start: int, pieces: Sequence[memoryview]) -> None:
        """Write pieces side by side as one write; what lay there before is replaced."""

    def commit(self) -> int:
        """Make the object whole and durable, and return its size."""

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""


@dataclass(frozen=True, slots=True)
class FlushedBuffer:
    """A buffer on its way to the channel, as its observer gets it.

    Attributes:
        sequence: Its number, dense from 0; empty buffers take none.
        start: Position of its first byte in the object.
        records: The records that it consists of, side by side, each with its checksum.
        payload: Its bytes, not copied; valid until the wait for it has ended.
    """

    sequence: int
    start: int
    records: tuple[Record, ...]
    payload: BufferView


# Begins to send a buffer and returns what waits until it is sent. Both are called in the writing
# thread, in order; their exceptions count as failures of the channel.
Observer = Callable[[FlushedBuffer], Callable[[], None]]
