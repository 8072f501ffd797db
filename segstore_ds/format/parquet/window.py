"""What Parquet's own writer and reader are given in place of a file."""

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa


class Pieces:
    """Takes what is written and keeps the pieces, until they are taken from it."""

    def __init__(self) -> None:
        self.place = 0
        self.closed = False
        self._pieces: list[bytes] = []

    def write(self, data: pa.Buffer | bytes) -> int:
        """Keep a copy: the writer may use the memory again."""
        piece = bytes(data)
        if piece:
            self._pieces.append(piece)
            self.place += len(piece)
        return len(piece)

    def take(self) -> list[bytes]:
        """Return what was written since the last call."""
        taken, self._pieces = self._pieces, []
        return taken

    def tell(self) -> int:
        """Return how much was written in all."""
        return self.place

    def flush(self) -> None:
        """Do nothing: there is nothing behind this."""

    def close(self) -> None:
        """End writing."""
        self.closed = True


class Window:
    """Ranges of an object that were fetched, read as if all of it were there; nothing is copied.

    Args:
        size: Of the object.
    """

    def __init__(self, size: int) -> None:
        self.closed = False
        self._size = size
        self._starts: list[int] = []
        self._shown: list[tuple[int, pa.Buffer]] = []
        self._place = 0

    def show(self, spans: Sequence[tuple[int, int]], data: Sequence[pa.Buffer]) -> None:
        """Have these ranges read from now on, and none that were shown before.

        Args:
            spans: The ranges, in ascending order; none overlaps another.
            data: What lies in them.
        """
        self._starts = [start for start, _ in spans]
        self._shown = [(end, buffer) for (_, end), buffer in zip(spans, data, strict=True)]

    def read(self, count: int = -1) -> pa.Buffer:
        """Return the next bytes.

        Raises:
            OSError: They were not fetched.
        """
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
        """Go to a place."""
        self._place = place + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def close(self) -> None:
        """End reading."""
        self.closed = True
