"""Lookups by key through Spark: what filters rule out is not read, and nothing is lost."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from segstore_ds.format.parquet.filters import CAN_WRITE
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.slow
ROWS, SEGMENTS = 1000, 12
PARQUET, ARROW = (
    segstore.Layout(
        inline_bytes=0, segment_rows=ROWS, frame_rows=ROWS // 2, segment_format=segment_format
    )
    for segment_format in ("parquet", "arrow")
)


@pytest.fixture(autouse=True)
def small_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 4)


def column(first: int, data_type: pa.DataType, *, most: int) -> pa.Table:
    """Return segments of which each spans all values, and each third has 55."""
    chance = np.random.default_rng(first)
    values = []
    for segment in range(first, first + SEGMENTS):
        keys = [key for key in chance.integers(1, most, 50).tolist() if key != 55]
        keys[:3] = [0, most, 55 if segment % 3 == 0 else 0]
        values += (keys * ROWS)[:ROWS]
    noise = [chance.bytes(20) for _ in values]
    offsets = range(first * ROWS, first * ROWS + len(values))
    return pa.table({"key": pa.array(values, data_type), "n": list(offsets), "noise": noise})


def both(spark: SparkSession, url: str, *filters: Any) -> tuple[DataFrame, DataFrame]:
    """Return what the hybrid scan and the source read."""
    source = spark.read.format("segstore").option("filters", json.dumps(list(filters)))
    return segstore.spark.read(spark, url, filters=list(filters)), source.load(url)


def check(spark: SparkSession, stream: Stream, *filters: Any) -> DataFrame:
    """Check that all reads agree with one that looks at every row; return the hybrid scan."""
    table = stream.read().read_all().to_pylist()
    ((_, op, asked),) = filters
    wanted = [asked] if op == "==" else asked
    expected = sorted(row["n"] for row in table if row["key"] in wanted)
    frames = both(spark, stream.url, *filters)
    for frame in frames:
        assert sorted(row.n for row in frame.select("n").collect()) == expected, filters
    python = stream.read(columns=["n"], filters=list(filters)).read_all()
    assert sorted(python["n"].to_pylist()) == expected
    return frames[0]


@pytest.mark.skipif(not CAN_WRITE, reason="Parquet segments have filters from pyarrow 24 on")
def test_hybrid_scan_of_a_key_reads_the_files_that_may_hold_it(spark, url) -> None:
    history = column(0, pa.int64(), most=10_000)
    stream = segstore.create(url, history.schema, key_columns=["key"], upkeep=None)
    stream.append(history, layout=PARQUET)
    tail = column(SEGMENTS, pa.int64(), most=10_000)
    stream.append(tail, layout=ARROW)
    hybrid = check(spark, stream, ["key", "==", 55])
    assert len(hybrid.inputFiles()) < SEGMENTS  # of 12 Parquet segments 4 have the key
    check(spark, stream, ["key", "in", [55, 10_000]])
    check(spark, stream, ["key", "==", 777_777])


def test_widened_keys_are_looked_up_in_the_type_of_each_epoch(spark, url) -> None:
    narrow = column(0, pa.int8(), most=120)
    stream = segstore.create(url, narrow.schema, key_columns=["key"], upkeep=None)
    stream.append(narrow, layout=PARQUET)
    wide = column(SEGMENTS, pa.int64(), most=1 << 40)
    stream.append(wide, layout=PARQUET, merge_schema=True)
    stream.append(wide.slice(0, 2 * ROWS), layout=ARROW)
    for key in (55, 120, 1 << 40, 256 + 55, -201):
        check(spark, stream, ["key", "==", key])
