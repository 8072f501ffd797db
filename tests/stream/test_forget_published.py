"""Forgetting takes published tables along: metadata, checkpoints, snapshots, files of their own."""

import json
from contextlib import suppress

import pyarrow as pa
import pytest
from erasure_kit import NEEDLE, holders
from faults import Crash, Fault, FaultStorage
from publish_kit import DELTA, ICEBERG, TABLES, Table
from stream_kit import DAY, HOUR, fresh_url, make_stream, wait
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import StorageError
from segstore_ds.publish import iceberg, life, paths
from segstore_ds.redact.plan import Forgotten
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
SETTLED = Layout(inline_bytes=0, segment_format="parquet")
ROWS = 6


def _events(start: int) -> pa.Table:
    texts = [NEEDLE if row == 4 else f"s{start + row}" for row in range(ROWS)]
    return pa.table({"n": range(start, start + ROWS), "s": texts}, SCHEMA)


def _forget(stream: Stream, **options: bool) -> Forgotten:
    filters = [["s", "==", NEEDLE]]
    done = stream.refresh().redact(filters, columns=["s"], redact_id="r", forget=True, **options)
    assert done.forgotten is not None
    return done.forgotten


def _publish_often(stream: Stream, storage: TimedStorage, table: Table) -> None:
    """Publish the value in commits, a checkpoint, snapshots, own files, and what a job left."""
    for place in range(stream.tail // ROWS, stream.tail // ROWS + 5):
        wait(storage, 60)
        stream.append(_events(ROWS * place), layout=SETTLED)
        stream.truncate(stream.head + 1)
        table.publish(stream)
    (own, *_) = storage.list(f"{table.kind}/")
    left_behind = f"{paths.published_key(own.path)}-{'0' * 12}.parquet"
    storage.create(left_behind, storage.get(own.path))
    wait(storage, 60)


def _held(stream: Stream, storage: TimedStorage, table: Table) -> set[str]:
    return {*holders(stream.url)} & {*table.objects(storage)}


def _until(storage: TimedStorage, report: Forgotten) -> None:
    assert report.due is not None
    wait(storage, (report.due.timestamp() * 1e6 - storage.time.now_us) / 1e6)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_forgotten_values_leave_the_published_table(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, to the last byte; the stream's own objects wait for its readers."""
    monkeypatch.setattr(life, "CLEAN_EVERY", 2)
    stream, storage = make_stream(0)
    _publish_often(stream, storage, table)
    kinds = {path.rsplit(".", 1)[1] for path in _held(stream, storage, table)}
    assert kinds == {"parquet", "json" if table is DELTA else "avro"}
    first = _forget(stream)
    assert not [left for left in first.left if "table" in left.what]
    assert _held(stream, storage, table) == set()
    version, rows = table.shown(storage)
    assert version >= stream._log.root.version
    assert rows == stream.read().read_all().to_pylist()
    assert NEEDLE not in {row["s"] for row in rows}
    _until(storage, first)
    last = _forget(stream)
    assert (last.done, last.left) == (True, ())
    assert holders(stream.url) == []
    assert table.shown(storage)[1] == stream.read().read_all().to_pylist()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_tables_of_newer_versions_are_cleaned_too(table: Table) -> None:
    """A table that was published since is clean, and what it showed before goes with the rest."""
    stream, storage = make_stream(0)
    _publish_often(stream, storage, table)
    stream.redact([["s", "==", NEEDLE]], columns=["s"], redact_id="r")
    for place in range(5, 8):
        wait(storage, 60)
        stream.append(_events(ROWS * place).set_column(1, "s", pa.nulls(ROWS, pa.string())))
        table.publish(stream)
    assert _held(stream, storage, table)
    _forget(stream)
    assert _held(stream, storage, table) == set()
    wait(storage, 8 * DAY)
    assert _forget(stream).done
    assert holders(stream.url) == []
    stream.verify().check()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_files_that_another_publisher_may_be_using_are_reported(table: Table) -> None:
    """What is younger than the newest commit may be of the next one; an hour later it goes."""
    stream, storage = make_stream(0)
    _publish_often(stream, storage, table)
    _forget(stream)
    late = f"{table.kind}/{'0' * 20}-{'0' * 16}-0-{'0' * 12}.parquet"
    storage.create(late, NEEDLE.encode())
    report = _forget(stream)
    assert [left.why for left in report.left if "published" in left.what] == [
        "another publisher may be using them"
    ]
    wait(storage, HOUR + 60)
    assert not [left for left in _forget(stream).left if "published" in left.what]
    assert _held(stream, storage, table) == set()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_tables_that_can_not_be_published_are_reported(table: Table) -> None:
    """Another program's commit, or what dead publishers left, is for the user to take away."""
    stream, storage = make_stream(0)
    stream.append(_events(0), layout=SETTLED)
    path = f"{table.kind}/{'0' * 20}-{'0' * 16}-0-{'0' * 12}.parquet"
    storage.create(path, b"staged")
    _forget(stream)
    wait(storage, 8 * DAY)
    (left,) = _forget(stream).left
    assert f'published.remove("{table.kind}")' in left.call
    assert stream.published.get(table.kind) is None
    table.publish(stream)
    kind = paths.build_delta_path(1, "json") if table is DELTA else paths.build_iceberg_path(2)
    storage.create(kind, b'{"commitInfo":{"operation":"WRITE"}}\n')
    if table is ICEBERG:
        storage.put("metadata/version-hint.text", b"2")
    (left,) = _forget(stream).left
    assert f'published.remove("{table.kind}")' in left.call
    stream.published.remove(table.kind)
    assert _forget(stream).done


def test_a_manifest_keeps_no_bounds_of_files_that_went() -> None:
    """Entries of removed files stay in a snapshot's manifests for as long as those are listed."""
    stream, storage = make_stream(0)
    stream.append(_events(0), layout=SETTLED)
    stream.publish("iceberg")
    old = {*ICEBERG.objects(storage)}
    stream.redact([["s", "==", NEEDLE]], columns=["s"])
    stream.publish("iceberg")
    fresh = {*ICEBERG.objects(storage)} - old
    assert any(paths.parse_manifest_path(path) for path in fresh)
    assert not fresh & {*holders(stream.url)}


def test_old_iceberg_snapshots_are_named_no_more() -> None:
    """Before the redaction they can be read as of; after forgetting they can't."""
    stream, storage = make_stream(0)
    _publish_often(stream, storage, ICEBERG)
    assert len(iceberg.newest(storage).state.metadata["snapshots"]) == 9
    _forget(stream)
    found = iceberg.newest(storage)
    (snapshot,) = found.state.metadata["snapshots"]
    assert json.loads(snapshot["summary"]["segstore"])["version"] >= stream._log.root.log_start
    version = found.version
    _forget(stream)
    assert iceberg.newest(storage).version == version


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
@pytest.mark.parametrize("kind", ["fail", "crash"])
def test_cleaning_tables_goes_on_after_a_fault_at_every_call(kind: str, table: Table) -> None:
    """Whichever call of forgetting fails, later ones end it, and the table is whole."""
    for number in range(1 + (kind == "crash"), 1000, 9):
        time = VirtualTime(number)
        inner = TimedStorage(open_storage(fresh_url()), time)
        storage = FaultStorage(inner)
        stream = create_on(storage, SCHEMA, clock=time.clock, upkeep=None)
        for start in (0, ROWS):
            stream.append(_events(start), layout=SETTLED)
            stream.truncate(stream.head + 1)
            table.publish(stream)
            time.advance(60)
        storage.fault = Fault(len(storage.calls) + number, kind, "after")
        with suppress(Crash, StorageError):
            _forget(stream)
        struck, storage.fault = storage.struck, None
        again = open_on(inner, clock=time.clock)
        reports = []
        for _ in range(3):
            reports.append(_forget(again))
            time.advance(8 * DAY)
        assert reports[-1].done, number
        assert holders(again.url) == [], number
        assert table.shown(inner)[1] == again.read().read_all().to_pylist()
        if not struck:
            assert number > 40
            return
    pytest.fail("forgetting never succeeds")
