"""Vacuum: what goes and when, what never goes, and what stops it."""

from dataclasses import replace

import pytest
from stream_kit import (
    DAY,
    HOUR,
    SCHEMA,
    SOFT,
    STAGED,
    TIGHT,
    Meddling,
    make_stream,
    numbers,
    objects,
    snapshot,
    staged_job,
    values,
    wait,
)
from virtual_time import TimedStorage, VirtualTime
from wrapped_storage import WrappedStorage

from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    SnapshotExpiredError,
    StagedExpiredError,
)
from segstore_ds.format import names
from segstore_ds.format.copies import Pin
from segstore_ds.format.record import to_json
from segstore_ds.log.commit import Change
from segstore_ds.read.scan import open_reader
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.scan import Scan
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("format_by_name")


TRUNCATED = "dropped by truncate or retention"


def handle(stream: Stream, storage=None) -> Stream:
    """Return another handle on the same stream, on the same clock."""
    return open_on(storage or stream._log.storage, clock=stream._log.clock)


def paths(report) -> set[str]:
    return {entry.path for entry in report.deleted}


def dropped_long_ago():
    """Return a stream whose first ten events were truncated, purged and aged away."""
    stream, storage = make_stream(3)
    first = f"segments/{stream._log.root.entries[0].path}"
    stream.truncate(10)
    for _ in range(3):
        wait(storage, 2 * DAY)
        stream.append(numbers(stream.tail, stream.tail + 1))
    stream.maintain(keep=DAY)
    return stream, storage, first


@pytest.mark.usefixtures("no_inline")
def test_dry_run_is_the_default_and_lists_what_is_deleted():
    """Same objects, same reasons, and nothing is changed."""
    stream, storage, first = dropped_long_ago()
    before = objects(storage), stream.refresh().version
    dry = stream.maintain(grace=DAY, dry_run=True)
    assert (objects(storage), stream.refresh().version) == before
    real = stream.maintain(grace=DAY)
    assert dry.deleted == real.deleted
    assert paths(real) == {first}
    assert (real.deleted[0].why, real.deleted[0].dropped) == (TRUNCATED, 4)
    assert "would delete: 1 objects" in str(dry)
    assert TRUNCATED in str(dry)
    assert before[0] - objects(storage) == {first}
    assert values(stream) == list(range(10, 33))
    assert stream.refresh()._log.root.retired == ()
    assert stream.verify().check().leftovers == []
    assert stream.maintain(grace=DAY).deleted == ()


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize(
    ("ages", "days"),
    [
        ({"keep": DAY, "grace": DAY}, 2),
        ({"keep": "1h", "grace": "1h", "short_grace": True}, 1),
        ({"keep": "30d", "grace": "7d"}, 31),
        ({}, 7),
    ],
)
def test_daily_upkeep_frees_what_was_dropped(ages, days):
    """The recipes of its page, on a stream that is written to all day, and the policy."""
    stream, storage = make_stream(3)
    first = f"segments/{stream._log.root.entries[0].path}"
    stream.truncate(10)
    for day in range(1, days + 1):
        assert first in objects(storage), day
        for _ in range(4):
            wait(storage, DAY / 4)
            stream.append(numbers(stream.tail, stream.tail + 1))
        stream.maintain(**ages)
    assert first not in objects(storage)


def test_short_grace_needs_a_second_flag():
    """A day protects readers and jobs; less has to be said twice."""
    stream, _ = make_stream(1)
    with pytest.raises(InvalidInputError, match="short_grace"):
        stream.maintain(grace=HOUR, dry_run=True)
    stream.maintain(grace=HOUR, short_grace=True, dry_run=True)


def test_orphan_is_deleted_once_its_job_cannot_commit():
    """What a killed job left: first it may be alive, then it is below the floor."""
    stream, storage = make_stream(2)
    before = objects(storage, "segments")
    staged_job(stream, 20, 30)
    (orphan,) = objects(storage, "segments") - before
    assert "may still commit it" in stream.maintain(grace=DAY).kept[0].waits_for
    wait(storage, DAY + 60)
    stream.append(numbers(20, 21))
    report = stream.maintain(grace=DAY)
    assert paths(report) == {orphan}
    assert "never committed" in report.deleted[0].why
    assert stream.verify().check().leftovers == []


