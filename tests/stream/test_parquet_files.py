"""Compacted streams are plain Parquet files for engines that know nothing of segstore."""

import datetime as dt
from decimal import Decimal

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from segstore_ds.errors import InvalidInputError, TruncatedError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

NOON = dt.datetime(2013, 1, 5, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int16()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 2)),
        ("l", pa.list_(pa.field("element", pa.int32()))),
        ("st", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)
PARQUET = Layout(inline_bytes=0, frame_rows=100, segment_rows=300, segment_format="parquet")


def table(start: int, end: int) -> pa.Table:
    def row(n: int) -> dict[str, object]:
        return {
            "n": n,
            "small": n % 300,
            "x": n / 7,
            "s": None if n % 11 == 0 else f"user-{n % 13}",
            "b": bytes([n % 256]) * (n % 3),
            "day": NOON.date() + dt.timedelta(days=n),
            "at": NOON + dt.timedelta(seconds=n),
            "price": Decimal(n) / 100,
            "l": None if n % 5 == 0 else [n, None],
            "st": {"a": n, "b": str(n)} if n % 2 else None,
        }

    return pa.Table.from_pylist([row(n) for n in range(start, end)], SCHEMA)


@pytest.fixture
def stream(tmp_path) -> Stream:
    made = create_on(open_storage(str(tmp_path / "stream")), SCHEMA)
    made.append(table(0, 1000), layout=PARQUET)
    made.append(table(1000, 1010))  # inline, so Arrow
    made.append(table(1010, 1510), layout=PARQUET)
    return made


def paths_of(stream: Stream) -> list[str]:
    files = stream.scan().files(partial=True)
    return [file.url.removeprefix("file://") for file in files]


COMPACTED = pa.concat_tables([table(0, 1000), table(1010, 1510)])


def test_files_are_listed_with_their_offsets(stream):
    files = stream.scan().files(partial=True)
    spans = [(file.start, file.end) for file in files]
    assert spans == [(0, 300), (300, 600), (600, 900), (900, 1000), (1010, 1310), (1310, 1510)]
    for file in files:
        assert file.end - file.start == file.rows == pq.read_metadata(file.url[7:]).num_rows
        assert file.url == f"{stream._log.storage.url}/{file.path}"
        assert len(stream._log.storage.get(file.path)) == file.bytes
        assert pq.read_table(file.url)["n"][0].as_py() == file.start
    assert [
        entry.segment_id for entry in stream._log.root.entries if entry.format == "parquet"
    ] == [file.segment_id for file in files]


def test_files_say_which_of_their_rows_are_in_the_range(stream):
    files = stream.scan(299, 601).files()
    spans = [(file.start, file.row_start, file.row_end, file.end) for file in files]
    assert spans == [(0, 299, 300, 300), (300, 0, 300, 600), (600, 0, 1, 900)]
    (inside,) = stream.scan(310, 320).files()
    assert (inside.start, inside.row_start, inside.row_end, inside.rows) == (300, 10, 20, 300)
    cut = [pq.read_table(file.url).slice(file.row_start, file.row_end - file.row_start)
           for file in files]  # fmt: skip
    assert pa.concat_tables(cut)["n"].to_pylist() == list(range(299, 601))
    assert stream.scan(299, 299).files() == []


@pytest.mark.parametrize("bounds", [(0, "tail"), (0, 1001), (1009, "tail"), (1003, 1004)])
def test_events_in_no_parquet_file_are_an_error(stream, bounds):
    """Whoever sums over the files would leave them out without a word."""
    with pytest.raises(InvalidInputError, match="no Parquet file") as caught:
        stream.scan(*bounds).files()
    end = 1510 if bounds[1] == "tail" else bounds[1]
    first, last = max(bounds[0], 1000), min(end, 1010)
    assert caught.value.fields == {"events": last - first, "first": f"[{first}, {last})"}
    assert "partial=True" in str(caught.value)
    for covered in ((0, 1000), (1010, "tail"), (1000, 1000)):
        stream.scan(*covered).files()


def test_partial_file_list_leaves_out_the_gaps(stream):
    files = stream.scan(950, 1100).files(partial=True)
    covered = [(file.start + file.row_start, file.start + file.row_end) for file in files]
    assert covered == [(950, 1000), (1010, 1100)]
    assert stream.scan(1000, 1010).files(partial=True) == []
    stream.append(table(1510, 1513))
    with pytest.raises(InvalidInputError) as caught:
        stream.scan().files()
    assert caught.value.fields == {"events": 13, "first": "[1000, 1010)"}


def test_compaction_brings_small_appends_into_files(stream):
    stream.append(table(1510, 1513))
    stream.compact(layout=Layout(frame_rows=100, segment_format="parquet"))
    assert sum(file.row_end - file.row_start for file in stream.scan().files()) == 1513


