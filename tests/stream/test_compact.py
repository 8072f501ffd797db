"""Compaction of real streams: same events, one commit, and which groups are skipped."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from faults import Fault, FaultStorage
from stream_kit import (
    DAY,
    SCHEMA,
    SOFT,
    STAGED,
    Meddling,
    make_stream,
    numbers,
    objects,
    snapshot,
    values,
)

from segstore_ds.compact.commit import commit_groups
from segstore_ds.compact.rewrite import plan_job, plan_range_groups, run_group
from segstore_ds.compact.run import run_auto_compact, run_compact
from segstore_ds.errors import CorruptionError, InvalidInputError, StagedExpiredError
from segstore_ds.format import names
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import CompactRules
from segstore_ds.read.scan import run_task
from segstore_ds.stream import commits
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.usefixtures("format_by_name")
# Only Arrow segments are stitched: a Parquet file is not a row of frames.
WAYS = [("arrow", "merge"), ("arrow", "stitch"), ("parquet", "merge")]
ways = partial(pytest.mark.parametrize, ("format_by_name", "mode"), indirect=["format_by_name"])


def _segments(stream: Stream) -> list:
    root = stream._log.root
    return list(stream._context.status.segments(root, root.listed_start, root.tail))


@pytest.mark.usefixtures("no_inline")
@ways(WAYS)
def test_events_offsets_and_order_stay(mode: str) -> None:
    """A run of segments becomes one; a second call has nothing to do."""
    stream, _ = make_stream(12)
    before = values(stream, offset=True)
    first = stream.compact(mode=mode)
    assert (first.commits, first.segments_before, first.segments_after) == (1, 12, 1)
    assert first.bytes_read + first.bytes_written <= 2 * first.bytes_read
    again = stream.compact(mode=mode)
    assert (again.commits, again.version) == (0, first.version)
    assert values(stream, offset=True) == before
    stream.verify().check()


def test_merge_combines_batches_and_keeps_statistics_exact() -> None:
    """One frame replaces twelve; a filter without matches still prunes."""
    stream, _ = make_stream(12)
    stream.compact()
    report = stream.verify()
    assert (report.frames, report.rows, report.ok) == (1, 120, True)
    assert values(stream, filters=[["n", "==", 77]]) == [77]
    assert '"int:n":[0,119,0]' in (_segments(stream)[0].entry.stats or "")


def _frames(stream: Stream) -> list[tuple]:
    found = stream.metadata("frames").read_all()
    facts = zip(found["start"].to_pylist(), found["rows"].to_pylist(), strict=True)
    return list(zip(facts, found["crc"].to_pylist(), strict=True))


def test_merge_keeps_large_frames_and_combines_small_ones() -> None:
    """What is half a frame or more keeps its bytes; the rest is gathered in its order."""
    stream, _ = make_stream(0)
    for start, end in [(0, 80), (80, 90), (90, 95), (95, 195), (195, 200)]:
        stream.append(
            numbers(start, end), layout=replace(STAGED, frame_rows=100, segment_format="arrow")
        )
    kept = dict(_frames(stream))
    layout = replace(STAGED, frame_rows=100, segment_format="arrow")
    run_compact(stream._context, CompactRules(), layout)
    merged = dict(_frames(stream))
    assert [rows for _, rows in merged] == [80, 15, 100, 5]
    assert [merged[place] for place in [(0, 80), (95, 100)]] == [
        kept[place] for place in [(0, 80), (95, 100)]
    ]
    assert values(stream) == list(range(200))
    assert values(stream, filters=[["n", "==", 94]]) == [94]
    stream.verify().check()


def test_split_is_the_inverse() -> None:
    """Large segments are cut into near-equal pieces; then merging is free to join them again."""
    stream, _ = make_stream(0)
    stream.append(numbers(0, 100), layout=STAGED)
    done = stream.compact(mode="split", target_rows=30)
    assert [segment.entry.rows for segment in _segments(stream)] == [25, 25, 25, 25]
    assert done.segments_after == 4
    assert values(stream) == list(range(100))
    assert stream.compact(mode="split", target_rows=30).commits == 0
    stream.compact(mode="merge", target_rows=50)
    assert [segment.entry.rows for segment in _segments(stream)] == [50, 50]


@pytest.mark.usefixtures("no_inline")
def test_runs_straddle_parts_and_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs in several parts and inline are replaced by one; the parts are retired."""
    monkeypatch.setattr(SOFT, 3)
    stream, _ = make_stream(15)
    before = values(stream, offset=True)
    assert len(stream._log.root.parts) > 1
    for target in (20, 50, 70, 1000):
        stream.compact(target_rows=target)
        stream.append(numbers(0, 3))
        before += [(stream.tail - 3 + n, n) for n in range(3)]
        assert values(stream, offset=True) == before
        stream.verify().check()


