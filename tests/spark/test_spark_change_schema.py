"""Columns that are renamed and dropped, as Spark sees them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import start_query
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from query_kit import ask, rows, start_reader

import segstore_ds as segstore
from segstore_ds.errors import SchemaMismatchError
from segstore_ds.stream.stream import Stream

PARQUET = segstore.Layout(segment_format="parquet", inline_bytes=0)


@pytest.fixture
def stream(url: str) -> Stream:
    """A stream of Parquet segments before and after two columns swapped their names."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.string())])
    made = segstore.create(url, schema)
    made.append(pa.table({"a": [1, 2], "b": [10, 20], "c": ["x", "y"]}), layout=PARQUET)
    made.change_schema(rename={"a": "b", "b": "a"}, drop=["c"])
    made.append(pa.table({"a": [30], "b": [3], "c": [7]}), merge_schema=True, layout=PARQUET)
    made.append(pa.table({"a": [40], "b": [4], "c": [8]}))
    return made


@pytest.mark.usefixtures("large_scans")
@pytest.mark.parametrize("hybrid", [True, False])
def test_both_ways_to_read_follow_the_names(spark: SparkSession, stream: Stream, hybrid: bool):
    """Spark's own Parquet reader gets the stored names, and filters on them."""

    def read(**options: Any) -> list[dict[str, Any]]:
        if hybrid:
            frame = segstore.spark.read(spark, stream.url, **options)
        else:
            frame = spark.read.format("segstore").options(**options).load(stream.url)
        return [row.asDict() for row in frame.orderBy("a").collect()]

    wanted = stream.read().read_all().to_pylist()
    assert read() == wanted
    assert read(filters="a >= 20 and b < 4") == wanted[1:3]
    assert read(startCut="1", endCut="3", offsetColumn="at") == [
        {**row, "at": 1 + n} for n, row in enumerate(wanted[1:3])
    ]
    assert read(filters="c == 7") == wanted[2:3]


def test_frame_writes_the_new_names(spark: SparkSession, stream: Stream) -> None:
    frame = spark.createDataFrame([(50, 5, 9)], "a long, b long, c long")
    frame.write.format("segstore").mode("append").save(stream.url)
    assert stream.refresh().read().read_all().to_pylist()[-1] == {"b": 5, "a": 50, "c": 9}
    old = frame.withColumnRenamed("a", "d")
    with pytest.raises(PySparkException, match="SEG_SCHEMA_MISMATCH"):
        old.write.format("segstore").mode("append").save(stream.url)


def test_query_with_a_schema_of_its_own_reads_its_columns(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """As a batch read with it; columns that the stream gets later are none of its own either."""
    target = f"{tmp_path}/own"
    for n in range(2):
        rows = spark.readStream.format("segstore").schema("c bigint, a bigint").load(stream.url)
        writer = rows.writeStream.format("segstore").option("path", target)
        start_query(writer, f"{target}-at", now=True)
        found = segstore.open(target)
        assert (found.schema.names, found.tail) == (["c", "a"], len(stream))
        stream.append({"a": 9, "b": 9, "c": 9, "d": n}, merge_schema=True)
        assert len(stream.refresh()) == 5 + n


@pytest.mark.smoke
def test_query_without_one_ends_at_a_new_column(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Each Spark has to send the source on as it was asked for its columns."""
    rows = spark.readStream.format("segstore").load(stream.url)
    stream.append({"a": 9, "b": 9, "c": 9, "d": 1}, merge_schema=True)
    writer = rows.writeStream.format("segstore").option("path", f"{tmp_path}/all")
    with pytest.raises(StreamingQueryException, match="columns that the query does not read"):
        start_query(writer, f"{tmp_path}/at", now=True)


@pytest.mark.parametrize("again", [False, True])
def test_running_query_ends_before_it_reads_other_columns(stream: Stream, again: bool) -> None:
    """It names the restart, also where another column has the old name by then."""
    reader = start_reader(stream.url, startCut="head")
    begin = reader.initialOffset()
    end = ask(reader, begin)
    assert reader.partitions(begin, end)
    stream.change_schema(rename={"a": "d"})
    event = {"b": 1, "d": 2, "c": 3} | ({"a": 4} if again else {})
    stream.append(event, merge_schema=again)
    later = ask(reader, end)
    with pytest.raises(SchemaMismatchError, match="restart the query"):
        reader.partitions(end, later)
    restarted = start_reader(stream.url, startCut="head")  # with the checkpoint's offsets
    assert rows(restarted, end, later) == [event]
