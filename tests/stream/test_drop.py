"""Drop and the search for streams."""

import shutil
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage, die
from stream_kit import (
    SCHEMA,
    SOFT,
    STAGED,
    Meddling,
    fresh_url,
    make_stream,
    numbers,
    objects,
    staged_job,
)

import segstore_ds as segstore
from segstore_ds.errors import ConflictError, InvalidInputError, NotFoundError, SegstoreError
from segstore_ds.format.copies import Pin
from segstore_ds.format.record import to_json
from segstore_ds.log.clock import SYSTEM_CLOCK
from segstore_ds.log.commit import Change
from segstore_ds.retention.drop import DroppableLog, commit_drop, run_drop
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.usefixtures("format_by_name")


@pytest.fixture
def url(tmp_path):
    """A folder for streams."""
    return f"file://{tmp_path}"


def left(storage):
    """Return what a drop left: nothing but commits and the hint."""
    found = objects(storage)
    assert all(path.startswith("log/") for path in found)
    return sorted(found)


def test_drop_leaves_only_commits_and_the_place_is_free(url):
    """Segments, status, readers."""
    stream = segstore.create(f"{url}/a", SCHEMA)
    stream.append(numbers(0, 5))
    stream.readers.register("etl")
    dropped = segstore.drop(f"{url}/a", confirm=f"{url}/a")
    assert dropped.deleted >= 1
    assert dropped.kept == ()
    assert not segstore.exists(f"{url}/a")
    with pytest.raises(NotFoundError):
        segstore.open(f"{url}/a")
    assert segstore.list_streams(url) == []
    with pytest.raises(NotFoundError):
        segstore.drop(f"{url}/a", confirm=f"{url}/a")
    made = segstore.create(f"{url}/a", SCHEMA)
    assert (made.tail, made.version, made._log.root.log_start) == (0, 4, 4)


def test_drop_has_to_be_confirmed_with_the_location(url):
    """Other spellings of it will do, other locations and a plain yes won't."""
    segstore.create(f"{url}/a", SCHEMA)
    for wrong in (f"{url}/b", "yes"):
        with pytest.raises(InvalidInputError, match="another location"):
            segstore.drop(f"{url}/a", confirm=wrong)
    with pytest.raises(NotFoundError):
        segstore.drop(f"{url}/b", confirm=f"{url}/b")
    segstore.drop(f"{url}/a", confirm=f"{url.removeprefix('file://')}/a/")


def test_handles_and_jobs_of_a_dropped_stream_fail():
    """No commit succeeds during the drop, and no read sees an empty stream."""
    stream, storage = make_stream(1)
    staged_job(stream, 10, 12)
    job, task = staged_job(stream, 10, 12)

    dying = Meddling(storage, "delete ", die)
    with pytest.raises(Crash):
        run_drop(dying, confirm=storage.url, clock=stream._log.clock, client="")
    for asked in (
        lambda: stream.commit(job, [task]),
        lambda: stream.append(numbers(0, 1)),
        stream.read,
        stream.refresh,
        lambda: open_on(storage),
    ):
        with pytest.raises(NotFoundError, match="stream was dropped"):
            asked()
    assert run_drop(storage, confirm=storage.url, clock=stream._log.clock, client="").deleted > 0
    assert left(storage)


@pytest.mark.parametrize("emptied", [False, True])
def test_handle_that_saw_the_drop_commits_nothing(emptied):
    """Nor in a folder that is empty since, where the name of the next commit is free."""
    stream, storage = make_stream(1)
    run_drop(storage, confirm=storage.url, clock=stream._log.clock, client="")
    for path in objects(storage) if emptied else ():
        storage.delete(path)
    before = objects(storage)
    for asked in (stream.refresh, lambda: stream.append(numbers(0, 1)), stream.seal):
        with pytest.raises(NotFoundError):
            asked()
    assert objects(storage) == before


@pytest.mark.parametrize("damaged", [False, True])
def test_stream_with_lists_of_parts_is_dropped(damaged, monkeypatch):
    """However long it has become, and though a list can't be read any more."""
    monkeypatch.setattr(SOFT, 1)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 3)
    stream, storage = make_stream(14)
    lists = [index.path for index in stream._log.root.lists]
    assert lists
    if damaged:
        storage.delete(lists[0])

    broken = Meddling(storage, "delete ", die)
    with pytest.raises(Crash):
        run_drop(broken, confirm=storage.url, clock=stream._log.clock, client="")
    last = DroppableLog(storage, clock=stream._log.clock).reopen()
    assert (last.operation, last.lists, last.parts, last.entries) == ("drop", (), (), ())
    assert {item.path for item in last.retired} >= set(lists)
    run_drop(storage, confirm=storage.url, clock=stream._log.clock, client="")
    assert left(storage)


class AtListing(Meddling):
    """Something else happens between the last commit of a drop and its deletions."""

    def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
        if not self.met and verb == "list" and not path:
            self.met = True
            self._happens()
        return work()


WIDE = pa.schema([(f"column_{n:05}", pa.int64()) for n in range(700)])  # more than a root holds


def nulls(schema: pa.Schema) -> pa.Table:
    return pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)


