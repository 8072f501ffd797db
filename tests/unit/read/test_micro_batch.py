"""How far a micro-batch goes: a table by hand, and an oracle that adds one event at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.format.root import SegmentEntry
from segstore_ds.read.micro_batch import BatchLimits, plan_batch_end
from segstore_ds.status.table_status import Slice


def place(*sizes: tuple[int, int], start: int = 0) -> list[Slice]:
    """Segments of (rows, bytes) one behind the other."""
    placed = []
    for number, (rows, size) in enumerate(sizes):
        entry = SegmentEntry(number, f"t/{number}.arrow", rows, size, 1, 0, "arrow", None)
        placed.append(Slice(start, entry))
        start += rows
    return placed


def plan_by_steps(segments: list[Slice], start: int, end: int, limits: BatchLimits) -> int:
    """The oracle: take one event more for as long as every limit holds."""

    def cost(first: int, last: int) -> tuple[int, int, int]:
        size = count = 0
        for one in segments:
            low, high = max(first, one.start), min(last, one.end)
            if low < high:
                before = one.entry.bytes * (low - one.start) // one.entry.rows
                size += one.entry.bytes * (high - one.start) // one.entry.rows - before
                count += 1
        return last - first, size, count

    most = (limits.rows, limits.bytes, limits.segments)
    reached = start + 1
    while reached < end:
        used = cost(start, reached + 1)
        if any(limit is not None and one > limit for one, limit in zip(used, most, strict=True)):
            break
        reached += 1
    return reached


TINY = place(*[(1, 300)] * 10)
HUGE = place((1000, 100_000), (1000, 50_000))


@pytest.mark.parametrize(
    ("segments", "start", "limits", "end"),
    [
        (TINY, 0, BatchLimits(), 10),
        (TINY, 0, BatchLimits(rows=7), 7),
        (TINY, 7, BatchLimits(rows=7), 10),
        (TINY, 0, BatchLimits(bytes=1), 1),
        (TINY, 0, BatchLimits(bytes=899), 2),
        (TINY, 0, BatchLimits(bytes=900), 3),
        (TINY, 3, BatchLimits(segments=1), 4),
        (TINY, 0, BatchLimits(rows=5, bytes=1200, segments=3), 3),
        (TINY, 0, BatchLimits(rows=5, bytes=1200, segments=9), 4),
        (TINY, 0, BatchLimits(rows=5, bytes=9000, segments=9), 5),
        (HUGE, 0, BatchLimits(), 2000),
        (HUGE, 0, BatchLimits(rows=1), 1),
        (HUGE, 999, BatchLimits(rows=2), 1001),
        (HUGE, 0, BatchLimits(bytes=1), 1),
        (HUGE, 0, BatchLimits(bytes=199), 1),
        (HUGE, 0, BatchLimits(bytes=200), 2),
        (HUGE, 998, BatchLimits(bytes=300), 1002),
        (HUGE, 10, BatchLimits(segments=1), 1000),
        (HUGE, 999, BatchLimits(segments=2), 2000),
    ],
)
def test_batch_ends_at_the_limits(
    segments: list[Slice], start: int, limits: BatchLimits, end: int
) -> None:
    """Many tiny and few huge segments, each limit alone and all together."""
    last = segments[-1].end
    within = [segment for segment in segments if segment.end > start]
    assert plan_batch_end(within, start, last, limits) == end
    assert plan_by_steps(segments, start, last, limits) == end


limit = st.none() | st.integers(1, 60)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 40)), min_size=1, max_size=8),
    bounds=st.tuples(st.integers(0, 95), st.integers(1, 95)),
    origin=st.integers(0, 50),
    limits=st.builds(BatchLimits, limit, limit, limit),
)
def test_batch_ends_where_one_event_more_would_pass_a_limit(
    sizes: list[tuple[int, int]], bounds: tuple[int, int], origin: int, limits: BatchLimits
) -> None:
    """Any segments, any range of them, any limits."""
    segments = place(*sizes, start=origin)
    rows = segments[-1].end - origin
    start = origin + bounds[0] % rows
    end = start + 1 + bounds[1] % (origin + rows - start)
    within = [segment for segment in segments if segment.end > start and segment.start < end]
    reached = plan_batch_end(within, start, end, limits)
    assert reached == plan_by_steps(segments, start, end, limits)
    assert start < reached <= end
