"""Rows of a compaction plan: they come back as they went, and nothing else is taken."""

import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from segstore_ds.compact.plan import Group
from segstore_ds.compact.rewrite import plan_job
from segstore_ds.compact.rows import PLAN_SCHEMA, build_row, parse_row
from segstore_ds.compact.run import commit_job, plan_rows
from segstore_ds.errors import ConflictError, InvalidInputError
from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.inline import encoded_entry
from segstore_ds.format.root import SegmentEntry
from segstore_ds.options.arguments import CompactRules
from segstore_ds.status.parts import SegmentsTable
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout
from tests.stream_kit import SCHEMA, SOFT, make_stream, numbers, values

RULES = CompactRules()
GROUP = Group(
    (PlacedSegment(5, SegmentEntry(1 << 32 | 7, "t/a", 30, 200, 9, 4, "arrow", "{}")),),
    1,
    3,
    CompactRules("split", 10, 100),
)


def test_rows_come_back() -> None:
    """What a row says is what was planned."""
    row = build_row("id", 3, 2, GROUP)
    assert [*row] == PLAN_SCHEMA.names
    assert parse_row(row, stream_id="id") == GROUP


def test_rows_hold_the_frames_of_inline_segments() -> None:
    """A task has nothing else to read them from."""
    batch = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
    frame = encode_frame(batch, compression="none", compression_level=None, stats_columns=["n"])
    inline = PlacedSegment(35, encoded_entry(1 << 32 | 8, frame))
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


def test_changed_inputs_are_refused() -> None:
    """Also within the plan."""
    row = build_row("id", 3, 2, GROUP)
    plan = json.loads(row["plan"])
    plan["inputs"][0][1] = "../../secret"
    row["plan"] = json.dumps(plan)
    with pytest.raises(InvalidInputError, match="was changed"):
        parse_row(row, stream_id="id")


def test_rows_of_another_stream_are_refused() -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError, match="another stream"):
        parse_row(build_row("other", 3, 2, GROUP), stream_id="id")


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
