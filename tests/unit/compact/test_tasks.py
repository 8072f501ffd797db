"""Compactions in many tasks: rows that were planned on a version that is no longer the newest."""

import uuid

import pytest

from segstore_ds.compact.tasks import plan_compact_tasks, plan_compaction_rows
from segstore_ds.errors import ConflictError
from segstore_ds.options.compaction import CompactRules
from segstore_ds.status.parts import SegmentsTable
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout
from tests.stream_kit import SCHEMA, SOFT, make_stream, numbers, values

RULES = CompactRules()


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
    rows = plan_compaction_rows(stream._context, stream._log.root, RULES, (0, 30))
    stream.compact()
    assert not any(entry.frame for entry in stream._log.root.entries)
    tasks = plan_compact_tasks(stream._context, Layout(), client="test")
    done = [*tasks.run(rows)]
    assert [run.rows for run in done] == [30]
    before = stream._log.root
    with pytest.raises(ConflictError, match="no longer listed"):
        tasks.commit(done)
    assert stream.refresh()._log.root.entries == before.entries
    assert values(stream) == [*range(30)]
    stream.verify().check()


def test_planned_rows_of_inline_segments_are_merged() -> None:
    """Appends meanwhile stay as they are."""
    stream = small_appends()
    rows = plan_compaction_rows(stream._context, stream._log.root, RULES, (0, 30))
    tasks = plan_compact_tasks(stream._context, Layout(), client="test")
    stream.append(numbers(30, 40))
    tasks.commit([*tasks.run(rows)])
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
    (row,) = plan_compaction_rows(stream._context, root, RULES, (0, stream.tail))
    assert row["segments"] == sum(part.count for part in root.parts) + len(root.entries)
