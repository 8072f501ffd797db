"""Bulk scan into Spark's noop sink, beside a source of ready-made batches and beside Parquet."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from benchmarks.datasets import events, events_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.rivals import ReadyDataSource, write_batch
from benchmarks.session import describe, set_batch_sizing, spark_session
from benchmarks.workload import Candidate, Settings, Timing, Workload, folder_bytes, race

MEANING = "scan 20 million events to the noop sink: five columns, and one of five through `columns`"
COLUMN = "value"
READY_ROWS = 32_768
# Format and compression of segments.
STREAMS = (("parquet", "zstd"), ("arrow", "zstd"), ("arrow", "lz4"), ("arrow", "none"))
FLATTERS = (
    "all is in the page cache, so verifying and decompressing is all that reading costs",
    "stored without compression, what is left is fetching, checking and handing over",
    (
        "the ready-made source yields one batch again and again, which stays in the processor's "
        "cache: a bar that no source with data of its own meets"
    ),
    "Parquet's scan stays in the JVM and is columnar; no Python source can come near it",
)


def run(settings: Settings) -> Report:
    """Write a stream and a Parquet folder, then scan both."""
    source = events_parquet(settings.datasets, settings.rows)
    conf = segstore.recommended_conf()
    setup = machine(settings.folder)
    with settings.scratch() as scratch, spark_session(conf) as spark:
        spark.dataSource.register(ReadyDataSource)
        stream, parquet = scratch / "stream", scratch / "parquet"
        _prepare(spark, source, stream, parquet)
        tasks = spark.read.format("segstore").load(f"{stream}-arrow-zstd").rdd.getNumPartitions()
        setup |= describe(spark, conf) | {
            "data": f"{settings.rows:,} rows, {tasks} tasks for both Python sources",
            "rounds": settings.rounds_text,
        }
        frames = _frames(spark, scratch, rows=settings.rows, tasks=tasks)
        timings = race({name: _scan(frame) for name, frame in frames.items()}, settings, scratch)
        stored = {"Spark's Parquet zstd": folder_bytes(parquet)}
        for form, compression in STREAMS:
            size = folder_bytes(scratch / f"stream-{form}-{compression}")
            stored[f"segstore {form} {compression}"] = size
    return Report(
        workload="bulk_scan",
        meaning=MEANING,
        setup=setup,
        rows=[_row(name, timing, settings.rows, stored) for name, timing in timings.items()],
        ratios=_ratios(timings),
        flatters=FLATTERS,
        raw={name: timing.seconds for name, timing in timings.items()},
    )


def _prepare(spark: SparkSession, source: Path, stream: Path, parquet: Path) -> None:
    df = spark.read.parquet(str(source))
    set_batch_sizing(spark, tuned=True)
    for form, compression in STREAMS:
        writer = df.write.format("segstore").option("compression", compression)
        writer = writer.option("segmentFormat", form)
        writer.mode("append").save(f"{stream}-{form}-{compression}")
    df.write.option("compression", "zstd").parquet(str(parquet))


def _frames(spark: SparkSession, scratch: Path, *, rows: int, tasks: int) -> dict[str, DataFrame]:
    parquet = str(scratch / "parquet")
    # The rivals keep nothing from one round to the next either.
    uncached = {"readCacheBytes": 0}
    segstore_read = spark.read.format("segstore").options(**uncached)
    one_column = spark.read.format("segstore").options(columns=COLUMN, **uncached)
    streams = {}
    for form, compression in STREAMS:
        name = f"segstore {form} {compression}"
        folder = str(scratch / f"stream-{form}-{compression}")
        streams[name] = segstore_read.load(folder)
        streams[f"{name}, 1 of 5"] = one_column.load(folder)
    batch = events(0, READY_ROWS)
    write_batch(str(scratch / "five.arrow"), batch)
    write_batch(str(scratch / "one.arrow"), batch.select([COLUMN]))
    ready = spark.read.format("ready").option("rows", rows).option("tasks", tasks)
    return {
        **streams,
        "ready-made batches": ready.option("batch", str(scratch / "five.arrow")).load(),
        "Spark's Parquet zstd": spark.read.parquet(parquet),
        "ready-made batches, 1 of 5": ready.option("batch", str(scratch / "one.arrow")).load(),
        "Spark's Parquet zstd, 1 of 5": spark.read.parquet(parquet).select(COLUMN),
    }


def _scan(df: DataFrame) -> Candidate:
    def candidate(_: Path) -> None:
        df.write.format("noop").mode("append").save()

    return candidate


def _row(name: str, timing: Timing, rows: int, stored: dict[str, int]) -> dict[str, object]:
    row = timing.row(name, rows)
    row["bytes stored"] = stored.get(name.partition(",")[0])
    return row


def _ratios(timings: dict[str, Timing]) -> list[Ratio]:
    seconds = {name: timing.median for name, timing in timings.items()}
    return [
        Ratio(
            f"throughput: segstore {form} {compression}{part} / {rival}{part}",
            seconds[rival + part] / seconds[f"segstore {form} {compression}{part}"],
            0.9 if compression == "zstd" and rival == "ready-made batches" else None,
        )
        for part in ("", ", 1 of 5")
        for form, compression in STREAMS
        for rival in ("ready-made batches", "Spark's Parquet zstd")
        if compression == "zstd" or rival == "ready-made batches"
    ]


WORKLOADS = {"bulk_scan": Workload(MEANING, run, 20_000_000, 20_000)}
