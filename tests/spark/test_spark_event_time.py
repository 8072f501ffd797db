"""Spark reads the events of an interval of time exactly, whatever their order."""

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.versions import ReadAllAvailable

pytestmark = pytest.mark.usefixtures("verified")

SCHEMA = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
T0 = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
HOURS = [[5, 1, None], [9, 2, 3], [4, 8, 7]]


def at(hour: int) -> dt.datetime:
    return T0 + dt.timedelta(hours=hour)


@pytest.fixture
def stream(url) -> segstore.Stream:
    """A disordered stream: two Parquet segments and an Arrow segment."""
    made = segstore.create(url, SCHEMA, time_column="ts", upkeep=None)
    for number, hours in enumerate(HOURS):
        times = [None if hour is None else at(hour) for hour in hours]
        layout = segstore.Layout(
            inline_bytes=0, segment_format="arrow" if number == 1 else "parquet"
        )
        made.append(pa.table([[hour or 0 for hour in hours], times], schema=SCHEMA), layout=layout)
    return made


def test_source_and_hybrid_scan_read_an_interval(spark, stream, url, load):
    options = {"startEventTime": at(3).isoformat(), "endEventTime": at(8).isoformat()}
    assert sorted(row.n for row in load(**options).collect()) == [3, 4, 5, 7]
    hybrid = segstore.spark.read(spark, url, startEventTime=at(3), endEventTime=at(8))
    assert sorted(row.n for row in hybrid.collect()) == [3, 4, 5, 7]
    assert sorted(row.n for row in load(endEventTime=at(2).isoformat()).collect()) == [1]


def test_cuts_by_event_time_bind_a_range(stream, load):
    first, last = (f"eventtime:{at(hour).isoformat()}" for hour in (6, 8))
    found = load(offsetColumn="o", startCut=first, endCut=last)
    assert sorted(row.o for row in found.collect()) == [3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_write_that_creates_a_stream_names_its_time_column(spark, url, append):
    append(spark.createDataFrame([(at(1),)], "ts timestamp"), timeColumn="ts")
    assert segstore.open(url).settings.time_column == "ts"


def steps(source: SegstoreDataSource, start: dict[str, Any] | None = None) -> tuple[Any, list[int]]:
    """Return the offset after the next batch of a query, and the numbers of its events."""
    reader = source.streamReader(source.schema())
    given = json.loads(json.dumps(start or reader.initialOffset()))
    end = json.loads(json.dumps(reader.latestOffset(given, ReadAllAvailable())))
    found = [
        n
        for partition in reader.partitions(given, end)
        for batch in reader.read(partition)
        for n in batch.column(0).to_pylist()
    ]
    return end, found


def test_streaming_query_starts_at_a_time_and_filters(stream, url):
    given = {"path": url, "startCut": f"eventtime:{at(6).isoformat()}"}
    source = SegstoreDataSource({**given, "endEventTime": at(5).isoformat()})
    _, found = steps(source)
    assert found == [2, 3, 4]


def test_end_at_a_time_stays_where_it_was_bound(stream, url):
    cut = f"eventtime:{at(4).isoformat()}"
    end, found = steps(SegstoreDataSource({"path": url, "endCut": cut}))
    assert found == [5, 1, 0, 9, 2, 3]
    stream.append(pa.table([[3], [at(3)]], schema=SCHEMA))
    restarted = SegstoreDataSource({"path": url, "endCut": cut})
    assert steps(restarted, end) == (end, [])
    moved = SegstoreDataSource({"path": url, "endCut": f"eventtime:{at(5).isoformat()}"})
    assert steps(moved, end)[1] == [4, 8, 7, 3]


@pytest.mark.slow
def test_restarted_query_keeps_its_start_and_its_end(spark, stream, url, tmp_path):
    """In Spark, with late events between its runs, which would move both cuts."""
    target = f"{tmp_path}/target"

    def run() -> list[int]:
        source = spark.readStream.format("segstore").option("maxRowsPerTrigger", 2)
        source = source.option("startCut", f"eventtime:{at(6).isoformat()}")
        events = source.option("endCut", f"eventtime:{at(4).isoformat()}").load(url)
        writer = events.writeStream.format("segstore").option("path", target)
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        return segstore.open(target).read().read_all()["n"].to_pylist()

    assert run() == [9, 2, 3]
    stream.append(pa.table([[3], [at(3)]], schema=SCHEMA))
    stream.truncate(2)
    assert run() == [9, 2, 3]
