"""Lazy reads by other libraries: as a frame of Polars and as a dataset of Arrow."""

import pickle
import uuid
from dataclasses import replace
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from faults import FaultStorage
from pyarrow import dataset
from stream_kit import make_stream

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.read import segments
from segstore_ds.stream import polars_scan
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

PARQUET = Layout(inline_bytes=0, segment_format="parquet")
ARROW = Layout(inline_bytes=0, segment_format="arrow", frame_rows=10)
N = pl.col("n")


def table(start, end):
    return pa.table({"n": range(start, end), "word": [f"w{n:03}" for n in range(start, end)]})


@pytest.fixture
def stream(tmp_path):
    """Of 5 to 149: three Parquet segments, which the head cuts, one of Arrow, one in a commit."""
    made = segstore.create(tmp_path / "a [b]%", table(0, 1).schema, upkeep=None)
    for start in (0, 30, 60):
        made.append(table(start, start + 30), layout=PARQUET)
    made.append(table(90, 120), layout=ARROW)
    made.append(table(120, 150))
    made.truncate(5)
    return made


def sources(frame):
    return frame.explain().count("PYTHON SCAN"), frame.explain().count("Parquet SCAN")


def test_a_scan_gives_what_a_read_gives(stream):
    whole = stream.scan().to_polars()
    assert whole.collect().equals(pl.from_arrow(stream.read().read_all()))
    assert sources(whole) == (2, 1)  # the cut segment and the newest ones are read by us
    for start, end in ((5, 6), (30, 90), (31, 89), (100, 130), (7, 7), ("tail", "tail")):
        assert (
            stream.scan(start, end)
            .to_polars()
            .collect()
            .equals(pl.from_arrow(stream.read(start, end).read_all()))
        )
    assert sources(stream.scan(30, 90).to_polars()) == (0, 1)
    counted = (
        stream.scan(offset_column="at").to_polars().filter(pl.col("at") > 40).select("at", "n")
    )
    assert counted.collect().rows() == [(n, n) for n in range(41, 150)]
    assert sources(stream.scan(offset_column="at").to_polars())[1] == 1


def test_a_scan_of_columns_that_are_made_is_ours(stream):
    scan = stream.scan(
        offset_column="at", segment_column="segment", commit_time_column="time"
    ).to_polars()
    assert sources(scan) == (1, 0)
    read = pl.from_arrow(
        stream.read(
            offset_column="at", segment_column="segment", commit_time_column="time"
        ).read_all()
    )
    assert scan.collect().equals(read)
    assert scan.filter(pl.col("segment") == 1).select("at").collect()["at"].to_list() == [
        *range(30, 60)
    ]


PREDICATES = (
    N > 100,
    (N == 7) | (N == 145),
    N.is_in([1, 6, 99, 121]),
    (pl.lit(20) > N) & (pl.col("word") != "w007"),
    pl.col("word").str.ends_with("7") & (N % 2 == 1),
    N.is_null(),
    N.is_between(88, 122),
)


QUERIES = (
    lambda frame, predicate: frame.filter(predicate).select("word"),
    lambda frame, predicate: frame.filter(predicate).head(3),
    lambda frame, predicate: frame.head(100).filter(predicate),
    lambda frame, predicate: frame.slice(95, 40).filter(predicate).select(pl.len()),
    lambda frame, predicate: frame.tail(4).filter(predicate),
)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_query_gives_what_it_gives_on_a_frame(stream, engine):
    whole = pl.from_arrow(stream.read().read_all())
    for predicate in PREDICATES:
        for query in QUERIES:
            found = query(stream.scan().to_polars(), predicate).collect(engine=engine)
            assert found.equals(query(whole, predicate)), predicate


