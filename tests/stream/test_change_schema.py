"""Columns that are renamed and dropped: what writers, settings, copies and tables make of it."""

import io
import json
import pickle
import threading

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import segstore_ds as segstore
from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.events import plan_copy_events
from segstore_ds.errors import InvalidInputError, SchemaMismatchError, UnsupportedVersionError
from segstore_ds.format import root as roots
from segstore_ds.format.root import decode_root, encode_root
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.publish import delta
from segstore_ds.publish.life import CODECS
from segstore_ds.storage import open_storage

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("email", pa.string())])
EVENTS = [{"user": f"u{n % 3}", "n": n, "email": f"e{n}"} for n in range(6)]
ARROW = segstore.Layout(segment_format="arrow", inline_bytes=0)
PARQUET = segstore.Layout(segment_format="parquet", inline_bytes=0)

LAYOUTS = pytest.mark.parametrize(
    "layout", [segstore.Layout(), ARROW, PARQUET], ids=["inline", "arrow", "parquet"]
)


@pytest.fixture
def stream(tmp_path):
    made = segstore.create(str(tmp_path / "s"), SCHEMA, upkeep=None)
    made.append(EVENTS)
    return made


def rows(stream, **how):
    return stream.read(**how).read_all().to_pylist()


def root_of(stream):
    return StreamLog(_storage(stream)).open()


def _storage(stream):
    return stream._context.storage


def test_rename_and_drop_are_one_commit_that_writes_no_segment(stream):
    version, objects = stream.version, set(_storage(stream).list("segments"))
    stream.change_schema(rename={"user": "who"}, drop=["email"])
    assert stream.version == version + 1
    assert set(_storage(stream).list("segments")) == objects
    assert stream.schema.names == ["who", "n"]
    assert rows(stream) == [{"who": each["user"], "n": each["n"]} for each in EVENTS]
    assert rows(stream, as_of=version) == EVENTS


def test_older_version_refuses_a_stream_with_changed_columns_alone(stream, monkeypatch):
    """One that knows no names of columns would read other columns' values."""
    before = root_of(stream)
    assert (before.reader_features, before.writer_features) == ((), ())
    assert "names" not in json.loads(encode_root(before))["epochs"][0]
    stream.change_schema(rename={"n": "count"})
    body = encode_root(root_of(stream))
    assert root_of(stream).reader_features == root_of(stream).writer_features == ("column-names",)
    monkeypatch.setattr(roots, "READER_FEATURES", frozenset())
    with pytest.raises(UnsupportedVersionError, match="column-names"):
        decode_root(body, "log/1")


@LAYOUTS
def test_name_of_a_dropped_column_shows_no_old_value(stream, layout):
    """Whatever the type of the new column, and in statistics, filters and keys, too."""
    stream.settings.update(key_columns=["email"])
    stream.append(EVENTS, layout=layout)
    with pytest.raises(InvalidInputError, match="key_columns"):
        stream.change_schema(drop=["email"])
    stream.settings.update(key_columns=None)
    stream.change_schema(drop=["email"])
    stream.append([{"user": "x", "n": 9, "email": "new"}], merge_schema=True, layout=layout)
    stream.settings.update(key_columns=["email"])
    stream.append([{"user": "y", "n": 9, "email": "e1"}], layout=layout)
    assert [row["email"] for row in rows(stream)] == [None] * 12 + ["new", "e1"]
    assert [row["user"] for row in rows(stream, filters="email == 'e1'")] == ["y"]
    assert len(rows(stream, filters="email is null")) == 12
    stream.compact(layout=layout)
    assert [row["email"] for row in rows(stream)] == [None] * 12 + ["new", "e1"]
    stream.change_schema(drop=["n"])
    stream.append([{"user": "z", "email": "e2", "n": "text"}], merge_schema=True, layout=layout)
    assert [row["n"] for row in rows(stream)] == [None] * 14 + ["text"]
    assert stream.verify().problems == []


