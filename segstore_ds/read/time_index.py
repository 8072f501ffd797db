"""The bounds in time of neighbouring segments as columns, with running extremes.

The greatest time up to a segment never falls from one segment to the next, nor does the least time
from a segment on. So two binary searches leave the segments from the first that reaches a moment to
the last that begins before another one: few in a stream that is nearly ordered. Of these the bounds
of each one decide, so no more than needed are read of a disordered stream, and none is missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.parts.packed import Ints
from segstore_ds.format.statistics import ColumnStats
from segstore_ds.read.filters import Filters
from segstore_ds.status.segment_bounds import segment_bounds
from segstore_ds.status.table_status import Run, TableStatus

Window = tuple[Any, Any]
_LOWER, _UPPER = frozenset((">=", ">", "==")), frozenset(("<", "<=", "=="))


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """Bounds of the time column, a row per segment.

    Attributes:
        low: The least time; the least possible one if unknown, above `high` if there is none.
        high: The greatest time; the greatest possible one if unknown.
        known: Whether the bounds are known.
        reached: The greatest time up to and with each segment.
        left: The least time from each segment on.
    """

    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]
    reached: npt.NDArray[Any]
    left: npt.NDArray[Any]

    @classmethod
    def of(cls, found: Sequence[ColumnStats | None], data_type: pa.DataType) -> "TimeIndex":
        """Return the index of bounds: None if unknown, both None if a segment holds no time."""
        least, most = limits_of(data_type)
        dtype = np.float64 if t.is_floating(data_type) else np.int64

        def clip(bound: Any) -> Any:
            return min(max(bound, least), most)

        pairs: list[tuple[Any, Any]] = []
        for bounds in found:
            if bounds is None:
                pairs.append((least, most))
            elif bounds.min is None:
                pairs.append((most, least))
            else:
                # Metadata may say more than 64 bits hold; no value is beyond the limits.
                pairs.append((clip(bounds.min), clip(bounds.max)))
        low, high = (np.array([pair[side] for pair in pairs], dtype) for side in (0, 1))
        known = np.array([bounds is not None for bounds in found], np.bool_)
        return cls(low, high, known, np.maximum.accumulate(high), least_from(low))

    def within(self, window: Window, first: int, last: int) -> Ints:
        """Return which of the rows ``[first, last)`` may hold a time of a closed interval."""
        start, end = window
        if start is not None:
            first = max(first, int(np.searchsorted(self.reached, start, "left")))
        if end is not None:
            last = min(last, int(np.searchsorted(self.left, end, "right")))
        rows: Ints = np.arange(first, max(first, last))
        if start is not None:
            rows = rows[self.high[rows] >= start]
        if end is not None:
            rows = rows[self.low[rows] <= end]
        return rows


def limits_of(data_type: pa.DataType) -> tuple[Any, Any]:
    """Return the least and the greatest value that bounds of a type can have."""
    if t.is_floating(data_type):
        return -np.inf, np.inf
    integers = np.iinfo(np.int64)
    return int(integers.min), int(integers.max)


def least_from(low: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the least value from each place on."""
    least: npt.NDArray[Any] = np.minimum.accumulate(low[::-1])[::-1]
    return least


def window_of(filters: Filters, column: str | None) -> Window | None:
    """Return the closed interval that filters leave of a column; None if they leave all of it."""
    start = end = None
    for condition in filters.conditions:
        value: Any = condition.literal
        if condition.column != column or type(value) not in (int, float):
            continue
        # Of whole numbers, the next one is the first behind a bound that is not itself within.
        step = 0 if t.is_floating(condition.type) else 1
        if condition.op in _LOWER:
            least = value + step * (condition.op == ">")
            start = least if start is None else max(start, least)
        if condition.op in _UPPER:
            most = value - step * (condition.op == "<")
            end = most if end is None else min(end, most)
    return None if start is None and end is None else (start, end)


def is_window(filters: Filters, column: str | None) -> bool:
    """Tell whether the bounds of a column of whole numbers say all that statistics can say."""
    return not (filters.any_of or filters.expression) and all(
        condition.column == column
        and condition.op in _LOWER | _UPPER
        and type(condition.literal) is int
        and not t.is_floating(condition.type)
        for condition in filters.conditions
    )


def time_index(
    status: TableStatus, run: Run, field: pa.Field, schemas: Mapping[int, pa.Schema]
) -> TimeIndex:
    """Return the index of a whole part, which is kept for later plans, or of inline segments."""

    def build(run: Run) -> TimeIndex:
        columns = run.columns
        facts = (columns.epochs.tolist(), columns.rows.tolist())
        found = segment_bounds(run.load_stats(), *facts, field, schemas, where=columns.path)
        return TimeIndex.of(found, field.type)

    return status.derived(run, f"{field.type} {field.name}", build)
