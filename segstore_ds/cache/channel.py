"""The channel: where a write cache writes. The engine hands in a staged object of the storage."""

from collections.abc import Sequence
from typing import Protocol


class Channel(Protocol):
    """Takes the bytes of one object, in order.

    A channel that failed is never written to again: what it holds may end in the middle of a
    buffer, and only `abort` is left.
    """

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Append pieces as one write; they may be reused once it returns.

        Raises:
            StorageError: The channel failed.
        """

    def commit(self) -> int:
        """Make the object whole and durable, and return its size.

        Raises:
            StorageError: It is not known to be whole.
        """

    def abort(self) -> None:
        """Give the object up; never raises, safe to repeat."""