@LAYOUTS
def test_filters_and_keys_follow_the_new_names(stream, layout):
    """Columns that swap names, too: statistics and keys are looked up by stored names."""
    stream.settings.update(key_columns=["user"])
    stream.append(EVENTS, layout=layout)
    stream.change_schema(rename={"user": "n", "n": "user"})
    stream.change_schema(rename={"n": "who", "user": "n"})
    stream.append([{"who": "u1", "n": 5, "email": None}], layout=layout)
    for filters in ("who == 'u1' and n > 3", (pc.field("who") == "u1") & (pc.field("n") > 3)):
        found = rows(stream, filters=filters, columns=["who", "n"], offset_column="user")
        assert [row["user"] for row in found] == [4, 10, 12]
        assert all(row["who"] == "u1" and row["n"] in (4, 5) for row in found)
    assert stream.settings.key_columns == ("who",)


CHANGES = {
    "swap": lambda it: it.change_schema(rename={"user": "email", "email": "user"}),
    "rename": lambda it: it.change_schema(rename={"user": "who"}),
    "drop": lambda it: it.change_schema(drop=["user"]),
    "drop and add": lambda it: (
        it.change_schema(drop=["user"]),
        it.append({"user": "again"}, merge_schema=True),
    ),
    "overwrite": lambda it: it.overwrite(pa.table({"user": [1]}), overwrite_schema=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_running_follow_ends_before_a_column_means_something_else(stream, change):
    """Started again it goes on with the same event; so it does over new and wider columns."""
    follow = stream.follow("etl", timeout=0)
    next(follow)
    stream.append({"n": 7, "new": 1}, merge_schema=True)
    assert next(follow).schema.names == ["user", "n", "email", "new"]
    CHANGES[change](stream)
    stream.append({"n": 8}) if change != "overwrite" else stream.append({"user": 8})
    at = follow.offset
    for _ in range(2):
        with pytest.raises(segstore.SegstoreError, match=r"start again|no such|are gone"):
            next(follow)
    assert follow.offset >= at
    if change != "overwrite":
        again = stream.follow("etl", timeout=0)
        left = stream.refresh().info()["tail"] - again.offset
        assert sum(batch.num_rows for batch in again) == left


def test_other_engines_follow(stream):
    polars = pytest.importorskip("polars")
    stream.append(EVENTS, layout=PARQUET)
    stream.change_schema(rename={"user": "email", "email": "user"})
    found = (
        stream.scan().to_polars().filter(polars.col("email") == "u1").select("n", "user").collect()
    )
    assert found.rows() == [(1, "e1"), (4, "e4")] * 2
    data = stream.scan().to_dataset()
    assert data.to_table(filter=pc.field("email") == "u1")["user"].to_pylist() == ["e1", "e4"] * 2
    duckdb = pytest.importorskip("duckdb")
    asked = stream.scan().to_duckdb(duckdb.connect()).filter("email = 'u1'").project("user")
    assert sorted(asked.fetchall()) == [("e1",), ("e1",), ("e4",), ("e4",)]


def test_large_parquet_segment_is_not_read_by_old_names(tmp_path):
    """An engine that decodes files knows nothing of names: a dropped column would come back."""
    pytest.importorskip("polars")
    stream = segstore.create(str(tmp_path / "s"), pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    many = pa.table({"a": range(70_000), "b": range(70_000)})
    stream.append(many, layout=PARQUET)
    stream.change_schema(drop=["b"])
    stream.append(pa.table({"a": [1], "b": [2]}), merge_schema=True, layout=PARQUET)
    assert stream.scan().to_polars().collect()["b"].null_count() == 70_000
    stream.change_schema(rename={"a": "b", "b": "a"})
    found = stream.scan().to_polars().collect()
    assert found["a"].null_count() == 70_000
    assert found["b"].sum() == sum(range(70_000)) + 1


def test_batch_that_looks_as_it_is_stored_goes_by_its_names(tmp_path):
    """Its columns are in the stored order, under names that have swapped since."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    stream = segstore.create(str(tmp_path / "s"), schema)
    stream.change_schema(rename={"a": "b", "b": "a"})
    stream.append(pa.table({"a": [1], "b": [2]}, schema))
    with stream.appender() as appender:
        appender.append(pa.table({"a": [1], "b": [2]}, schema))
    assert rows(stream.refresh()) == [{"b": 2, "a": 1}] * 2


def test_writer_with_the_old_name_is_refused_or_adds_a_column(stream):
    stream.change_schema(rename={"n": "count"})
    with pytest.raises(SchemaMismatchError, match=r"new_columns=.*n: int64"):
        stream.append(pa.table({"user": ["x"], "n": [7], "email": ["y"]}))
    with pytest.raises(SchemaMismatchError, match="unknown columns"):
        stream.append({"user": "x", "n": 7})
    stream.append({"user": "x", "n": 7}, merge_schema=True)
    assert rows(stream)[-1] == {"user": "x", "count": None, "email": None, "n": 7}
    assert [row["n"] for row in rows(stream)[:6]] == [None] * 6


@LAYOUTS
def test_write_in_flight_keeps_its_values(stream, layout):
    """It was planned before the columns changed; a dropped column's values go with the column."""
    job = stream.plan_write(SCHEMA, layout=layout)
    job = pickle.loads(pickle.dumps(job))  # noqa: S301 - our own
    task = job.stage(0, "once", pa.Table.from_pylist(EVENTS[:2], SCHEMA).to_batches())
    stream.change_schema(rename={"user": "n", "n": "user"}, drop=["email"])
    stream.commit(job, [task])
    assert rows(stream)[-2:] == [{"n": "u0", "user": 0}, {"n": "u1", "user": 1}]


def test_write_in_flight_with_a_new_column_is_refused_if_its_name_was_taken(stream):
    wider = SCHEMA.append(pa.field("extra", pa.int64()))
    events = pa.table({**dict(zip(SCHEMA.names, [["x"], [1], ["e"]], strict=True)), "extra": [5]})
    job = stream.plan_write(wider, merge_schema=True)
    task = job.stage(0, "once", events.to_batches())
    stream.change_schema(rename={"n": "extra"})
    version = stream.version
    with pytest.raises(SchemaMismatchError, match="write again"):
        stream.commit(job, [task])
    assert stream.refresh().version == version
    stream.change_schema(rename={"extra": "n"})
    stream.append(events, merge_schema=True)
    assert rows(stream)[-1]["extra"] == 5


def test_write_in_flight_with_a_stored_name_that_was_given_away_is_refused(stream):
    """Both call a new column what the other one's is stored under."""
    stream.change_schema(rename={"n": "count"})
    first = pa.table({"user": ["x"], "count": [1], "email": ["e"], "n": [5]})
    job = stream.plan_write(first.schema, merge_schema=True)
    task = job.stage(0, "once", first.to_batches())
    stream.append({"user": "y", "n-2": 6}, merge_schema=True)
    with pytest.raises(SchemaMismatchError, match="write again"):
        stream.commit(job, [task])
    assert rows(stream)[-1] == {"user": "y", "count": None, "email": None, "n-2": 6}


def test_appender_goes_on_until_its_next_plan(stream):
    """What it has taken lands in the renamed column; the next events are refused by their name."""
    with stream.appender(flush_seconds=None) as appender:
        place = appender.append({"user": "x", "n": 7, "email": "e"})
        stream.change_schema(rename={"n": "count"})
        appender.flush()
        assert rows(stream.refresh())[-1] == {"user": "x", "count": 7, "email": "e"}
        assert appender.wait(place) == 6
        with pytest.raises(SchemaMismatchError, match=r"renamed or dropped.*'n'"):
            appender.append({"user": "x", "n": 8, "email": "e"})
    with stream.appender() as appender:
        place = appender.append({"user": "x", "count": 8})
        assert appender.read(place).read_all().to_pylist()[0]["count"] == 8
        appender.append(pa.table({"user": ["y"], "count": [9], "email": ["e"]}))
        assert appender.read(place).read_all()["count"].to_pylist() == [8, 9]
    assert [row["count"] for row in rows(stream.refresh())[-2:]] == [8, 9]


def test_appender_never_mixes_events_whose_names_have_swapped(stream):
    """What it has flushed is read under the new names, what it holds is under the old ones."""
    with stream.appender(flush_seconds=None) as appender:
        place = appender.append({"user": "x", "n": 7, "email": "e"})
        appender.flush()
        appender.append({"user": "y", "n": 8, "email": "f"})
        stream.change_schema(rename={"user": "email", "email": "user"})
        with pytest.raises(SchemaMismatchError, match="open another appender"):
            appender.read(place).read_all()
        assert appender.read(place + 1).read_all()["user"].to_pylist() == ["y"]
        appender.flush()
        with pytest.raises(SchemaMismatchError, match=r"renamed.*'email', 'user'"):
            appender.append({"user": "z", "n": 9, "email": "g"})
    assert [row["email"] for row in rows(stream.refresh())[-2:]] == ["x", "y"]


@pytest.mark.parametrize("replace", [False, True])
def test_values_of_a_dropped_column_are_not_lost_below_its_name(stream, replace):
    """What another column is called now is written again, to that one."""
    old = [segstore.open(stream.url) for _ in range(2)]
    if replace:
        table = pa.table({"user": ["u"], "n": [1], "mail": ["m"]})
        stream.overwrite(table, overwrite_schema=True)
    else:
        stream.append(pa.table({"mail": ["m"]}), merge_schema=True)
        stream.change_schema(drop=["email"])
    stream.change_schema(rename={"mail": "email"})
    for merge in (False, True):
        with pytest.raises(SchemaMismatchError, match="write again"):
            old[merge].append({"user": "x", "n": 7, "email": "e"}, merge_schema=merge)
    old[0].refresh().append({"user": "x", "n": 7, "email": "e"})
    assert rows(stream.refresh())[-1] == {"user": "x", "n": 7, "email": "e"}


def test_repeated_batch_is_known_under_the_new_names(stream):
    """Its fingerprint goes by stored names, so other events are told apart as before."""
    ids = {"writer_id": "w", "batch_id": 1}
    event = {"user": "x", "n": 7, "email": "e"}
    stream.append(event, **ids)
    stream.change_schema(rename={"user": "email", "email": "user"})
    swapped = {"email": "x", "n": 7, "user": "e"}
    assert stream.append(swapped, **ids).repeated
    with pytest.raises(segstore.SegstoreError, match="batch"):
        stream.append(event, **ids)


def test_times_follow_the_time_column(tmp_path):
    schema = pa.schema([("ts", pa.int64()), ("n", pa.int64())])
    stream = segstore.create(str(tmp_path / "t"), schema, time_column="ts", upkeep=None)
    stream.append([{"ts": n, "n": -n} for n in range(10)])
    with pytest.raises(InvalidInputError, match="time_column"):
        stream.change_schema(drop=["ts"])
    stream.change_schema(rename={"ts": "n", "n": "at"})
    stream.append([{"n": n, "at": -n} for n in range(10, 20)], layout=ARROW)
    assert stream.settings.time_column == "n"
    assert [row["n"] for row in rows(stream, event_time=(8, 12))] == [8, 9, 10, 11]
    assert stream.position("eventtime:11").offset == 11
    times = stream.metadata("segments").read_all().to_pylist()
    assert [row["time_max"] for row in times] == ["9", "19"]


def test_expiry_follows_and_its_filters_keep_their_columns(stream):
    stream.settings.update(expiry={"email": {"age": 3600, "filters": "user == 'u1'"}})
    with pytest.raises(InvalidInputError, match="expiry"):
        stream.change_schema(drop=["email"])
    with pytest.raises(InvalidInputError, match="filters of a rule"):
        stream.change_schema(rename={"user": "who"})
    stream.change_schema(rename={"email": "mail", "n": "email"})
    assert [rule.column for rule in stream.settings.expiry] == ["mail"]
    stream.settings.update(expiry={"mail": 3600})
    assert [rule.column for rule in stream.settings.expiry] == ["mail"]


def test_redaction_finds_renamed_and_dropped_columns(stream):
    stream.append(EVENTS, layout=ARROW)
    stream.change_schema(rename={"user": "who"}, drop=["email"])
    stream.append([{"who": "u1", "n": 1, "email": "new"}], merge_schema=True, layout=PARQUET)
    done = stream.redact("who == 'u1'", columns=["email"])
    assert done.rows == 5
    assert [row["email"] for row in rows(stream)] == [None] * 13
    stream.restore(1, allow_redacted=True)
    stream.change_schema(rename={"user": "n", "n": "user"})
    stream.redact([["n", "==", "u2"]], columns=["user"])
    assert [row["user"] for row in rows(stream) if row["n"] == "u2"] == [None, None]
    assert [row["user"] for row in rows(stream) if row["n"] != "u2"] == [0, 1, 3, 4]


@pytest.mark.parametrize("mode", ["segments", "events", "clone"])
def test_copies_have_the_names_and_the_settings(stream, mode, tmp_path):
    stream.settings.update(key_columns=["user"])
    stream.append(EVENTS, layout=PARQUET)
    stream.change_schema(rename={"user": "who", "n": "user"}, drop=["email"])
    stream.append({"who": "x", "user": 1, "email": "new"}, merge_schema=True)
    stream.copy_to(str(tmp_path / "copy"), copy_id="one", mode=mode)
    copy = segstore.open(str(tmp_path / "copy"))
    assert rows(copy) == rows(stream)
    assert root_of(copy).reader_features == (() if mode == "events" else ("column-names",))
    assert copy.settings.key_columns == ("who",)
    copy.append({"who": "y", "user": 2, "email": "e"})
    assert len(rows(copy, filters="user == 2")) == 3
    copy.change_schema(rename={"who": "user", "user": "who"})
    assert rows(copy)[-1] == {"user": "y", "who": 2, "email": "e"}
    assert copy.verify().problems == []


def test_table_of_newest_events_follows_its_key(stream):
    stream.publish("delta", latest_by=["user"])
    with pytest.raises(InvalidInputError, match="remove_latest"):
        stream.change_schema(drop=["user"])
    stream.change_schema(rename={"user": "n", "n": "user"})
    stream.append({"n": "u1", "user": 9})
    done = stream.publish("delta", latest_by=["n"])
    assert (done.latest_by, done.lag) == (("n",), 0)
    beside = segstore.open(done.url)
    assert [[row["n"], row["user"]] for row in rows(beside)] == [["u0", 3], ["u2", 5], ["u1", 9]]


def test_copy_by_events_goes_by_stored_names_while_columns_are_renamed(stream, tmp_path):
    """A later run of the copy reads a source whose columns have other names by then."""
    request = CopyRequest("one", "head", "tail", mode="events")
    target = open_storage(str(tmp_path / "copy"))
    plan_copy_events(stream._context, target, request)
    stream.change_schema(rename={"user": "email", "email": "user"})
    stream.copy_to(str(tmp_path / "copy"), copy_id="one", start="head", end="tail", mode="events")
    assert rows(segstore.open(str(tmp_path / "copy"))) == EVENTS


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"drop": ["x"]}, "no such columns"),
        ({"rename": {"user.name": "x"}}, "whole columns"),
        ({"rename": {"user": "N"}}, "only in case"),
        ({"rename": {"user": "n"}}, "twice"),
        ({"rename": {"user": ""}}, "not a column name"),
        ({"rename": {"user": "x"}, "drop": ["user"]}, "named twice"),
        ({"drop": ["user", "n", "email"]}, "no column would be left"),
        ({"drop": "user"}, "not a change of columns"),
        ({}, "no change of columns"),
    ],
)
def test_what_is_no_change_of_columns_is_refused(stream, change, match):
    version = stream.version
    with pytest.raises(InvalidInputError, match=match):
        stream.change_schema(**change)
    assert stream.refresh().version == version


