"""Texts that are not UTF-8, and long ones outside ASCII: in names, values and expressions.

JSON can write a lone surrogate and UTF-8 can't; Polars panics at both; pyarrow cuts long texts
within a character to print them.
"""

import os
import re
import zlib
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import segstore_ds as segstore
from segstore_ds.cli.main import main
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.arrow.frame import decode_frame, encode_frame
from segstore_ds.format.root import Root, Tag
from segstore_ds.log.commit import Change
from segstore_ds.status.table import Slot
from segstore_ds.status.writers import WriterKey

TABLE = pa.table({"n": [1]})
FILE = os.fsdecode(b"job-\xe9.csv")


@pytest.fixture
def older(monkeypatch):
    """Take any writer's id, as versions did before they were checked."""
    monkeypatch.setattr("segstore_ds.status.writers.is_text", lambda _: True)


@pytest.mark.usefixtures("older")
def test_lone_surrogates_are_carried_through():
    """As a writer's id, and within what a newer version stored; they broke every later commit."""
    stream = segstore.create("memory://surrogates", TABLE.schema)
    for _ in range(2):
        stream.append(TABLE, writer_id="\ud800", batch_id=1)
    assert segstore.open(stream.url).tail == 1

    def add_tag(root: Root, slot: Slot) -> Change[None]:
        tags = {"\udfff": Tag(0, slot.version, slot.time_us)}
        return Change(replace(root, tags=tags, operation="tag"))

    stream._log.commit(add_tag, transaction="t" * 32)
    stream.append(TABLE)
    root = segstore.open(stream.url)._log.root
    assert (list(root.tags), list(root.writers)) == (["\udfff"], ["\ud800"])
    stream.verify().check()


@pytest.mark.usefixtures("older")
def test_lone_surrogates_leave_the_root_with_the_history_and_are_shown(capsys):
    """When there are many, rows of commits move into Arrow's strings: that ended every commit."""
    stream = segstore.create("memory://surrogates", TABLE.schema)
    for batch in range(140):
        stream.append(TABLE, writer_id=FILE, batch_id=batch)
    assert stream._log.root.history_parts
    assert {*stream.history().read_all()["writer_id"].to_pylist()[1:]} == {"job-\\udce9.csv"}
    (row,) = stream.metadata("writers").read_all().to_pylist()
    assert row["writer_id"] == "job-\\udce9.csv"
    assert main(["info", stream.url]) == 0
    assert "job-\\udce9.csv (batch 139)" in capsys.readouterr().out
    stream.verify().check()


def test_names_with_lone_surrogates_never_reach_a_root(tmp_path):
    """Of writers, tags, readers and copies alike."""
    stream = segstore.create(tmp_path / "s", TABLE.schema)
    for work in (
        lambda: stream.append(TABLE, writer_id=FILE, batch_id=1),
        lambda: stream.tags.set(FILE),
        lambda: stream.readers.register(FILE),
        lambda: stream.readers.register("r", owner=FILE),
        lambda: stream.copy_to(tmp_path / "c", copy_id=FILE),
    ):
        with pytest.raises(InvalidInputError):
            work()
    for field in ("writer_id", "owner", "claim"):
        with pytest.raises(InvalidInputError, match=f"{field} of a writer"):
            WriterKey(**{"writer_id": "w", "batch_id": 1, field: FILE})
    assert stream.refresh().version == 0


BAD = pa.array([b"fine", b"\xff\xfe", None], pa.binary()).view(pa.string())
LARGE = BAD.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string())
ARRAYS = {
    "string": BAD,
    "a lone surrogate": pa.array([b"\xed\xa0\x80"] * 3, pa.binary()).view(pa.string()),
    "slice": pa.concat_arrays([BAD, BAD]).slice(1, 3),
    "large string": LARGE,
    "view": pa.array([b"fine", b"\xff" * 40, None], pa.binary_view()).view(pa.string_view()),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), BAD),
    "struct": pa.StructArray.from_arrays([BAD], ["a"]),
    "list": pa.ListArray.from_arrays([0, 1, 2, 3], BAD),
    "large list": pa.LargeListArray.from_arrays([0, 1, 2, 3], BAD),
    "map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), BAD),
    "keys": pa.MapArray.from_arrays([0, 1, 2, 2], BAD.slice(0, 2), pa.array([1, 2])),
    "deep": pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2, 3], BAD)], ["a"]),
    "fixed list": pa.FixedSizeListArray.from_arrays(BAD, 1),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_texts_of_python_that_are_not_utf8_are_refused(tmp_path, name):
    """In every type, and through each way in; the stream stays as it was."""
    table = pa.table({"c": ARRAYS[name]})
    stream = segstore.create(tmp_path / "s", table.schema, upkeep=None)
    job = stream.plan_write(table.schema)
    with stream.appender() as appender:
        for write in (
            lambda: stream.append(table),
            lambda: stream.overwrite(table),
            lambda: appender.append(table),
            lambda: job.open_task(0, "first").append(table.to_batches()[0]),
        ):
            with pytest.raises(InvalidInputError, match=r"column='c'") as caught:
                write()
            assert name != "string" or re.search("not UTF-8.*binary", str(caught.value))
    assert stream.refresh().tail == 0