@pytest.mark.usefixtures("tight", "no_inline")
@pytest.mark.parametrize("ask", [Scan.to_arrow, Scan.tasks, Scan.files])
def test_scan_of_a_version_whose_parts_were_deleted_has_expired(ask):
    """Of a version that is kept, a missing part is damage."""
    stream, storage = make_stream(8)
    scan, status = stream.scan(commit_time_column="t"), stream._context.status
    [path, *_] = [part.path for part in status.table.parts(scan.root)]
    data = storage.get(path)
    for name in names.both_names(path):
        storage.delete(name)
    with pytest.raises(MissingObjectError, match=path):
        ask(Scan(stream._context.fresh(), scan.root, scan.reading))
    storage.put(path, data)
    stream.truncate("tail")
    for _ in range(3):
        wait(storage, 2 * DAY)
        stream.append(numbers(0, 1))
    stream.maintain(keep=HOUR)
    stream.maintain(grace=DAY)
    assert path not in objects(storage)
    with pytest.raises(SnapshotExpiredError, match="version was forgotten"):
        ask(Scan(stream._context.fresh(), scan.root, scan.reading))


@pytest.mark.usefixtures("no_inline")
def test_pin_holds_back_what_its_version_lists():
    """A clone reads the version that it was taken from, however long ago that was."""
    stream, _, first = dropped_long_ago()
    pin(stream, "c1", 2)
    report = stream.maintain(grace=DAY)
    assert report.deleted == ()
    held = report.kept[0]
    assert (held.why, held.waits_for) == (TRUNCATED, "the clone 'c1' still needs it")
    assert held.until is None
    pin(stream, "c1", 4)
    assert paths(stream.maintain(grace=DAY)) == {first}


def pin(stream, name, version):
    held = Pin(version, "memory://c", "f00")
    stream._log.commit(
        lambda root, _: Change(replace(root, pins={name: to_json(held)}, operation="pin")),
        transaction=stream._log.clock.new_id(),
    )


GOOD_PIN = to_json(Pin(4, "memory://c", "f00"))


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize(
    "value", [None, 5, {}, {**GOOD_PIN, "version": "4"}, {**GOOD_PIN, "version": -1}]
)
def test_pin_that_cannot_be_read_stops_vacuum(value):
    """It may need anything."""
    stream, _, first = dropped_long_ago()
    stream._log.commit(
        lambda root, _: Change(replace(root, pins={"c": value}, operation="pin")),
        transaction=stream._log.clock.new_id(),
    )
    with pytest.raises(CorruptionError, match=r"pin .c."):
        stream.maintain(grace=DAY)
    assert first in objects(stream._log.storage)


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_metadata_that_cannot_be_read_stops_vacuum(damage, monkeypatch):
    """An unreadable list is not an empty one."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(9)
    staged_job(stream, 90, 91)
    part = stream._log.root.parts[0].path
    data = storage.get(part)
    for name in names.both_names(part):
        storage.delete(name)
        if damage == "cut":
            storage.put(name, data[:100])
    wait(storage, 3 * DAY)
    before = objects(storage)
    for dry_run in (True, False):
        with pytest.raises(FormatError):
            handle(stream).maintain(grace="7d", dry_run=dry_run)
    assert objects(storage, "segments") == {p for p in before if p.startswith("segments/")}


@pytest.mark.usefixtures("no_inline")
def test_retired_part_that_is_lost_before_its_time_stops_vacuum(monkeypatch):
    """Its segments would look like orphans, and an old version still lists them."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(9)
    part = stream._log.root.parts[0].path
    stream.overwrite(numbers(90, 95))
    for name in names.both_names(part):
        storage.delete(name)
    wait(storage, 3 * DAY)
    stream.append(numbers(95, 96))
    with pytest.raises(FormatError):
        handle(stream).maintain(grace=DAY)
    assert len(objects(storage, "segments")) == 11


def test_vacuum_keeps_names_that_no_writer_builds():
    """Old enough, and in the stream's own folders: notes beside segments, others' temporaries."""
    stream, storage = make_stream(1)
    job, _ = staged_job(stream, 10, 12)
    foreign = {
        f"segments/{job.token}/notes.txt",
        f"segments/{job.token}/deep/0-a-0.arrow",
        "segments/copy-x/0.arrow",
        "segments/notes",
        "status/strange",
        "status/00000000000000000000-notes.txt",
    }
    for path in foreign:
        storage.put(path, b"x")
    for n in (10, 11):
        wait(storage, 9 * DAY)
        stream.append(numbers(n, n + 1))
    report = stream.maintain(grace=DAY)
    assert [entry.path for entry in report.deleted if job.token in entry.path] != []
    assert {entry.path for entry in report.kept} == foreign
    assert {(entry.why, entry.waits_for) for entry in report.kept} == {
        ("not the name of a stream's object", "segstore did not create it")
    }
    assert foreign <= objects(storage)


