"""Compaction debt against the planner of compactions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.compact.plan import plan_groups, small_segments
from segstore_ds.format.root import SegmentEntry
from segstore_ds.options.arguments import CompactRules
from segstore_ds.status.table_status import PlacedSegment

RULES = CompactRules(target_rows=20, target_bytes=200)
SEGMENTS = st.lists(st.tuples(st.integers(1, 25), st.integers(1, 250)), max_size=12)


def debt(sizes):
    rows, size = np.array(sizes, np.int64).reshape(-1, 2).T
    return small_segments(rows, size, RULES)


def placed(sizes):
    found, start = [], 0
    for number, (rows, size) in enumerate(sizes):
        entry = SegmentEntry(number, f"t/{number}", rows, size, 10, 0, frames=1, frame_raws=1)
        found.append(PlacedSegment(start, entry))
        start += rows
    return found


@given(SEGMENTS)
def test_there_is_debt_exactly_where_a_compaction_joins(sizes):
    groups = [g for g in plan_groups(placed(sizes), RULES) if len(g.inputs) > 1]
    count, total = debt(sizes)
    assert bool(count) == bool(groups)
    joined = {s.entry.segment_id for g in groups for s in g.inputs}
    assert len(joined) <= count <= len(sizes)
    assert total >= sum(g.bytes for g in groups)
