"""Append and overwrite: writers, the order of checks, expectations, schemas, repeated commits."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from faults import Fault, FaultStorage
from virtual_time import TimedStorage, VirtualTime

import segstore_ds as segstore
from segstore_ds.errors import (
    ClosedError,
    CommitUnknownError,
    ConflictError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    PositionError,
    SchemaMismatchError,
    SealedError,
    StagedExpiredError,
    WriterConflictError,
)
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.root import Epoch, Root, Writer
from segstore_ds.log import turns
from segstore_ds.log.commit import Change
from segstore_ds.status.writers import WriterKey, check_writer
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.connector.writes import discard_staged
from segstore_ds.stream.opening import create, drop
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64())])
WIDE = Layout(inline_bytes=0)  # every task writes an object of its own


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def storage(time: VirtualTime) -> Storage:
    return TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)


@pytest.fixture
def stream(storage: Storage, time: VirtualTime) -> Stream:
    return create_on(storage, SCHEMA, clock=time.clock)


@pytest.fixture
def other(stream: Stream, time: VirtualTime) -> Stream:
    """A second handle, as of another process."""
    return open_on(stream._log.storage, clock=time.clock)


def numbers(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def events(stream: Stream, *cuts) -> list:
    stream.verify().check()
    return stream.read(*cuts).read_all().to_pylist()


def ns(stream: Stream, *cuts) -> list[int]:
    return [event["n"] for event in events(stream, *cuts)]


def change(stream: Stream, build: Callable[[Root], Root]) -> None:
    """Commit a change that this version of segstore has no call for."""
    log = stream._log
    log.commit(lambda root, _: Change(replace(build(root), operation="later")))


def staged(stream: Stream, *values: int, tasks: int = 1, layout: Layout = WIDE, **options):
    """Plan a job and stage the same values in each of its tasks."""
    job = stream.plan_write(SCHEMA, layout=layout, **options)
    done = []
    for task in range(tasks):
        writer = job.open_task(task, f"a{task}")
        if values:
            writer.append(numbers(*values))
        done.append(writer.finish())
    return job, done


def objects(stream: Stream) -> set[str]:
    return {info.path for info in stream._log.storage.list("segments")}


LAST = Writer(owner="q", batch_id=5, version=3, rows=10, end=30)


@pytest.mark.parametrize(
    ("known", "key", "answer"),
    [
        (None, None, False),
        (LAST, None, False),
        (None, WriterKey("w", 5, "q"), False),
        (LAST, WriterKey("w", 5, "q"), True),
        (LAST, WriterKey("w", 6, "q"), False),
        (LAST, WriterKey("w", 600, "q"), False),
        (LAST, WriterKey("w", 4, "q"), "batch is older than the writer's last one"),
        (LAST, WriterKey("w", 0, "q"), "last_batch_id=5"),
        (LAST, WriterKey("w", 5, "x"), "writer id belongs to another owner"),
        (LAST, WriterKey("w", 6, ""), "caller='a batch writer'"),
        (replace(LAST, owner=""), WriterKey("w", 6, "q"), "owner='a batch writer'"),
        (LAST, WriterKey("w", 5, "q", takeover=True), True),
        (LAST, WriterKey("w", 4, "q", takeover=True), False),
        (LAST, WriterKey("w", 5, "x", takeover=True), False),
        (LAST, WriterKey("w", 6, "x", takeover=True), False),
    ],
)
def test_whether_a_writers_batch_is_known(known, key, answer):
    if isinstance(answer, bool):
        assert check_writer(known, key, BatchFacts(10)) is answer
        return
    with pytest.raises(WriterConflictError, match=answer) as caught:
        check_writer(known, key, BatchFacts(10))
    assert "takeover=True" in str(caught.value)


@pytest.mark.parametrize("write", ["append", "overwrite"])
@pytest.mark.parametrize("values", [[7], [1, 3], [1, None], [1, 2, 2], []])
def test_other_events_under_a_known_batch_are_refused(stream, write, values):
    """Also if their number is the same: otherwise they would be lost silently."""
    stream.append(numbers(0), writer_id="v", batch_id=1)
    getattr(stream, write)(numbers(1, 2), writer_id="w", batch_id=1)
    before = stream.version, objects(stream)
    assert getattr(stream, write)(numbers(2, 1), writer_id="w", batch_id=1).repeated
    for takeover in (False, True):
        with pytest.raises(WriterConflictError, match=r"other events.*on_repeat='skip'") as caught:
            getattr(stream, write)(numbers(*values), writer_id="w", batch_id=1, takeover=takeover)
        assert not caught.value.retryable
        fields = caught.value.fields
        assert (fields["rows"], fields["committed_rows"]) == (len(values), 2)
        assert (fields["committed_offsets"], fields["committed_version"]) == ((1, 3), 2)
        differs = bool(values) and values != [1, 2, 2]
        assert fields["differing_columns"] == (["n"] if differs else [])
    assert (stream.refresh().version, objects(stream)) == before


def test_on_repeat_skip_keeps_what_was_committed_first(stream, caplog):
    first = stream.append(numbers(1, 2), writer_id="w", batch_id=1)
    skip = {"writer_id": "w", "batch_id": 1, "on_repeat": "skip"}
    with caplog.at_level(logging.WARNING, logger="segstore_ds"):
        assert stream.append(numbers(1, 2), **skip).repeated
        assert not caplog.records
        again = stream.append(numbers(7), **skip)
    assert "batch 1 with other events: 1 rows" in caplog.text
    assert (again.version, again.start, again.end, again.repeated) == (first.version, 0, 2, True)
    assert ns(stream) == [1, 2]
    for wrong in ("ignore", "", None):
        with pytest.raises(InvalidInputError, match=r"on_repeat.*skip"):
            stream.append(numbers(1), on_repeat=wrong)
        with pytest.raises(InvalidInputError, match=r"on_repeat.*skip"):
            WriterKey("w", 1, on_repeat=wrong)


@pytest.mark.parametrize("given", [{"on_repeat": "skip"}, {"takeover": True}])
def test_options_of_a_writer_are_refused_without_one(stream, given):
    for write in (stream.append, stream.overwrite):
        with pytest.raises(InvalidInputError, match="give writer_id and batch_id"):
            write(numbers(1), **given)
    assert stream.refresh().version == 0


def test_rows_that_nobody_staged_are_an_internal_error(stream):
    job, done = staged(stream, 1, 2)
    lost = [replace(task, segments=(), frames=()) for task in done]
    with pytest.raises(InternalError, match=r"rows=2, staged=0"):
        stream.commit(job, lost)
    assert ns(stream) == []


def test_two_jobs_of_one_batch_are_compared_when_they_commit(stream, other):
    """The second was planned before the first one landed: what it staged is deleted again."""
    options = {"writer": WriterKey("w", 1), "tasks": 2}
    same, others = staged(other, 1, **options), staged(other, 2, **options)
    skip = staged(other, 3, tasks=2, writer=WriterKey("w", 1, on_repeat="skip"))
    stream.commit(*staged(stream, 1, **options))
    assert other.commit(*same).repeated
    with pytest.raises(WriterConflictError, match="other events"):
        other.commit(*others)
    assert other.commit(*skip).repeated
    discard_staged(other._log.storage, [*same[1], *skip[1]])
    other.refresh()
    assert ns(other) == [1, 1]
    assert len(objects(other)) == 2


def test_batch_is_compared_by_columns_that_both_have(stream):
    """Other statistics and other schemas, wider or narrower, make no difference of their own."""
    layout = Layout(stats_columns=())
    stream.append(numbers(1, 2), writer_id="w", batch_id=1, layout=layout)
    assert stream._log.root.writers["w"].fingerprint == ""
    assert stream.append(numbers(5, 6), writer_id="w", batch_id=1).repeated  # only rows are known
    stream.append(numbers(1, 2), writer_id="w", batch_id=2)
    assert stream.append(numbers(5, 6), writer_id="w", batch_id=2, layout=layout).repeated
    more = pa.table({"n": pa.array([1, 2], pa.int8()), "more": ["x", "y"]})
    stream.append(more, writer_id="v", batch_id=1, merge_schema=True)
    for table in (more.select(["n"]), more, more.append_column("last", more["more"])):
        assert stream.append(table, writer_id="w", batch_id=2).repeated
        assert stream.append(table, writer_id="v", batch_id=1).repeated
    for table in (pa.table({"n": [1, 3]}), more.set_column(1, "more", [["x", "z"]])):
        with pytest.raises(WriterConflictError, match="other events"):
            stream.append(table, writer_id="v", batch_id=1)


def test_a_takeover_sets_a_writer_back_or_gives_it_to_another(stream):
    stream.append(numbers(1), writer_id="w", batch_id=7)
    stream.append(numbers(2), writer_id="w", batch_id=3, takeover=True)
    assert stream.append(numbers(2), writer_id="w", batch_id=3, takeover=True).repeated
    assert not stream.append(numbers(3), writer_id="w", batch_id=4).repeated
    job, done = staged(stream, 4, writer=WriterKey("w", 1, owner="query", takeover=True))
    stream.commit(job, done)
    with pytest.raises(WriterConflictError, match="owner='query'"):
        stream.append(numbers(5), writer_id="w", batch_id=9)
    assert ns(stream) == [1, 2, 3, 4]


def seal(root: Root) -> Root:
    return replace(root, sealed=True)


def raise_floor(root: Root) -> Root:
    return replace(root, staging_floor=root.version + 1)


def other_schema(root: Root) -> Root:
    text = "not even a schema"
    return replace(root, epochs=(*root.epochs, Epoch(len(root.epochs), root.tail, text, None)))


def test_a_known_batch_wins_over_everything_else(stream):
    """Sealed, staged long ago, another schema, other expectations: it was committed before."""
    key = WriterKey("w", 1)
    jobs = [staged(stream, 1, 2, writer=key, expected_tail=0, expected_version=0) for _ in range(4)]
    assert not stream.commit(*jobs[0]).repeated
    for job, obstacle in zip(jobs[1:], (seal, raise_floor, other_schema), strict=True):
        change(stream, obstacle)
        again = stream.commit(*job)
        assert (again.repeated, again.version, again.start, again.end) == (True, 1, 0, 2)
    assert stream.append(numbers(1, 2), writer_id="w", batch_id=1).repeated


def test_errors_rank_sealed_then_floor_then_expectations(stream, other):
    def job():
        job, done = staged(stream, 1, writer=WriterKey("w", 1))
        return replace(job, request=replace(job.request, expected_tail=99)), done

    jobs = [job() for _ in range(3)]
    with pytest.raises(ConflictError, match="tail has moved: expected=99, actual=0"):
        stream.commit(*jobs[0])
    change(other, raise_floor)
    with pytest.raises(StagedExpiredError, match="staging_floor=1"):
        stream.commit(*jobs[1])
    change(other, seal)
    with pytest.raises(SealedError, match="tail=0"):
        stream.commit(*jobs[2])
    assert objects(stream) == set()  # nothing of them was committed, so nothing stays


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ({"expected_tail": 0}, "tail has moved: expected=0, actual=2"),
        ({"expected_tail": 5}, "tail has moved: expected=5, actual=2"),
        ({"expected_version": 0}, "version has changed: expected=0, actual=1"),
        ({"expected_version": 2}, "version has changed: expected=2, actual=1"),
    ],
)
def test_an_expectation_that_fails_commits_nothing(stream, other, expected, text):
    stream.append(numbers(1, 2))
    for handle in (stream, other):
        with pytest.raises(ConflictError, match=text) as failed:
            handle.append(numbers(3), **expected)
        by = {"version": 1, "operation": "append", "client": stream._context.client}
        assert failed.value.fields.items() >= by.items()
    assert ns(stream) == [1, 2]
    assert len(objects(stream)) == 1
    stream.append(numbers(3), expected_tail=2, expected_version=1)
    assert ns(stream) == [1, 2, 3]


def test_events_of_tasks_are_in_task_order(stream):
    """Whether tasks wrote objects or sent frames, and in whatever order they came in."""
    job = stream.plan_write(SCHEMA, layout=Layout(inline_bytes=700, compression="none"))
    done = []
    for task, rows in enumerate([1, 200, 1, 1, 0, 200, 1]):
        writer = job.open_task(task, "x")
        writer.append(numbers(*range(1000 * task, 1000 * task + rows)))
        done.append(writer.finish())
    commit = stream.commit(job, done[::-1])
    assert commit.rows == 404
    got = ns(stream)
    assert got == sorted(got)
    assert len(got) == 404
    assert len(stream._log.root.entries) == 5  # the small neighbours share an object
    assert [entry.segment_id for entry in stream._log.root.entries] == list(range(5))


@pytest.mark.usefixtures("no_inline")
def test_overwrite_keeps_appends_made_after_its_plan(stream, other):
    stream.append(numbers(1, 2))
    job, done = staged(stream, 100, 101, overwrite=True)
    other.append(numbers(3, 4))
    commit = stream.commit(job, done)
    assert (commit.start, commit.end, stream.head, stream.tail) == (4, 6, 2, 6)
    assert ns(stream) == [3, 4, 100, 101]
    retired = [item.path for item in stream._log.root.retired]
    assert len(retired) == 1
    assert ns(other) == [3, 4, 100, 101]


def with_column(name: str, value: int) -> pa.Table:
    return pa.table({"n": pa.array([value], pa.int64()), name: pa.array([f"{name}{value}"])})


def test_two_writers_can_add_columns_at_the_same_time(stream, other):
    stream.append(numbers(0))
    other.refresh()
    jobs = []
    for handle, table in ((stream, with_column("a", 1)), (other, with_column("b", 2))):
        job = handle.plan_write(table.schema, merge_schema=True, layout=WIDE)
        writer = job.open_task(0, "x")
        writer.append(table.to_batches()[0])
        jobs.append((handle, job, [writer.finish()]))
    for handle, job, done in jobs:
        handle.commit(job, done)
    assert stream.refresh().schema.names == ["n", "a", "b"]
    assert events(stream) == [
        {"n": 0, "a": None, "b": None},
        {"n": 1, "a": "a1", "b": None},
        {"n": 2, "a": None, "b": "b2"},
    ]
    assert [entry.epoch for entry in stream._log.root.entries] == [0, 1, 2]
    assert [epoch.since for epoch in stream._log.root.epochs] == [0, 1, 2, 2]


def test_data_staged_before_a_schema_merge_is_committed(stream, other):
    job, done = staged(stream, 1)
    other.append(with_column("a", 2), merge_schema=True)
    stream.commit(job, done)
    assert events(stream) == [{"n": 2, "a": "a2"}, {"n": 1, "a": None}]


def test_data_staged_before_a_schema_replacement_is_refused(stream, other):
    job, done = staged(stream, 1)
    other.overwrite(pa.table({"other": ["x"]}), overwrite_schema=True)
    with pytest.raises(SchemaMismatchError):
        stream.commit(job, done)
    assert events(stream) == [{"other": "x"}]


def test_a_type_that_two_writers_widen_apart_ends_as_the_wider(storage, time):
    stream = create_on(storage, pa.schema([("n", pa.int16())]), clock=time.clock)
    other = open_on(storage, clock=time.clock)
    jobs = []
    for handle, kind in ((stream, pa.int64()), (other, pa.int32())):
        batch = pa.record_batch({"n": pa.array([7], kind)})
        job = handle.plan_write(batch.schema, merge_schema=True, layout=WIDE)
        writer = job.open_task(0, "x")
        writer.append(batch)
        jobs.append((handle, job, [writer.finish()]))
    for handle, job, done in jobs:
        handle.commit(job, done)
    assert stream.refresh().schema.field("n").type == pa.int64()
    assert ns(stream) == [7, 7]


@pytest.mark.parametrize("layout", [WIDE, Layout()], ids=["objects", "inline"])
def test_a_job_of_a_writer_is_committed_again_without_harm(stream, layout):
    """The staged objects are in the log by then: deleting them would lose the events."""
    job, done = staged(stream, 1, 2, tasks=3, layout=layout, writer=WriterKey("w", 1))
    first = stream.commit(job, done)
    again = stream.commit(job, done)
    assert (again.repeated, again.start, again.end) == (True, first.start, first.end)
    assert ns(stream) == [1, 2] * 3
    fresh = open_on(stream._log.storage, clock=stream._log.clock)
    assert fresh.commit(job, done).repeated
    assert ns(stream) == [1, 2] * 3


@pytest.mark.parametrize("options", [{}, {"expected_tail": 0}], ids=["plain", "expecting"])
def test_repeated_commit_without_a_writer_loses_nothing(stream, options):
    job, done = staged(stream, 1, 2, **options)
    stream.commit(job, done)
    with pytest.raises((ConflictError, InternalError)):
        stream.commit(job, done)
    assert ns(stream) == [1, 2]


@pytest.mark.parametrize("writer", [WriterKey("w", 1), None])
def test_a_job_whose_outcome_was_unknown_keeps_its_objects(stream, time, writer):
    """The put landed but was never answered; whatever is tried next, the events stay."""
    storage = FaultStorage(stream._log.storage)
    shaky = open_on(storage, clock=time.clock)
    job, done = staged(shaky, 1, 2, writer=writer, expected_tail=0)
    shaky._log.recent()
    storage.fault = Fault(len(storage.calls) + 4, "fail", "after", 1000)
    with pytest.raises(CommitUnknownError):
        shaky.commit(job, done)
    storage.fault = None
    assert stream.refresh().tail == 2
    if writer:
        assert shaky.commit(job, done).repeated
    else:
        with pytest.raises(ConflictError):
            shaky.commit(job, done)
    assert ns(stream) == [1, 2]


@pytest.mark.usefixtures("no_inline")
def test_a_job_that_was_cleared_away_is_not_committed_again(stream):
    stream.append(numbers(9))
    job, done = staged(stream, 1)
    job = replace(job, request=replace(job.request, expected_tail=0))
    with pytest.raises(ConflictError):
        stream.commit(job, done)
    assert len(objects(stream)) == 1
    with pytest.raises(ClosedError, match="write the data again"):
        stream.commit(job, done)
    assert ns(stream) == [9]


def test_missing_staged_object_is_noticed_on_local_disk(tmp_path):
    stream = create_on(open_storage(tmp_path), SCHEMA)
    job, done = staged(stream, 1, tasks=3)
    stream._log.storage.delete(f"segments/{done[1].segments[0].path}")
    with pytest.raises(
        InvalidInputError, match="staged segment is not visible to the driver: task=1, host="
    ):
        stream.commit(job, done)
    assert ns(stream) == []


@pytest.mark.parametrize("place", ["memory", "local"])
def test_staged_objects_that_were_deleted_rightly_are_no_fault_of_the_storage(place, tmp_path):
    """They expired, a commit of their batch was merged, or the stream was dropped or made anew."""

    def prepared(**options):
        name = uuid.uuid4().hex
        url = f"memory://{name}" if place == "memory" else str(tmp_path / name)
        stream = create_on(open_storage(url), SCHEMA)
        return (stream, url, *staged(stream, 1, **options))

    stream, url, job, done = prepared()
    other = segstore.open(url)
    other.append(numbers(9))
    other.maintain(grace="0s", short_grace=True)
    other.maintain(grace="0s", short_grace=True)
    with pytest.raises(StagedExpiredError, match="write the data again"):
        stream.commit(job, done)
    stream, url, job, done = prepared(writer=WriterKey("w", 1))
    segstore.open(url).append(numbers(1), writer_id="w", batch_id=1)
    stream._log.storage.delete(f"segments/{done[0].segments[0].path}")
    assert stream.commit(job, done).repeated
    stream, url, job, done = prepared()
    drop(url, confirm=url)
    with pytest.raises(NotFoundError, match="dropped"):
        stream.commit(job, done)
    stream, url, job, done = prepared()
    drop(url, confirm=url)
    segstore.create(url, SCHEMA)
    with pytest.raises(NotFoundError, match="in its place"):
        stream.commit(job, done)


def test_a_writer_that_lost_slowly_is_told_of_the_stream_in_the_place(monkeypatch):
    """It takes the winner's file as its base without a look at what follows, but not a drop's."""
    monkeypatch.setattr(turns, "FAST_S", 0.0)
    url = f"memory://{uuid.uuid4().hex}"
    stream = create_on(open_storage(url), SCHEMA)
    job, done = staged(stream, 1)
    drop(url, confirm=url)
    segstore.create(url, SCHEMA)
    with pytest.raises(NotFoundError, match="in its place"):
        stream.commit(job, done)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_job_is_not_committed_to_another_stream_of_the_name(overwrite):
    """Its objects went with the stream that it was planned on, or never belonged to this one."""
    url = f"memory://{uuid.uuid4().hex}"
    stream = create(url, SCHEMA)
    stream.append(numbers(0, 1, 2))
    job = stream.plan_write(SCHEMA, layout=Layout(inline_bytes=0), overwrite=overwrite)
    writer = job.open_task(0, "x")
    writer.append(numbers(3, 4))
    staged = writer.finish()
    drop(url, confirm=url)
    anew = create(url, SCHEMA)
    anew.append(numbers(*range(100, 110)))
    for handle in (anew, open_on(anew._log.storage)):
        with pytest.raises(PositionError, match="recreated"):
            handle.commit(job, [staged])
    assert anew.read().read_all()["n"].to_pylist() == list(range(100, 110))
    anew.verify().check()


def test_a_writer_set_back_during_a_repeat_is_no_race_to_retry(stream, other):
    stream.append(numbers(1), writer_id="w", batch_id=7)
    job, done = staged(stream, 1, writer=WriterKey("w", 7))
    assert job.repeated
    other.append(numbers(2), writer_id="w", batch_id=3, takeover=True)
    with pytest.raises(WriterConflictError, match="set back") as caught:
        stream.refresh().commit(job, done)
    assert not caught.value.retryable
    assert ns(stream) == [1, 2]
