"""Views: bytes that are passed on, sliced and joined without a copy.

A view keeps its underlying memory alive. It is read-only, so a receiver cannot change stored bytes;
the owner of memory makes a writable one to copy into. The owner promises not to change what it has
passed on. Lengths and positions are plain integers, so nothing is limited to 2 GiB. Positions never
count from the end: a negative one is an error.

Source: Pravega's BufferView and ByteArraySegment.
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
    def buffers(self) -> Iterator[memoryview]:
        """Yield the components, read-only and in order; an empty view yields none."""

    def copy(self) -> bytes:
        """Return a copy of the bytes."""
        return b"".join(self.buffers())

    def copy_to(self, target: "ByteArraySegment") -> int:
        """Copy to the front of a writable segment; return how many bytes were copied.

        Copies the smaller of the two lengths; the rest of the target stays unchanged.
        """
        window = target.room
        place = 0
        for buffer in self.buffers():
            count = min(len(buffer), len(window) - place)
            window[place : place + count] = buffer[:count]
            place += count
            if place == len(window):
                break
        return place

    def crc32(self) -> int:
        """Return the CRC-32 of the content."""
        crc = 0
        for buffer in self.buffers():
            crc = zlib.crc32(buffer, crc)
        return crc


class ByteArraySegment(BufferView):
    """The bytes `[start, end)` of an object that supports the buffer protocol.

    bytes, bytearray, memoryview, mmap and pyarrow.Buffer are used without a copy. A `writable`
    segment is a target for `copy_to`, and so are its slices.
    """

    __slots__ = ("_memory",)

    def __init__(
        self, data: Any, start: int = 0, end: int | None = None, *, writable: bool = False
    ) -> None:
        whole = _bytes_of(data)
        start, end = _check_range(start, end, len(whole))
        memory = whole if end - start == len(whole) else whole[start:end]
        if writable and memory.readonly:
            raise InvalidInputError("memory is read-only", remedy="give a bytearray or an mmap")
        self._memory: memoryview = memory if writable else memory.toreadonly()

    @property
    def length(self) -> int:  # noqa: D102
        return len(self._memory)

    @property
    def data(self) -> memoryview:
        """The bytes, read-only."""
        return self._memory.toreadonly()

    @property
    def room(self) -> memoryview:
        """The bytes of a writable segment, to write to; InvalidInputError for a read-only one."""
        if self._memory.readonly:
            raise InvalidInputError(
                "the target of a copy is read-only", remedy="give a writable segment"
            )
        return self._memory

    def buffers(self) -> Iterator[memoryview]:  # noqa: D102
        if self._memory:
            yield self.data

    def slice(self, start: int, end: int) -> "ByteArraySegment":
        """Return a segment of `[start, end)` that shares memory; empty ones are allowed."""
        start, end = _check_range(start, end, len(self._memory))
        cut = object.__new__(ByteArraySegment)
        cut._memory = self._memory[start:end]
        return cut

    def to_arrow(self) -> pa.Buffer:
        """Return the bytes as an Arrow buffer that shares the memory and keeps it alive."""
        return pa.py_buffer(self.data)


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
        return memoryview(data).cast("B")
    except TypeError as error:
        raise InvalidInputError(
            "data does not support the buffer protocol",
            remedy="give bytes, a contiguous memoryview, an mmap or a pyarrow.Buffer",
            type=type(data).__name__,
        ) from error


EMPTY: Final = ByteArraySegment(b"")
