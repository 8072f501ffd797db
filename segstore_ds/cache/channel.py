"""The channels that write caches write to; in segstore, staged objects of the storage."""

from collections.abc import Sequence
from typing import Protocol


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
