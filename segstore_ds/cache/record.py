"""A record: a range of an object, and the checksum of its bytes."""

from dataclasses import dataclass

LAST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """A record's range in its object, and the CRC-32 of its bytes."""

    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length
