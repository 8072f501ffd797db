"""Where `segstore.spark.read` could differ from the source silently: plans, types, filters."""

import datetime as dt
import itertools
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.types import LongType, StructField, StructType
from sessions import plan_of, session_settings

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.parquet.filters import CAN_WRITE
from segstore_ds.spark.parquet_scan import read as hybrid

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("large_scans")]

LAYOUT = segstore.Layout(inline_bytes=0, segment_format="parquet")


def make(url: str, *tables: pa.Table) -> segstore.Stream:
    """Make a stream with a Parquet segment per table."""
    stream = segstore.create(url, tables[0].schema)
    for table in tables:
        stream.append(table, layout=LAYOUT)
    return stream


def numbers(start: int, end: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, end), pa.int64())})


def source(spark, url: str) -> DataFrame:
    return spark.read.format("segstore").load(url)


def last_of_each(df: DataFrame) -> DataFrame:
    return df.groupBy((F.col("n") % 5).alias("k")).agg(F.max("n").alias("last"))


@pytest.fixture
def quarters(url) -> str:
    """A stream of the numbers 0 to 99 in four segments."""
    make(url, *(numbers(start, start + 25) for start in range(0, 100, 25)))
    return url


def test_scans_of_two_ranges_are_two_scans(spark, quarters):
    """Spark takes file lists of one address for the same: one would answer for the other."""
    first = segstore.spark.read(spark, quarters, endCut=50)
    second = segstore.spark.read(spark, quarters, startCut=50)
    assert first.cache().count() == 50
    try:
        assert second.agg(F.min("n"), F.max("n")).first() == (50, 99)
        assert segstore.spark.read(spark, quarters, startCut=75).count() == 25
    finally:
        first.unpersist()


def test_one_plan_of_two_ranges_reads_both(spark, quarters):
    """Neither an exchange nor a subquery of one range is used again for the other."""
    first = segstore.spark.read(spark, quarters, endCut=25)
    second = segstore.spark.read(spark, quarters, startCut=75)
    both = last_of_each(first).unionAll(last_of_each(second))
    assert sorted(row.last for row in both.collect()) == [*range(20, 25), *range(95, 100)]
    found = spark.sql(
        "SELECT (SELECT max(n) FROM {first}) AS a, (SELECT max(n) FROM {second}) AS b",
        first=first,
        second=second,
    )
    assert found.first() == (24, 99)
    joined = segstore.spark.read(spark, quarters).join(second, "n", "left_anti")
    assert joined.count() == 75


def test_scans_of_one_range_are_one(spark, quarters):
    """So that Spark still reads it once where it is asked for twice."""
    again = [segstore.spark.read(spark, quarters, endCut=50) for _ in range(2)]
    assert again[0].sameSemantics(again[1])
    twice = last_of_each(again[0]).join(last_of_each(again[1]), "k")
    assert twice.count() == 5


def test_a_stream_and_what_became_of_its_copy_are_two(spark, url, tmp_path):
    """One id and one version, in two folders that went their own ways."""
    make(url, numbers(0, 5))
    other = tmp_path / "other"
    shutil.copytree(url.removeprefix("file://"), other)
    segstore.open(url).append(numbers(100, 101), layout=LAYOUT)
    segstore.open(other).append(numbers(200, 203), layout=LAYOUT)
    mine = segstore.spark.read(spark, url)
    assert mine.cache().count() == 6
    try:
        assert segstore.spark.read(spark, other).agg(F.max("n")).first() == (202,)
    finally:
        mine.unpersist()


def test_chars_come_padded_as_from_the_source(spark, url):
    """A char is a text whose column says how long it is, and Spark pads what its source gives."""
    spark.sql("CREATE TABLE chars (c CHAR(5), v VARCHAR(7), n BIGINT) USING parquet")
    try:
        spark.sql("INSERT INTO chars VALUES ('ab', 'ab', 1)")
        segstore.spark.write(spark.table("chars"), url, segmentFormat="parquet", inlineBytes=0)
    finally:
        spark.sql("DROP TABLE chars")
    segstore.open(url).append(pa.table({"c": ["zz"], "v": ["zz"], "n": [2]}), layout=LAYOUT)
    ours, theirs = segstore.spark.read(spark, url), source(spark, url)
    assert ours.schema == theirs.schema
    for condition in ("true", "c = 'zz'", "length(c) = 5", "v = 'zz'"):
        assert sorted(ours.where(condition).collect()) == sorted(theirs.where(condition).collect())
    assert ours.where("c = 'zz'").count() == 1
    assert "FileScan" not in plan_of(ours)
    assert "FileScan" in plan_of(segstore.spark.read(spark, url, columns="n"))


@pytest.mark.parametrize("missing", ["false", "true"])
def test_numbers_of_fields_hide_no_values(spark, url, missing):
    """Spark would look for fields by numbers that no segment has, and find nulls."""
    inner = StructType([StructField("a", LongType(), True, {"parquet.field.id": 1})])
    schema = StructType(
        [
            StructField("s", inner, True, {"parquet.field.id": 2, "comment": "x"}),
            StructField("t", LongType(), True, {"parquet.field.id": 3}),
        ]
    )
    df = spark.createDataFrame([((1,), 2)], schema)
    segstore.spark.write(df, url, segmentFormat="parquet", inlineBytes=0)
    settings = {
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.parquet.fieldId.read.ignoreMissing": missing,
    }
    with session_settings(spark, settings):
        ours = segstore.spark.read(spark, url)
        assert ours.schema == source(spark, url).schema
        assert ours.collect() == [((1,), 2)]
        assert "FileScan" in plan_of(segstore.spark.read(spark, url, columns="t"))
        assert segstore.spark.read(spark, url, columns="t").collect() == [(2,)]