def test_a_predicate_skips_segments(stream, monkeypatch):
    opened = []
    read = type(stream._log.storage).get

    def get(self, name, **how):
        opened.append(name)
        return read(self, name, **how)

    scan = stream.scan(90).to_polars()
    monkeypatch.setattr(type(stream._log.storage), "get", get)
    assert scan.filter(N > 130).collect().height == 19
    assert not [name for name in opened if name.startswith("segments/")]
    assert scan.filter(N < 95).collect().height == 5
    assert [name for name in opened if name.startswith("segments/")]


def test_types_that_polars_reads_otherwise_are_read_by_us(tmp_path):
    """Whatever the type, the frame has the columns that `to_polars` gives."""
    schema = pa.schema(
        [
            *[("b", pa.binary()), ("d", pa.date32()), ("t", pa.time64("ns"))],
            *[("z", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.int64()))],
            *[("s", pa.struct([("x", pa.float32())])), ("m", pa.map_(pa.string(), pa.int64()))],
            *[("p", pa.decimal128(20, 3)), ("took", pa.duration("us")), ("void", pa.null())],
        ]
    )
    made = segstore.create(tmp_path / "s", schema, upkeep=None)
    rows = [{"b": b"x", "l": [1, None], "s": {"x": 0.5}, "m": [("k", 1)], "p": Decimal("1.5")}, {}]
    made.append(pa.Table.from_pylist(rows, schema), layout=PARQUET)
    made.append(pa.table({"b": [b"y"], "new": [1]}), merge_schema=True, layout=PARQUET)
    for start in (0, 2):
        assert (
            made.scan(start)
            .to_polars()
            .collect()
            .equals(pl.from_arrow(made.read(start).read_all()))
        )


def test_a_dataset_gives_what_a_read_gives(stream):
    data = stream.scan(offset_column="at").to_dataset()
    n, at = pc.field("n"), pc.field("at")
    assert data.schema.names == ["n", "word", "at"]
    assert data.to_table().equals(stream.read(offset_column="at").read_all())
    assert data.to_table(["word"], filter=n == 99).to_pydict() == {"word": ["w099"]}
    assert data.to_table({"m": n * 2}, filter=at >= 148).to_pydict() == {"m": [296, 298]}
    assert data.head(2, columns=["at", "n"]).to_pydict() == {"at": [5, 6], "n": [5, 6]}
    assert data.count_rows() == 145
    assert data.count_rows(filter=n < 10) == data.filter(n < 10).count_rows() == 5
    assert data.filter(n < 10).filter(at > 8).to_table(["n"]).to_pydict() == {"n": [9]}
    assert sum(batch.num_rows for batch in data.to_batches(filter=at < 10)) == 5
    copied = pickle.loads(pickle.dumps(data.filter(n < 10)))  # noqa: S301 - our own
    assert copied.count_rows() == 5


def test_what_arrow_does_with_its_own_datasets_needs_a_table(stream):
    data = stream.scan(140).to_dataset()
    assert data.partition_expression.equals(pc.scalar(value=True))
    for use in (
        lambda: dataset.Scanner.from_dataset(data).to_table(),
        lambda: dataset.InMemoryDataset(data.to_table()).join(data, "n", right_suffix="_"),
        lambda: data.sort_by("n"),
        lambda: dataset.dataset([data, data]).count_rows(),
    ):
        with pytest.raises(FileNotFoundError, match="read by its own methods"):
            use()


def test_other_libraries_read_the_dataset(stream):
    events = stream.scan().to_dataset()
    with duckdb.connect() as connection:
        connection.register("events", events)
        query = "SELECT count(*), min(word) FROM events WHERE n BETWEEN 90 AND 121"
        for _ in range(2):
            assert connection.sql(query).fetchall() == [(32, "w090")]
    scan = pl.scan_pyarrow_dataset(events).filter(N > 147).select("word")
    assert scan.collect()["word"].to_list() == ["w148", "w149"]


