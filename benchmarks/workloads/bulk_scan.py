"""Bulk scan into Spark's noop sink, beside a source of ready-made batches and beside Parquet."""

from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.datasets import events, events_parquet
from benchmarks.report import Found
from benchmarks.rivals import ReadyDataSource, write_batch
from benchmarks.session import describe, drain, set_batch_sizing, spark_session
from benchmarks.workload import Settings, folder_bytes, race, workload

COLUMN, PART = "value", ", 1 of 5"
READY_ROWS = 32_768
READY, PARQUET = "ready-made batches", "Spark's Parquet zstd"
# Format and compression of segments.
STREAMS = (("parquet", "zstd"), ("arrow", "zstd"), ("arrow", "lz4"), ("arrow", "none"))


@workload(
    "all is in the page cache, so verifying and decompressing is all that reading costs",
    "stored without compression, what is left is fetching, checking and handing over",
    "the ready-made source yields one batch again and again, which stays in the processor's "
    "cache: a bar that no source with data of its own meets",
    "Parquet's scan stays in the JVM and is columnar; no Python source can come near it",
    rows=20_000_000,
    tiny_rows=20_000,
)
def bulk_scan(settings: Settings) -> Found:
    """Scan events to the noop sink: five columns, and one of five through `columns`."""
    source = events_parquet(settings.datasets, settings.rows)
    with settings.scratch() as scratch, spark_session() as spark:
        spark.dataSource.register(ReadyDataSource)
        set_batch_sizing(spark, tuned=True)
        df = spark.read.parquet(str(source))
        for form, compression in STREAMS:
            writer = df.write.format("segstore").option("compression", compression)
            writer = writer.option("segmentFormat", form).mode("append")
            writer.save(str(scratch / f"segstore {form} {compression}"))
        df.write.option("compression", "zstd").parquet(str(scratch / PARQUET))
        frames = _frames(spark, scratch, settings.rows)
        found = race({name: partial(_scan, df) for name, df in frames.items()}, settings, scratch)
        rows = found.rows(settings.rows)
        for row in rows:
            if (folder := scratch / str(row["candidate"])).exists():
                row["bytes stored"] = folder_bytes(folder)
        setup = describe(spark)
    ratios = [
        found.faster(
            f"segstore {form} {compression}{part}",
            rival + part,
            0.9 if (compression, rival) == ("zstd", READY) else None,
        )
        for part in ("", PART)
        for form, compression in STREAMS
        for rival in (READY, PARQUET)
        if compression == "zstd" or rival == READY
    ]
    return Found(rows, ratios, setup, found.raw)


def _frames(spark: SparkSession, scratch: Path, rows: int) -> dict[str, DataFrame]:
    # The rivals keep nothing from one round to the next either.
    ours = spark.read.format("segstore").options(readCacheBytes=0)
    one = spark.read.format("segstore").options(readCacheBytes=0, columns=COLUMN)
    frames = {}
    for form, compression in STREAMS:
        name = f"segstore {form} {compression}"
        frames[name] = ours.load(str(scratch / name))
        frames[name + PART] = one.load(str(scratch / name))
    tasks = frames["segstore arrow zstd"].rdd.getNumPartitions()
    batch = events(0, READY_ROWS)
    for part, kept in (("", batch), (PART, batch.select([COLUMN]))):
        write_batch(str(scratch / f"ready{part}"), kept)
        ready = spark.read.format("ready").options(rows=rows, tasks=tasks)
        frames[READY + part] = ready.option("batch", str(scratch / f"ready{part}")).load()
    parquet = spark.read.parquet(str(scratch / PARQUET))
    return frames | {PARQUET: parquet, PARQUET + PART: parquet.select(COLUMN)}


def _scan(df: DataFrame, _: Path) -> None:
    drain(df)