def test_filters_on_days_that_java_does_not_have(spark, url):
    """Spark pushes such a literal down as another day (docs/spark.md); our filters stay here."""
    days = [dt.date(1582, 10, day) for day in (4, 5, 9, 10, 14, 15, 20)]
    times = [dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) for day in days]
    types = {"d": pa.date32(), "ts": pa.timestamp("us", "UTC"), "ntz": pa.timestamp("us")}
    schema = pa.schema([*types.items()])
    rows = [
        {"d": d, "ts": ts, "ntz": ts.replace(tzinfo=None)}
        for d, ts in zip(days, times, strict=True)
    ]
    stream = make(url, *(pa.Table.from_pylist([row], schema) for row in rows))
    for row, name, op in itertools.product(rows[1:5:3], types, ("==", ">=")):
        filters = [[name, op, row[name]]]
        expected = stream.read(filters=filters).read_all().num_rows
        df = segstore.spark.read(spark, url, filters=filters)
        assert df.count() == expected, filters
        assert not expected or "FileScan" in plan_of(df)
    many = [["d", "in", [days[2], days[6], None]]]
    assert segstore.spark.read(spark, url, filters=many).count() == 2


def test_a_path_and_no_second_one(spark, url, tmp_path):
    make(url, numbers(0, 5))
    segstore.spark.write(segstore.spark.read(spark, Path(tmp_path / "stream")), tmp_path / "copy")
    assert segstore.spark.read(spark, tmp_path / "copy").count() == 5
    with pytest.raises(InvalidInputError, match="twice"):
        segstore.spark.read(spark, url, path=f"{url}-2")
    with pytest.raises(InvalidInputError, match="filters"):
        segstore.spark.read(spark, url, filters=[["n", "==", object]])


def test_names_that_only_java_holds_equal(spark, url):
    """A stream keeps the two apart; Spark, which makes both large to compare them, does not."""
    pair = ("ı", "i")  # noqa: RUF001
    make(url, pa.table({name: pa.array([1, 2, 3], pa.int64()) for name in (*pair, "x")}))
    for options in ({"startCut": 1}, {"offsetColumn": "o"}):
        df = segstore.spark.read(spark, url, columns=["x"], **options)
        theirs = spark.read.format("segstore").options(columns="x", **options).load(url)
        assert sorted(df.collect()) == sorted(theirs.collect())


def test_one_warning_for_whatever_file_and_what_to_do(spark, tmp_path):
    """Not one for each stream that has lost a file: the source says which one it is."""
    hybrid._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("a", "b"):
            url = f"file://{tmp_path}/{name}"
            make(url, numbers(0, 5))
            next((tmp_path / name / "segments").rglob("*.parquet")).unlink()
            with pytest.raises(PySparkException, match="MISSING_OBJECT"):
                segstore.spark.read(spark, url).collect()
    texts = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert len(texts) == 1
    assert "verify()" in texts[0]


# Of a lookup by key.
ROWS, SEGMENTS, MOST = 1000, 12, 10_000


def keys(first: int, form: str) -> tuple[pa.Table, segstore.Layout]:
    """Return segments of which each spans all values, and each third has 55."""
    chance, values = np.random.default_rng(first), []
    for segment in range(first, first + SEGMENTS):
        drawn = [key for key in chance.integers(1, MOST, 50).tolist() if key != 55]
        drawn[:3] = [0, MOST, 55 if segment % 3 == 0 else 0]
        values += (drawn * ROWS)[:ROWS]
    offsets = range(first * ROWS, first * ROWS + len(values))
    noise = [chance.bytes(20) for _ in values]
    layout = segstore.Layout(
        inline_bytes=0, segment_rows=ROWS, frame_rows=ROWS // 2, segment_format=form
    )
    return pa.table({"key": values, "n": list(offsets), "noise": noise}), layout


@pytest.mark.skipif(not CAN_WRITE, reason="Parquet segments have filters from pyarrow 24 on")
def test_hybrid_scan_of_a_key_reads_the_files_that_may_hold_it(spark, url, monkeypatch) -> None:
    """So does the source; both agree with a look at every row."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 4)
    (history, settled), (tail, hot) = keys(0, "parquet"), keys(SEGMENTS, "arrow")
    stream = segstore.create(url, history.schema, key_columns=["key"], upkeep=None)
    stream.append(history, layout=settled)
    stream.append(tail, layout=hot)
    rows = pa.concat_tables([history, tail]).select(["key", "n"]).to_pylist()
    for op, asked in (("==", 55), ("in", [55, MOST]), ("==", 777_777)):
        filters = [["key", op, asked]]
        wanted = [row["n"] for row in rows if row["key"] in (asked if op == "in" else [asked])]
        hybrid = segstore.spark.read(spark, url, filters=filters)
        source = spark.read.format("segstore").option("filters", json.dumps(filters)).load(url)
        for frame in (hybrid, source):
            assert sorted(row.n for row in frame.select("n").collect()) == wanted, filters
        if asked == 55:  # of 12 Parquet segments 4 have the key
            assert len(hybrid.inputFiles()) < SEGMENTS
