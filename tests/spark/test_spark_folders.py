"""Many streams as one source: batches, and the answers of a query's reader to Spark."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from source_kit import load

import segstore_ds as segstore
from segstore_ds.errors import (
    InvalidInputError,
    NotFoundError,
    PositionError,
    SchemaMismatchError,
    SegstoreError,
)
from segstore_ds.options.table import MANY, READ, STREAM_READ, TABLE
from segstore_ds.spark.batch.planning import folder_of
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.folder import FolderStreamReader
from segstore_ds.spark.versions import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

N = pa.schema([("n", pa.int64())])
with_limits = pytest.mark.skipif(
    not hasattr(SupportsTriggerAvailableNow, "prepareForTriggerAvailableNow"),
    reason="this Spark does not say where a batch begins",
)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Three streams: one has another column, one wider numbers."""
    one = segstore.create(f"file://{tmp_path}/s/a", pa.schema([("n", pa.int32())]))
    two = segstore.create(f"file://{tmp_path}/s/b", pa.schema([("n", "int64"), ("x", "string")]))
    three = segstore.create(f"file://{tmp_path}/s/c", N)
    one.append([{"n": n} for n in range(5)])
    two.append([{"n": 1 << 40, "x": "p"}, {"n": None, "x": "q"}])
    three.append([{"n": n} for n in range(3)])
    return f"file://{tmp_path}/s"


def plain(rows: list) -> list:
    return sorted(map(tuple, rows), key=str)


def test_a_batch_has_all_streams_with_their_names(spark: SparkSession, folder: str) -> None:
    reader = spark.read.format("segstore")
    df = reader.option("offsetColumn", "at").load(f"{folder}/*")
    assert df.schema.simpleString() == "struct<n:bigint,x:string,at:bigint,stream:string>"
    scan = segstore.StreamSet(f"{folder}/*").scan(offset_column="at")
    expected = plain([tuple(row.values()) for row in pa.table(scan).to_pylist()])
    assert plain(df.collect()) == expected
    segstore.open(f"{folder}/a").append({"n": 9})
    assert plain(df.collect()) == expected  # it is pinned
    how = {"filters": "of != 'c' and n < 2", "columns": "n", "streamColumn": "of"}
    for small in (
        reader.options(**how).load(f"{folder}/*"),
        segstore.spark.read(spark, f"{folder}/*", **how),
        reader.options(**how).schema("of string, n bigint").load(f"{folder}/*").select("n", "of"),
    ):
        assert plain(small.drop("at").collect()) == [(0, "a"), (1, "a")]


def test_tasks_read_many_small_streams_each_or_as_many_as_asked(spark, folder) -> None:
    reader = spark.read.format("segstore")
    assert reader.load(f"{folder}/*").rdd.getNumPartitions() == 1
    assert reader.option("minPartitions", 3).load(f"{folder}/*").rdd.getNumPartitions() == 3
    none = reader.option("filters", "stream == 'z'").load(f"{folder}/*")
    assert none.count() == 0


def test_what_many_streams_do_not_know_is_an_error(spark: SparkSession, folder: str) -> None:
    path = f"{folder}/*"
    values = {"metadata": "info", "compactMode": "merge", "readerName": "x", "takeover": "true"}
    reads = [o for o in TABLE if {READ, STREAM_READ} & {*o.scopes}]
    others = [one for one in reads if MANY not in one.scopes]
    assert len(others) == 10
    for one in others:
        given = {"path": path, one.name.upper(): values.get(one.name, "1m")}
        source = SimpleNamespace(options=given, bound_storage_options=None)
        with pytest.raises(InvalidInputError, match=one.name):
            folder_of(source, {"path": path})
    for options, place, told in (
        ({"streamColumn": "x"}, f"{folder}/a", "streamColumn is for reads of many streams"),
        ({"startCut": "3"}, path, "one stream"),
        ({}, f"{folder}/*/*", "only the last part"),
    ):
        with pytest.raises(SegstoreError, match=told):
            load(place, **options).table()
    with pytest.raises(AnalysisException, match="many streams"):
        spark.range(1).write.format("segstore").mode("append").save(path)


def query(folder: str, schema: str | None = None, **options: str) -> FolderStreamReader:
    """Return the reader of a query as Spark makes it, in a process that restarts."""
    source = SegstoreDataSource({"path": f"{folder}/*", **options})
    columns = source.schema() if schema is None else StructType.fromDDL(schema)
    reader = source.streamReader(columns)
    assert isinstance(reader, FolderStreamReader)
    return reader


def read(reader: FolderStreamReader, start: dict, end: dict) -> list[tuple]:
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += zip(batch["stream"].to_pylist(), batch["n"].to_pylist(), strict=True)
    return found


LIMIT = ReadMaxFiles(1)


@with_limits
def test_offsets_have_the_position_of_each_stream(folder: str) -> None:
    reader = query(folder, maxRowsPerTrigger="4")
    first = reader.initialOffset()
    assert first == {"cut": "head"}
    batches, start = [], first
    while (end := reader.latestOffset(start, LIMIT)) != start:
        # The batch is logged, and the driver is killed: another process plans it.
        batches.append(read(query(folder, maxRowsPerTrigger="4"), start, end))
        start = end
    assert [*map(len, batches)] == [4, 4, 2]
    assert {name for name, _ in batches[0]} == {"a", "b", "c"}
    found = [row for batch in batches for row in batch]
    assert [n for name, n in found if name == "a"] == [0, 1, 2, 3, 4]
    assert sorted(start["streams"]) == ["a", "b", "c"]
    assert all(each["origin"] == 0 for each in start["streams"].values())
    assert query(folder).latestOffset(start, LIMIT) == start


