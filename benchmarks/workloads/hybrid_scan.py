"""Scans of compacted history: `segstore.read` beside Spark's own Parquet reader and the source."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import segstore_ds as segstore
from benchmarks.datasets import events
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import describe, spark_session
from benchmarks.workload import Candidate, Settings, Timing, Workload, race
from segstore_ds.options import default

MEANING = "scan compacted segments by `segstore.read` beside spark.read.parquet: 1, 100, 5000 files"
COUNTS = (1, 100, 5_000)
TINY_COUNTS = (1, 5)
COLUMNS = 19
GOAL = 0.95
FLATTERS = (
    "all is in the page cache, and the folder holds nothing but the listed files",
    "read() of Spark's own side lists one local folder, which is as quick as listing ever is",
)
Query = Callable[[DataFrame], object]


def run(settings: Settings) -> Report:
    """Write streams of Parquet segments, then scan them in three ways."""
    counts = TINY_COUNTS if settings.tiny else COUNTS
    conf = segstore.recommended_conf()
    setup = machine(settings.folder)
    timings: dict[str, Timing] = {}
    with settings.scratch() as scratch, spark_session(conf) as spark:
        setup |= describe(spark, conf) | {
            "data": f"{settings.rows:,} rows of {COLUMNS} columns in {counts} files; the source "
            "without the largest count of files",
            "rounds": settings.rounds_text,
        }
        for count in counts:
            _write(scratch / f"stream-{count}", settings.rows, count)
        for count in counts:
            timings |= race(_candidates(spark, scratch, settings.rows, count), settings, scratch)
    return Report(
        workload="hybrid_scan",
        meaning=MEANING,
        setup=setup,
        rows=[timing.row(name, settings.rows) for name, timing in timings.items()],
        ratios=_ratios(timings),
        flatters=FLATTERS,
        raw={name: timing.seconds for name, timing in timings.items()},
    )


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
        column = batch.column(names[place % len(names)])
        if pa.types.is_integer(column.type):
            column = pc.add(column, place)
        table = table.append_column(f"{names[place % len(names)]}_{place}", column)
    return table


def _queries(spark: SparkSession, rows: int) -> dict[str, Query]:
    few = spark.createDataFrame(
        [(key, f"name {key}") for key in range(100)], "key LONG, name STRING"
    )
    return {
        "full scan": _drain,
        "1 of 19 columns": lambda df: _drain(df.select("key")),
        "filter 1 %": lambda df: _drain(df.where(F.col("key") < rows // 100)),
        "count": lambda df: df.count(),
        "join": lambda df: df.join(few, "key").agg(F.count("name")).collect(),
    }


def _drain(df: DataFrame) -> None:
    df.write.format("noop").mode("append").save()


def _candidates(spark: SparkSession, scratch: Path, rows: int, count: int) -> dict[str, Candidate]:
    """Return every query on every way to read; what reads is part of what is timed."""
    url = str(scratch / f"stream-{count}")
    readers: dict[str, Callable[[], DataFrame]] = {
        "hybrid": lambda: segstore.read(spark, url, readCacheBytes=0),
        "parquet": lambda: spark.read.option("recursiveFileLookup", "true").parquet(
            f"{url}/segments"
        ),
    }
    if count < max(COUNTS):
        readers["source"] = lambda: (
            spark.read.format("segstore").option("readCacheBytes", 0).load(url)
        )
    return {
        f"{reader}, {count} files, {query}": partial(_run, read, ask)
        for query, ask in _queries(spark, rows).items()
        for reader, read in readers.items()
    }


def _run(read: Callable[[], DataFrame], ask: Query, _: Path) -> None:
    ask(read())


def _ratios(timings: dict[str, Timing]) -> list[Ratio]:
    seconds = {name: timing.median for name, timing in timings.items()}
    found = []
    for rival, goal in (("parquet", GOAL), ("source", None)):
        for name, value in seconds.items():
            reader, _, rest = name.partition(", ")
            if reader == rival:
                ratio = value / seconds[f"hybrid, {rest}"]
                found.append(Ratio(f"throughput: hybrid / {rival}, {rest}", ratio, goal))
    return found


WORKLOADS = {"hybrid_scan": Workload(MEANING, run, 5_000_000, 2_000)}