def published_columns(stream, kind):
    """Return the files' columns by the table's own names, as a reader of the format finds them."""
    codec, storage = CODECS[kind], _storage(stream)
    table, files = codec.read_files(storage, codec.newest(storage))
    found = []
    for file in sorted(files.values(), key=lambda each: each.start):
        data = pq.read_table(io.BytesIO(storage.get(file.path)))
        if kind == "delta":
            fields = json.loads(table.state.metadata["schemaString"])["fields"]
            key = "delta.columnMapping.physicalName"
            stored = {f["name"]: f["metadata"].get(key, f["name"]) for f in fields}
        else:
            by_id = {int(f.metadata[b"PARQUET:field_id"]): f.name for f in data.schema}
            metadata = table.state.metadata
            fields = next(
                s["fields"]
                for s in metadata["schemas"]
                if s["schema-id"] == metadata["current-schema-id"]
            )
            stored = {f["name"]: by_id.get(f["id"]) for f in fields}
        found += [{name: row.get(one) for name, one in stored.items()} for row in data.to_pylist()]
    return found


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_published_table_follows(stream, kind):
    """By field ids, or names that are mapped: no file but the one that the head cuts is new."""
    stream.append(EVENTS, layout=PARQUET)
    stream.truncate(8)
    stream.publish(kind)
    files = {info.path for info in _storage(stream).list("segments")}
    for rename, drop in (({}, ["email"]), ({"user": "n", "n": "user"}, []), ({"user": "who"}, [])):
        stream.change_schema(rename=rename, drop=drop)
        table = stream.publish(kind)
        assert (table.version, table.lag) == (stream.version, 0)
        assert {info.path for info in _storage(stream).list("segments")} == files
        assert published_columns(stream, kind) == rows(stream)
    stream.append(
        [{"who": 1, "n": "x", "email": 5}, {"who": 2, "n": "y", "email": None}],
        merge_schema=True,
        layout=PARQUET,
    )
    stream.publish(kind)
    assert published_columns(stream, kind) == rows(stream)


