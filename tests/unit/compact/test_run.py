"""What a commit may rewrite, and groups that other processes run."""

import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from stream_kit import SCHEMA, numbers, values

from segstore_ds.compact.commit import Replacement
from segstore_ds.compact.plan import Group, plan_groups
from segstore_ds.compact.rewrite import CompactJob
from segstore_ds.compact.run import (
    AUTO_PARQUET_BYTES,
    AUTO_PARQUET_ROWS,
    plan_auto,
    run_compact,
)
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import ARROW, PARQUET
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import CompactRules
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.reads import at_root
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout


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


def small_appends() -> Stream:
    """Return a stream of three commits of ten events each, which are in the commit files."""
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), SCHEMA)
    for first in (0, 10, 20):
        stream.append(numbers(first, first + 10))
    assert all(entry.frame for entry in stream._log.root.entries)
    return stream


def elsewhere(stream: Stream, other: Stream, *, compacted: bool = False) -> StreamContext:
    """Return a context that runs groups as another process gets them, each twice.

    Another handle commits meanwhile.
    """

    def launch(job: CompactJob, groups: Sequence[Group]) -> Iterator[Replacement]:
        if compacted:
            other.compact()
        else:
            other.append(numbers(other.tail, other.tail + 10))
        job, rows = pickle.loads(pickle.dumps((job, [*groups])))  # noqa: S301 - ours
        lost = [*job.run(rows)]
        done = [*job.run(rows)]
        assert {lost[0].outputs[0].path}.isdisjoint({done[0].outputs[0].path})
        yield from done

    return replace(stream._context, launch=launch)


def test_groups_that_tasks_run_are_rebased_over_appends() -> None:
    """Tasks read events of commit files from the job; appends meanwhile stay as they are."""
    stream = small_appends()
    rules = CompactRules(target_rows=30)
    done = run_compact(elsewhere(stream, stream), rules, Layout(), bounds=(0, 30))
    assert (done.groups, done.commits) == (1, 1)
    assert [entry.rows for entry in stream.refresh()._log.root.entries] == [
        30,
        *[10] * (stream.tail // 10 - 3),
    ]
    assert values(stream) == [*range(stream.tail)]
    stream.verify().check()


def test_groups_that_others_have_compacted_are_refused() -> None:
    """Tasks merge inline segments that the newest root no longer lists."""
    stream = small_appends()
    other = at_root(Stream, stream._log.storage, stream._log.root)
    done = run_compact(elsewhere(stream, other, compacted=True), CompactRules(), Layout())
    assert done.commits == 0
    assert not any(entry.frame for entry in stream.refresh()._log.root.entries)
    assert values(stream) == [*range(30)]
    stream.verify().check()
