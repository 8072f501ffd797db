"""Redaction of streams: which values go, what stays, and what comes in between."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import STAGED, Meddling, make_stream, numbers, objects, snapshot
from wrapped_storage import WrappedStorage

from segstore_ds.compact import run
from segstore_ds.compact.commit import commit_groups
from segstore_ds.compact.rewrite import plan_job, plan_range_groups, run_group
from segstore_ds.errors import ConflictError, InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.redactions import MOST_REDACTIONS, clean_since, redactions_of
from segstore_ds.log.context import Job
from segstore_ds.options.arguments import CompactRules
from segstore_ds.read.plan import ReadTask
from segstore_ds.read.scan import run_task
from segstore_ds.redact.plan import Redacted, RedactRequest
from segstore_ds.redact.rewrite import RedactedSegment
from segstore_ds.redact.run import run_redact
from segstore_ds.status.table_status import Slice
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

PARQUET = Layout(inline_bytes=0, segment_format="parquet")
SECRET = [["s", "in", ["s13", "s27"]]]


def _texts(stream: Stream) -> list[str | None]:
    return stream.refresh().read().read_all()["s"].to_pylist()


def _expected(count: int, *gone: int) -> list[str | None]:
    return [None if n in gone else f"s{n}" for n in range(count)]


def _hidden(stream: Stream) -> list[str | None]:
    """Return the column of every stored event, those below the head too."""
    root = stream.refresh()._log.root
    reading = snapshot(stream, root).plan()
    placed = list(stream._context.status.segments(root, root.listed_start, root.tail))
    reading = replace(reading, start=root.listed_start)
    slices = tuple(placed)
    return pa.Table.from_batches(run_task(reading, ReadTask(slices)))["s"].to_pylist()


def _redact_while(stream: Stream, happens: Callable[[Sequence[Slice]], object]) -> Redacted:
    """Redact; something happens after segments were looked through, before each commit."""

    def launch(job: Job, chosen: Sequence[Slice]) -> Iterator[RedactedSegment]:
        found = [*job.run(chosen)]
        happens(chosen)
        yield from found

    context = replace(stream._context, launch=launch)
    return run_redact(context, RedactRequest(SECRET, ["s"], "", "r"))


@pytest.mark.parametrize("layout", [Layout(), STAGED, PARQUET], ids=["inline", "arrow", "parquet"])
def test_redact_sets_columns_of_matching_events_to_null(layout: Layout) -> None:
    """Nothing else changes, and only the segments that hold such events are replaced."""
    stream, _storage = make_stream(0)
    for n in range(4):
        stream.append(numbers(10 * n, 10 * n + 10), layout=layout)
    before = stream._log.root
    done = stream.redact(SECRET, columns=["s"], reason="request 7", redact_id="r7")
    assert (done.rows, done.segments, done.tail, done.repeated) == (2, 2, 40, False)
    assert _texts(stream) == _expected(40, 13, 27)
    assert stream.read().read_all()["n"].to_pylist() == list(range(40))
    root = stream._log.root
    assert (root.head, root.tail) == (before.head, before.tail)
    old, new = ([entry.segment_id for entry in each.entries] for each in (before, root))
    assert (old[0], old[3]) == (new[0], new[3])
    assert min(new[1], new[2]) >= before.next_segment
    assert [entry.format for entry in root.entries] == [entry.format for entry in before.entries]
    assert stream.verify().ok


def test_history_says_who_when_and_how_many_but_not_what() -> None:
    """One row a commit, under the id; a root holds nothing of the filter."""
    stream, storage = make_stream(4)
    done = stream.redact(SECRET, columns=["s"], redact_id="r7")
    rows = [row for row in stream.history().read_all().to_pylist() if row["operation"] == "redact"]
    assert [(row["writer_id"], row["batch_id"]) for row in rows] == [
        ("redact:r7", 2),
        ("redact:r7", 0),
    ]
    assert done.version == rows[0]["version"]
    record = redactions_of(stream._log.root)["r7"]
    assert (record.done, record.rows, record.tail) == (True, 2, 40)
    assert b"s13" not in storage.get(f"log/{stream.version:020}", limit_bytes=1 << 20)


def test_the_same_id_again_does_nothing() -> None:
    """Not even where other events match by now; another id looks again."""
    stream, _ = make_stream(4)
    first = stream.redact(SECRET, columns=["s"], redact_id="r7")
    stream.append(numbers(13, 14))
    version = stream.version
    again = stream.redact(SECRET, columns=["s"], redact_id="r7")
    assert (again.rows, again.tail, again.repeated) == (first.rows, 40, True)
    assert stream.version == version
    assert stream.redact(SECRET, columns=["s"]).rows == 1
    assert _texts(stream) == [*_expected(40, 13, 27), None]


@pytest.mark.parametrize("compacted", [True, False], ids=["segment", "segments"])
def test_hidden_events_are_redacted_too(monkeypatch: pytest.MonkeyPatch, compacted: bool) -> None:
    """Events below the head, in a segment or a part that it cuts, lose their values as well."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 11)
    stream, _ = make_stream(0)
    for n in range(12):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    if compacted:
        stream.compact()
    stream.truncate(20)
    assert stream.redact(SECRET, columns=["s"]).rows == 2
    assert stream.head == 20
    assert _hidden(stream) == _expected(120, 13, 27)


