"""A stream as an Iceberg table: equal rows through pyiceberg after every operation."""

import json
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from publish_kit import HOT, SCHEMA, SETTLED, events, iceberg_entries
from pyiceberg.table import StaticTable

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.publish.life import clean_tables
from segstore_ds.stream.stream import Stream


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Return a stream without events and without upkeep."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    made = segstore.create(tmp_path / "stream", SCHEMA)
    made.settings.update(upkeep=None)
    return made


def folder_of(stream: Stream) -> Path:
    """Return the stream's folder, which is the table's."""
    return Path(stream.url.removeprefix("file://"))


def table_of(stream: Stream) -> StaticTable:
    """Open the table with pyiceberg, by the address that the stream has."""
    return StaticTable.from_metadata(str(folder_of(stream)))


def metadata_of(stream: Stream) -> dict[str, Any]:
    """Return the newest metadata."""
    folder = folder_of(stream) / "metadata"
    version = (folder / "version-hint.text").read_text()
    found: dict[str, Any] = json.loads((folder / f"v{version}.metadata.json").read_text())
    return found


def check(stream: Stream, operation: str | None = None) -> None:
    """Publish, then compare all rows, and row ids with offsets."""
    found = stream.publish("iceberg")
    assert found.url == stream.url
    table = table_of(stream)
    wanted = stream.read(found.head, found.tail).read_all().to_pylist()
    by_polars = pl.scan_iceberg(str(folder_of(stream))).collect().to_dicts()
    for rows in (table.scan().to_arrow().to_pylist(), by_polars):
        assert sorted(rows, key=str) == sorted(wanted, key=str)
    assert table.scan(row_filter="n >= 30").count() == sum(row["n"] >= 30 for row in wanted)
    assert (found.head, found.tail + found.lag) == (stream.head, stream.tail)
    place = found.head
    for entry in iceberg_entries(stream._log.storage):
        assert entry.start == place
        place = entry.end
    assert place == found.tail
    if operation is not None:
        assert table.current_snapshot().summary.operation.value == operation


def test_iceberg_table_has_the_rows_of_every_operation(stream: Stream) -> None:
    """Appends, merges, truncation, restore, redaction and overwrite; what is in Arrow is lag."""
    stream.append(events(0, 20), layout=SETTLED)
    assert stream.publish("iceberg").table_version == 1
    for start in range(20, 60, 20):
        stream.append(events(start, start + 20), layout=SETTLED)
        check(stream, "append")
    stream.append(events(60, 70), layout=HOT)
    check(stream, "append")
    assert stream.published.get("iceberg").lag == 10
    stream.compact(layout=SETTLED)
    check(stream, "replace")  # after an append of the events in Arrow
    version = stream.version
    stream.append(events(70, 80), layout=SETTLED)
    stream.append(events(80, 90), layout=SETTLED)
    check(stream)
    stream.compact(start=70, layout=SETTLED)
    check(stream, "replace")
    stream.truncate(33)
    check(stream)
    stream.truncate(70)
    check(stream, "delete")
    stream.restore(version)
    check(stream, "overwrite")
    version = stream.version
    stream.append(events(90, 95), layout=SETTLED)
    check(stream, "append")
    stream.restore(version)  # files that the table lists, at other offsets
    check(stream, "overwrite")
    stream.redact([["n", "==", 34]], columns=["word"], redact_id="r")
    check(stream, "overwrite")
    stream.overwrite(events(0, 5), layout=SETTLED)
    check(stream, "overwrite")
    metadata = metadata_of(stream)
    assert (metadata["format-version"], metadata["next-row-id"]) == (3, stream.tail)
    assert metadata["properties"]["gc.enabled"] == "false"


def test_both_tables_lie_beside_each_other(stream: Stream) -> None:
    """Each has files of its own, and goes alone."""
    stream.append(events(0, 30), layout=SETTLED)
    stream.truncate(3)
    stream.append(events(30, 33))
    assert stream.publish("delta").lag == stream.publish("iceberg").lag == 3
    assert stream.publish("iceberg", settle=True).lag == stream.publish("delta").lag == 0
    check(stream)
    stream.published.remove("delta")
    check(stream)
    stream.verify().check()
    assert stream.published.remove("iceberg") > 4
    assert stream.published.get("iceberg") is None
    assert stream.published.remove("iceberg") == 0
    check(stream)
    segstore.drop(stream.url, confirm=stream.url)
    assert not [path for path in folder_of(stream).rglob("*.*") if path.is_file()]
    segstore.create(stream.url, SCHEMA)  # on a disk empty folders are left of the tables