def test_files_of_a_range_are_of_the_version(stream):
    version = stream.version
    assert stream.scan(1000, 1010).files(partial=True) == []
    stream.truncate(950)
    found = [(file.start, file.row_start) for file in stream.scan().files(partial=True)]
    assert found == [(900, 50), (1010, 0), (1310, 0)]
    before = stream.scan(0, "tail", as_of=version).files(partial=True)
    assert [file.start for file in before] == [0, 300, 600, 900, 1010, 1310]
    with pytest.raises(TruncatedError):
        stream.scan(949).files()
    with pytest.raises(InvalidInputError):
        stream.scan("tail", "head").files()


def test_other_engines_read_them(stream):
    """Arrow, DuckDB and Polars find the rows that the stream has there."""
    paths = paths_of(stream)
    assert ds.dataset(paths).to_table() == COMPACTED
    assert pl.read_parquet(paths).to_arrow().to_pylist() == COMPACTED.to_pylist()
    found = duckdb.read_parquet(paths).order("n").to_arrow_table()
    columns = ["n", "s", "x", "l", "st", "day", "price"]
    assert found.select(columns).to_pylist() == COMPACTED.select(columns).to_pylist()


@pytest.mark.parametrize("start", [0, 99_999, 123_456])
def test_duckdb_counts_a_range_exactly(tmp_path, start):
    """Also where it begins inside a file, by the condition that docs/other_engines.md names."""
    made = create_on(open_storage(str(tmp_path / "events")), pa.schema([("n", pa.int64())]))
    for first, rows in ((0, 100_000), (100_000, 10), (100_010, 70_000)):
        made.append(pa.table({"n": range(first, first + rows)}))
    made.compact(target_rows=100_010)  # two files
    files = made.scan(start).files()
    paths = [file.url.removeprefix("file://") for file in files]
    spans = pa.Table.from_pylist(
        [{"filename": path, "row_start": file.row_start, "row_end": file.row_end}
         for path, file in zip(paths, files, strict=True)]
    )  # fmt: skip
    assert len(files) == (2 if start < 100_010 else 1)
    found = duckdb.execute(
        "SELECT count(*), min(n), max(n) FROM spans "
        "JOIN read_parquet(?, filename=true, file_row_number=true) USING (filename) "
        "WHERE file_row_number >= row_start AND file_row_number < row_end",
        [paths],
    ).fetchall()
    assert spans.num_rows == len(files)
    assert found == [(170_010 - start, start, 170_009)]


FLOATS = pa.schema(
    [
        ("n", pa.int64()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("st", pa.struct([("x", pa.float64()), ("y", pa.int64())])),
        ("l", pa.list_(pa.field("element", pa.float64()))),
        ("m", pa.map_(pa.string(), pa.float32())),
        ("m.y", pa.float64()),
    ]
)


def floats(values: list[float | None]) -> pa.Table:
    rows = [
        {
            "n": n,
            "d": value,
            "f": value,
            "st": {"x": value, "y": n},
            "l": [value],
            "m": [("k", value)],
            "m.y": value,
        }
        for n, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, FLOATS)


@pytest.mark.parametrize("dictionary", [False, True], ids=["plain", "dictionary"])
def test_floats_have_no_bounds(tmp_path, dictionary):
    """They would leave NaN out, and engines that hold NaN above every number go by them."""
    draw = np.random.default_rng(5)
    values = [*[float("nan"), -0.0, None] * 100]
    values += [0.5] * 1700 if dictionary else draw.random(1700).tolist()
    made = create_on(open_storage(str(tmp_path / "floats")), FLOATS)
    made.append(floats([values[place] for place in draw.permutation(2000)]), layout=PARQUET)
    path, *_ = paths_of(made)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    assert ("RLE_DICTIONARY" in columns[1].encodings) == dictionary
    bounded = {
        column.path_in_schema
        for column in columns
        if column.statistics is not None and column.statistics.has_min_max
    }
    assert bounded == {"n", "st.y", "m.key_value.key"}
    for condition, count in (("> 1", 100), ("= 'NaN'", 100), ("<= 0", 100), ("<> 0", 1800)):
        found = duckdb.read_parquet(paths_of(made)).filter(f"d {condition}").count("n").fetchall()
        assert found == [(count,)], condition


def test_a_file_of_nothing_but_floats_has_no_bounds(tmp_path):
    made = create_on(open_storage(str(tmp_path / "floats")), pa.schema([("d", pa.float64())]))
    made.append(pa.table({"d": [1.0, 2.0]}), layout=PARQUET)
    (path,) = paths_of(made)
    assert pq.read_metadata(path).row_group(0).column(0).statistics is None