def test_events_behind_the_bound_tail_stay() -> None:
    """What is appended while it works is not part of it, and nothing of it is lost."""
    stream, storage = make_stream(4)
    other = open_on(storage, clock=stream._context.clock)
    done = _redact_while(stream, lambda _: other.append(numbers(13, 14)))
    assert done.tail == 40
    assert _texts(stream) == [*_expected(40, 13, 27), "s13"]


def test_a_restore_before_the_last_commit_is_redacted_too() -> None:
    """Nothing matched when it looked last, and nothing was recorded yet that refuses a restore."""
    stream, storage = make_stream(4)
    version, clock = stream.version, stream._context.clock
    stream.overwrite(numbers(90, 95))
    last = f"create log/{names.build_log_name(stream.version + 1)}"
    raced = Meddling(storage, last, lambda: open_on(storage, clock=clock).restore(version))
    done = open_on(raced, clock=clock).redact(SECRET, columns=["s"])
    assert raced.met
    assert done.rows == 2
    assert _texts(stream) == _expected(40, 13, 27)


def test_older_versions_are_neither_restored_nor_cloned() -> None:
    """Unless the caller says so; the version of the redaction itself can be restored."""
    stream, _storage = make_stream(4)
    before = stream.version
    done = stream.redact(SECRET, columns=["s"])
    stream.append(numbers(40, 41))
    with pytest.raises(InvalidInputError, match="older than a redaction"):
        stream.restore(before)
    with pytest.raises(InvalidInputError, match="older than a redaction"):
        stream.copy_to("memory://redacted-clone", copy_id="c", mode="clone", version=before)
    assert not stream.refresh().pins
    stream.restore(done.version)
    assert _texts(stream) == _expected(40, 13, 27)
    stream.restore(before, allow_redacted=True)
    assert _texts(stream) == _expected(40)
    assert stream.redact(SECRET, columns=["s"]).rows == 2


def test_batches_of_writers_lose_their_digests() -> None:
    """A repeat is known by its id; what was derived from the values is gone."""
    stream, _ = make_stream(0)
    stream.append(numbers(0, 20), writer_id="a", batch_id=0)
    stream.append(numbers(20, 30), writer_id="b", batch_id=0)
    stream.redact([["s", "==", "s13"]], columns=["s"])
    writers = stream._log.root.writers
    assert (writers["a"].fingerprint, bool(writers["b"].fingerprint)) == ("", True)
    assert stream.append(numbers(0, 20), writer_id="a", batch_id=0).repeated


def test_digests_in_a_part_of_writers_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part is written again, and the old one retired."""
    monkeypatch.setattr("segstore_ds.status.table.WRITERS.rows", 4)
    stream, _ = make_stream(0)
    for n in range(6):
        stream.append(numbers(n, n + 1), writer_id=f"w{n}", batch_id=0)
    (old,) = stream._log.root.writers_parts
    stream.redact([["n", "==", 0]], columns=["s"])
    (new,) = stream._log.root.writers_parts
    assert stream._context.status.writers.part(new)["w0"].fingerprint == ""
    assert old.path in {item.path for item in stream._log.root.retired}
    assert stream.verify().ok


def test_older_epochs_are_redacted_in_their_own_types() -> None:
    """Columns widened, added and dropped since: each segment keeps its own schema."""
    old = pa.table({"n": pa.array([1, 2], pa.int32()), "s": ["x", "y"]})
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), old.schema, upkeep=None)
    stream.append(old)
    wide = pa.table({"n": pa.array([2, 3], pa.int64()), "s": ["z", "w"], "t": ["k", "l"]})
    stream.append(wide, merge_schema=True)
    done = stream.redact([["n", "==", 2]], columns=["s", "t"])
    assert done.rows == 2
    assert stream.read().read_all().to_pydict() == {
        "n": [1, 2, 2, 3],
        "s": ["x", None, None, "w"],
        "t": [None, None, None, "l"],
    }
    assert stream.redact([["t", "is null"]], columns=["s"]).rows == 1
    assert [entry.epoch for entry in stream._log.root.entries] == [0, 1]


def test_what_is_no_redaction_is_refused() -> None:
    """Columns, filters, ids and reasons are checked before anything is read."""
    stream, _ = make_stream(1)
    version = stream.version
    for filters, columns in (([], ["s"]), (None, ["s"]), (SECRET, []), (SECRET, "s")):
        with pytest.raises(InvalidInputError):
            stream.redact(filters, columns=columns)
    with pytest.raises(InvalidInputError, match="no such columns"):
        stream.redact(SECRET, columns=["x"])
    with pytest.raises(InvalidInputError, match="redaction"):
        stream.redact(SECRET, columns=["s"], redact_id="a b")
    for reason in (201 * "x", "\ud800", 7):
        with pytest.raises(InvalidInputError, match="reason"):
            stream.redact(SECRET, columns=["s"], reason=reason)
    assert stream.refresh().version == version
    stream.redact(SECRET, columns=["s"], reason=200 * "ü")  # characters, however many bytes


def test_only_the_newest_redactions_are_remembered() -> None:
    """A root's record is bounded; versions before them stay refused."""
    stream, _ = make_stream(2)
    for n in range(MOST_REDACTIONS + 2):
        stream.redact([["n", "==", n]], columns=["s"], redact_id=f"r{n}")
    assert len(stream._log.root.redactions) == MOST_REDACTIONS
    assert "r0" not in stream._log.root.redactions
    assert clean_since(stream._log.root) == stream.version - 1


