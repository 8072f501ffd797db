"""Views: bytes that are passed on, sliced and joined without a copy.

A view keeps its underlying memory alive. It is read-only, so a receiver cannot change stored bytes,
and the owner promises not to change them. A negative position is an error.

Source: Pravega's BufferView, ByteArraySegment and CompositeBufferView.
"""

import operator
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final

import pyarrow as pa

from segstore_ds.checksum import crc32
from segstore_ds.errors import InvalidInputError


class BufferView:
    """Bytes in non-empty pieces; read-only and immutable."""

    __slots__ = ("length", "pieces")

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        self.pieces = tuple(pieces)
        self.length = sum(map(len, self.pieces))

    def buffers(self) -> Iterator[memoryview]:
        """Yield the pieces in order; an empty view yields none."""
        return iter(self.pieces)

    def copy(self) -> bytes:
        """Return a copy of the bytes."""
        return b"".join(self.pieces)

    def slice(self, start: int, end: int) -> "BufferView":
        """Return a view of `[start, end)` that shares memory; the range may be empty."""
        place, pieces = 0, []
        start, end = _check_range(start, end, self.length)
        for piece in self.pieces:
            pieces.append(piece[max(start - place, 0) : max(end - place, 0)])
            place += len(piece)
        return BufferView(filter(len, pieces))

    def __getitem__(self, index: int) -> int:
        """Return one byte; negative indexes are an error."""
        (piece,) = self.slice(index, index + 1).pieces
        return piece[0]

    def copy_to(self, destination: Any) -> int:
        """Copy as many bytes as fit to the start of a writable buffer; return how many."""
        target, place = _writable(destination), 0
        for piece in self.pieces:
            part = piece[: len(target) - place]
            target[place : place + len(part)] = part
            place += len(part)
        return place

    def __eq__(self, other: object) -> bool:
        """Compare by content, however it is cut into pieces."""
        if not isinstance(other, BufferView):
            return NotImplemented
        return self is other or (self.length == other.length and self.copy() == other.copy())

    def __hash__(self) -> int:
        return hash((self.length, self.crc32()))

    def crc32(self) -> int:
        """Return the CRC-32 of the content."""
        return reduce(lambda crc, piece: crc32(piece, crc), self.pieces, 0)


class ViewReader:
    """A position in a view, from which its bytes are read in order; a call that fails keeps it."""

    __slots__ = ("_place", "_view")

    def __init__(self, view: BufferView) -> None:
        self._view, self._place = view, 0

    @property
    def available(self) -> int:
        """How many bytes are left."""
        return self._view.length - self._place

    def read(self, length: int) -> BufferView:
        """Return the next bytes as a view that shares memory."""
        found = self._view.slice(self._place, self._place + operator.index(length))
        self._place += found.length
        return found

    def read_into(self, destination: Any) -> int:
        """Copy as many of the next bytes as fit to a writable buffer; return how many."""
        target = _writable(destination)
        return self.read(min(self.available, len(target))).copy_to(target)


class ByteArraySegment(BufferView):
    """The bytes `[start, end)` of an object with the buffer protocol, not copied."""

    __slots__ = ("data",)

    def __init__(self, data: Any, start: int = 0, end: int | None = None) -> None:
        whole = _bytes_of(data)
        if start or end is not None:
            start, end = _check_range(start, end, len(whole))
            whole = whole[start:end]
        self.data: memoryview = whole
        super().__init__((whole,) if len(whole) else ())

    def slice(self, start: int, end: int) -> "ByteArraySegment":
        """Return a segment of `[start, end)` that shares memory; the range may be empty."""
        start, end = _check_range(start, end, self.length)
        return ByteArraySegment(self.data[start:end])

    def to_arrow(self) -> pa.Buffer:
        """Return the bytes as an Arrow buffer that shares the memory and keeps it alive."""
        return pa.py_buffer(self.data)


def join(views: Iterable[BufferView]) -> BufferView:
    """Return views as one, without a copy; `EMPTY` if there are no bytes."""
    filled = [view for view in views if view.length]
    if len(filled) > 1:
        return BufferView(piece for view in filled for piece in view.pieces)
    return filled[0] if filled else EMPTY


def as_view(data: Any) -> BufferView:
    """Return data as a view, without a copy."""
    return data if isinstance(data, BufferView) else ByteArraySegment(data)


def _check_range(start: int, end: int | None, length: int) -> tuple[int, int]:
    """Return the range if it lies within `length`; an end of None is `length`."""
    last = length if end is None else operator.index(end)
    if not 0 <= operator.index(start) <= last <= length:
        raise InvalidInputError("range is out of bounds", start=start, end=end, length=length)
    return start, last


def _writable(destination: Any) -> memoryview:
    try:
        found = memoryview(destination).cast("B")
    except TypeError:
        found = memoryview(b"")
    if found.readonly:
        raise InvalidInputError(
            "a destination can't be written",
            remedy="give a bytearray, or a contiguous memoryview of one",
            type=type(destination).__name__,
        )
    return found


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