@pytest.mark.usefixtures("no_inline")
def test_retired_parts_are_read_and_rewritten(monkeypatch):
    """What outgrew the root is vacuumed like the rest."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    monkeypatch.setattr(SOFT, 50)
    stream, storage = make_stream(0)
    for n in range(8):
        stream.append(numbers(n, n + 1))
    stream.truncate(6)
    assert stream._log.root.retired_parts
    for _ in range(3):
        wait(storage, 2 * DAY)
        stream.append(numbers(stream.tail, stream.tail + 1))
    stream.maintain(keep=DAY)
    parts = [part.path for part in stream._log.root.retired_parts]
    assert len(stream.maintain(grace=DAY).deleted) == 6
    root = stream.refresh()._log.root
    assert [item.path for item in root.retired] == parts
    assert root.retired_parts == ()
    for _ in range(3):
        wait(storage, 2 * DAY)
        stream.append(numbers(stream.tail, stream.tail + 1))
    stream.maintain(keep=DAY)
    assert paths(stream.maintain(grace=DAY)) == {*parts, *map(names.twin_of, parts)}
    assert stream.verify().check().leftovers == []


def test_on_disk_no_folder_outlives_what_lay_in_it(tmp_path):
    """Ten jobs and a compaction make eleven folders, of which one is left."""
    time = VirtualTime(1)
    storage = TimedStorage(open_storage(tmp_path / "s"), time)
    stream = create_on(storage, SCHEMA, clock=time.clock)
    for n in range(10):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    stream.compact()
    assert len(list((tmp_path / "s/segments").iterdir())) == 11
    for n in range(10, 13):
        wait(storage, 2 * DAY)
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    stream.maintain(keep=DAY)
    stream.maintain(grace=DAY)
    assert len(list((tmp_path / "s/segments").iterdir())) == 4
    assert values(stream) == list(range(130))
    run_drop(storage, confirm=storage.url, clock=time.clock, client="")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert left == {"s", "s/log", "s/segments"}


@pytest.mark.usefixtures("no_inline")
def test_a_dry_run_writes_nothing():
    """Who may only read may ask what would go."""
    stream, storage, first = dropped_long_ago()
    whole = stream.maintain(grace=DAY, dry_run=True)

    class ReadOnly(WrappedStorage):
        def around(self, verb, path, work):
            assert verb in ("get", "get_range", "info", "list"), (verb, path)
            return work()

    vacuumed = handle(stream, ReadOnly(storage)).maintain(grace=DAY, dry_run=True)
    assert vacuumed == whole
    assert paths(vacuumed) == {first}


@pytest.mark.usefixtures("no_inline")
def test_dropped_object_waits_for_purge_and_for_the_grace():
    """A version that is kept still lists it; after that it is a day old at least."""
    stream, storage = make_stream(3)
    stream.truncate(10)
    wait(storage, 3 * DAY)
    stream.append(numbers(30, 31))
    assert "a version that is kept" in stream.maintain(grace=DAY, dry_run=True).kept[0].waits_for
    wait(storage, 2 * HOUR)
    stream.append(numbers(31, 32))
    stream.append(numbers(32, 33))
    wait(storage, 2 * HOUR)
    stream.maintain(keep=HOUR)
    assert len(stream.maintain(grace=DAY, dry_run=True).deleted) == 1
    stream.truncate(20)
    stream.append(numbers(33, 34))
    wait(storage, 2 * HOUR)
    stream.append(numbers(34, 35))
    stream.append(numbers(35, 36))
    stream.maintain(keep=HOUR)
    wait(storage, 2 * HOUR)
    stream.maintain(keep=HOUR)
    assert [
        (entry.why, entry.waits_for, entry.dropped)
        for entry in stream.maintain(grace=DAY, dry_run=True).kept
    ] == [(TRUNCATED, "within the grace", 9)]


def test_job_older_than_the_staging_floor_is_refused():
    """The error says to stage again; the objects are gone, and nothing refers to them."""
    stream, storage = make_stream(2)
    job, task = staged_job(stream, 20, 30)
    other = handle(stream)
    other.append(numbers(100, 101))
    wait(storage, 25 * HOUR)

    def commit():
        with pytest.raises(StagedExpiredError, match="write the data again"):
            stream.commit(job, [task])

    meddling = Meddling(storage, "delete segments/", commit)
    report = handle(stream, meddling).maintain(grace=DAY)
    assert meddling.met
    assert len(report.deleted) == 1
    assert values(handle(stream)) == [*range(20), 100]
    handle(stream).verify().check()


@pytest.mark.usefixtures("no_inline")
def test_spilled_part_whose_committer_sleeps_loses_no_segment(monkeypatch):
    """Vacuum comes between the part and the commit that names it: the commit is planned again."""
    stream, storage = make_stream(4)
    monkeypatch.setattr(SOFT, 3)

    def vacuum():
        wait(storage, 30 * HOUR)
        other = handle(stream)
        other.append(numbers(100, 101))
        wait(storage, 30 * HOUR)
        other.append(numbers(101, 102))
        other.maintain(keep=HOUR)
        spilled = sorted(paths(other.maintain(grace=DAY)))
        assert "-segments-" in spilled[0]
        assert spilled[1:] == [names.twin_of(spilled[0])]

    meddling = Meddling(storage, "create log/", vacuum)
    sleeper = handle(stream, meddling)
    assert sleeper.truncate(5) == 5
    assert meddling.met
    assert values(handle(stream)) == [*range(5, 40), 100, 101]
    handle(stream).verify().check()


def test_old_segment_replaced_a_minute_ago_is_read_to_its_end():
    """Age counts from retirement: a reader pinned before an overwrite gets its answer."""
    stream, storage = make_stream(3)
    wait(storage, 30 * DAY)
    stream.append(numbers(30, 31))
    pinned = stream.read(columns=["n"])
    other = handle(stream)
    other.overwrite(numbers(50, 51))
    wait(storage, 60)
    for _ in range(3):
        wait(storage, 3 * HOUR)
        other.append(numbers(51, 52))
    other.maintain(keep=HOUR)
    report = other.maintain(grace=DAY)
    assert report.deleted == ()
    waits = {entry.waits_for for entry in report.kept}
    assert waits <= {"within the grace", "a version that is kept still needs it"}
    assert pinned.read_all()["n"].to_pylist() == list(range(31))


@pytest.mark.usefixtures("no_inline")
def test_reader_older_than_the_grace_gets_an_error():
    """After the grace it is an error, never another answer."""
    stream, storage, _ = dropped_long_ago()
    pinned = snapshot(stream, stream._log.read_version(stream._log.root.log_start))
    reading = pinned.plan()
    old = handle(stream)
    old.truncate("tail")
    for _ in range(3):
        wait(storage, 2 * DAY)
        old.append(numbers(0, 1))
    old.maintain(keep=HOUR)
    old.maintain(grace=DAY)
    with pytest.raises(SnapshotExpiredError):
        open_reader(reading, pinned.tasks(reading)).read_all()


@pytest.mark.usefixtures("no_inline")
def test_two_vacuums_at_once_are_safe():
    """The second runs whole while the first is about to delete."""
    stream, storage, first = dropped_long_ago()
    others = []
    meddling = Meddling(
        storage, "delete ", lambda: others.append(handle(stream).maintain(grace=DAY))
    )
    report = handle(stream, meddling).maintain(grace=DAY)
    assert paths(report) == paths(others[0]) == {first}
    assert handle(stream)._log.root.retired == ()
    assert values(handle(stream)) == list(range(10, 33))
    handle(stream).verify().check()


def test_orphans_of_purged_versions_are_deleted():
    """The history says which version was the newest a day ago."""
    stream, storage = make_stream(2)
    before = objects(storage, "segments")
    staged_job(stream, 20, 30)
    orphans = objects(storage, "segments") - before
    for n in range(30):
        wait(storage, HOUR)
        stream.append(numbers(20 + n, 21 + n))
    stream.maintain(keep=HOUR)
    report = stream.maintain(grace=DAY)
    assert stream.refresh()._log.root.staging_floor == 8
    assert paths(report) == orphans
