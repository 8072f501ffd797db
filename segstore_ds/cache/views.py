"""Views: bytes that are passed on, sliced and joined without a copy.

A view keeps its underlying memory alive. It is read-only, so a receiver cannot change stored bytes.
The owner promises not to change them either. Lengths and positions are plain integers, so nothing
is limited to 2 GiB. Positions never count from the end: a negative one is an error.

Equality and hash are those of the content, independent of component boundaries.

Source: Pravega's BufferView, ArrayView and ByteArraySegment.
"""

import operator
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from segstore_ds.errors import InvalidInputError


class BufferView(ABC):
    """Bytes in one or several pieces, read-only through this interface."""

    __slots__ = ()

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of bytes."""

    @abstractmethod
    def slice(self, start: int = 0, end: int | None = None) -> "BufferView":
        """Return a view of `[start, end)` that shares memory; empty ones are allowed everywhere."""

    @abstractmethod
    def buffers(self) -> Iterator[memoryview]:
        """Yield the components, read-only and in order; an empty view yields none."""

    def copy(self) -> bytes:
        """Return a copy of the bytes."""
        return b"".join(self.buffers())

    def copy_to(self, target: Any) -> int:
        """Copy to the front of a writable buffer; return how many bytes were copied.

        Copies the smaller of the two lengths; the rest of the buffer stays unchanged.
        """
        window = _bytes_of(target)
        if window.readonly:
            raise InvalidInputError(
                "the target of a copy is read-only", remedy="give a writable view"
            )
        place = 0
        for buffer in self.buffers():
            count = min(len(buffer), len(window) - place)
            window[place : place + count] = buffer[:count]
            place += count
            if place == len(window):
                break
        return place

    def crc32(self, start: int = 0) -> int:
        """Return the CRC-32 of the content, continued from the CRC-32 of bytes before it."""
        for buffer in self.buffers():
            start = zlib.crc32(buffer, start)
        return start

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.length} bytes>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BufferView):
            return NotImplemented
        return self.length == other.length and _equal(self.buffers(), other.buffers())

    def __hash__(self) -> int:
        return hash((self.length, self.crc32()))


class ArrayView(BufferView):
    """Bytes in one piece."""

    __slots__ = ()

    @property
    @abstractmethod
    def data(self) -> memoryview:
        """The bytes, read-only."""

    @abstractmethod
    def slice(self, start: int = 0, end: int | None = None) -> "ArrayView":
        """See `BufferView.slice`."""

    def buffers(self) -> Iterator[memoryview]:  # noqa: D102
        if self.length:
            yield self.data

    def to_arrow(self) -> pa.Buffer:
        """Return the bytes as an Arrow buffer that shares the memory and keeps it alive."""
        return pa.py_buffer(self.data)


class ByteArraySegment(ArrayView):
    """The bytes `[start, end)` of an object that supports the buffer protocol.

    bytes, bytearray, memoryview, mmap and pyarrow.Buffer are used without a copy.
    """

    __slots__ = ("_window",)

    def __init__(self, data: Any, start: int = 0, end: int | None = None) -> None:
        whole = data.data if isinstance(data, ArrayView) else _bytes_of(data)
        start, end = check_range(start, end, len(whole))
        window = whole if end - start == len(whole) else whole[start:end]
        self._window: memoryview = window.toreadonly()

    @property
    def length(self) -> int:  # noqa: D102
        return len(self._window)

    @property
    def data(self) -> memoryview:  # noqa: D102
        return self._window

    def slice(self, start: int = 0, end: int | None = None) -> "ByteArraySegment":  # noqa: D102
        start, end = check_range(start, end, len(self._window))
        cut = object.__new__(ByteArraySegment)
        cut._window = self._window[start:end]
        return cut


def as_view(data: Any) -> BufferView:
    """Return data as a view, without a copy."""
    # Check the exact class first: isinstance of an abstract class is slow.
    if type(data) is ByteArraySegment or isinstance(data, BufferView):
        return data
    return ByteArraySegment(data)


def check_range(start: int, end: int | None, length: int) -> tuple[int, int]:
    """Return `[start, end)`, checked to lie inside `length`; an end of None is `length`."""
    last = length if end is None else operator.index(end)
    if not 0 <= operator.index(start) <= last <= length:
        raise InvalidInputError("range is out of bounds", start=start, end=end, length=length)
    return start, last


def _bytes_of(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise InvalidInputError(
            "data does not support the buffer protocol",
            remedy="give bytes, a contiguous memoryview, an mmap or a pyarrow.Buffer",
            type=type(data).__name__,
        ) from error


def _equal(ours: Iterator[memoryview], theirs: Iterator[memoryview]) -> bool:
    left = right = memoryview(b"")
    while True:
        left = left or next(ours, left)
        right = right or next(theirs, right)
        count = min(len(left), len(right))
        if not count:
            return True
        if not pa.py_buffer(left[:count]).equals(pa.py_buffer(right[:count])):
            return False
        left, right = left[count:], right[count:]


EMPTY: Final = ByteArraySegment(b"")
