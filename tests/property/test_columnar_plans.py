"""Plans on columns give exactly what plans on slices one by one give."""

from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.root import SegmentEntry
from segstore_ds.read.plan import plan_slices, plan_tasks
from segstore_ds.status.slices import SliceTable
from segstore_ds.status.table_status import PlacedSegment, Run

SMALL = st.tuples(st.integers(1, 50), st.integers(1, 2000))
HUGE = st.tuples(st.integers(1, 2**40), st.integers(1, 2**45))


@given(
    st.lists(st.lists(SMALL, min_size=1, max_size=12), max_size=4),
    st.integers(0, 200),
    st.integers(0, 200),
    st.fixed_dictionaries(
        {
            "partition_bytes": st.integers(1, 3000),
            "partition_rows": st.none() | st.integers(1, 60),
            "min_partitions": st.none() | st.integers(1, 12),
        }
    ),
)
def test_tasks_are_those_of_the_slices_one_by_one(parts, skip, drop, targets):
    placed, tables, offset, number = [], [], 0, 0
    end = sum(one for part in parts for one, _ in part) - drop
    for part in parts:
        entries = []
        for count, encoded in part:
            entries.append(SegmentEntry(number, f"t/{number}", count, encoded, 9, 7))
            number += 1
        run = Run(offset, from_entries(entries), list)
        for entry in entries:
            placed.append(PlacedSegment(offset, entry))
            offset += entry.rows
        if run.start < end and offset > skip and skip < end:
            tables.append(SliceTable.of_run(run.trimmed(skip, end), skip, end, None))
    table = SliceTable.join(tables)
    slices = plan_slices(placed, skip, end) if skip < end else []
    assert list(table) == slices
    expected = plan_tasks(slices, **targets)
    assert plan_tasks(table, **targets) == expected


@given(st.lists(HUGE, min_size=1, max_size=5), st.integers(2**40, 2**45))
def test_sizes_beyond_64_bits_are_packed_exactly(sizes, target):
    entries = [SegmentEntry(n, f"t/{n}", rows, size, 9, 7) for n, (rows, size) in enumerate(sizes)]
    run = Run(0, from_entries(entries), list)
    end = sum(rows for rows, _ in sizes)
    table = SliceTable.of_run(run, 0, end, None)
    assert plan_tasks(table, partition_bytes=target) == plan_tasks(
        list(table), partition_bytes=target
    )
