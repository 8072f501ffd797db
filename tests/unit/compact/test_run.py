"""What a commit may rewrite: less if it must decode and encode Parquet."""

import pytest

from segstore_ds.compact.plan import plan_groups
from segstore_ds.compact.run import AUTO_PARQUET_BYTES, AUTO_PARQUET_ROWS, plan_auto
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import ARROW, PARQUET
from segstore_ds.options.compaction import CompactRules
from segstore_ds.status.table_status import PlacedSegment


def placed(count: int, form: str, *, rows: int, size: int) -> list[PlacedSegment]:
    """Return segments of equal size, one after the other."""
    return [
        PlacedSegment(
            n * rows,
            SegmentEntry(
                segment_id=n + 1,
                path=f"x/{n}",
                rows=rows,
                bytes=size,
                footer_bytes=100,
                footer_crc=0,
                format=form,
            ),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(("rows", "size"), [(50_000, 1000), (100, 900_000)])
def test_parquet_merged_after_a_commit_is_bounded(rows, size):
    rules = plan_auto(CompactRules(), parquet=True)
    groups = plan_groups(placed(40, PARQUET, rows=rows, size=size), rules)
    assert groups
    assert max(group.rows for group in groups) <= AUTO_PARQUET_ROWS
    assert sum(group.bytes for group in groups) <= AUTO_PARQUET_BYTES


def test_arrow_frames_are_not_bounded_by_rows():
    groups = plan_groups(placed(40, ARROW, rows=50_000, size=1000), plan_auto(CompactRules()))
    assert max(group.rows for group in groups) > AUTO_PARQUET_ROWS


def test_own_targets_still_hold():
    rules = plan_auto(CompactRules(target_rows=10, target_bytes=1000), parquet=True)
    assert (rules.target_rows, rules.budget_bytes) == (10, 1000)
