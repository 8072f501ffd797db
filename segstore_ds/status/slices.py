"""Slices of segments as columns: a plan of a million segments without a million objects.

`SliceTable` is a sequence of `Slice` that creates each only on access; it is sent to a task
as columns. `plan_borders` packs slices into tasks by their encoded bytes and rows.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from segstore_ds.format.parts.columns import SegmentColumns
from segstore_ds.format.parts.rows import Ints
from segstore_ds.status.table_status import Run, Slice

EXACT_LIMIT = 1 << 62  # sizes with larger products are kept as Python integers


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Slices of a run of segments, with a column per attribute."""

    columns: SegmentColumns
    starts: Ints
    first: Ints
    last: Ints
    claim_first: Ints
    claim_last: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def slice_at(self, row: int) -> Slice:
        return Slice(
            int(self.starts[row]),
            self.columns.entry(row),
            rows=(int(self.first[row]), int(self.last[row])),
            claim=(int(self.claim_first[row]), int(self.claim_last[row])),
        )

    def cut(self, start: int, end: int) -> "_Block":
        places = (getattr(self, name)[start:end] for name in _PLACES)
        return _Block(self.columns.slice(start, end), *places)

    def take(self, rows: Ints) -> "_Block":
        return _Block(self.columns.take(rows), *(getattr(self, name)[rows] for name in _PLACES))

    @property
    def claimed_rows(self) -> Ints:
        """Wanted rows within the claims, about: one of two slices reads a frame at their border."""
        low = np.maximum(self.first, self.claim_first)
        claimed: Ints = np.minimum(self.last, self.claim_last) - low
        return claimed

    @property
    def claimed_bytes(self) -> Ints:
        """Encoded bytes of the claimed rows, in proportion to the segments' rows, at least 1."""
        sizes: Ints = np.maximum(self.columns.bytes * self.claimed_rows // self.columns.rows, 1)
        return sizes

    @property
    def exact(self) -> "_Block":
        """The same slices, as Python integers if 64 bits can't hold all products of sizes."""
        columns = self.columns
        most_bytes, most_rows = int(columns.bytes.max()), int(columns.rows.max())
        if max(most_bytes, most_rows) * most_rows * len(columns) < EXACT_LIMIT:
            return self
        wide = {name: getattr(self, name).astype(object) for name in _PLACES}
        return replace(self, **wide)


_PLACES = ("starts", "first", "last", "claim_first", "claim_last")


class SliceTable(Sequence[Slice]):
    """Slices in offset order, stored as columns; picklable, and equal to a sequence of the same."""

    def __init__(self, blocks: Sequence[_Block] = ()) -> None:
        self.blocks = [block for block in blocks if len(block)]
        self._ends = np.cumsum([len(block) for block in self.blocks], dtype=np.int64)

    @classmethod
    def of_run(cls, run: Run, start: int, end: int, kept: Ints | None) -> "SliceTable":
        """Return the slices of a run of segments with the events ``[start, end)``.

        Every segment of the run must hold an event of the range. `kept` selects segments of the
        run; None selects all.
        """
        columns, starts = run.columns, run.starts
        if kept is not None:
            columns, starts = columns.take(kept), starts[kept]
        first = np.maximum(start - starts, 0)
        last = np.minimum(end - starts, columns.rows)
        zeros = np.broadcast_to(np.int64(0), (len(columns),))
        return cls([_Block(columns, starts, first, last, zeros, columns.rows)])

    @classmethod
    def join(cls, tables: Iterable["SliceTable"]) -> "SliceTable":
        """Return the slices of several tables as one table."""
        return cls([block for table in tables for block in table.blocks])

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.blocks else 0

    @overload
    def __getitem__(self, place: int) -> Slice: ...
    @overload
    def __getitem__(self, place: slice) -> "SliceTable": ...
    def __getitem__(self, place: int | slice) -> "Slice | SliceTable":
        if isinstance(place, slice):
            start, end, step = place.indices(len(self))
            if step != 1:
                raise ValueError(step)
            return self._cut(start, max(start, end))
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        number = int(np.searchsorted(self._ends, place, "right"))
        block = self.blocks[number]
        return block.slice_at(place - (int(self._ends[number]) - len(block)))

    def __iter__(self) -> Iterator[Slice]:
        return (block.slice_at(row) for block in self.blocks for row in range(len(block)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(Slice.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<SliceTable of {len(self)} slices>"

    def _cut(self, start: int, end: int) -> "SliceTable":
        blocks, before = [], 0
        for block in self.blocks:
            low, high = max(start - before, 0), min(end - before, len(block))
            if low < high:
                whole = (low, high) == (0, len(block))
                blocks.append(block if whole else block.cut(low, high))
            before += len(block)
        return SliceTable(blocks)

    def exact(self) -> "SliceTable":
        """Return the same slices in a form in which no sum or product of sizes overflows."""
        return SliceTable([block.exact for block in self.blocks])

    def sizes(self) -> tuple[Ints, Ints]:
        """Return encoded bytes and rows of each slice of a table from `exact`."""
        if not self.blocks:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return (
            np.concatenate([block.claimed_bytes for block in self.blocks]),
            np.concatenate([block.claimed_rows for block in self.blocks]),
        )

    def select(self, form: str, epochs: Collection[int], *, others: bool = False) -> "SliceTable":
        """Return the slices of segments of a format and of some epochs, or all `others`."""
        return SliceTable([_select(block, form, epochs, others=others) for block in self.blocks])

    def split(self, most_bytes: int, most_rows: int, asked_rows: int | None = None) -> "SliceTable":
        """Return the slices of a table from `exact`, with large ones split.

        They are split between frames, unless `asked_rows` are less than half a frame.
        """
        asked = asked_rows or EXACT_LIMIT
        return SliceTable([_split(block, most_bytes, most_rows, asked) for block in self.blocks])


def _select(block: _Block, form: str, epochs: Collection[int], *, others: bool) -> _Block:
    columns = block.columns
    kinds = [place for place, (name, _) in enumerate(columns.kind_names) if name == form]
    fits = np.isin(columns.kinds, kinds) & np.isin(columns.epochs, list(epochs))
    rows = np.flatnonzero(~fits if others else fits)
    return block if len(rows) == len(block) else block.take(rows)


def _split(block: _Block, most_bytes: int, most_rows: int, asked_rows: int) -> _Block:
    rows = block.last - block.first
    pieces = np.rint((block.claimed_bytes / most_bytes).astype(np.float64)).astype(np.int64)
    pieces = np.minimum(np.maximum(pieces, -(-rows // most_rows)), _most_pieces(block, rows))
    pieces, asked = np.maximum(pieces, 1), -(-rows // asked_rows)
    # Several pieces of one frame each decode that frame, but not the next one.
    within = asked >= 2 * pieces
    pieces = np.where(within, asked, pieces)
    pieces = pieces.astype(np.int64)
    if int(pieces.max()) == 1:
        return block
    source = np.repeat(np.arange(len(block)), pieces)
    piece = np.arange(len(source)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    wide = block.take(source)
    count, rows, within = pieces[source], rows[source], within[source]
    begin, end = (wide.first + rows * place // count for place in (piece, piece + 1))
    # The first piece also claims the frame that holds the first wanted row but starts before it.
    low = np.where(within | (piece == 0), 0, begin)
    high = np.where(within | (piece == count - 1), wide.columns.rows, end)
    first, last = np.where(within, begin, wide.first), np.where(within, end, wide.last)
    return replace(wide, first=first, last=last, claim_first=low, claim_last=high)


def _most_pieces(block: _Block, rows: Ints) -> Ints:
    """Return the most pieces of each slice such that a frame starts in each piece.

    It assumes frames of equal rows, as most segments have them.
    """
    frames, all_rows = block.columns.frames, block.columns.rows
    within = np.where(rows == all_rows, frames, rows * np.maximum(frames - 1, 0) // all_rows)
    most: Ints = np.where(frames == 0, rows, within)
    return most


def plan_borders(sizes: Ints, rows: Ints, most_bytes: int, most_rows: int) -> list[int]:
    """Return the borders of the tasks that slices are packed into: starts, and the last end. Pure.

    A task takes at least one slice, and more while it stays within 110 % of both targets.
    """
    # A tenth above the target is better than one more task for the rest.
    limit_bytes, limit_rows = int(most_bytes * 1.1), int(most_rows * 1.1)
    sums_bytes = np.concatenate([[0], np.cumsum(sizes)])
    sums_rows = np.concatenate([[0], np.cumsum(rows)])
    borders = [0]
    while borders[-1] < len(sizes):
        start = borders[-1]
        by_bytes = np.searchsorted(sums_bytes, int(sums_bytes[start]) + limit_bytes, "right")
        by_rows = np.searchsorted(sums_rows, int(sums_rows[start]) + limit_rows, "right")
        borders.append(max(int(min(by_bytes, by_rows)) - 1, start + 1))
    return borders