def test_columns_of_iceberg_follow_the_schema(stream: Stream) -> None:
    """New columns are null before, wider ones are cast, and durations are not in the table."""
    stream.append(events(0, 10), layout=SETTLED)
    stream.publish("iceberg")
    price = pa.array([Decimal("1.25")] * 10, pa.decimal128(9, 2))
    inner = pa.array([{"a": 1}] * 10, pa.struct([("a", pa.int8())]))
    more = events(10, 20).append_column("price", price).append_column("s", inner)
    more = more.append_column("i", pa.array([1] * 10, pa.int32()))
    stream.append(
        more.append_column("f", pa.array([0.5] * 10, pa.float32())),
        layout=SETTLED,
        merge_schema=True,
    )
    check(stream)
    wide = events(20, 30).append_column("price", price.cast(pa.decimal128(20, 4)))
    inner = pa.array([{"a": 2**40, "b": ["x"]}] * 10)
    wide = wide.append_column("s", inner).append_column("i", pa.array([2**40] * 10))
    wide = wide.append_column("f", pa.array([0.25] * 10, pa.float64()))
    stream.append(wide, layout=SETTLED, merge_schema=True)
    check(stream)
    assert table_of(stream).scan(row_filter="i == 1 and f > 0.3").count() == 10
    assert table_of(stream).scan(row_filter="price == 1.2500").count() == 20
    odd = events(30, 40).append_column("took", pa.array([5] * 10, pa.duration("us")))
    stream.append(odd, layout=SETTLED, merge_schema=True)
    with pytest.raises(InvalidInputError, match="took"):
        stream.publish("iceberg", strict=True)
    assert stream.publish("iceberg").left_out == {"took": "duration[us]"}
    assert "took" not in table_of(stream).schema().column_names
    assert table_of(stream).scan().count() == 40


def test_integers_that_became_doubles_are_a_new_column_of_iceberg(stream: Stream) -> None:
    """It widens no integer to a double: the column has another id, and the files are rewritten."""
    ids = []
    for kind in (pa.int16(), pa.float64(), pa.int32()):
        start = stream.tail
        data = events(start, start + 10).append_column("x", pa.array([3] * 10, kind))
        deep = pa.array([[{"y": 3}]] * 10, pa.list_(pa.struct([("y", kind)])))
        stream.append(data.append_column("deep", deep), layout=SETTLED, merge_schema=True)
        check(stream)
        assert table_of(stream).scan(row_filter="x > 0.7").count() == stream.tail
        ids.append(table_of(stream).schema().find_field("x").field_id)
    assert ids[0] != ids[1] == ids[2]


def test_moved_stream_is_published_again(stream: Stream, tmp_path: Path) -> None:
    """Iceberg names files by absolute URLs, so nothing of the old table serves."""
    for start in (0, 20):
        stream.append(events(start, start + 20), layout=SETTLED)
        stream.publish("iceberg")
    shutil.move(stream.url.removeprefix("file://"), tmp_path / "moved")
    moved = segstore.open(tmp_path / "moved")
    assert moved.publish("iceberg").table_version == 3
    check(moved)
    (snapshot,) = metadata_of(moved)["snapshots"]
    assert "parent-snapshot-id" not in snapshot
    moved.append(events(40, 50), layout=SETTLED)
    check(moved, "append")


def test_another_iceberg_table_in_the_folder_is_refused_and_kept(
    stream: Stream, tmp_path: Path
) -> None:
    """Whatever its metadata are called: neither published into, nor removed, nor hinted at."""
    stream.append(events(0, 10), layout=SETTLED)
    other = segstore.create(tmp_path / "other", SCHEMA, upkeep=None)
    other.append(events(0, 5), layout=SETTLED)
    other.publish("iceberg")
    ours = folder_of(stream) / "metadata"
    of_hadoop = {"v1.metadata.json": b'{"format-version":2}', "version-hint.text": b"1"}
    of_catalog = {"00000-a.metadata.json": b'{"format-version":2}', "a-m0.avro": b"x"}
    of_stream = {path.name: path.read_bytes() for path in (folder_of(other) / "metadata").iterdir()}
    for files in (of_hadoop, of_catalog, of_stream):
        ours.mkdir()
        for name, data in files.items():
            (ours / name).write_bytes(data)
        for call in (stream.publish, stream.published.remove):
            with pytest.raises((InvalidInputError, CorruptionError), match="a folder of its own"):
                call("iceberg")
        assert {path.name: path.read_bytes() for path in ours.iterdir()} == files
        shutil.rmtree(ours)
        stream = segstore.open(stream.url)
    ours.mkdir()
    for name, data in of_catalog.items():
        (ours / name).write_bytes(data)
    kept = segstore.drop(stream.url, confirm=stream.url).kept
    assert {*kept} == {f"metadata/{name}" for name in of_catalog}