def test_an_interrupted_redaction_goes_on_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed stays, the bound tail too; the rest follows."""
    monkeypatch.setattr(run, "COMMIT_ROWS", 1)
    stream, storage = make_stream(4)

    def interrupt(chosen: Sequence[Slice]) -> None:
        if chosen[0].start > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _redact_while(stream, interrupt)
    assert _texts(stream) == _expected(40, 13)
    assert not redactions_of(stream._log.root)["r"].done
    stream.append(numbers(13, 14))
    again = open_on(storage, clock=stream._context.clock)
    done = again.redact(SECRET, columns=["s"], redact_id="r")
    assert (done.rows, done.tail, done.repeated) == (2, 40, False)
    assert _texts(stream) == [*_expected(40, 13, 27), "s13"]


@pytest.mark.parametrize("failing", [1, 5, 9])
def test_a_failed_redaction_leaves_nothing_staged(failing: int) -> None:
    """Several segments are written at once; none of the others stays when one fails."""
    stream, storage = make_stream(0)
    for n in range(12):
        stream.append(numbers(10 * n, 10 * n + 10), layout=PARQUET)
    everywhere = [["n", ">=", 0]]
    staged: list[str] = []

    class Failing(WrappedStorage):
        def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
            if verb in ("open_staged", "open_scattered") and names.is_redacted(path):
                staged.append(path)
                if len(staged) == failing:
                    raise StorageError("disk is full", path=path)
            return super().around(verb, path, work)

    before = objects(storage, "segments")
    with pytest.raises(StorageError, match="disk is full"):
        open_on(Failing(storage), clock=stream._context.clock).redact(
            everywhere, columns=["s"], redact_id="r"
        )
    assert len(staged) >= failing
    assert objects(storage, "segments") == before
    assert stream.redact(everywhere, columns=["s"], redact_id="r").rows == 120
    assert not any(_texts(stream))


def test_redact_reaches_parts_and_sealed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments in parts and lists of parts are found and replaced there."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 1)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 50)
    stream, _ = make_stream(12)
    assert stream._log.root.lists
    stream.seal()
    assert stream.redact(SECRET, columns=["s"]).rows == 2
    assert _texts(stream) == _expected(120, 13, 27)
    assert stream.verify().ok


def test_ranges_that_a_compaction_replaced_are_planned_again() -> None:
    """The compaction commits first, so what was written for its inputs is dropped."""
    stream, storage = make_stream(4)
    other = open_on(storage, clock=stream._context.clock)
    done = _redact_while(stream, lambda _: other.compact(end=20))
    assert done.rows == 2
    assert _texts(stream) == _expected(40, 13, 27)
    assert stream.verify().ok
    listed = {f"segments/{entry.path}" for entry in stream._log.root.entries}
    retired = {f"segments/{item.path}" for item in stream._log.root.retired}
    assert {path for path in objects(storage) if path.startswith("segments/")} <= listed | retired


def test_a_compaction_under_way_brings_nothing_back() -> None:
    """It finds none of the segments that it read, and is skipped."""
    stream, storage = make_stream(4)
    other = open_on(storage, clock=stream._context.clock)._context
    root = other.log.root
    job = plan_job(other, root, Layout())
    groups = plan_range_groups(other.status, root, job, CompactRules(), (0, 40))
    done = [run_group(job, group, nonce=12 * "a") for group in groups]
    stream.redact(SECRET, columns=["s"])
    with pytest.raises(ConflictError):
        commit_groups(other, done)
    assert _texts(stream) == _expected(40, 13, 27)


def test_a_restore_in_between_is_redacted_too() -> None:
    """It lists old segments behind the bound tail: the tail moves."""
    stream, storage = make_stream(4)
    other = open_on(storage, clock=stream._context.clock)
    version = stream.version

    def restore(_chosen: Sequence[Slice]) -> None:
        if other.refresh().version == version:
            other.append(numbers(0, 1))
            other.restore(version)

    done = _redact_while(stream, restore)
    assert (done.rows, done.tail) == (2, 81)
    assert _texts(stream) == _expected(40, 13, 27)
