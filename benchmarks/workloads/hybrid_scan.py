"""Scans of compacted history: `segstore.spark.read` beside Spark's reader and the source."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import segstore_ds as segstore
from benchmarks.datasets import events
from benchmarks.report import Found
from benchmarks.session import describe, drain, spark_session
from benchmarks.workload import Candidate, Race, Settings, race, workload
from segstore_ds.options.table import default

COUNTS, TINY_COUNTS = (1, 100, 5_000), (1, 5)
COLUMNS = 19
GOAL = 0.95
Query = Callable[[DataFrame], object]


@workload(
    "all is in the page cache, and the folder holds nothing but the listed files",
    "read() of Spark's own side lists one local folder, which is as quick as listing ever is",
    rows=5_000_000,
    tiny_rows=2_000,
)
def hybrid_scan(settings: Settings) -> Found:
    """Scan compacted segments by `segstore.spark.read` beside spark.read.parquet: 1 to 5000 files.

    The rows have nineteen columns; `read()` itself is timed; the source reads all but most files.
    """
    counts = TINY_COUNTS if settings.tiny else COUNTS
    found = Race()
    with settings.scratch() as scratch, spark_session() as spark:
        setup = describe(spark)
        for count in counts:
            _write(scratch / f"stream-{count}", settings.rows, count)
        for count in counts:
            found |= race(_candidates(spark, scratch, settings.rows, count), settings, scratch)
    ratios = [
        found.faster(f"hybrid, {name.partition(', ')[2]}", name, goal)
        for rival, goal in (("parquet", GOAL), ("source", None))
        for name in found
        if name.startswith(rival)
    ]
    return Found(found.rows(settings.rows), ratios, setup, found.raw)


def _write(folder: Path, rows: int, count: int) -> None:
    """Write a stream of `count` Parquet segments of the same size."""
    stream = segstore.create(str(folder), _wide(0, 1).schema)
    each = max(rows // count, 1)
    layout = segstore.Layout(
        segment_format="parquet",
        segment_rows=each,
        frame_rows=min(each, default("frameRows")),  # a segment is never cut within a frame
        inline_bytes=0,
    )
    step = each * max(200_000 // each, 1)
    for start in range(0, each * count, step):
        stream.append(_wide(start, min(start + step, each * count)), layout=layout)
    assert len(stream.scan().files()) == count


def _wide(start: int, end: int) -> pa.Table:
    """Return events with columns of the same kinds again, nineteen in all, and a `key`."""
    batch = events(start, end - start)
    table = pa.table({"key": pa.array(range(start, end), pa.int64())})
    names = batch.schema.names
    for place in range(COLUMNS - 1):
        name = names[place % len(names)]
        column = batch.column(name)
        if pa.types.is_integer(column.type):
            column = pc.add(column, place)
        table = table.append_column(f"{name}_{place}", column)
    return table


def _candidates(spark: SparkSession, scratch: Path, rows: int, count: int) -> dict[str, Candidate]:
    """Return every query on every way to read; what reads is part of what is timed."""
    url = str(scratch / f"stream-{count}")
    few = spark.createDataFrame(
        [(key, f"name {key}") for key in range(100)], "key LONG, name STRING"
    )
    queries: dict[str, Query] = {
        "full scan": drain,
        "1 of 19 columns": lambda df: drain(df.select("key")),
        "filter 1 %": lambda df: drain(df.where(F.col("key") < rows // 100)),
        "count": lambda df: df.count(),
        "join": lambda df: df.join(few, "key").agg(F.count("name")).collect(),
    }
    parquet = spark.read.option("recursiveFileLookup", "true")
    source = spark.read.format("segstore").option("readCacheBytes", 0)
    readers: dict[str, Callable[[], DataFrame]] = {
        "hybrid": lambda: segstore.spark.read(spark, url, readCacheBytes=0),
        "parquet": lambda: parquet.parquet(f"{url}/segments"),
    }
    if count < max(COUNTS):
        readers["source"] = lambda: source.load(url)
    return {
        f"{reader}, {count} files, {query}": partial(_run, read, ask)
        for query, ask in queries.items()
        for reader, read in readers.items()
    }


def _run(read: Callable[[], DataFrame], ask: Query, _: Path) -> None:
    ask(read())
