"""The end of a micro-batch: applies all limits of a trigger together, exactly.

Pure. A batch holds at least one event, so that no limit stops a query forever.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from segstore_ds.status.table_status import PlacedSegment

_ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The most that one micro-batch may hold; each is >= 1, or None for no limit."""

    rows: int | None = None
    bytes: int | None = None
    segments: int | None = None


def plan_batch_end(
    segments: Iterable[PlacedSegment], start: int, end: int, limits: BatchLimits
) -> int:
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


def _take_bytes(placed: PlacedSegment, first: int, last: int, size: int) -> int:
    """Return the end of the longest run of rows from `first` that stays within `size` bytes."""
    budget = size + _encoded(placed, first)
    fitting = ((budget + 1) * placed.entry.rows - 1) // placed.entry.bytes
    return max(first, min(last, fitting))


def _encoded(placed: PlacedSegment, rows: int) -> int:
    return placed.entry.bytes * rows // placed.entry.rows