def test_an_interval_of_times_is_read_by_us(stream):
    stream.settings.update(time_column="n")
    frame = stream.scan(event_time=(20, 100), offset_column="at").to_polars()
    assert sources(frame) == (1, 0)
    assert frame.collect()["n"].to_list() == [*range(20, 100)]
    assert frame.filter(N > 95).select("word").collect()["word"].to_list()[0] == "w096"
    assert frame.head(3).collect()["at"].to_list() == [20, 21, 22]
    events = stream.scan(event_time=(20, 100)).to_dataset()
    assert events.count_rows() == 80
    assert events.count_rows(pc.field("n") >= 90) == 10
    assert events.to_table()["n"].to_pylist() == [*range(20, 100)]
    assert events.head(2)["n"].to_pylist() == [20, 21]


LARGE = 70_000


@pytest.fixture
def large():
    """Three large Parquet segments of four frames each, where requests take time; the head cuts."""
    layout = Layout(inline_bytes=0, segment_format="parquet", frame_rows=20_000)
    made = segstore.create(f"memory://large-{uuid.uuid4()}", table(0, 1).schema, upkeep=None)
    for start in range(0, 3 * LARGE, LARGE):
        made.append(table(start, start + LARGE), layout=layout)
    made.truncate(25_000)
    return made


@pytest.fixture(params=[0, 1 << 20], ids=["parts", "whole"])
def decoded(request, monkeypatch):
    """What Polars decodes of segments that are fetched in parts, or whole."""
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", request.param)
    monkeypatch.setattr(segments, "GAP_BYTES", 0)
    found = []
    decode = polars_scan._Files.__call__

    def call(self, fetched):
        frame = decode(self, replace(fetched, decode=None))  # Arrow does not help
        found.append((sorted(fetched.data), fetched.columns, type(frame)))
        return frame

    monkeypatch.setattr(polars_scan._Files, "__call__", call)
    return found


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_polars_decodes_what_was_fetched_and_checked(large, decoded, engine):
    whole = pl.from_arrow(large.read(offset_column="at").read_all())
    frame = large.scan(offset_column="at").to_polars()
    queries = (
        lambda frame: frame.filter(N % 7 == 3).select("word"),
        lambda frame: frame.filter(pl.col("at") > 100_000).select("at", "word"),
        lambda frame: frame.filter(N.is_between(62_000, 61_000 + LARGE)),
        lambda frame: frame.head(90_000).filter(N > 80_000),
        lambda frame: frame.slice(11, 50_000).select("at"),
        lambda frame: frame,
    )
    for query in queries:
        assert query(frame).collect(engine=engine).equals(query(whole))
    assert {kind for _, _, kind in decoded} == {pl.DataFrame}


def test_only_frames_and_columns_of_a_query_are_fetched(large, decoded):
    query = large.scan().to_polars().filter(N.is_between(62_000, 2 * LARGE - 1)).select("n")
    assert query.collect().height == 2 * LARGE - 62_000
    assert sorted(frames for frames, _, _ in decoded) == [[0, 1, 2, 3], [3]]
    assert all(columns == ["n"] for _, columns, _ in decoded)


def test_damage_is_found_before_polars_decodes(large, monkeypatch):
    storage = large._log.storage
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    entry = large._log.root.entries[1]
    path = names.segment_object(entry.path)
    data = bytearray(storage.get(path))
    data[entry.bytes // 2] ^= 1
    storage.delete(path)
    storage.create(path, bytes(data))
    with pytest.raises(CorruptionError, match="checksum"):
        large.scan(read_cache_bytes=0).to_polars().collect()


@pytest.mark.usefixtures("tight", "no_inline")
def test_a_second_query_reads_no_part_again():
    made, storage = make_stream(8)
    counting = FaultStorage(storage)
    scan = open_on(counting, clock=made._log.clock).scan()
    for ask in (scan.to_dataset().to_table, scan.to_polars().select("n").collect):
        counting.calls.clear()
        assert len(ask()) == 80
    assert not [call for call in counting.calls if names.STATUS_FOLDER in call]
