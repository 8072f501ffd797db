"""Spark reads the events of an interval of time exactly, whatever their order."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import segstore_ds as segstore
from segstore_ds.spark.source import SegstoreDataSource

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
    hybrid = segstore.read(spark, url, startEventTime=at(3), endEventTime=at(8))
    assert sorted(row.n for row in hybrid.collect()) == [3, 4, 5, 7]
    assert sorted(row.n for row in load(endEventTime=at(2).isoformat()).collect()) == [1]


def test_cuts_by_event_time_bind_a_range(stream, load):
    first, last = (f"eventtime:{at(hour).isoformat()}" for hour in (6, 8))
    found = load(offsetColumn="o", startCut=first, endCut=last)
    assert sorted(row.o for row in found.collect()) == [3, 4, 5, 6, 7, 8]


def test_write_that_creates_a_stream_names_its_time_column(spark, url, append):
    append(spark.createDataFrame([(at(1),)], "ts timestamp"), timeColumn="ts")
    assert segstore.open(url).time_column == "ts"


def test_streaming_query_starts_at_a_time_and_filters(stream, url):
    given = {"path": url, "startCut": f"eventtime:{at(6).isoformat()}"}
    source = SegstoreDataSource({**given, "endEventTime": at(5).isoformat()})
    reader = source.streamReader(source.schema())
    start = json.loads(json.dumps(reader.initialOffset()))
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    found = [
        n
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for n in batch.column(0).to_pylist()
    ]
    assert found == [2, 3, 4]
