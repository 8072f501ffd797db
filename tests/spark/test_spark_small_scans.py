"""Small scans that this process reads: the same as the source's, as a local table."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from sessions import error_of, plan_of, session_settings
from test_spark_types import all_types

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError, PositionError
from segstore_ds.spark.parquet_scan import read as hybrid

pytestmark = pytest.mark.usefixtures("verified")

# Types that have one form in Spark and in Arrow, alone and inside others.
NATIVE = (
    *("boolean", "byte", "short", "int", "long", "float", "double", "decimal", "decimal_scale"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz", "array", "map", "struct"),
)
NESTED = {
    "times": "array(timestamp, null, timestamp + INTERVAL 1 DAY)",
    "naive": "array(timestamp_ntz, null)",
    "by_time": "map(coalesce(date, DATE'1999-01-01'), timestamp, DATE'2020-02-29', null)",
    "inside": "struct(timestamp AS t, array(struct(timestamp AS u, binary AS b)) AS l)",
    "sparse": "CASE WHEN row % 3 = 0 THEN array(struct(timestamp AS t, 1 AS n), null) END",
    "sparse_map": "CASE WHEN row % 4 = 1 THEN map('a', array(timestamp_ntz)) END",
    "empty": "slice(array(timestamp), 1, 0)",
}


def sorted_rows(df: DataFrame) -> list[str]:
    return sorted(map(repr, df.collect()))


def check(read: DataFrame, source: DataFrame, *, here: bool = True) -> None:
    """Check that two DataFrames are the same, and who reads the first."""
    assert read.schema == source.schema
    assert sorted_rows(read) == sorted_rows(source)
    assert ("BatchScan segstore" in plan_of(read)) != here


@pytest.fixture(scope="module")
def fresh(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of all such types as they lie after appends of uneven sizes; not to be changed."""
    url = f"file://{tmp_path_factory.mktemp('fresh')}/stream"
    rows = all_types(spark).select("row", *NATIVE)
    rows = rows.selectExpr("*", *(f"{text} AS {name}" for name, text in NESTED.items()))
    rows = rows.selectExpr("*", "concat_ws('-', row, string) AS text")
    for copies in (1, 7, 2, 30):
        copied = rows.crossJoin(spark.range(copies).selectExpr("id AS copy"))
        copied.write.format("segstore").mode("append").save(url)
    return url


@pytest.mark.smoke
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startCut": 5, "endCut": 101, "offsetColumn": "at"},
        {"filters": '[["copy", ">=", 3], ["int", "is not null"]]', "commitTimeColumn": "when"},
        {"columns": "sparse,by_time,row", "startCut": 4},
        {"columns": "[]", "offsetColumn": "at", "endCut": 50},
        {"versionAsOf": 2},
    ],
    ids=str,
)
def test_read_equals_the_source(spark: SparkSession, fresh: str, options: dict[str, Any]) -> None:
    source = spark.read.format("segstore").options(**options).load(fresh)
    check(segstore.spark.read(spark, fresh, **options), source)


@pytest.mark.smoke
def test_fresh_events_are_read_beside_compacted_ones(spark, fresh, url, append) -> None:
    rows = spark.read.format("segstore").load(fresh)
    append(rows, segmentFormat="parquet", inlineBytes=0)
    append(rows.where("row = 1"))
    read = segstore.spark.read(spark, url, startCut=2, offsetColumn="at")
    source = spark.read.format("segstore").option("startCut", 2).option("offsetColumn", "at")
    check(read, source.load(url))
    assert "FileScan parquet" in plan_of(read)
    assert "LocalTableScan" in plan_of(read)


def test_small_scan_is_broadcast(spark: SparkSession, fresh: str) -> None:
    """A source has no size, so Spark would sort and shuffle."""
    with session_settings(spark, {"spark.sql.adaptive.enabled": "false"}):
        small = segstore.spark.read(spark, fresh, columns=["row"])
        joined = spark.range(10**6).toDF("row").join(small, "row", "left")
        assert "Broadcast" in plan_of(joined)


def test_scan_is_of_the_version_that_was_read(spark: SparkSession, url: str) -> None:
    stream = segstore.create(url, pa.schema([("n", pa.int64())]))
    empty = segstore.spark.read(spark, url)
    assert (empty.count(), empty.columns) == (0, ["n"])
    stream.append(pa.table({"n": [1, 2]}))
    read = segstore.spark.read(spark, url)
    stream.append(pa.table({"n": [3]}))
    assert (empty.count(), read.count(), segstore.spark.read(spark, url).count()) == (0, 2, 3)
    with pytest.raises(PositionError):
        segstore.spark.read(spark, url, startCut=9)


@pytest.mark.parametrize("bound", ["MOST_BYTES", "MOST_MEMORY", "_MOST_SEGMENTS"])
def test_larger_scan_is_the_sources(spark, fresh, monkeypatch, bound) -> None:
    monkeypatch.setattr(hybrid, bound, 3)
    source = spark.read.format("segstore").load(fresh)
    check(segstore.spark.read(spark, fresh), source, here=False)


def test_types_with_two_forms_are_the_sources(spark, url, append) -> None:
    append(spark.sql("SELECT parse_json('[1]') AS v"))
    source = spark.read.format("segstore").load(url)
    check(segstore.spark.read(spark, url), source, here=False)


@pytest.mark.parametrize("here", [True, False])
def test_batches_without_a_limit_are_refused(spark, fresh, monkeypatch, here) -> None:
    """Spark's reader of Python sources asserts a limit before it asks us; a write needs none."""
    monkeypatch.setattr(hybrid, "MOST_BYTES", hybrid.MOST_BYTES if here else 3)
    with session_settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "0"}):
        with pytest.raises(InvalidInputError, match="set it to 10000, Spark's default"):
            segstore.spark.read(spark, fresh)
        assert "batch size should be greater than 0" in error_of(
            lambda: spark.read.format("segstore").load(fresh).collect()
        )
