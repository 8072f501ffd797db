"""Micro-batches: where one ends by all limits of a trigger, and whether to wait for more events."""

from collections.abc import Iterable
from dataclasses import dataclass

from segstore_ds.errors import NotFoundError
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.status.table_status import Slice

_ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The most that one micro-batch may hold; each is >= 1, or None for no limit."""

    rows: int | None = None
    bytes: int | None = None
    segments: int | None = None


def plan_batch_end(segments: Iterable[Slice], start: int, end: int, limits: BatchLimits) -> int:
    """Return the end offset, in ``(start, end]``, of the batch that starts at `start`. Pure.

    The first n events of a segment count as ``bytes * n // rows`` encoded bytes, so the pieces of a
    segment add up to its size however it is cut. A segment counts if the batch holds any of its
    events. `segments` holds ``[start, end)`` in offset order, and is consumed as far as needed.
    """
    rows, size = limits.rows or _ANY, limits.bytes or _ANY
    most_segments = limits.segments or _ANY
    cursor = start
    for count, placed in enumerate(segments, 1):
        first, last = cursor - placed.start, min(end, placed.end) - placed.start
        taken = _take_bytes(placed, first, last, size)
        taken = min(taken, first + rows)
        if cursor == start:
            taken = max(taken, first + 1)
        cursor = placed.start + taken
        if taken < last or count == most_segments:
            break
        rows -= taken - first
        size -= _encoded(placed, taken) - _encoded(placed, first)
    return cursor


def bytes_between(segments: Iterable[Slice], start: int, end: int) -> int:
    """Return the encoded bytes of the events ``[start, end)``, counted as in `plan_batch_end`."""
    return sum(
        _encoded(each, min(end, each.end) - each.start)
        - _encoded(each, max(start, each.start) - each.start)
        for each in segments
    )


def _take_bytes(placed: Slice, first: int, last: int, size: int) -> int:
    """Return the end of the longest run of rows from `first` that stays within `size` bytes."""
    budget = size + _encoded(placed, first)
    fitting = ((budget + 1) * placed.entry.rows - 1) // placed.entry.bytes
    return max(first, min(last, fitting))


def _encoded(placed: Slice, rows: int) -> int:
    return placed.entry.bytes * rows // placed.entry.rows


class Waiting:
    """Decides whether the next events of one reader wait for more.

    The delay counts from the commit of the first of them, which the history knows: a restarted
    reader waits only for the rest. Once they are seen, the boot clock counts, so the wall clock may
    jump.
    """

    def __init__(self, context: StreamContext, least_rows: int | None, delay_s: float) -> None:
        self._context, self._least_rows, self._delay_s = context, least_rows, delay_s
        self._first = -1
        self._since_s = 0.0

    def holds(self, root: Root, start: int, end: int) -> bool:
        """Tell whether the events ``[start, end)`` wait: they are too few, and more may come."""
        if self._least_rows is None or end - start >= self._least_rows:
            return False
        if root.sealed or not root.head <= start < end:
            return False
        now_s = self._context.clock.boot_s()
        if start != self._first:
            self._first, self._since_s = start, now_s - self._age_s(root, start)
        return now_s - self._since_s < self._delay_s

    def _age_s(self, root: Root, offset: int) -> float:
        try:
            times = self._context.log.history.commit_times(root, offset, offset + 1)[1]
        except NotFoundError:
            return 0.0
        return max(self._context.clock.wall_us() - int(times[0]), 0) / 1e6
