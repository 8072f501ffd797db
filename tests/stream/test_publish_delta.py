"""A stream as a Delta table: equal rows through other engines after every operation."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from publish_kit import DELTA, HOT, ICEBERG, SCHEMA, SETTLED, TABLES, Table, events

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError, InvalidInputError, NotFoundError
from segstore_ds.options.table import TableFormat
from segstore_ds.publish import delta, life
from segstore_ds.stream.stream import Stream


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Return a stream without events and without upkeep."""
    made = segstore.create(tmp_path / "stream", SCHEMA)
    made.settings.update(upkeep=None)
    return made


def folder_of(stream: Stream) -> Path:
    """Return the stream's folder, which is the table's."""
    return Path(stream.url.removeprefix("file://"))


def table_of(stream: Stream) -> deltalake.DeltaTable:
    """Open the table with delta-rs, by the address that the stream has."""
    return deltalake.DeltaTable(folder_of(stream))


def read_by_query(url: str, keys: dict[str, str] | None) -> Iterable[dict[str, Any]]:
    """Ask delta-rs's own engine."""
    return ask(deltalake.DeltaTable(url, storage_options=keys), "select * from t")


def read_by_pandas(url: str, keys: dict[str, str] | None) -> Iterable[dict[str, Any]]:
    """Read a pandas frame of Arrow's types."""
    frame = deltalake.DeltaTable(url, storage_options=keys).to_pandas(types_mapper=pd.ArrowDtype)
    found: list[dict[str, Any]] = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    return found


# The first calls that somebody tries who knows Delta, on the stream's address.
READERS: dict[str, Callable[[str, dict[str, str] | None], Iterable[dict[str, Any]]]] = {
    "QueryBuilder": read_by_query,
    "to_pandas": read_by_pandas,
    "to_pyarrow_table": lambda url, keys: (
        deltalake.DeltaTable(url, storage_options=keys).to_pyarrow_table().to_pylist()
    ),
    "to_pyarrow_dataset": lambda url, keys: (
        deltalake.DeltaTable(url, storage_options=keys).to_pyarrow_dataset().to_table().to_pylist()
    ),
    "scan_delta": lambda url, keys: pl.scan_delta(url, storage_options=keys).collect().to_dicts(),
}


def query(stream: Stream, text: str) -> list[dict[str, Any]]:
    """Ask delta-rs."""
    return ask(table_of(stream), text)


def ask(table: deltalake.DeltaTable, text: str) -> list[dict[str, Any]]:
    """Ask a reader of delta-rs, which may be of an older version."""
    engine = deltalake.QueryBuilder().register("t", table)
    return pa.table(engine.execute(text).read_all()).to_pylist()


def check(stream: Stream) -> None:
    """Publish, then compare all rows, and row ids with offsets."""
    found = stream.publish("delta")
    assert found.url == stream.url
    wanted = stream.read(found.head, found.tail).read_all().to_pylist()
    for name, rows_by in READERS.items():
        assert sorted(rows_by(stream.url, None), key=str) == sorted(wanted, key=str), name
    assert all(Path(uri.removeprefix("file://")).exists() for uri in table_of(stream).file_uris())
    assert (found.head, found.tail + found.lag) == (stream.head, stream.tail)
    spans = []
    for add in adds_of(stream):
        rows = json.loads(add["stats"])["numRecords"]
        spans.append((add["baseRowId"], add["baseRowId"] + rows))
    spans.sort()
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert (spans[0][0], spans[-1][1]) == (found.head, found.tail) if spans else not wanted


