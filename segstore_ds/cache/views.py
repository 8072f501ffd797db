"""Views: bytes that are passed on, sliced and joined without a copy.

A view keeps its underlying memory alive. It is read-only, so a receiver cannot change stored bytes;
the owner promises not to change what it has passed on. Lengths and positions are plain integers, so
nothing is limited to 2 GiB. Positions never count from the end: a negative one is an error.

Source: Pravega's BufferView, ByteArraySegment and CompositeBufferView.
"""

import operator
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from segstore_ds.errors import InvalidInputError


class BufferView(ABC):
    """Bytes in one or several pieces, read-only through this interface."""

    __slots__ = ()

    length: int

    @abstractmethod
    def buffers(self) -> Iterator[memoryview]:
        """Yield the components, read-only and in order; an empty view yields none."""

    def copy(self) -> bytes:
        """Return a copy of the bytes."""
        return b"".join(self.buffers())

    def crc32(self) -> int:
        """Return the CRC-32 of the content."""
        crc = 0
        for buffer in self.buffers():
            crc = zlib.crc32(buffer, crc)
        return crc


class ByteArraySegment(BufferView):
    """The bytes `[start, end)` of an object that supports the buffer protocol.

    bytes, bytearray, memoryview, mmap and pyarrow.Buffer are used without a copy.
    """

    __slots__ = ("data", "length")

    def __init__(self, data: Any, start: int = 0, end: int | None = None) -> None:
        whole = _bytes_of(data)
        if start or end is not None:
            start, end = _check_range(start, end, len(whole))
            whole = whole[start:end]
        self.data: memoryview = whole
        self.length = len(whole)

    def buffers(self) -> Iterator[memoryview]:  # noqa: D102
        if self.length:
            yield self.data

    def slice(self, start: int, end: int) -> "ByteArraySegment":
        """Return a segment of `[start, end)` that shares memory; empty ones are allowed."""
        start, end = _check_range(start, end, self.length)
        return ByteArraySegment(self.data[start:end])

    def to_arrow(self) -> pa.Buffer:
        """Return the bytes as an Arrow buffer that shares the memory and keeps it alive."""
        return pa.py_buffer(self.data)


class CompositeView(BufferView):
    """Several non-empty segments as one, flat and immutable; made by `join`."""

    __slots__ = ("length", "parts")

    def __init__(self, parts: Iterable[ByteArraySegment]) -> None:
        self.parts = tuple(parts)
        self.length = sum(part.length for part in self.parts)

    def buffers(self) -> Iterator[memoryview]:  # noqa: D102
        return (part.data for part in self.parts)


def join(views: Iterable[BufferView]) -> BufferView:
    """Return views as one: `EMPTY` for none, the only one itself, else a composite.

    Nested composites are flattened and empty views left out; nothing is copied.
    """
    parts = [
        view if isinstance(view, ByteArraySegment) else ByteArraySegment(piece)
        for view in views
        for piece in as_view(view).buffers()
    ]
    if len(parts) > 1:
        return CompositeView(parts)
    return parts[0] if parts else EMPTY


def as_view(data: Any) -> BufferView:
    """Return data as a view, without a copy."""
    # Check the exact class first: isinstance of an abstract class is slow.
    if type(data) is ByteArraySegment or isinstance(data, BufferView):
        return data
    return ByteArraySegment(data)


def _check_range(start: int, end: int | None, length: int) -> tuple[int, int]:
    """Return `[start, end)`, checked to lie inside `length`; an end of None is `length`."""
    last = length if end is None else operator.index(end)
    if not 0 <= operator.index(start) <= last <= length:
        raise InvalidInputError("range is out of bounds", start=start, end=end, length=length)
    return start, last


def _bytes_of(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B").toreadonly()
    except TypeError as error:
        raise InvalidInputError(
            "data does not support the buffer protocol",
            remedy="give bytes, a contiguous memoryview, an mmap or a pyarrow.Buffer",
            type=type(data).__name__,
        ) from error


EMPTY: Final = ByteArraySegment(b"")