@with_limits
def test_the_trigger_decides_where_a_query_ends(folder: str) -> None:
    reader = query(folder, maxRowsPerTrigger="1")
    end = reader.latestOffset({"cut": "head"}, ReadAllAvailable())
    assert len(read(reader, {"cut": "head"}, end)) == 10
    reader.prepareForTriggerAvailableNow()
    segstore.open(f"{folder}/a").append({"n": 6})
    segstore.create(f"{folder}/d", N).append({"n": 6})
    start, count = reader.initialOffset(), 0
    while (end := reader.latestOffset(start, LIMIT)) != start:
        count += len(read(reader, start, end))
        start = end
    assert count == 10
    with pytest.raises(InvalidInputError, match=r"4\.2"):
        reader.latestOffset()
    refused = SegstoreDataSource({"path": f"{folder}/*", "endCut": "5"}).streamReader(StructType())
    with pytest.raises(InvalidInputError, match="AvailableNow"):
        refused.initialOffset()


@with_limits
def test_streams_that_come_after_the_start_are_read_from_their_head(folder: str) -> None:
    reader = query(folder, startCut="tail")
    begun = reader.latestOffset(reader.initialOffset(), LIMIT)
    assert read(reader, reader.initialOffset(), begun) == []
    segstore.create(f"{folder}/d", N).append([{"n": 1}, {"n": 2}])
    again = query(folder, startCut="tail")
    end = again.latestOffset(begun, LIMIT)
    assert read(again, begun, end) == [("d", 1), ("d", 2)]
    assert end["streams"]["a"] == begun["streams"]["a"]
    assert again.reportLatestOffset() == {"a": 5, "b": 2, "c": 3, "d": 2}


@with_limits
def test_dropped_streams_end_a_query_or_leave_it(folder: str) -> None:
    strict, lenient = query(folder), query(folder, failOnDataLoss="false")
    begun = lenient.latestOffset({"cut": "tail"}, LIMIT)
    read(lenient, {"cut": "head"}, begun)
    segstore.drop(f"{folder}/b", confirm=f"{folder}/b")
    segstore.open(f"{folder}/a").append({"n": 5})
    end = strict.latestOffset({"cut": "tail"}, LIMIT)  # a new query knows nothing of it
    with pytest.raises(NotFoundError, match="'b'"):
        strict.latestOffset(begun, LIMIT)
    with pytest.raises(NotFoundError, match="'b'"):
        strict.partitions({"cut": "head"}, begun)
    lenient._many.folder.look(whole=True)
    end = lenient.latestOffset(begun, LIMIT)
    assert sorted(end["streams"]) == ["a", "c"]
    # The column that only the dropped stream had stays.
    assert read(lenient, begun, end) == [("a", 5)]
    # A batch that was logged before, and is planned again.
    assert len(read(lenient, {"cut": "head"}, begun)) == 8
    segstore.create(f"{folder}/b", N).append({"n": 8})
    with pytest.raises(NotFoundError, match="replaced"):
        query(folder).latestOffset(begun, LIMIT)
    lenient._many.folder.look(whole=True)
    later = lenient.latestOffset(end, LIMIT)
    assert read(lenient, end, later) == [("b", 8)]


@with_limits
def test_a_query_goes_on_with_no_stream_at_all(folder: str) -> None:
    """All left; one that comes later joins."""
    reader = query(folder, failOnDataLoss="false")
    begun = reader.latestOffset({"cut": "tail"}, LIMIT)
    for name in "abc":
        segstore.drop(f"{folder}/{name}", confirm=f"{folder}/{name}")
    again = FolderStreamReader(reader._folder, reader._options, reader._schema, takes_all=True)
    again.prepareForTriggerAvailableNow()
    end = again.latestOffset(begun, LIMIT)
    assert end == {"streams": {}}
    assert again.latestOffset(end, LIMIT) == end
    segstore.create(f"{folder}/d", like={"n": 1, "x": "p"}).append({"n": 1, "x": "p"})
    more = FolderStreamReader(reader._folder, reader._options, reader._schema, takes_all=True)
    more.prepareForTriggerAvailableNow()
    assert read(more, end, more.latestOffset(end, LIMIT)) == [("d", 1)]


@with_limits
def test_a_stream_with_other_columns_ends_the_query_until_it_is_loaded_again(folder: str) -> None:
    reader = query(folder)
    begun = reader.latestOffset({"cut": "tail"}, LIMIT)
    read(reader, {"cut": "tail"}, begun)
    segstore.create(f"{folder}/d", like={"n": 1, "z": 1}).append({"n": 1, "z": 1})
    reader._many.folder.look(whole=True)
    end = reader.latestOffset(begun, LIMIT)
    with pytest.raises(SchemaMismatchError, match="load it again"):
        reader.partitions(begun, end)
    assert read(query(folder), begun, end) == [("d", 1)]
    for how in ({"columns": "n"}, {}):
        named = query(folder, **how, schema="n bigint, stream string")
        assert read(named, begun, end) == [("d", 1)]


@with_limits
def test_checkpoints_of_others_are_refused(folder: str) -> None:
    reader = query(folder)
    one = {"generation": 0, "offset": 1, "origin": 0, "stream": "x"}
    for offset in (one, {"streams": [one]}, {}):
        with pytest.raises(PositionError):
            reader.latestOffset(offset, LIMIT)
