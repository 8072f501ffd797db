"""What repair and salvage must not do: guess, hide what is lost, or say more than was read back."""

import uuid

import pytest
from stream_kit import SOFT, TIGHT, make_stream, numbers, objects, values, wait
from virtual_time import TimedStorage
from wrapped_storage import WrappedStorage

from segstore_ds.errors import NotFoundError, SnapshotExpiredError, StorageError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.status import table
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on
from segstore_ds.write.layout import Layout

STAGED = Layout(inline_bytes=0, compression="none")


def lose(storage, path):
    storage.delete(path)


def cut(storage, path):
    storage.put(path, storage.get(path)[:-5])


def fix(stream, **options):
    return repair_on(stream._log.storage, clock=stream._log.clock, **options)


def again(stream):
    return open_on(stream._log.storage, clock=stream._log.clock)


def salvaged(stream):
    new = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), stream._log.storage.time)
    report = salvage_on(stream._log.storage, new, skip_damaged=True, clock=stream._log.clock)
    return report, values(open_on(new))


class ReadOnly(WrappedStorage):
    """A folder that nobody can write to."""

    def around(self, verb, path, work):
        if verb in ("put", "create", "open_staged", "delete"):
            raise StorageError("read-only file system", path=path)
        return work()


def test_hint_that_can_not_be_written_is_reported_as_damaged():
    """A folder that is read-only: nothing was repaired, and the report says so."""
    stream, storage = make_stream(3)
    storage.put("log/_latest", b"rubbish")
    report = repair_on(ReadOnly(storage), clock=stream._log.clock)
    assert (report.repaired, report.ok) == ([], False)
    assert "log/_latest" in report.damaged[0]
    assert storage.get("log/_latest") == b"rubbish"


def twin(stream, start, end):
    """Stage the same rows as a commit did, as a killed retry would, and return its place."""
    job = stream.plan_write(numbers(0, 0).schema, layout=STAGED)
    task = job.open_task(0, "a")
    for batch in numbers(start, end).to_batches():
        task.append(batch)
    (segment,) = task.finish().segments
    return f"segments/{segment.path}"


def with_twins(monkeypatch):
    """Return a stream whose first part's last segment has a twin of the same size, and both."""
    monkeypatch.setattr(SOFT, 3)
    stream, storage = make_stream(0)
    for n in range(3):
        stream.append(numbers(10 * n + 10, 10 * n + 20), layout=STAGED)
    other = twin(stream, 50, 60)
    stream.append(numbers(40, 50), layout=STAGED)
    (part,) = stream._log.root.parts
    last = list(stream._context.status.segments(stream._log.root, 0, 40))[-1].entry
    assert storage.info(other).size == last.bytes
    return stream, part, f"segments/{last.path}", other


def test_digest_distinguishes_a_segment_from_its_twin(monkeypatch):
    """Both were planned on the same version and have as many rows and bytes."""
    stream, part, _, _ = with_twins(monkeypatch)
    expected = values(stream)
    lose(stream._log.storage, part.path)
    assert fix(stream).repaired[0] == part.path
    assert values(again(stream)) == expected


def test_twin_never_takes_the_place_of_a_lost_segment(monkeypatch):
    """Part and segment are both lost: the orphan that looks like it holds other events."""
    stream, part, segment, other = with_twins(monkeypatch)
    lose(stream._log.storage, part.path)
    lose(stream._log.storage, segment)
    (text,) = fix(stream).damaged
    assert text.startswith(
        f"{part.path} of [0, 40) can't be built again: nothing proves which segments hold [30, 40)"
    )
    assert not again(stream).verify().ok
    report, found = salvaged(stream)
    assert [(loss.start, loss.end) for loss in report.lost] == [(30, 40)]
    assert found == [*range(10, 40)]
    assert other in objects(stream._log.storage)


def assert_for_older_versions(report):
    """Check that what stays damaged is a lost object that older versions name, and none else."""
    assert all("; restore the object from a backup, or forget" in text for text in report.damaged)


def without_history(monkeypatch):
    """Return a stream that lost a history part which nothing tells any more."""
    for name in ("rows", "fan_in"):
        monkeypatch.setattr(f"segstore_ds.status.table.HISTORY.{name}", 4)
    stream, storage = make_stream(9)
    wait(storage, 3 * 86_400)
    for _ in range(2):
        stream.append(numbers(stream.tail, stream.tail + 10))
        wait(storage, 7_200)
    stream.maintain(keep=3_600)
    ref = stream._log.root.history_parts[1]
    assert ref.end < stream._log.root.log_start
    lose(storage, ref.path)
    return stream, ref


def test_lost_rows_are_marked_only_where_loss_is_allowed(monkeypatch):
    """They say nothing then; what is around them stays, and the newest version is sound."""
    stream, ref = without_history(monkeypatch)
    report = fix(stream)
    assert len(report.damaged) == 1
    assert f"versions {ref.start} to {ref.end - 1}; allow_loss" in report.damaged[0]
    assert stream.version == report.version
    report = fix(stream, allow_loss=True)
    assert report.generation == 0
    assert "marked as unknown" in report.repaired[0]
    assert_for_older_versions(report)
    seen = again(stream)
    assert all(problem.version is not None for problem in seen.verify().problems)
    rows = seen.metadata("history").read_all().to_pylist()
    assert [row["version"] for row in rows] == [*range(seen.version + 1)]
    lost = [row["version"] for row in rows if row["operation"] == Operation.UNKNOWN]
    assert lost == [*range(ref.start, ref.end)]
    assert fix(stream).repaired == []