def adds_of(stream: Stream) -> list[dict[str, Any]]:
    """Return the files that the table lists, as a reader of the protocol alone finds them."""
    listed: dict[str, dict[str, Any]] = {}
    for commit in sorted(log_of(stream).glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                listed[action["add"]["path"]] = action["add"]
            elif "remove" in action:
                del listed[action["remove"]["path"]]
    return list(listed.values())


def log_of(stream: Stream) -> Path:
    """Return the folder of the table's log."""
    return folder_of(stream) / "_delta_log"


def changes_of(stream: Stream, back: int = 0) -> list[tuple[str, bool]]:
    """Return what the newest commit, or one before, did to files, and whether it changed rows."""
    commit = sorted(log_of(stream).glob("*.json"))[-1 - back]
    found = [json.loads(line) for line in commit.read_text().splitlines()]
    return sorted(
        (kind, action[kind]["dataChange"])
        for action in found
        for kind in ("add", "remove")
        if kind in action
    )


def test_delta_table_has_the_rows_of_every_operation(stream: Stream) -> None:
    """Appends, merges, truncation, restore and overwrite; what is in Arrow yet is lag."""
    for start in range(0, 60, 20):
        stream.append(events(start, start + 20), layout=SETTLED)
    check(stream)
    assert changes_of(stream) == [("add", True)] * 3
    stream.append(events(60, 70), layout=HOT)
    check(stream)
    assert stream.published.get("delta").lag == 10
    why = "10 events are left out, as the first of them is in no Parquet file yet"
    assert stream.published.get("delta").reason == f"{why}; settle=True (--settle) merges them"
    stream.compact(layout=SETTLED)
    check(stream)
    assert changes_of(stream, 1) == [("add", True)]  # the events in Arrow are new in Parquet
    assert changes_of(stream) == [("add", False)] + [("remove", False)] * 4
    version = stream.version
    stream.append(events(70, 80), layout=SETTLED)
    shown = f"as the table shows version {version} of {version + 1}; publish it again"
    assert stream.published.get("delta").reason == f"10 events are left out, {shown}"
    stream.append(events(80, 90), layout=SETTLED)
    check(stream)
    stream.compact(start=70, layout=SETTLED)
    check(stream)
    assert all(not change for _, change in changes_of(stream))
    stream.truncate(33)
    check(stream)
    stream.truncate(70)
    check(stream)
    stream.restore(version)
    check(stream)
    stream.overwrite(events(0, 5), layout=SETTLED)
    check(stream)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_publishing_twice_changes_nothing(stream: Stream, table: Table) -> None:
    """A table that shows the newest version is left alone."""
    stream.append(events(0, 20), layout=SETTLED)
    first, made = table.publish(stream), table.objects(stream._log.storage)
    assert table.publish(stream) == first == stream.published.get(table.kind)
    assert table.objects(stream._log.storage) == made


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_table_keeps_the_events_that_it_has_shown(stream: Stream, table: Table) -> None:
    """Also those that lie in Arrow, where a later call does not settle, or again."""
    stream.append(events(0, 5), layout=HOT)
    assert table.publish(stream, settle=True).tail == 5
    stream.append(events(5, 6))
    assert table.publish(stream).tail == 5
    stream.compact(layout=SETTLED)
    assert table.publish(stream).tail == 6
    stream.append(events(6, 9), layout=SETTLED)
    stream.compact(layout=HOT)
    assert table.publish(stream).tail == 9
    _, rows = table.shown(stream._log.storage)
    assert rows == events(0, 9).to_pylist()


def test_columns_are_added_widened_and_left_out(stream: Stream) -> None:
    """New columns are null before, wider ones are cast, and durations are not in the table."""
    stream.append(events(0, 10), layout=SETTLED)
    price = pa.array([Decimal("1.25")] * 10, pa.decimal128(9, 2))
    more = events(10, 20).append_column("price", price)
    stream.append(
        more.append_column("i", pa.array([1] * 10, pa.int32())), layout=SETTLED, merge_schema=True
    )
    check(stream)
    wide = events(20, 30).append_column("price", price.cast(pa.decimal128(20, 4)))
    wide = wide.append_column("i", pa.array([2**40] * 10))
    stream.append(wide, layout=SETTLED, merge_schema=True)
    check(stream)
    odd = events(30, 40).append_column("took", pa.array([5] * 10, pa.duration("us")))
    stream.append(odd, layout=SETTLED, merge_schema=True)
    with pytest.raises(InvalidInputError, match="took"):
        stream.publish("delta", strict=True)
    assert stream.publish("delta").left_out == {"took": "duration[us]"}
    only = segstore.create(f"{stream.url}_only", pa.schema([("took", pa.duration("us"))]))
    with pytest.raises(InvalidInputError, match=r"; cast them$"):  # it was not strict
        only.publish("delta")
    assert query(stream, "select max(i) as i, count(*) as c from t") == [{"i": 2**40, "c": 40}]


def test_integers_that_became_doubles_are_rewritten(stream: Stream) -> None:
    """Also nested ones: Delta's readers need a feature to read integers as doubles."""
    for kind in (pa.int16(), pa.float64(), pa.int32()):
        start = stream.tail
        data = events(start, start + 10).append_column("x", pa.array([3] * 10, kind))
        deep = pa.array([[{"y": 3}]] * 10, pa.list_(pa.struct([("y", kind)])))
        stream.append(data.append_column("deep", deep), layout=SETTLED, merge_schema=True)
        check(stream)
    assert query(stream, "select sum(x) as x from t where x > 0.7") == [{"x": 90.0}]
    for place, uri in enumerate(sorted(table_of(stream).file_uris())):
        stored = pq.read_schema(uri.removeprefix("file://"))
        assert stored.field("x").type == pa.float64(), place
        assert stored.field("deep").type.value_type.field("y").type == pa.float64(), place


def test_checkpoints_hold_the_whole_table(stream: Stream) -> None:
    """After many commits the log is read from its newest checkpoint on."""
    for start in range(0, 120, 10):
        stream.append(events(start, start + 10), layout=SETTLED)
        stream.publish("delta")
    hint = json.loads((log_of(stream) / "_last_checkpoint").read_text())
    assert hint["version"] == 10
    for commit in range(10):
        (log_of(stream) / f"{commit:020d}.json").unlink()
    assert query(stream, "select count(*) as c, max(n) as m from t") == [{"c": 120, "m": 119}]
    stream.append(events(120, 130), layout=SETTLED)
    assert stream.publish("delta").tail == 130
    assert query(stream, "select count(*) as c from t where n > 100") == [{"c": 29}]


def test_foreign_writers_are_refused(stream: Stream) -> None:
    """The protocol names a feature that only segstore knows; nothing is deleted or written.

    All of the stream's files lie in the table's folder: a full vacuum would delete the log.
    """
    stream.append(events(0, 20), layout=SETTLED)
    stream.truncate(3)
    stream.publish("delta")
    stream.append(events(20, 40), layout=SETTLED)
    stream.compact(layout=SETTLED)
    stream.publish("delta")
    table, rows = table_of(stream), pa.table({"n": [1], "word": ["x"]})
    folder, lazy = str(folder_of(stream)), pl.LazyFrame({"n": [1], "word": ["x"]})
    before = {path: path.read_bytes() for path in folder_of(stream).rglob("*") if path.is_file()}
    hours = {"retention_hours": 0, "enforce_retention_duration": False, "dry_run": False}
    would_go = table.vacuum(**{**hours, "dry_run": True, "full": True})
    assert {"log/00000000000000000000", "log/_latest"} <= {*would_go}
    merge = table.merge(rows, "t.n = s.n", source_alias="s", target_alias="t")
    for change in (
        lambda: deltalake.write_deltalake(folder, rows, mode="append"),
        lambda: deltalake.write_deltalake(folder, rows, mode="overwrite"),
        lambda: deltalake.write_deltalake(folder, rows, mode="overwrite", schema_mode="overwrite"),
        lambda: deltalake.DeltaTable.create(folder, table.schema(), mode="overwrite"),
        lambda: lazy.collect().write_delta(folder, mode="append"),
        lambda: lazy.sink_delta(folder, mode="append"),
        merge.when_not_matched_insert_all().execute,
        table.optimize.compact,
        lambda: table.optimize.z_order(["n"]),
        lambda: table.vacuum(full=True, **hours),
        lambda: table.vacuum(**hours),
        lambda: table.restore(0),
        table.delete,
        lambda: table.delete("n > 5"),
        lambda: table.update({"n": "1"}),
        lambda: table.alter.set_table_properties({"delta.appendOnly": "true"}),
        lambda: table.alter.add_columns([deltalake.Field("z", "long")]),
    ):
        with pytest.raises(deltalake.exceptions.DeltaError, match="segstore"):
            change()
    assert before == {
        path: path.read_bytes() for path in folder_of(stream).rglob("*") if path.is_file()
    }
    assert query(stream, "select count(*) as c from t") == [{"c": 37}]


def test_what_delta_lets_others_write_is_borne(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of delta-rs, its clean-up and an empty vacuum; a wrong checkpoint is damage."""
    monkeypatch.setattr(life, "CLEAN_EVERY", 7)
    for start in range(0, 30, 10):
        stream.append(events(start, start + 10), layout=SETTLED)
        stream.truncate(start + 2)
        stream.publish("delta")
        foreign = table_of(stream)
        foreign.create_checkpoint()
        foreign.cleanup_metadata()
        assert foreign.vacuum(retention_hours=200, dry_run=False) == []
    stream.verify().check()
    stream.append(events(30, 40), layout=SETTLED)
    stream.truncate(25)
    check(stream)
    newest = max(log_of(stream).glob("*.checkpoint.parquet"))
    older = newest.with_name(f"{0:020d}.checkpoint.parquet")
    sound = newest.read_bytes()
    newest.write_bytes(older.read_bytes())
    (problem,) = (found for found in stream.verify().problems if newest.name in found.where)
    assert "another program" in problem.what
    with pytest.raises(CorruptionError, match="another program"):
        delta.read_files(stream._log.storage, delta.newest(stream._log.storage))
    newest.write_bytes(sound)
    for start in range(40, 70, 10):
        stream.append(events(start, start + 10), layout=SETTLED)
        check(stream)
    stream.verify().check()
    assert stream.published.remove("delta") > 7
    assert list(log_of(stream).iterdir()) == []
    check(stream)


def test_another_table_in_the_folder_is_refused_and_kept(stream: Stream, tmp_path: Path) -> None:
    """Whether another program or another stream made it: neither published into, nor removed."""
    stream.append(events(0, 10), layout=SETTLED)
    other = segstore.create(tmp_path / "other", SCHEMA, upkeep=None)
    other.append(events(0, 5), layout=SETTLED)
    other.publish("delta")
    deltalake.write_deltalake(tmp_path / "own", events(0, 5))
    for source in ("other", "own"):
        shutil.copytree(tmp_path / source / "_delta_log", log_of(stream))
        files = {path: path.read_bytes() for path in log_of(stream).iterdir()}
        for call in (stream.publish, stream.published.remove):
            with pytest.raises(
                (InvalidInputError, CorruptionError), match="to a folder of its own"
            ):
                call("delta")
        assert files == {path: path.read_bytes() for path in log_of(stream).iterdir()}
        shutil.rmtree(log_of(stream))
        stream = segstore.open(stream.url)
    shutil.copytree(tmp_path / "own" / "_delta_log", log_of(stream))
    stream.maintain(grace=0, short_grace=True)
    (kept,) = segstore.drop(stream.url, confirm=stream.url).kept
    assert kept == f"_delta_log/{0:020d}.json"
    assert (folder_of(stream) / kept).exists()


def test_clone_is_published_once_it_is_materialized(stream: Stream, tmp_path: Path) -> None:
    """Until then, its files lie elsewhere."""
    stream.append(events(0, 20), layout=SETTLED)
    stream.copy_to(tmp_path / "clone", copy_id="c", mode="clone")
    clone = segstore.open(tmp_path / "clone")
    with pytest.raises(InvalidInputError, match="materialize"):
        clone.publish("delta")
    clone.materialize()
    clone.settings.update(upkeep=None)
    check(clone)


def _names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _log_names(commits: range, *checkpoints: int) -> set[str]:
    return {f"{number:020d}.json" for number in commits} | {
        f"{number:020d}.checkpoint.parquet" for number in checkpoints
    }


def test_superseded_metadata_and_files_go_after_the_grace(stream: Stream) -> None:
    """What the newest checkpoint covers, and the table's own files that it lists no more."""
    for start in range(0, 100, 10):
        stream.append(events(start, start + 10), layout=SETTLED)
        stream.truncate(start + 1)
        stream.publish("delta")
    folder = folder_of(stream) / "delta"
    assert len([*folder.glob("*.parquet")]) == 10
    old, marks = table_of(stream), folder / "_unused.json"
    for path in (*log_of(stream).iterdir(), *folder.iterdir()):
        if path.is_file():
            age_s = 2 * 3600 if "_delta_log" in path.parts else 8 * 86_400
            os.utime(path, (time.time() - age_s, time.time() - age_s))
    stream.append(events(100, 110), layout=SETTLED)
    stream.publish("delta")
    assert len(json.loads(marks.read_text())) == 9
    # Readers that found the log before the checkpoint was written still read its commits.
    assert _names_in(log_of(stream)) == {*_log_names(range(11), 10), "_last_checkpoint"}
    assert query(stream, "select count(*) as c from t") == [{"c": 19}]
    old.update_incremental()
    assert old.version() == 10
    marks.write_text(json.dumps(dict.fromkeys(json.loads(marks.read_text()), 1)))
    checkpoint = log_of(stream) / f"{10:020d}.checkpoint.parquet"
    os.utime(checkpoint, (time.time() - 2 * 3600,) * 2)
    for start in range(110, 210, 10):
        stream.append(events(start, start + 10), layout=SETTLED)
        stream.publish("delta")
    assert _names_in(log_of(stream)) == {*_log_names(range(10, 21), 10, 20), "_last_checkpoint"}
    assert len([*folder.glob("*.parquet")]) == 1
    assert json.loads(marks.read_text()) == {}
    assert query(stream, "select count(*) as c from t") == [{"c": 119}]


def test_a_file_that_was_dropped_just_now_stays_for_its_readers(stream: Stream) -> None:
    """However old the file itself is."""
    stream.append(events(0, 10), layout=SETTLED)
    stream.truncate(4)
    stream.publish("delta")
    (own,) = (folder_of(stream) / "delta").glob("*.parquet")
    os.utime(own, (1, 1))
    reader = table_of(stream)
    for start in range(10, 130, 10):
        stream.truncate(start - 5)
        stream.append(events(start, start + 10), layout=SETTLED)
        stream.publish("delta")
    assert own.exists()
    assert ask(reader, "select count(*) as c, min(n) as first from t") == [{"c": 6, "first": 4}]


@pytest.mark.parametrize(
    ("table", "unknown", "known"), [(DELTA, 9, 4), (ICEBERG, 12, 6)], ids=["delta", "iceberg"]
)
def test_publishing_reads_what_changed_and_no_more(
    table: Table, unknown: int, known: int, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the table's log or manifests nor parts that both versions have are read."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    layout = replace(SETTLED, segment_rows=1, frame_rows=1)
    for start in range(0, 20, 5):
        stream.append(events(start, start + 5), layout=layout)
        table.publish(stream)
    assert len(stream._log.root.parts) > 1
    fresh = segstore.open(stream.url)
    for start, most in ((20, unknown), (21, known)):  # then it knows the table
        fresh.append(events(start, start + 1), layout=layout)
        fresh._log.storage.stats.reset()
        assert table.publish(fresh).lag == 0
        assert fresh._log.storage.stats.total <= most
    assert table.shown(stream._log.storage)[1] == events(0, 22).to_pylist()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_dropped_stream_is_not_published(stream: Stream, kind: TableFormat) -> None:
    """A handle that knows the table finds out before it makes another one."""
    stream.append(events(0, 10), layout=SETTLED)
    stream.publish(kind)
    segstore.drop(stream.url, confirm=stream.url)
    with pytest.raises(NotFoundError):
        stream.publish(kind)
    assert not [path for path in folder_of(stream).rglob("*.json") if path.is_file()]


def test_redacted_values_leave_the_table(stream: Stream) -> None:
    """Readers of changes see that rows changed, at the offsets that they had."""
    stream.append(events(0, 20), layout=SETTLED)
    stream.truncate(3)
    check(stream)
    stream.redact([["n", "==", 5]], columns=["word"], redact_id="r")
    check(stream)
    assert changes_of(stream) == [("add", True), ("remove", True)]
    assert query(stream, "select word from t where n = 5") == [{"word": None}]
