"""Views: their rows against what the stream says elsewhere, and how they are read in pieces."""

import datetime as dt
import uuid

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from faults import FaultStorage
from stream_kit import (
    DAY,
    HOUR,
    STAGED,
    TIGHT,
    make_stream,
    numbers,
    snapshot,
    staged_job,
    wait,
)
from virtual_time import TimedStorage

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.format import names
from segstore_ds.read import metadata_tables
from segstore_ds.storage import open_storage
from segstore_ds.stream.connector.tables import MetadataRows
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.write.layout import Layout


def rows(stream, name):
    """Return a table's rows."""
    return stream.metadata(name).read_all().to_pylist()


def test_segments_are_listed_with_their_offsets():
    """In order, those that hold kept events."""
    stream, _ = make_stream(4)
    stream.truncate(13)
    found = rows(stream, "segments")
    assert [(row["start"], row["end"], row["rows"]) for row in found] == [
        (10, 20, 10),
        (20, 30, 10),
        (30, 40, 10),
    ]
    entries = stream._log.root.entries
    assert [row["path"] for row in found] == [f"segments/{entry.path}" for entry in entries]
    assert [row["segment_id"] for row in found] == [entry.segment_id for entry in entries]
    assert [row["bytes"] for row in found] == [entry.bytes for entry in entries]
    assert [row["stats"] for row in found] == [entry.stats for entry in entries]
    assert {row["format"] for row in found} == {"arrow"}
    assert stream.segments().read_all().to_pylist() == found


def test_segments_say_which_commit_added_them(monkeypatch):
    """After compactions, in a copy, and behind a repair; null where the history is lost."""
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 2)
    stream, storage = make_stream(6)

    def added(seen):
        times = [row["time"] for row in rows(seen, "history")]
        found = rows(seen, "segments")
        assert all(row["commit_time"] == times[row["version"]] for row in found)
        return [(row["start"], row["version"]) for row in found]

    assert added(stream) == [(10 * n, n + 1) for n in range(6)]
    compacted = stream.compact(10, 40).version
    expected = [(0, 1), (10, compacted), (40, 5), (50, 6)]
    assert added(stream) == expected
    url = f"memory://{uuid.uuid4().hex}"
    stream.copy_to(url, copy_id="c")
    copied = segstore.open(url)
    assert {version for _, version in added(copied)} == {0}
    storage.put(f"log/{stream.version + 1:020d}", b"rubbish")
    repair_on(storage, clock=stream._log.clock, allow_loss=True)
    stream = open_on(storage, clock=stream._log.clock)
    stream.append(numbers(60, 70))
    assert added(stream) == [*expected, (60, stream.version)]
    assert stream.version == compacted + 3  # behind the lost version and the repair
    for path in names.both_names(stream._log.root.history_parts[1].path):
        storage.delete(path)
    found = rows(open_on(storage), "segments")
    assert [row["version"] for row in found] == [None, compacted, 5, 6, stream.version]


def test_segments_of_a_range_read_the_history_back_only_so_far(monkeypatch):
    """Part by part, from the newest commits on."""
    for name, value in {"rows": 2, "hard": 4, "fan_in": 99}.items():
        monkeypatch.setattr(f"segstore_ds.status.table.HISTORY.{name}", value)
    stream, storage = make_stream(40)
    counted = FaultStorage(storage)
    seen = open_on(counted, clock=stream._log.clock)
    assert len(seen._log.root.history_parts) > 10
    span = MetadataRows(snapshot(seen), "segments").read((380, 400))
    assert span.read_all()["version"].to_pylist() == [39, 40]
    assert len([call for call in counted.calls if "-history-" in call]) <= 2


