"""File-like objects for Parquet's own writer and reader."""

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa


class Pieces:
    """Keeps each write as a piece until it is taken; ignores writes while `muted`."""

    def __init__(self) -> None:
        self.place = 0
        self.closed = self.muted = False
        self._pieces: list[bytes] = []

    def write(self, data: pa.Buffer | bytes) -> int:
        """Keep a copy of `data`, because the writer may reuse its memory."""
        if self.muted:
            return len(data)
        piece = bytes(data)
        if piece:
            self._pieces.append(piece)
            self.place += len(piece)
        return len(piece)

    def take(self) -> list[bytes]:
        """Return the pieces written since the last call."""
        taken, self._pieces = self._pieces, []
        return taken

    def tell(self) -> int:
        """Return the number of bytes written in total."""
        return self.place

    def flush(self) -> None:
        """Do nothing: there is no file to flush to."""

    def close(self) -> None:
        """End writing."""
        self.closed = True


class Window:
    """Presents fetched ranges as a file of the object's `size` bytes, without copying."""

    def __init__(self, size: int) -> None:
        self.closed = False
        self._size = size
        self._starts: list[int] = []
        self._shown: list[tuple[int, pa.Buffer]] = []
        self._place = 0

    def show(self, spans: Sequence[tuple[int, int]], data: Sequence[pa.Buffer]) -> None:
        """Replace the readable ranges."""
        self._starts = [start for start, _ in spans]
        self._shown = [(end, buffer) for (_, end), buffer in zip(spans, data, strict=True)]

    def read(self, count: int = -1) -> pa.Buffer:
        """Return the next bytes; OSError if they were not fetched."""
        start = self._place
        end = self._size if count < 0 else start + count
        number = bisect_right(self._starts, start) - 1
        if number >= 0:
            first, (last, data) = self._starts[number], self._shown[number]
            if end <= last:
                self._place = end
                return data.slice(start - first, end - start)
        raise OSError(start, end)

    def seek(self, place: int, whence: int = 0) -> int:
        """Move to a position and return it."""
        self._place = place + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """End reading."""
        self.closed = True
