"""Which segments may hold times of an interval: as told from each one's bounds."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.statistics import ColumnStats
from segstore_ds.read.filters import parse_filters
from segstore_ds.read.time_index import TimeIndex, is_window, time_index, window_of
from segstore_ds.status.table_status import Run, TableStatus
from segstore_ds.storage import open_storage

SCHEMA = pa.schema([("t", pa.int64()), ("n", pa.int64())])
FIELD = SCHEMA.field("t")
NONE = ColumnStats(None, None, 9)
BOUNDS = st.tuples(st.integers(-9, 9), st.integers(0, 5)).map(
    lambda pair: ColumnStats(pair[0], pair[0] + pair[1], 0)
)


@given(
    found=st.lists(st.none() | st.just(NONE) | BOUNDS, min_size=1, max_size=12),
    ordered=st.booleans(),
    window=st.tuples(st.none() | st.integers(-10, 15), st.none() | st.integers(-10, 15)),
    floats=st.booleans(),
)
def test_segments_are_those_whose_bounds_meet_the_window(
    found: list[Any], ordered: bool, window: tuple[int | None, int | None], floats: bool
) -> None:
    if ordered:
        found.sort(key=lambda bounds: bounds.min if bounds and bounds.min is not None else 0)
    index = TimeIndex.of(found, pa.float64() if floats else pa.int64())
    start, end = window

    def may_hold(bounds: ColumnStats | None) -> bool:
        if bounds is None:
            return True
        if bounds.min is None:
            return start is None and end is None
        return (start is None or bounds.max >= start) and (end is None or bounds.min <= end)

    if window != (None, None):
        expected = [row for row, bounds in enumerate(found) if may_hold(bounds)]
        assert index.within(window, 0, len(found)).tolist() == expected
        assert index.within(window, 1, len(found)).tolist() == [row for row in expected if row]


def run_of(*texts: str | None) -> Run:
    entries = [SegmentEntry(n, f"t/{n}", 9, 99, 9, 7) for n in range(len(texts))]
    return Run(0, from_entries(entries), lambda: texts)


def known(*texts: str | None, schema: pa.Schema = SCHEMA) -> list[Any]:
    status = TableStatus(open_storage("memory://index"))
    index = time_index(status, run_of(*texts), FIELD, {0: schema})
    bounds = zip(index.low.tolist(), index.high.tolist(), strict=True)
    return [pair if sure else None for pair, sure in zip(bounds, index.known.tolist(), strict=True)]


def test_bounds_are_those_of_the_time_column() -> None:
    texts = (
        '{"n":[7,8,0],"t":[1,2,0]}',
        None,
        '{"n":[7,8,0]}',
        f'{{"t":[{-(10**30)},{10**30},1]}}',
    )
    assert known(*texts) == [(1, 2), None, None, (-(2**63), 2**63 - 1)]
    ((low, high),) = known('{"t":[null,null,9]}')
    assert low > high
    assert known(None, schema=SCHEMA.remove(0)) == [(low, high)]  # the column appeared later


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"t":[1,2]}', '{"t":["x","y",0]}', '{"t":[true,2,0]}', "{},{}", ""]
)
def test_damaged_bounds_name_their_segment(text: str) -> None:
    with pytest.raises(CorruptionError, match="t/1"):
        known('{"t":[1,2,0]}', text)


@pytest.mark.parametrize(
    ("filters", "window"),
    [
        ([["t", ">=", 3], ["t", "<", 5], ["t", ">", 2]], (3, 4)),
        ([["t", ">", 3]], (4, None)),
        ([["t", "==", 3]], (3, 3)),
        ([["n", "==", 3], ["t", "<=", 4]], (None, 4)),
        ([["n", "==", 3], ["t", "!=", 4]], None),
        ([[["t", "<", 3]], [["t", ">", 4]]], None),
    ],
)
def test_window_is_what_filters_leave(filters: Any, window: Any) -> None:
    assert window_of(parse_filters(filters, SCHEMA), "t") == window
    assert window_of(parse_filters(filters, SCHEMA), None) is None


def test_window_of_fractions_keeps_its_ends() -> None:
    schema = pa.schema([("t", pa.float64())])
    found = parse_filters([["t", ">", 1], ["t", "<", 2.5]], schema)
    assert window_of(found, "t") == (1.0, 2.5)
    assert not is_window(found, "t")


@pytest.mark.parametrize(
    ("filters", "whole"),
    [
        ([["t", ">=", 3], ["t", "<", 5]], True),
        ([["t", ">=", 3], ["n", "<", 5]], False),
        ([["t", ">=", 3], ["t", "!=", 5]], False),
        ([["t", "in", [3]]], False),
        ([[["t", "<", 3]], [["t", ">", 4]]], False),
    ],
)
def test_bounds_alone_decide_where_filters_are_a_window(filters: Any, whole: bool) -> None:
    assert is_window(parse_filters(filters, SCHEMA), "t") == whole