@pytest.mark.parametrize("format_by_name", ["arrow"], indirect=True)
def test_compaction_crosses_epochs_by_lifting() -> None:
    """Older frames get the newer columns as nulls and wider types."""
    stream, _ = make_stream(3)
    wider = pa.table({"n": [100, 101], "s": ["a", "b"], "x": [1.5, 2.5]})
    stream.append(wider, merge_schema=True)
    before = stream.read().read_all()
    stream.compact(mode="stitch")
    assert [segment.entry.epoch for segment in _segments(stream)] == [0, 1]
    stream.compact()
    assert [segment.entry.epoch for segment in _segments(stream)] == [1]
    assert stream.read().read_all().equals(before)
    stream.verify().check()


def test_replaced_schemas_are_never_lifted() -> None:
    """A column that was dropped is not lost: old and new bytes stay apart."""
    stream, _ = make_stream(1)
    job = stream.plan_write(
        pa.schema([("n", pa.int64())]), overwrite=True, replace_schema=True, layout=STAGED
    )
    stream.append(numbers(10, 20))  # lands behind the overwrite's tail, so it stays
    task = job.open_task(0, "a")
    task.append(pa.record_batch({"n": [1]}, schema=job.schema))
    stream.commit(job, [task.finish()])
    assert len({segment.entry.epoch for segment in _segments(stream)}) == 2
    assert stream.compact().commits == 0


def test_sealed_and_truncated_streams_are_compacted() -> None:
    """The head may lie within a run; a sealed stream keeps its tail."""
    stream, _ = make_stream(6)
    stream.truncate(15)
    stream.seal()
    stream.compact()
    assert values(stream, offset=True) == [(n, n) for n in range(15, 60)]
    assert (stream.head, stream.tail, stream.sealed) == (15, 60, True)
    stream.verify().check()


def test_empty_stream_has_nothing_to_compact() -> None:
    """Neither an empty stream nor one that is truncated to its tail fails."""
    stream, _ = make_stream(0)
    assert stream.compact().commits == 0
    stream.append(numbers(0, 5))
    stream.truncate("tail")
    assert stream.compact().commits == 0


def test_range_limits_what_is_compacted() -> None:
    """Only segments that hold events of the range are touched."""
    stream, _ = make_stream(6)
    stream.compact(20, 40)
    assert [segment.entry.rows for segment in _segments(stream)] == [10, 10, 20, 10, 10]


def test_append_during_compaction_survives() -> None:
    """A compaction is rebased on an append that came first."""
    stream, storage = make_stream(6)
    other = open_on(storage, clock=storage.time.clock)
    meddling = Meddling(storage, "create log/", lambda: other.append(numbers(60, 65)))
    done = open_on(meddling, clock=storage.time.clock).compact()
    assert (meddling.met, done.commits, done.skipped) == (True, 1, 0)
    assert values(stream) == list(range(65))
    stream.verify().check()


def test_compaction_skips_runs_that_another_one_replaced() -> None:
    """Of two that replace the same segments one wins; the other deletes what it wrote."""
    stream, storage = make_stream(6)
    other = open_on(storage, clock=storage.time.clock)
    meddling = Meddling(storage, "create log/", other.compact)
    late = open_on(meddling, clock=storage.time.clock)
    assert late.compact().commits == 0
    assert values(stream) == list(range(60))
    assert stream.verify().check().leftovers == []


def test_truncation_during_compaction_wins() -> None:
    """A run whose inputs were truncated is skipped, the others are committed."""
    stream, _ = make_stream(6)
    job, groups = _planned(stream, CompactRules("merge", 20, 1 << 20))
    done = [run_group(job, one, nonce="0" * 12) for one in groups]
    stream.truncate(10)
    _, kept = commit_groups(stream._context, done)
    assert [run.start for run in kept] == [20, 40]
    assert values(stream, offset=True) == [(n, n) for n in range(10, 60)]
    assert stream.verify().check().leftovers == []


def _planned(stream: Stream, rules: CompactRules) -> tuple:
    root = stream.refresh()._log.root
    job, bounds = plan_job(stream._context, root, Layout()), (root.listed_start, root.tail)
    return job, plan_range_groups(stream._context.status, root, job, rules, bounds)


