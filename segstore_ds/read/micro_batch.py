"""How far a micro-batch goes: the limits of a trigger, all of them at once and exact.

Pure. A batch always holds at least one event, so that no limit can stop a query for good.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from segstore_ds.status.table_status import PlacedSegment

_ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The most that one micro-batch may hold; None for any (>= 1 otherwise)."""

    rows: int | None = None
    bytes: int | None = None
    segments: int | None = None


def plan_batch_end(
    segments: Iterable[PlacedSegment], start: int, end: int, limits: BatchLimits
) -> int:
    """Return the offset behind the last event of the batch that starts at an offset. Pure.

    The encoded bytes of the first n of a segment's events are ``bytes * n // rows``, so the parts
    of a segment add up to it whichever way it is cut. A segment counts when any of its events is
    in the batch.

    Args:
        segments: Those that hold ``[start, end)``, in offset order; taken as far as needed.
        start: First event of the batch, below `end`.
        end: Offset behind the last event there is.
        limits: All of them hold together.

    Returns:
        An offset in ``(start, end]``.
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
    """Return the last row up to which the rows from `first` on stay within `size` bytes."""
    budget = size + _encoded(placed, first)
    fitting = ((budget + 1) * placed.entry.rows - 1) // placed.entry.bytes
    return max(first, min(last, fitting))


def _encoded(placed: PlacedSegment, rows: int) -> int:
    return placed.entry.bytes * rows // placed.entry.rows