def test_lost_hint_is_found_again(stream: Stream) -> None:
    """A hint that a crash left behind, or that is gone, costs requests and nothing else."""
    stream.append(events(0, 20), layout=SETTLED)
    stream.publish("iceberg")
    hint = folder_of(stream) / "metadata" / "version-hint.text"
    stream.append(events(20, 40), layout=SETTLED)
    stream.publish("iceberg")
    hint.write_text("1")
    assert stream.published.get("iceberg").tail == 40
    stream.append(events(40, 60), layout=SETTLED)
    assert stream.publish("iceberg").table_version == 3
    hint.unlink()
    stream.append(events(60, 80), layout=SETTLED)
    check(stream, "append")
    assert hint.read_text() == "4"


def test_files_of_named_snapshots_stay(stream: Stream) -> None:
    """However long nobody publishes: a file of the table's own that an older snapshot lists."""
    stream.append(events(0, 10), layout=SETTLED)
    for head in (1, 2):
        stream.truncate(head)
        stream.publish("iceberg")
    own = folder_of(stream) / "iceberg"
    for _ in range(2):  # what is seen to be unused goes a grace later
        clean_tables(stream._context)
        marks = own / "_unused.json"
        marks.write_text(json.dumps(dict.fromkeys(json.loads(marks.read_text()), 1)))
    table = table_of(stream)
    first = table.history()[0].snapshot_id
    assert table.scan(snapshot_id=first).to_arrow()["n"].to_pylist() == list(range(1, 10))


def test_other_program_that_committed_is_an_error(stream: Stream) -> None:
    """Another program's snapshot is never taken for the stream's."""
    stream.append(events(0, 20), layout=SETTLED)
    stream.publish("iceberg")
    metadata = metadata_of(stream)
    del metadata["snapshots"][0]["summary"]["segstore"]
    (folder_of(stream) / "metadata" / "v2.metadata.json").write_text(json.dumps(metadata))
    stream.append(events(20, 40), layout=SETTLED)
    with pytest.raises(CorruptionError, match="another program"):
        stream.publish("iceberg")
    stream.published.remove("iceberg")
    check(stream)


def test_lost_metadata_is_made_again(stream: Stream) -> None:
    """A catalog whose registration fails may delete the metadata that it was told of."""
    for start in (0, 20):
        stream.append(events(start, start + 20), layout=SETTLED)
        stream.publish("iceberg")
    newest = folder_of(stream) / "metadata" / "v2.metadata.json"
    newest.unlink()
    assert segstore.open(stream.url).publish("iceberg").table_version == 2
    check(stream)
    newest.unlink()
    stream.append(events(40, 60), layout=SETTLED)
    check(stream, "append")


@pytest.mark.slow
def test_unused_metadata_goes_after_the_grace(stream: Stream) -> None:
    """What was superseded or unused for long; readers of what was dropped just now keep it."""

    def publish_ten(start: int) -> None:
        for number in range(start, start + 10):
            stream.append(events(number * 10, number * 10 + 10), layout=SETTLED)
            stream.truncate(number * 10 + 1)
            stream.publish("iceberg")

    def files() -> list[Path]:
        return [path for path in (*metadata.iterdir(), *own.iterdir()) if path.is_file()]

    def age() -> None:
        for path in files():
            os.utime(path, (1, 1))

    metadata, own = folder_of(stream) / "metadata", folder_of(stream) / "iceberg"
    publish_ten(0)
    count = len(files())
    age()
    publish_ten(10)
    left = {path.name for path in metadata.glob("v*.metadata.json")}
    wanted = {f"v{number}.metadata.json" for number in range(10, 21)}
    assert left == wanted  # v10 was superseded by v11, just now
    assert len([*own.glob("*.parquet")]) == 20  # marked when they were seen to be unused
    marks = own / "_unused.json"
    marks.write_text(json.dumps(dict.fromkeys(json.loads(marks.read_text()), 1)))
    age()
    publish_ten(20)
    named = [*metadata.glob("m-*.avro"), *own.glob("*.parquet")]
    assert len(named) == 40  # v20 named ten snapshots; what only they list is unused just now
    assert len(files()) - len(named) < count - 20 + 8
    check(stream)
    assert len([*metadata.glob("v*.metadata.json")]) == 11
