"""Times in nanoseconds: Spark reads what its microseconds hold, and names the column else."""

import datetime as dt

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.write.layout import Layout

NOON = 1_767_268_800_123_456_000
INSTANT = dt.datetime(2026, 1, 1, 12, 0, 0, 123456, dt.UTC)
KINDS = {"ts": pa.timestamp("ns", "UTC"), "took": pa.duration("ns")}
SCHEMA = pa.schema([*KINDS.items(), ("deep", pa.list_(KINDS["ts"])), ("n", pa.int64())])
LAYOUTS = {
    "arrow": Layout(inline_bytes=0, segment_format="arrow"),
    "parquet": Layout(inline_bytes=0, segment_format="parquet"),
}


def events(numbers: list[int]) -> pa.Table:
    """Return events at times in nanoseconds."""
    columns = [numbers, [n - NOON for n in numbers], [[n] for n in numbers], range(len(numbers))]
    return pa.table([*map(pa.array, columns, SCHEMA.types)], SCHEMA)


def rows_of(frame: object) -> list[tuple[object, ...]]:
    """Return rows with times in UTC."""
    shown = frame.selectExpr("unix_micros(ts)", "took", "unix_micros(deep[0])", "n")
    return sorted((tuple(row) for row in shown.collect()), key=lambda row: row[-1])


@pytest.mark.usefixtures("large_scans")
@pytest.mark.parametrize("form", LAYOUTS)
def test_times_that_spark_can_hold_are_read(spark: SparkSession, url: str, form: str) -> None:
    """By the format, `segstore.spark.read` and a query; Spark can write to the column, too."""
    stream = segstore.create(url, SCHEMA)
    stream.append(events([NOON, NOON + 1000]), layout=LAYOUTS[form])
    micros = NOON // 1000
    wanted = [(micros + n, dt.timedelta(microseconds=n), micros + n, n) for n in (0, 1)]
    frame = spark.read.format("segstore").load(url)
    assert rows_of(frame) == wanted
    assert rows_of(segstore.spark.read(spark, url)) == wanted
    plain = segstore.spark.read(spark, url, columns=["ts", "n"])  # no other type needs the source
    assert sorted(plain.selectExpr("unix_micros(ts)").collect()) == [(micros,), (micros + 1,)]
    found = segstore.spark.read(spark, url, filters=[["ts", ">", INSTANT]])
    assert rows_of(found) == wanted[1:]
    took = [["took", ">", dt.timedelta(0)]]
    assert rows_of(segstore.spark.read(spark, url, filters=took)) == wanted[1:]
    sink = spark.readStream.format("segstore").load(url).writeStream.format("memory")
    sink.queryName("fine").trigger(availableNow=True).start().awaitTermination()
    assert rows_of(spark.table("fine")) == wanted
    frame.write.format("segstore").mode("append").save(url)
    written = stream.refresh().read().read_all()
    assert written.slice(2).equals(written.slice(0, 2))


@pytest.mark.usefixtures("large_scans")
@pytest.mark.parametrize("form", LAYOUTS)
def test_finer_times_are_an_error_that_names_the_column(spark, url, form) -> None:
    """Other columns can be read."""
    segstore.create(url, SCHEMA).append(events([NOON, NOON + 1]), layout=LAYOUTS[form])
    frames = (
        spark.read.format("segstore").load(url),
        segstore.spark.read(spark, url),
        segstore.spark.read(spark, url, columns=["ts", "n"]),
    )
    for frame in frames:
        with pytest.raises(PySparkException, match=r"finer than Spark's.*'ts'"):
            frame.collect()
    others = spark.read.format("segstore").option("columns", '["n"]').load(url)
    assert sorted(row.n for row in others.collect()) == [0, 1]
    with pytest.raises(InvalidInputError, match="option has a wrong value"):
        segstore.spark.read(spark, url, filters=[["took", "==", pd.Timedelta(1, "ns")]])


def test_columns_of_sparks_own_nanoseconds_are_refused(spark: SparkSession, url: str) -> None:
    """Spark 4.3 has such types if a setting is on; Python knows none, and nothing is written."""
    setting = "spark.sql.timestampNanosTypes.enabled"
    session = spark.newSession()
    try:
        session.conf.get(setting)
    except PySparkException:
        pytest.skip("this Spark has no types of nanoseconds")
    session.conf.set(setting, "true")
    session.conf.set("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
    stream = segstore.create(url, SCHEMA)
    stream.append(events([NOON]))
    micros = NOON // 1000
    segstore.spark.register(session)
    found = segstore.spark.read(session, url).selectExpr("unix_micros(ts)").collect()
    assert [row[0] for row in found] == [micros]
    text = "SELECT CAST('2026-01-01 12:00:00.123456789' AS TIMESTAMP_NTZ(9)) AS fine"
    with segstore.spark.activated(session), pytest.raises(PySparkException, match="ntz\\(9\\)"):
        session.sql(text).write.format("segstore").mode("append").save(url)
    assert stream.refresh().tail == 1
