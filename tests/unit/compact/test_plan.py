"""Which runs are compacted: tables of sizes in, tables of groups out."""

import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.compact.plan import (
    PLAN_SCHEMA,
    Group,
    build_row,
    parse_row,
    plan_groups,
    plan_pieces,
    small_segments,
)
from segstore_ds.compact.rewrite import plan_job
from segstore_ds.compact.run import (
    AUTO_PARQUET_BYTES,
    AUTO_PARQUET_ROWS,
    commit_job,
    plan_auto,
    plan_rows,
)
from segstore_ds.errors import ConflictError, InvalidInputError
from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.inline import encoded_entry
from segstore_ds.format.root import SegmentEntry
from segstore_ds.options.arguments import CompactRules
from segstore_ds.status.parts import SegmentsTable
from segstore_ds.status.table_status import Slice
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout
from tests.stream_kit import SCHEMA, SOFT, make_stream, numbers, values


def _placed(sizes: list, epochs: list[int] | None = None) -> list[Slice]:
    found, start = [], 0
    for place, size in enumerate(sizes):
        rows, encoded = size if isinstance(size, tuple) else (1, size)
        epoch = epochs[place] if epochs else 0
        entry = SegmentEntry(epoch << 32 | place, f"t/{place}", rows, encoded, 1, 0)
        found.append(Slice(start, entry))
        start += rows
    return found


def _places(groups: list) -> list[list[int]]:
    return [[segment.entry.segment_id & 0xFFFFFFFF for segment in group.inputs] for group in groups]


def _rules(**changes: object) -> CompactRules:
    return CompactRules(**{"mode": "merge", "target_rows": 100, "target_bytes": 100, **changes})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([10], []),
        ([60, 60], []),
        ([60, 40], [[0, 1]]),
        ([60, 41], []),
        ([50, 50, 50], [[0, 1]]),
        ([50, 50, 50, 50], [[0, 1], [2, 3]]),
        ([200, 10, 10, 200, 10, 10], [[1, 2], [4, 5]]),
        ([200, 10, 200], []),
        ([10] * 25, [[*range(10)], [*range(10, 20)], [*range(20, 25)]]),
        ([(60, 1), (41, 1)], []),
        ([(60, 1), (40, 1)], [[0, 1]]),
    ],
)
def test_runs_stay_within_rows_and_bytes(sizes: list, expected: list) -> None:
    """Where a pair would exceed either target there is nothing to do."""
    assert _places(plan_groups(_placed(sizes), _rules())) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1, 1], []),
        ([1, 1, 1, 1], [[0, 1, 2, 3]]),
        ([4, 1, 1, 1], []),
        ([4, 4, 4, 4], [[0, 1, 2, 3]]),
        ([4, 1, 1, 1, 1], [[0, 1, 2, 3, 4]]),
        ([90, 1, 1, 1, 1], [[1, 2, 3, 4]]),
        ([30, 30], []),
        ([30, 30, 30], [[0, 1, 2]]),
        ([30, 30, 30, 1], [[0, 1, 2, 3]]),
    ],
)
def test_minor_takes_only_what_is_worth_it(sizes: list, expected: list) -> None:
    """Four small or three medium ones, and at least twice the largest."""
    assert _places(plan_groups(_placed(sizes), _rules(minor=(4, 3)))) == expected


@pytest.mark.parametrize(
    ("mode", "joins", "expected"),
    [
        ("merge", True, [[0, 1, 2, 3]]),
        ("merge", False, [[0, 1], [2, 3]]),
        ("stitch", True, [[0, 1], [2, 3]]),
    ],
)
def test_runs_cross_an_epoch_only_where_bytes_are_lifted(
    mode: str, joins: bool, expected: list
) -> None:
    """A merge lifts the older frames, if it can; a stitch never does."""
    segments = _placed([1, 1, 1, 1], epochs=[0, 0, 1, 1])
    groups = plan_groups(segments, _rules(mode=mode), joins=lambda _older, _newer: joins)
    assert _places(groups) == expected
    assert [group.epoch for group in groups] == ([1] if len(groups) == 1 else [0, 1])


def test_budget_takes_the_newest_first() -> None:
    """A bounded call never takes more bytes than its budget."""
    rules = _rules(budget_bytes=40)
    assert _places(plan_groups(_placed([10] * 10), rules)) == [[8, 9]]
    assert _places(plan_groups(_placed([50, 50]), rules)) == []


@pytest.mark.parametrize(
    ("rows", "size", "pieces"), [(100, 100, 1), (101, 1, 2), (1, 1000, 1), (7, 1000, 7)]
)
def test_split_is_cut_at_row_borders(rows: int, size: int, pieces: int) -> None:
    """A segment over a target is cut in as few pieces as it takes, never within a row."""
    assert plan_pieces(rows, size, _rules(mode="split")) == pieces
    groups = plan_groups(_placed([(rows, size)]), _rules(mode="split"))
    assert [group.pieces for group in groups] == ([pieces] if pieces > 1 else [])


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=40),
    st.lists(st.integers(0, 2), min_size=40, max_size=40),
    st.sampled_from([None, (4, 3), (2, 2)]),
)
def test_groups_are_neighbours_within_the_targets(
    sizes: list, epochs: list[int], minor: tuple[int, int] | None
) -> None:
    """Whatever the sizes: contiguous, apart, within both targets, at least two inputs."""
    rules = _rules(minor=minor)
    segments = _placed(sizes, epochs)
    cursor = 0
    for group in plan_groups(segments, rules, joins=lambda older, newer: (older, newer) == (0, 1)):
        first = segments.index(group.inputs[0])
        assert first >= cursor
        cursor = first + len(group.inputs)
        assert segments[first:cursor] == list(group.inputs)
        assert len(group.inputs) >= 2
        assert group.rows <= 100
        assert group.bytes <= 100
        found = {segment.entry.epoch for segment in group.inputs}
        assert found <= ({0, 1} if group.epoch == 1 else {group.epoch})


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(1, 120)), max_size=12))
def test_there_is_debt_exactly_where_a_compaction_joins(sizes: list[tuple[int, int]]) -> None:
    """The figure of small segments counts at least those that the planner takes."""
    groups = plan_groups(_placed(sizes), _rules())
    rows, encoded = np.array(sizes, np.int64).reshape(-1, 2).T
    count, total = small_segments(rows, encoded, _rules())
    assert bool(count) == bool(groups)
    assert sum(len(group.inputs) for group in groups) <= count <= len(sizes)
    assert total >= sum(group.bytes for group in groups)