def test_compaction_below_the_staging_floor_is_refused() -> None:
    """Vacuum may delete what was staged on an old version, so it can't be committed."""
    stream, storage = make_stream(6)
    job, groups = _planned(stream, CompactRules())
    done = [run_group(replace(job, version=0), groups[0], nonce="0" * 12)]
    storage.time.advance(2 * DAY)
    stream.maintain(grace=DAY)
    assert stream._log.root.staging_floor > 0
    with pytest.raises(StagedExpiredError):
        commit_groups(stream._context, done)
    assert values(stream) == list(range(60))


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("frame_rows", [10, 1000], ids=["kept", "decoded"])
@ways(WAYS)
def test_damaged_input_stops_compaction(mode: str, frame_rows: int) -> None:
    """Nothing is committed, nothing that was written stays, and the error names the frame.

    A merge keeps frames that are large enough; one that is not decoded is checked all the same.
    """
    stream, storage = make_stream(4)
    path = names.segment_object(_segments(stream)[2].entry.path)
    data = bytearray(storage.get(path))
    data[200] ^= 1
    storage.put(path, bytes(data))
    version, there = stream.version, objects(storage)
    with pytest.raises(CorruptionError, match=r"checksum|not the one that was committed"):
        run_compact(stream._context, CompactRules(mode), Layout(frame_rows=frame_rows))
    assert (stream.refresh().version, objects(storage)) == (version, there)


@pytest.mark.usefixtures("no_inline")
def test_old_versions_stay_readable_until_vacuum() -> None:
    """A reader that is pinned to the version before sees the inputs; vacuum takes them later."""
    stream, storage = make_stream(6)
    root = stream._log.root
    inputs = {names.segment_object(segment.entry.path) for segment in _segments(stream)}
    reading = snapshot(stream, root).plan()
    tasks = snapshot(stream, root).tasks(reading)
    stream.compact()
    stream.maintain(grace=DAY)
    assert inputs <= objects(storage)
    pinned = [batch for task in tasks for batch in run_task(reading, task)]
    assert pa.Table.from_batches(pinned)["n"].to_pylist() == list(range(60))
    storage.time.advance(3 * DAY)
    stream.append(numbers(60, 61))
    storage.time.advance(3 * DAY)
    stream.append(numbers(61, 62))
    stream.maintain(keep=DAY)
    stream.maintain(grace=DAY)
    assert not inputs & objects(storage)
    assert values(stream) == list(range(62))


def test_appends_in_python_may_ask_for_it() -> None:
    """The newest small segments are merged after the commit, of which they say nothing."""
    stream, _ = make_stream(0)
    for n in range(40):
        commit = stream.append(numbers(10 * n, 10 * n + 10), compact="auto")
        assert (commit.start, commit.end) == (10 * n, 10 * n + 10)
    assert len(_segments(stream.refresh())) < 10
    assert values(stream) == list(range(400))
    stream.verify().check()
    with pytest.raises(InvalidInputError, match="compact"):
        stream.append(numbers(0, 1), compact="always")
    assert stream.refresh().tail == 400


def test_failing_compaction_never_fails_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any call of the compaction may fail: the append before it succeeds."""
    at = 1
    while True:
        stream, storage = make_stream(3)
        faulty = FaultStorage(storage)
        slow = open_on(faulty, clock=storage.time.clock)
        job = slow.plan_write(SCHEMA, layout=STAGED)
        job = replace(job, request=replace(job.request, compact=True))
        task = job.open_task(0, "a")
        task.append(numbers(30, 40).to_batches()[0])
        staged = task.finish()

        def strike(
            context: StreamContext, layout: Layout, at: int = at, faulty: FaultStorage = faulty
        ) -> None:
            faulty.fault = Fault(len(faulty.calls) + at)
            try:
                run_auto_compact(context, layout)
            finally:
                faulty.fault = None

        monkeypatch.setattr(commits, "run_auto_compact", strike)
        slow.commit(job, [staged])
        assert values(stream.refresh()) == list(range(40))
        stream.verify().check()
        if not faulty.struck:
            break
        at += 1
    assert at > 5


def test_groups_are_committed_once() -> None:
    """The same groups again change nothing and delete nothing; doubled ones are skipped."""
    stream, _ = make_stream(6)
    job, groups = _planned(stream, CompactRules())
    done = [run_group(job, groups[0], nonce=nonce * 12) for nonce in "01"]
    for _ in range(2):
        root, kept = commit_groups(stream._context, done)
        assert len(kept) == 1
    assert root.version == stream.version
    assert values(stream) == list(range(60))
    assert stream.verify().check().leftovers == []


def _append_auto(stream: Stream, data: pa.Table, layout: Layout = STAGED) -> None:
    job = stream.plan_write(data.schema, layout=layout)
    job = replace(job, request=replace(job.request, compact=True))
    task = job.open_task(0, "a")
    for batch in data.to_batches():
        task.append(batch)
    stream.commit(job, [task.finish()])


def test_two_hundred_commits_stay_few_segments() -> None:
    """With `auto`, micro-batches stay bounded in segments, and no commit rewrites much."""
    stream, storage = make_stream(0)
    worst = 0
    for n in range(200):
        written = storage.stats.bytes_written
        _append_auto(stream, numbers(10 * n, 10 * n + 10))
        worst = max(worst, storage.stats.bytes_written - written)
        assert len(_segments(stream)) <= 16
    assert values(stream) == list(range(2000))
    assert worst < 200_000
    stream.verify().check()