def test_nothing_is_answered_by_rows_that_are_unknown(monkeypatch):
    """A cut, a time or a commit time that they would tell is an error, and its neighbours not."""
    stream, ref = without_history(monkeypatch)
    fix(stream, allow_loss=True)
    seen = again(stream)
    version = ref.start + 1
    with pytest.raises(SnapshotExpiredError, match=f"history of this version.*version={version}"):
        seen.position(f"version:{version}")
    assert seen.position(f"version:{ref.start - 1}").offset == 10 * (ref.start - 1)
    assert seen.position(f"version:{ref.end}").offset == 10 * ref.end
    first, last = 10 * (ref.start - 1), 10 * (ref.end - 1)
    with pytest.raises(NotFoundError, match=f"no history of these events: start={first}"):
        seen.read(first, last, commit_time_column="t").read_all()
    for start, end in ((0, first), (last, seen.tail)):
        dated = seen.read(start, end, commit_time_column="t").read_all()
        assert dated["t"].null_count == 0
        assert dated.num_rows == end - start
    wait(stream._log.storage, 40 * 86_400)
    seen.append(numbers(seen.tail, seen.tail + 1))
    seen.maintain(grace=86_400)
    assert all(problem.version is not None for problem in seen.verify().problems)


@pytest.mark.usefixtures("no_inline")
def test_salvage_reads_what_a_compaction_replaced():
    """The newest version lists one damaged segment, an older one its inputs."""
    stream, storage = make_stream(6)
    stream.compact()
    (entry,) = stream._log.root.entries
    cut(storage, f"segments/{entry.path}")
    expected = [*range(60)]
    report, found = salvaged(stream)
    assert (found, report.lost, report.rows) == (expected, [], 60)
    inputs = sorted(objects(storage, "segments") - {f"segments/{entry.path}"})
    lose(storage, inputs[2])
    report, found = salvaged(stream)
    lost = [(loss.start, loss.end, loss.where) for loss in report.lost]
    assert lost == [(20, 30, f"segments/{entry.path}")]
    assert found == [n for n in expected if not 20 <= n < 30]


@pytest.mark.usefixtures("no_inline")
def test_salvage_works_without_a_part_and_the_newest_schema(monkeypatch):
    """Segments tell both."""
    monkeypatch.setattr(SOFT, 3)
    monkeypatch.setattr("segstore_ds.status.epochs.SCHEMA_INLINE_BYTES", 10)
    stream, storage = make_stream(9)
    lose(storage, stream._log.root.parts[0].path)
    cut(storage, stream._log.root.epochs[0].blob.path)
    report, found = salvaged(stream)
    assert (report.lost, found) == ([], [*range(90)])


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("kind", ["retired", "part"])
def test_what_was_dropped_is_dropped_once_more(kind, monkeypatch):
    """Its list is lost: nothing of it is deleted before purge and grace, and then all of it is."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    monkeypatch.setattr("segstore_ds.status.table.RETIRED.rows", 1)
    stream, storage = make_stream(9)
    for offset in (25, 45, 85):
        stream.truncate(offset)
    stream.append(numbers(90, 91))
    root = stream._log.root
    items = [*stream._context.status.retired.all(root)]
    path = root.retired_parts[0].path
    if kind == "part":
        path = next(item.path for item in items if item.kind == "part")
    storage.put(path, storage.get(path)[:50])
    assert not again(stream).verify().ok
    assert fix(stream).ok
    seen = again(stream)
    seen.verify().check()
    wait(storage, 3 * 86_400)
    seen.append(numbers(91, 92))
    before = objects(storage)
    seen.maintain(grace=86_400)
    assert {path for path in before if path.startswith("segments/")} <= objects(storage)
    kept = {version: values(seen, as_of=version) for version in (3, 8)}
    assert kept == {3: [*range(30)], 8: [*range(80)]}
    wait(storage, 3 * 86_400)
    for _ in range(2):
        seen.append(numbers(seen.tail, seen.tail + 1))
        wait(storage, 7_200)
    seen.maintain(keep=3_600)
    wait(storage, 2 * 86_400)
    seen.maintain(grace=86_400)
    listed = {
        segment.entry.path
        for segment in seen._context.status.segments(seen._log.root, 0, seen.tail)
    }
    assert objects(storage, "segments") == {names.segment_object(path) for path in listed}
    assert values(again(stream)) == [*range(85, 94)]
    seen.verify().check()


@pytest.mark.usefixtures("no_inline")
def test_clone_puts_a_shared_object_into_its_own_folder(monkeypatch):
    """The origin lost it; its own repair brings it back there."""
    monkeypatch.setattr(SOFT, 3)
    stream, storage = make_stream(9)
    url = f"memory://{uuid.uuid4().hex}"
    stream.copy_to(url, copy_id="c", mode="clone")
    clone = open_on(TimedStorage(open_storage(url), storage.time), clock=stream._log.clock)
    part = stream._log.root.parts[0]
    assert part in clone._log.root.parts
    lose(storage, part.path)
    report = fix(clone)
    assert fix(stream).ok
    assert fix(clone).ok
    assert part.path in "".join((*report.damaged, *report.repaired))
    for one in (stream, clone):
        seen = again(one)
        seen.verify().check()
        assert values(seen) == [*range(90)]


@pytest.mark.usefixtures("no_inline")
def test_part_merged_of_large_parts_is_built_again(monkeypatch):
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(9)
    (part,) = stream._log.root.parts
    lose(storage, part.path)
    assert_for_older_versions(fix(stream))
    assert values(again(stream)) == [*range(90)]
    assert table.SEGMENTS.final > 3