@pytest.mark.parametrize(("rows", "size"), [(50_000, 1000), (100, 900_000)])
def test_parquet_merged_after_a_commit_is_bounded(rows: int, size: int) -> None:
    """A commit waits for it; frames of Arrow are joined without a limit of rows."""
    groups = plan_groups(_placed([(rows, size)] * 40), plan_auto(CompactRules(), parquet=True))
    assert 0 < max(group.rows for group in groups) <= AUTO_PARQUET_ROWS
    assert sum(group.bytes for group in groups) <= AUTO_PARQUET_BYTES


def test_minor_compaction_bounds_rewriting() -> None:
    """A thousand equal segments, one after the other: few stay, each event moves a few times."""
    rules = CompactRules("merge", 1 << 40, 1 << 40, minor=(4, 3))
    sizes: list[int] = []
    moved = 0
    for _ in range(1000):
        sizes.append(1)
        for places in reversed(_places(plan_groups(_placed(sizes), rules))):
            total = sum(sizes[place] for place in places)
            moved += total
            sizes[places[0] : places[-1] + 1] = [total]
        assert len(sizes) <= 24
    assert sum(sizes) == 1000
    assert moved <= 1000 * 10


RULES = CompactRules()
GROUP = Group(
    (Slice(5, SegmentEntry(1 << 32 | 7, "t/a", 30, 200, 9, 4, "arrow", "{}")),),
    1,
    3,
    CompactRules("split", 10, 100),
)


def test_rows_hold_the_frames_of_inline_segments() -> None:
    """A task has nothing else to read them from."""
    batch = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
    frame = encode_frame(batch, compression="none", compression_level=None, stats_columns=["n"])
    inline = Slice(35, encoded_entry(1 << 32 | 8, frame))
    group = replace(GROUP, inputs=(*GROUP.inputs, inline), pieces=1)
    row = build_row("id", 3, 2, group)
    assert parse_row(row, stream_id="id") == group


@pytest.mark.parametrize("name", [name for name in PLAN_SCHEMA.names if name != "plan"])
def test_changed_rows_are_refused(name: str) -> None:
    """Whichever value is changed."""
    row = build_row("id", 3, 2, GROUP)
    row[name] = row[name] + (1 if isinstance(row[name], int) else "x")
    with pytest.raises(InvalidInputError, match="was changed"):
        parse_row(row, stream_id="id")


def small_appends() -> Stream:
    """Return a stream of three commits of ten events each."""
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), SCHEMA)
    for first in (0, 10, 20):
        stream.append(numbers(first, first + 10))
    return stream


def test_rows_hold_the_events_of_commit_files() -> None:
    """Tasks merge inline segments that the newest root no longer has; the commit is refused."""
    stream = small_appends()
    assert all(entry.frame for entry in stream._log.root.entries)
    rows = plan_rows(stream._context, stream._log.root, RULES, (0, 30))
    stream.compact()
    assert not any(entry.frame for entry in stream._log.root.entries)
    job = plan_job(stream._context, stream._log.root, Layout(), stages=True)
    done = [*job.run(job.take(rows))]
    assert [run.rows for run in done] == [30]
    before = stream._log.root
    with pytest.raises(ConflictError, match="no longer listed"):
        commit_job(stream._context, job, done)
    assert stream.refresh()._log.root.entries == before.entries
    assert values(stream) == [*range(30)]
    stream.verify().check()


def test_planned_rows_of_inline_segments_are_merged() -> None:
    """Appends meanwhile stay as they are; a row that came twice is one group."""
    stream = small_appends()
    rows = plan_rows(stream._context, stream._log.root, RULES, (0, 30))
    job = plan_job(stream._context, stream._log.root, Layout(), stages=True)
    stream.append(numbers(30, 40))
    groups = [*job.take(rows * 2)]
    assert len(groups) == len(rows)
    commit_job(stream._context, job, [*job.run(groups)])
    assert [entry.rows for entry in stream.refresh()._log.root.entries] == [30, 10]
    assert values(stream) == [*range(40)]
    stream.verify().check()


def test_a_plan_reads_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie apart from the segments of a part: a request each, and a text per segment."""
    monkeypatch.setattr(SOFT, 3)
    stream, _ = make_stream(12)
    root = stream._log.root
    assert root.parts
    monkeypatch.setattr(SegmentsTable, "stats", lambda *_: pytest.fail("statistics were read"))
    (row,) = plan_rows(stream._context, root, RULES, (0, stream.tail))
    assert row["segments"] == sum(part.count for part in root.parts) + len(root.entries)