@pytest.mark.usefixtures("no_inline")
def test_frames_tile_the_stream():
    """Each with its place in its object."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 10), layout=Layout(frame_rows=4))
    stream.append(numbers(10, 11))
    found = rows(stream, "frames")
    assert [(row["start"], row["end"]) for row in found] == [(0, 3), (3, 6), (6, 10), (10, 11)]
    assert [row["frame"] for row in found] == [0, 1, 2, 0]
    for row in found:
        size = storage.info(row["path"]).size
        assert 64 <= row["place"] < row["place"] + row["bytes"] < size


def test_writers_readers_and_tags():
    """Those in blobs too, sorted by name."""
    stream, storage = make_stream(2)
    for n in range(300):
        stream.append(numbers(n, n + 1), writer_id=f"w{n:03}", batch_id=n)
    assert stream._log.root.writers_parts
    found = rows(stream, "writers")
    assert [row["writer_id"] for row in found] == [f"w{n:03}" for n in range(300)]
    assert [(row["start"], row["end"]) for row in found] == [(20 + n, 21 + n) for n in range(300)]
    stream.readers.register("etl", owner="a", start=5, lapse_s=int(DAY))
    stream.readers.register("gone", start=8).release()
    wait(storage, 2 * DAY)
    stream.readers.register("new", start="tail")
    live = {row["name"]: (row["live"], row["behind"]) for row in rows(stream, "readers")}
    assert live == {"etl": (False, 315), "gone": (False, 312), "new": (True, 0)}
    stream.tags.set("eod", 7)
    (tag,) = rows(stream, "tags")
    assert (tag["name"], tag["offset"], tag["version"]) == ("eod", 7, stream.version)


@pytest.mark.usefixtures("no_inline")
def test_storage_says_what_takes_room_why_and_until_when():
    """The reasons add up to the whole folder, and name when upkeep will have deleted it."""
    stream, storage = make_stream(8)
    stream.truncate(10)
    stream.copy_to(f"{stream.url}-clone", copy_id="c", mode="clone")
    stream.truncate(20)
    stream.compact()
    compacted = stream.refresh()._log.root.time_us
    wait(storage, HOUR)
    stream.overwrite(numbers(0, 5), layout=STAGED)
    staged_job(stream, 90, 95)
    found = {row["why"]: row for row in rows(stream, "storage")}
    assert {why: row["objects"] for why, row in found.items()} == {
        "commits": stream.version + 1,
        "listed": 1,
        "dropped by truncate or retention": 1,
        "needed by the clone 'c'": 8,
        "never committed": 1,
    }
    folders = ("log/0", "segments/", "status/")
    kept = [info for info in storage.list("") if info.path.startswith(folders)]
    assert sum(row["bytes"] for row in found.values()) == sum(info.size for info in kept)
    figures = stream.metrics(storage=True).storage
    assert [(one.why, one.objects) for one in figures] == [
        (why, row["objects"]) for why, row in found.items()
    ]
    stream.pins.release("c")
    wait(storage, 8 * DAY)
    stream.tags.set("a")
    found = {row["why"]: row for row in rows(stream, "storage")}
    assert {why: row["objects"] for why, row in found.items() if why != "commits"} == {
        "listed": 1,
        "dropped by truncate or retention": 2,
        "replaced by compactions": 6,
        "overwritten": 1,
        "never committed": 1,
    }
    merged = found["replaced by compactions"]
    assert merged["since"].timestamp() == compacted / 1e6
    assert merged["until"] - merged["since"] == dt.timedelta(days=7)
    assert found["listed"]["until"] is None
    assert found["commits"]["until"] - found["commits"]["since"] > dt.timedelta(days=8)


@pytest.mark.usefixtures("no_inline")
def test_a_clone_that_was_materialized_a_grace_ago_needs_no_storage():
    """The origin's root still has the pin; the table goes by the rule that upkeep goes by."""
    stream, storage = make_stream(3)
    url = f"{stream.url}-clone"
    stream.copy_to(url, copy_id="c", mode="clone")
    stream.truncate(10)
    clone = open_on(TimedStorage(open_storage(url), storage.time), clock=stream._log.clock)
    clone.materialize()
    for days, needed in ((1, True), (7, False)):
        wait(storage, days * DAY)
        found = {row["why"] for row in rows(stream.refresh(), "storage")}
        assert stream._log.root.pins
        assert ("needed by the clone 'c'" in found) == needed


def test_unknown_table_is_answered_with_the_known_ones():
    """And an empty stream has empty tables with their columns."""
    stream, _ = make_stream(0)
    with pytest.raises(InvalidInputError, match="known: segments, frames, history"):
        stream.metadata("chunks")
    for name, known in metadata_tables.METADATA_TABLES.items():
        table = stream.metadata(name).read_all()
        once = name in ("info", "storage", "history")
        assert (table.num_rows, table.schema) == (once, known.schema)


@pytest.mark.usefixtures("no_inline")
def test_ranges_give_every_row_once(monkeypatch):
    """Whatever the parts are, and however many go into a range."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    monkeypatch.setattr(metadata_tables, "BATCH_ROWS", 2)
    stream, _ = make_stream(0)
    for n in range(14):
        stream.append(numbers(n, n + 1))
    stream.truncate(3)
    for name in ("segments", "frames"):
        whole = rows(stream, name)
        assert [row["start"] for row in whole] == list(range(3, 14))
        for most in (1, 4, 100):
            ranges = metadata_tables.plan_table(
                stream._context.status,
                stream._log.root,
                metadata_tables.METADATA_TABLES[name],
                most_segments=most,
            )
            pieces = [MetadataRows(snapshot(stream), name).read(span).read_all() for span in ranges]
            assert pa.concat_tables(pieces).to_pylist() == whole
            assert len(ranges) == 1 or most < 100


def test_other_libraries_take_rows_as_they_are():
    stream, _ = make_stream(3)
    assert pl.DataFrame(stream.history())["version"].to_list() == [0, 1, 2, 3]
    assert pa.table(stream.history()).num_rows == 4
    assert stream.segments().read_pandas()["rows"].tolist() == [10, 10, 10]
    assert pa.RecordBatchReader.from_stream(stream.segments()).read_all().num_rows == 3
    with duckdb.connect() as connection:
        segments = stream.segments()
        found = connection.execute("select sum(rows) from segments").fetchall()
        assert (found, segments.read_all().num_rows) == ([(30,)], 3)


def test_showing_rows_takes_none_from_who_reads():
    """Values stay data, and a long table is cut."""
    stream, _ = make_stream(3)
    rows = stream.history(1)
    stream.append({"n": 1, "s": "<b>"}, writer_id="<script>", batch_id=1)
    assert rows._repr_html_().count("<tr>") == 4
    assert rows.read_all().num_rows == 3
    assert "&lt;script&gt;" in stream.metadata("writers")._repr_html_()
    for place in range(60):
        stream.tags.set(f"t{place}", 0)
    shown = stream.metadata("tags")._repr_html_()
    assert shown.count("<tr>") == 51
    assert shown.endswith("<p>...</p>")
    assert "version" in repr(stream.history())


def test_readers_are_a_list_and_a_table():
    stream, _ = make_stream(3)
    stream.readers.register("billing", start=5, owner="<i>")
    (found,) = stream.readers
    assert (found.name, found.record.offset) == ("billing", 5)
    assert list(stream.readers) == [found]
    shown = stream.readers._repr_html_()
    assert "billing" in shown
    assert "&lt;i&gt;" in shown


def test_an_unknown_table_is_refused_at_once():
    stream, _ = make_stream(0)
    with pytest.raises(InvalidInputError, match="no such metadata table"):
        stream.metadata("nothing")
    assert not hasattr(stream.history(), "_nothing")