def test_texts_outside_ascii_are_taken(tmp_path):
    """Whole characters pass, wherever a slice begins, and so does what a null hides."""
    words = pa.array(["é中", None, "\U0010ffff", ""])
    buffers = [pa.py_buffer(b"\x05"), *BAD.buffers()[1:]]
    hidden = pa.Array.from_buffers(pa.string(), 3, buffers, null_count=1)
    stream = segstore.create(tmp_path / "s", pa.schema([("c", pa.string())]), upkeep=None)
    for given in (words.slice(1), words.dictionary_encode(), hidden):
        stream.append(pa.table({"c": given}))
    found = stream.read().read_all()["c"].to_pylist()
    assert found == [*words.to_pylist()[1:], *words.to_pylist(), "fine", None, ""]


def test_names_in_frames_are_those_of_the_stream():
    """A crafted frame may name the children of lists and maps as it likes."""
    tags = pa.list_(pa.field("elem", pa.string()))
    counts = pa.map_(pa.string(), pa.list_(pa.field("elem", pa.int8())))
    schema = pa.schema([("tags", tags), ("n", counts)])
    batch = pa.RecordBatch.from_pylist([{"tags": ["a"], "n": [("k", [1])]}], schema)
    frame = encode_frame(batch, compression="none", compression_level=None, stats_columns=[])
    data = bytes(frame.data).replace(b"elem", b"\xff\xfe\xff\xfe").replace(b"value", b"\xffalue")
    assert zlib.crc32(data) != frame.crc
    found = decode_frame(data, rows=1, schema=schema, columns=None, where="w")
    assert str(found.column("tags").type) == "list<elem: string>"
    assert [column.type for column in found.columns] == schema.types
    assert found.equals(batch, check_metadata=True)
    assert pl.from_arrow(found)["tags"].to_list() == [["a"]]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_texts_of_other_writers_are_refused_for_polars(tmp_path, form):
    """Spark may write such texts; Arrow gives them back, and Polars gets an error before it."""
    table = pa.table({"n": [1, 2, 3], "c": pa.StructArray.from_arrays([BAD], ["word"])})
    stream = segstore.create(tmp_path / "s", table.schema, upkeep=None)
    layout = segstore.Layout(segment_format=form, inline_bytes=0)
    job = stream.plan_write(table.schema, layout=layout)
    stream.commit(job, [job.stage(0, "0", table.to_batches())])  # as Spark's tasks do
    assert stream.read(columns=["n"]).read_all()["n"].to_pylist() == [1, 2, 3]
    for extra in ({}, {"commit_time_column": "at"}):
        with pytest.raises((InvalidInputError, pl.exceptions.ComputeError), match=r"UTF-8|utf-?8"):
            stream.scan(**extra).to_polars().collect()
    assert stream.scan(columns=["n"]).to_polars().collect()["n"].to_list() == [1, 2, 3]


LONG = ["a" + "é" * 200, "中" * 199, "x"]


def test_long_texts_outside_ascii_are_found(tmp_path):
    """An expression is bound, and refused with our error, without printing it."""
    stream = segstore.create(tmp_path / "s", pa.schema([("word", pa.string())]), upkeep=None)
    stream.append(pa.table({"word": LONG}))
    for text in LONG:
        expression = pc.field("word").isin([text])
        assert stream.read(filters=expression).read_all()["word"].to_pylist() == [text]
        assert stream.scan().to_dataset().count_rows(filter=expression) == 1
    for wrong in (pc.field("wrod").isin(LONG), (pc.field(0) == "x") | pc.field(0).isin(LONG)):
        with pytest.raises(InvalidInputError):
            stream.read(filters=wrong)
    # DuckDB hands its `IN` to the dataset as an expression.
    duckdb, events = pytest.importorskip("duckdb"), stream.scan().to_dataset()
    with duckdb.connect() as connection:
        connection.register("events", events)
        asked = "SELECT count(*) FROM events WHERE word IN ($1, $2)"
        assert connection.execute(asked, [LONG[0], LONG[2]]).fetchall() == [(2,)]
