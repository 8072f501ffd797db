"""Published tables that are damaged are named by `verify` and published again by `repair`."""

import uuid

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from publish_kit import DELTA, ICEBERG, TABLES, Table
from stream_kit import DAY, make_stream, numbers, wait

import segstore_ds as segstore
from segstore_ds.errors import MissingObjectError
from segstore_ds.publish import delta
from segstore_ds.publish.delta import CHECKPOINT, COMMIT, LAST_CHECKPOINT, superseded
from segstore_ds.publish.life import CODECS
from segstore_ds.publish.paths import build_delta_path
from segstore_ds.publish.snapshot import Table as Shown
from segstore_ds.storage import ObjectInfo, open_storage
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
FOLDERS = {"delta": "_delta_log/", "iceberg": "metadata/"}


def make() -> Stream:
    """Return a stream with a segment that tables list, and events that need a file of their own."""
    stream = segstore.create(f"memory://{uuid.uuid4().hex}/s", SCHEMA, upkeep=None)
    rows = pa.table({"k": ["a", "b"], "n": [1, 2]})
    stream.append(rows, layout=Layout(inline_bytes=0, segment_format="parquet"))
    stream.append(rows)
    return stream


@pytest.mark.parametrize(
    "how", ["lost", "flipped", pytest.param("emptied", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_damaged_table_is_published_again(table: Table, how: str) -> None:
    """But for commits that are there and may be another program's: what to do is said."""
    for number in range(20):
        stream = make()
        stream.append({"k": "c", "n": 3})
        table.publish(stream, settle=True)
        storage = open_storage(stream.url)
        if number == len(paths := table.objects(storage)):
            return
        path, data = paths[number], storage.get(paths[number])
        place = f"{stream.url.removeprefix('memory:/')}/{path}"
        if how == "lost":
            storage.delete(path)
        else:
            changed = b"" if how == "emptied" else bytes([data[0] ^ 0x80, *data[1:]])
            MemoryFileSystem().pipe_file(place, changed, mode="overwrite")
        unneeded = how == "lost" and path.endswith(("_unused.json", "delta/_newest.text"))
        assert unneeded or stream.verify().problems, path
        report = segstore.repair(stream.url)
        commit = path.startswith(FOLDERS[table.kind]) and path.endswith(".json")
        unknown = path == "_delta_log/00000000000000000000.json"
        if commit and (how == "flipped" or (how == "emptied" and unknown)):
            told = "by hand, then" if how == "emptied" else "--remove, then segstore publish"
            assert told in report.damaged[0]
            MemoryFileSystem().pipe_file(place, data, mode="overwrite")
        else:
            assert not report.damaged
            assert stream.published[table.kind].tail == stream.tail
        table.publish(stream, settle=True)
        assert table.shown(storage)[1] == stream.read().read_all().to_pylist()
        stream.verify().check()
    pytest.fail("too many objects")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_whole_table_that_is_missing_is_made_again(table: Table) -> None:
    """With all that it showed; one that was removed is not missed."""
    stream = make()
    table.publish(stream, settle=True)
    storage = open_storage(stream.url)
    for info in storage.list(FOLDERS[table.kind]):
        storage.delete(info.path)
    (problem,) = stream.verify().problems
    assert (problem.code, problem.where) == ("SEG_MISSING_OBJECT", FOLDERS[table.kind][:-1])
    assert segstore.repair(stream.url).ok
    assert table.shown(storage)[1] == stream.read().read_all().to_pylist()
    stream.append({"k": "c", "n": 3}, layout=Layout(inline_bytes=0, segment_format="parquet"))
    storage.put(f"{table.kind}/_unused.json", b"{")
    assert [problem.where for problem in stream.verify().problems] == [f"{table.kind}/_unused.json"]
    assert segstore.repair(stream.url).ok
    assert stream.published[table.kind].lag == 1  # a table that is there shows what it did
    stream.published.remove(table.kind)
    stream.verify().check()


@pytest.mark.parametrize("settle", [False, True], ids=["a segment", "a file of its own"])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_newest_commits_that_are_lost_are_noticed(table: Table, settle: bool) -> None:
    """What is left of the table is sound, but readers see less than was published."""
    stream = segstore.create(f"memory://{uuid.uuid4().hex}/s", SCHEMA, upkeep=None)
    for form in ("parquet", "auto" if settle else "parquet"):
        layout = Layout(inline_bytes=0, segment_format=form)
        stream.append(pa.table({"k": ["a", "b"], "n": [1, 2]}), layout=layout)
        shown = table.publish(stream, settle=settle)
    storage, codec = open_storage(stream.url), CODECS[table.kind]
    for version in range(table.first + 1, shown.table_version + 1):
        storage.delete(codec.commit_path(version))
    (problem,) = stream.verify().problems
    assert problem.where == codec.HINT
    assert segstore.repair(stream.url).ok
    assert (stream.published[table.kind].tail, shown.tail) == (4, 4)
    assert table.shown(storage)[1] == stream.read().read_all().to_pylist()
    stream.verify().check()


@pytest.mark.parametrize("lost", ["newest commit", "all commits"])
def test_commit_is_not_made_again_under_a_checkpoint(lost: str) -> None:
    """Readers would take the checkpoint of the lost commit for the new one."""
    stream = make()
    for number in range(11):
        stream.tags.set(f"t{number}", 0)
        shown = DELTA.publish(stream, settle=True)
    storage, newest = open_storage(stream.url), delta.commit_path(shown.table_version)
    assert build_delta_path(shown.table_version, CHECKPOINT) in DELTA.objects(storage)
    for path in DELTA.objects(storage):
        if path.endswith(".json") and (lost == "all commits" or path == newest):
            storage.delete(path)
    stream.append({"k": "c", "n": 3})
    for publisher in (stream, segstore.open(stream.url)):
        with pytest.raises(MissingObjectError, match=newest):
            DELTA.publish(publisher, settle=True)
    assert newest in {problem.where for problem in stream.verify().problems}
    assert segstore.repair(stream.url).ok
    DELTA.publish(stream, settle=True)
    assert DELTA.shown(storage)[1] == stream.read().read_all().to_pylist()
    stream.verify().check()


@pytest.mark.parametrize("lost", ["", "_delta_log/"])
def test_table_of_newest_events_that_is_missing_is_made_again(lost: str) -> None:
    """The whole stream beside, or its table; `verify` of the source names it."""
    stream = make()
    stream.publish("delta", latest_by=["k"], auto=True)
    beside = open_storage(f"{stream.url}_latest")
    for info in beside.list(lost):
        beside.delete(info.path)
    assert stream.published.latest == {}
    (problem,) = stream.verify().problems
    assert problem.where == (f"{beside.url}/_delta_log" if lost else beside.url)
    assert segstore.repair(stream.url).ok
    assert stream.published.latest["delta"].lag == 0
    stream.published.remove_latest()
    stream.verify().check()


def test_metadata_that_upkeep_deleted_is_not_missed() -> None:
    """Nothing is published meanwhile (seed 3 of the simulation's lapsing stream)."""
    stream, storage = make_stream(2)
    ICEBERG.publish(stream, settle=True)
    stream.append(numbers(20, 30))
    ICEBERG.publish(stream, settle=True)
    before = len(ICEBERG.objects(storage))
    wait(storage, 8 * DAY)
    stream.maintain()
    assert len(ICEBERG.objects(storage)) < before
    stream.verify().check()


def test_checkpoint_that_is_named_stays() -> None:
    """The put of a newer name had failed (seed 93134 of the simulation)."""
    paths = [build_delta_path(n, kind) for n in (10, 11) for kind in (CHECKPOINT, COMMIT)]
    objects = [ObjectInfo(path, 9, us) for path, us in zip(paths, (100, 99, 200, 199), strict=True)]
    for named_us, gone in ((101, set()), (201, {*paths[:2]})):
        named = ObjectInfo(LAST_CHECKPOINT, 9, named_us)
        assert superseded([*objects, named], Shown(11)).keys() == gone


def test_table_whose_first_commit_failed_is_none() -> None:
    """Seed 20270217002: what had been staged for it counted as a table that lacks its metadata."""
    stream = make()
    ICEBERG.publish(stream, settle=True)
    storage = open_storage(stream.url)
    for path in ICEBERG.objects(storage):
        if path.endswith((".json", ".text")):
            storage.delete(path)
    assert ICEBERG.objects(storage)
    stream.verify().check()
    assert segstore.repair(stream.url).ok
    assert not stream.published
