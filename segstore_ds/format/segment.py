"""Segment formats: what everything that reads segments knows of them, and which ones there are.

A segment's entry names its format. A format turns the end of the object, whose length and checksum
the entry holds, into an index of frames; the index says which bytes a frame's columns lie in, and
turns them, verified, into a record batch. Whoever reads segments uses nothing else, so a stream may
mix formats. Pure: nothing here reads an object.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from segstore_ds.errors import UnsupportedVersionError
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.arrow.segment import ArrowSegments
from segstore_ds.format.parquet.segment import ParquetSegments

ARROW = ArrowSegments.name
PARQUET = ParquetSegments.name
LAST_BYTES = 40  # enough to say how long the end of an object of any format is


class SegmentIndex(Protocol):
    """Where the frames of one segment are, and how they are decoded."""

    @property
    def frames(self) -> tuple[FrameEntry, ...]:
        """The frames in order; side by side they are all of the object but its head and its end."""

    def spans(self, number: int, columns: Sequence[str] | None) -> tuple[tuple[int, int], ...]:
        """Return which ``[start, end)`` of the object `decode` needs.

        Args:
            number: The frame's place.
            columns: Which columns; None for all.

        Returns:
            The ranges in ascending order, none of them empty; at least one.

        Raises:
            CorruptionError: The index contradicts itself.
        """

    def decode(
        self,
        number: int,
        data: Sequence[pa.Buffer],
        *,
        schema: pa.Schema,
        columns: Sequence[str] | None,
        where: str,
    ) -> pa.RecordBatch:
        """Verify the bytes of a frame and decode the columns asked for.

        Args:
            number: The frame's place.
            data: What lies in the ranges that `spans` gives for the same columns.
            schema: The schema it has to have, in normal form.
            columns: Which columns, in the order wanted; None for all.
            where: The object, for errors.

        Returns:
            Exactly the columns asked for, in that order.

        Raises:
            InvalidInputError: A column is unknown or asked for twice.
            CorruptionError: The bytes fail their checksum, or are not such a frame.
        """


class SegmentFormat(Protocol):
    """One way to lay a segment out.

    Attributes:
        name: What entries call it.
        ending: What the names of its objects end with.
        head_bytes: How many bytes stand before the first frame.
    """

    name: str
    ending: str
    head_bytes: int

    def parse_index(
        self, tail: bytes, *, object_bytes: int, where: str, footer_crc: int
    ) -> SegmentIndex:
        """Read the index from the end of the object.

        Args:
            tail: The last bytes, as many as the entry says.
            object_bytes: The size of the object.
            where: The object, for errors.
            footer_crc: What the CRC-32 of `tail` has to be.

        Raises:
            FormatError: The bytes are not such an end, or not the one that was committed.
        """

    def measure_end(self, last: bytes) -> int:
        """Return how long the end of an object is that `parse_index` takes.

        Args:
            last: The last `LAST_BYTES` of the object.

        Returns:
            What those say, unchecked; 0 where they are too few.
        """

    def check_head(self, data: bytes, *, where: str) -> None:
        """Check the first `head_bytes` of the object, which reading does not need.

        Raises:
            FormatError: They are not what they have to be.
        """


FORMATS: Mapping[str, SegmentFormat] = {
    one.name: one for one in (ArrowSegments(), ParquetSegments())
}


def find_format(name: str, *, where: str) -> SegmentFormat:
    """Return the format that an entry names.

    Raises:
        UnsupportedVersionError: This version knows none of that name.
    """
    found = FORMATS.get(name)
    if found is None:
        raise UnsupportedVersionError(
            "a segment is of a format this version does not know",
            where=where,
            format=name,
            known=", ".join(FORMATS),
        )
    return found
