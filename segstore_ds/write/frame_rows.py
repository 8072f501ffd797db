"""Rows of a task before they become frames: large batches are cut, small ones gathered."""

from collections.abc import Iterator

import pyarrow as pa

from segstore_ds.format.rows import halve_until, slice_evenly
from segstore_ds.write.layout import FEW_BYTES, FRAME_BYTES, size_of

HELD_TIMES = 2  # a gathered slice may keep this many times its size in memory, or `FEW_BYTES`


class FrameRows:
    """The rows of the next frame: at most `most_rows`, and about `FRAME_BYTES`."""

    def __init__(self, most_rows: int) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._most_rows = most_rows
        self.rows = self.bytes = 0
        self._fresh = 0  # how many of the last batches are slices of the batch being added

    def cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in pieces of at most one frame each."""
        if 0 < batch.num_rows <= self._most_rows and size_of(batch) <= FRAME_BYTES:
            return iter((batch,))
        return split_batch(batch, self._most_rows, FRAME_BYTES)

    def has_room(self, rows: int, size: int) -> bool:
        """Tell whether a piece of so many rows and bytes fits into this frame."""
        few = self.rows + rows <= self._most_rows and self.bytes + size <= FRAME_BYTES
        return few or not self.rows

    def add(self, piece: pa.RecordBatch, size: int) -> None:
        """Add a piece, which keeps its whole batch in memory until `detach`."""
        self.batches.append(piece)
        self.rows += piece.num_rows
        self.bytes += size
        self._fresh += 1

    def detach(self, *, lent: bool) -> None:
        """Copy the pieces added last: all if `lent`, else only slices of much larger batches."""
        for place in range(len(self.batches) - self._fresh, len(self.batches)):
            piece = self.batches[place]
            if lent or _holds_much(piece):
                self.batches[place] = pa.concat_batches([piece])
        self._fresh = 0

    def take(self) -> pa.RecordBatch | None:
        """Return all rows as one batch, and remove them; None if there are none."""
        batches, rows = self.batches, self.rows
        self.batches, self.rows, self.bytes, self._fresh = [], 0, 0, 0
        if not rows:
            return None
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def split_batch(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slice a batch into pieces of about equal rows, within both limits, without a copy.

    Pieces above the byte limit are halved, since rows may differ in width. A single row above the
    byte limit is one piece.
    """
    pieces = max(-(-batch.num_rows // most_rows), -(-batch.nbytes // most_bytes), 1)
    for piece in slice_evenly(batch, pieces):
        yield from halve_until(
            piece, lambda part: part if part.num_rows <= 1 or part.nbytes <= most_bytes else None
        )


def _holds_much(piece: pa.RecordBatch) -> bool:
    """Tell whether a slice would keep much more in memory than its own bytes."""
    held: int = piece.get_total_buffer_size()
    return held > FEW_BYTES and held > HELD_TIMES * piece.nbytes