def test_published_delta_table_is_mapped_only_if_a_file_has_another_name(stream):
    def protocol():
        storage = _storage(stream)
        table, _ = delta.read_files(storage, delta.newest(storage))
        return table.state.protocol

    stream.publish("delta", settle=True)
    stream.change_schema(drop=["email"])
    stream.publish("delta")
    assert protocol()["minReaderVersion"] == 1
    stream.change_schema(rename={"n": "count"})
    stream.publish("delta")
    assert protocol()["readerFeatures"] == ["columnMapping"]
    assert "columnMapping" in protocol()["writerFeatures"]


def test_older_version_refuses_the_stream(stream, monkeypatch):
    stream.change_schema(rename={"n": "count"})
    body = encode_root(root_of(stream))
    monkeypatch.setattr(roots, "READER_FEATURES", frozenset())
    with pytest.raises(UnsupportedVersionError, match="column-names"):
        decode_root(body, "log/1")


@pytest.mark.parametrize("drop", [False, True])
def test_appends_that_race_with_changes_lose_nothing(drop):
    """Every event that was acknowledged is there, in the column that its writer meant."""
    url = f"memory://race-{drop}"
    stream, done = segstore.create(url, SCHEMA, upkeep=None), threading.Event()
    acknowledged = [[], []]

    def write(mine):
        own, number = segstore.open(url), len(acknowledged) + mine
        while not done.is_set() or number < 20:
            schema = own.refresh().schema
            name = next(f.name for f in schema if pa.types.is_integer(f.type))
            batch = pa.Table.from_pylist([{name: number}], schema)
            try:
                own.append(batch)
            except SchemaMismatchError:
                continue
            acknowledged[mine].append(number)
            number += 2

    writers = [threading.Thread(target=write, args=(mine,)) for mine in (0, 1)]
    for writer in writers:
        writer.start()
    for _ in range(12):
        stream.change_schema(rename={"n": "user", "user": "n"})
        if drop:
            stream.change_schema(drop=["email"])
            stream.append(pa.table({"email": ["x"]}), merge_schema=True)
        stream.change_schema(rename={"n": "user", "user": "n"})
    done.set()
    for writer in writers:
        writer.join()
    found = [row["n"] for row in rows(stream.refresh()) if row["n"] is not None]
    assert sorted(found) == sorted(acknowledged[0] + acknowledged[1])
    assert stream.verify().problems == []


def test_follower_has_the_names_and_goes_on_with_them(stream, tmp_path):
    stream.followers.add(str(tmp_path / "second"))
    stream.change_schema(rename={"user": "n", "n": "user"})
    stream.append({"n": "x", "user": 1})
    second = segstore.open(str(tmp_path / "second"))
    assert rows(second) == rows(stream)
    second.followers.promote()
    second.append({"n": "y", "user": 2})
    assert rows(second)[-1] == {"n": "y", "user": 2, "email": None}


def test_scan_that_began_before_keeps_the_old_names(stream):
    old = stream.scan()
    stream.change_schema(rename={"n": "count"})
    assert old.to_arrow().to_pylist() == EVENTS
