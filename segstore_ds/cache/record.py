"""A record, which is a place in an object, and room for one that is still to be filled."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore_ds.cache.write_cache import WriteCache

LAST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """A record's place in its object, and the CRC-32 of its bytes."""

    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.length


class Allocation:
    """Room for one record in a buffer: fill `data`, then `publish` or `discard` it, once."""

    __slots__ = ("_cache", "data", "offset")

    def __init__(self, cache: "WriteCache", offset: int, data: memoryview) -> None:
        self._cache = cache
        self.offset = offset
        self.data = data

    def publish(self, crc: int | None = None) -> Record:
        """Make the record readable; its bytes must not change any more.

        Raises:
            ClosedError: The cache was closed meanwhile, or the room was given up.
        """
        return self._cache._publish(self, crc)  # noqa: SLF001 - two halves of one thing

    def discard(self) -> None:
        """Give the room back; safe to repeat, never raises."""
        self._cache._give_up(self)  # noqa: SLF001
