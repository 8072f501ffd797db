"""Lists and maps with nulls in Parquet segments of several frames, through Spark's own reader."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import segstore_ds as segstore

RANDOM = np.random.default_rng(7)
MANY = [int(n) for n in RANDOM.integers(-(1 << 62), 1 << 62, 40)]
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
VALUES = {
    "longs": (pa.int64(), MANY),
    "doubles": (pa.float64(), [n / 7 for n in MANY]),
    "times": (
        pa.timestamp("us", "UTC"),
        [START + dt.timedelta(microseconds=n >> 12) for n in MANY],
    ),
}
SCHEMA = pa.schema(
    [(name, pa.list_(kind)) for name, (kind, _) in VALUES.items()]
    + [("named", pa.map_(pa.string(), pa.int64()))]
)


def make_events(count, distinct):
    """Return events whose lists hold nulls and so many distinct values."""

    def draw(values):
        chosen = RANDOM.integers(-distinct, distinct, RANDOM.integers(0, 6))
        return [values[place] if place >= 0 else None for place in chosen]

    return [
        {
            **{name: draw(values) for name, (_, values) in VALUES.items()},
            "named": [(f"k{place}", value) for place, value in enumerate(draw(MANY))],
        }
        for _ in range(count)
    ]


pytestmark = pytest.mark.slow


@pytest.fixture
def stream(url):
    """Return a stream of one Parquet segment whose frames have fewer distinct values each time."""
    made = segstore.create(url, SCHEMA, upkeep=None)
    events = [*make_events(100, 40), *make_events(100, 2), *make_events(100, 1)]
    layout = segstore.Layout(segment_format="parquet", inline_bytes=0, frame_rows=100)
    made.append(pa.Table.from_pylist(events, SCHEMA), layout=layout)
    return made


def test_nulls_in_lists_and_maps_are_read(spark, stream, url):
    """Spark's generated code reads elements before it asks whether they are null."""
    events = stream.read().read_all().to_pylist()
    files = [file.url for file in stream.scan().files()]
    for frame in (segstore.spark.read(spark, url), spark.read.parquet(*files)):
        for name in VALUES:
            distinct = {repr(event[name]) for event in events}
            assert frame.select(name).distinct().count() == len(distinct)
            nulls = frame.select(F.size(F.filter(name, lambda value: value.isNull())).alias("n"))
            wanted = sum(event[name].count(None) for event in events)
            assert nulls.agg(F.sum("n")).collect()[0][0] == wanted
        kept = frame.select(F.transform(F.map_values("named"), lambda value: value).alias("v"))
        found = sorted(repr(row.v) for row in kept.collect())
        assert found == sorted(repr([value for _, value in event["named"]]) for event in events)