@pytest.mark.parametrize("schema", [SCHEMA, WIDE], ids=["in its root", "in an object"])
@pytest.mark.parametrize("how", ["create", "segments", "events"])
def test_stream_that_begins_during_a_drop_keeps_its_events(schema, how):
    """A sink that creates what is missing may be back before the drop has listed the folder."""
    storage, source = (open_storage(fresh_url()) for _ in range(2))
    for each in (storage, source):
        create_on(each, schema, upkeep=None).append(nulls(schema), layout=STAGED)

    def begin():
        if how == "create":
            create_on(storage, schema, upkeep=None)
        else:
            open_on(source).copy_to(storage.url, copy_id="c", mode=how)
        stream = open_on(storage)
        stream.append(nulls(schema), layout=STAGED)
        stream.readers.register("r")

    dropping = AtListing(storage, "", begin)
    assert run_drop(dropping, confirm=storage.url, clock=SYSTEM_CLOCK, client="").deleted
    assert dropping.met
    stream = open_on(storage)
    stream.verify().check()
    assert len(stream.read().read_all()) == 1 + (how != "create")
    assert [reader.name for reader in stream.readers] == ["r"]
    run_drop(storage, confirm=storage.url, clock=SYSTEM_CLOCK, client="")
    assert left(storage)


def test_drop_that_is_repeated_leaves_what_a_stream_under_way_has_put():
    """It has an object, but no commit yet."""
    storage = open_storage(fresh_url())
    create_on(storage, WIDE, upkeep=None).append(nulls(WIDE), layout=STAGED)
    log = DroppableLog(storage)
    log.reopen()
    commit_drop(log, "")

    def repeat():
        run_drop(storage, confirm=storage.url, clock=SYSTEM_CLOCK, client="")

    target = Meddling(storage, "create log/", repeat)
    create_on(target, WIDE, upkeep=None)
    assert target.met
    stream = open_on(storage)
    stream.append(nulls(WIDE), layout=STAGED)
    stream.verify().check()


def test_drop_may_be_repeated_after_a_crash_at_any_call():
    """Before its commit the stream is whole; after it there is none, until nothing is left."""
    seen = set()
    for number in range(1, 100):
        storage = open_storage(fresh_url())
        stream = create_on(storage, SCHEMA)
        stream.append(numbers(0, 5))
        fault = FaultStorage(storage, Fault(number, "crash"))
        try:
            run_drop(fault, confirm=storage.url, clock=SYSTEM_CLOCK, client="")
        except Crash:
            pass
        else:
            assert not fault.struck
            break
        try:
            open_on(storage).verify().check()
            seen.add("whole")
        except SegstoreError as error:
            seen.add(error.fact)
        try:
            run_drop(storage, confirm=storage.url, clock=SYSTEM_CLOCK, client="")
        except NotFoundError:
            seen.add("nothing to repeat")
        assert left(storage)
        assert create_on(storage, SCHEMA).version == 3
    assert seen == {"whole", "stream was dropped", "nothing to repeat"}


def test_streams_are_found_from_the_top(url, tmp_path):
    """In order and down to the given depth; folders inside a stream are not searched."""
    for name in ("b", "a/x", "a/y", "deep/1/2/3/4"):
        segstore.create(f"{url}/{name}", SCHEMA)
    shutil.copytree(tmp_path / "a/x", tmp_path / "b/inner")
    assert segstore.list_streams(url) == [f"{url}/{name}" for name in ("a/x", "a/y", "b")]
    assert segstore.list_streams(f"{url}/b") == [f"{url}/b"]
    assert f"{url}/deep/1/2/3/4" in segstore.list_streams(url, depth=9)


def test_find_returns_any_valid_name_and_skips_others(tmp_path, monkeypatch):
    """What create takes is listed, as open takes it; a line break it does not take."""
    wanted = ["%41", "a#b", "a%20b", "a,b", "a?b", "a\\b", "q/we\\ird/x", "ünï", "b\udcff"]
    monkeypatch.chdir(tmp_path)
    made = [segstore.create(f"./{name}", SCHEMA).url for name in wanted]
    for name in ("no\nstream", "no::stream", "un\\used"):
        (tmp_path / name / "deep").mkdir(parents=True)
    found = segstore.list_streams(tmp_path)
    assert sorted(found) == sorted(made)
    assert [segstore.open(url).url for url in found] == found


def test_folder_named_log_is_no_stream(url, tmp_path):
    """What makes a stream is a commit."""
    (tmp_path / "x" / "log").mkdir(parents=True)
    (tmp_path / "x" / "log" / "app.log").write_text("x")
    assert segstore.list_streams(url) == []


def test_segments_that_outlive_a_drop_do_not_block_the_next_stream(url):
    """A writer that is killed may have staged after the drop deleted everything."""
    old = segstore.create(url, SCHEMA)
    job = old.plan_write(old.schema, layout=segstore.Layout(inline_bytes=0))
    segstore.drop(url, confirm=url)
    task = job.open_task(0, attempt="first")
    task.append(numbers(0, 5).to_batches()[0])
    task.finish()
    assert any(path.startswith("segments/") for path in objects(open_storage(url)))
    made = segstore.create(url, SCHEMA)
    made.append(numbers(5, 6))
    assert segstore.open(url).read().read_all()["n"].to_pylist() == [5]
    assert made.verify().ok


def test_pinned_stream_is_not_dropped():
    """A clone reads its segments."""
    stream, storage = make_stream(1)
    stream._log.commit(
        lambda root, _: Change(
            replace(root, pins={"c1": to_json(Pin(1, "memory://c", "f00"))}, operation="pin")
        ),
        transaction="t" * 32,
    )
    before = objects(storage)
    with pytest.raises(ConflictError, match=r"pins=\{'c1': 'memory"):
        run_drop(storage, confirm=storage.url, clock=stream._log.clock, client="")
    assert objects(storage) == before
    assert open_on(storage).tail == 10
