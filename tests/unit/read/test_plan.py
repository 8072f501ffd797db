"""Plans: every row of the range is claimed by one task, and tasks are near their targets."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.arrow.segment import ArrowIndex
from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.statistics import Stats
from segstore_ds.read.filters.given import parse_filters
from segstore_ds.read.plan import plan_frames, plan_tasks
from segstore_ds.status.slices import SliceTable
from segstore_ds.status.table_status import PlacedSegment, Run

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
NO_FILTERS = parse_filters(None, SCHEMA)


def plan(sizes: list[tuple[int, int]], start: int, end: int) -> SliceTable:
    """Return what to read of segments of (rows, bytes) that follow each other."""
    entries = [SegmentEntry(n, f"t/{n}", rows, size, 9, 7) for n, (rows, size) in enumerate(sizes)]
    end = min(end, sum(rows for rows, _ in sizes))
    if start >= end:
        return SliceTable()
    run = Run(0, from_entries(entries), list).trimmed(start, end)
    return SliceTable.of_run(run, start, end, None)


def claims(tasks) -> list[PlacedSegment]:
    return [piece for task in tasks for piece in task.slices]


def claimed_rows(piece: PlacedSegment) -> int:
    return min(piece.rows[1], piece.claim[1]) - max(piece.rows[0], piece.claim[0])


SIZES = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 10_000)), min_size=1, max_size=8)


@st.composite
def scans(draw):
    """Segments with their frames, a range, and targets."""
    sizes = draw(SIZES)
    frames = []
    for rows, _ in sizes:
        cuts = draw(st.sets(st.integers(1, rows), max_size=6)) - {rows}
        frames.append([end - start for start, end in pairwise([0, *sorted(cuts), rows])])
    total = sum(rows for rows, _ in sizes)
    start = draw(st.integers(0, total))
    end = draw(st.integers(start, total))
    targets = {
        "partition_bytes": draw(st.integers(1, 20_000)),
        "partition_rows": draw(st.none() | st.integers(1, 500)),
        "min_partitions": draw(st.none() | st.integers(1, 50)),
    }
    return sizes, frames, start, end, targets


@given(scans())
@settings(deadline=None)
def test_every_row_of_the_range_is_read_by_one_task(scanned):
    """However the frames lie: a task takes those that start within its claim, clipped to rows."""
    sizes, frames, start, end, targets = scanned
    tasks = plan_tasks(plan(sizes, start, end), **targets)
    read = []
    for piece in claims(tasks):
        entries = tuple(frame(rows) for rows in frames[piece.entry.segment_id])
        index = ArrowIndex(entries, Stats(len(entries), {}))
        for number, row in plan_frames(index, piece, NO_FILTERS):
            entry = entries[number]
            first, last = max(row, piece.rows[0]), min(row + entry.rows, piece.rows[1])
            read += range(piece.start + first, piece.start + last)
    assert read == list(range(start, end))


def frame(rows: int, start: int = 0, size: int = 64) -> FrameEntry:
    return FrameEntry(start=start, bytes=size, rows=rows, crc=0, fingerprint="f", raw_bytes=1)


@given(scans())
@settings(deadline=None)
def test_tasks_are_in_order_never_empty_and_near_their_targets(scanned):
    sizes, _, start, end, targets = scanned
    tasks = plan_tasks(plan(sizes, start, end), **targets)
    assert all(task.slices for task in tasks)
    assert all(claimed_rows(piece) > 0 for piece in claims(tasks))
    assert sum(map(claimed_rows, claims(tasks))) == end - start
    starts = [piece.start + piece.claim[0] for piece in claims(tasks)]
    assert starts == sorted(starts)
    wanted = targets["min_partitions"]
    if targets["partition_rows"]:
        most = targets["partition_rows"] * 1.1 + 1
        assert all(sum(map(claimed_rows, task.slices)) <= most for task in tasks)
    if wanted and tasks:
        assert len(tasks) >= min(wanted, end - start) / 2.2


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        (0, 60, [(0, 10), (0, 20), (0, 30)]),
        (5, 55, [(5, 10), (0, 20), (0, 25)]),
        (10, 30, [(0, 20)]),
        (12, 13, [(2, 3)]),
        (0, 0, []),
        (60, 60, []),
    ],
)
def test_slices_hold_the_rows_of_the_range(start, end, rows):
    slices = plan([(10, 1), (20, 1), (30, 1)], start, end)
    assert [piece.rows for piece in slices] == rows


@pytest.mark.parametrize(
    ("sizes", "target", "shape"),
    [
        ([(10, 100)] * 10, 1000, [10]),
        ([(10, 100)] * 10, 250, [2, 2, 2, 2, 2]),
        ([(10, 100)] * 10, 275, [3, 3, 3, 1]),
        ([(10, 100)] * 11, 1000, [11]),
        ([(100, 1000)], 250, [1, 1, 1, 1]),
        ([(100, 1000)], 100_000, [1]),
        ([(3, 1000)], 1, [1, 1, 1]),
        ([(10, 10), (100, 1000), (10, 10)], 500, [2, 2]),
    ],
)
def test_small_segments_are_packed_and_large_ones_split(sizes, target, shape):
    tasks = plan_tasks(plan(sizes, 0, 10**9), partition_bytes=target)
    assert [len(task.slices) for task in tasks] == shape
