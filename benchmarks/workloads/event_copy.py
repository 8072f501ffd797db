"""Copies by events, through Spark's tasks and in one process, beside Spark copying Parquet."""

from pathlib import Path

from pyspark.sql import SparkSession

import segstore_ds as segstore
from benchmarks.datasets import events_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import describe, spark_session
from benchmarks.workload import Candidate, Settings, Workload, folder_bytes, race

MEANING = "copy 10 million events from stream to stream, beside Spark reading and writing Parquet"
FLATTERS = (
    "the five columns are narrow, and all events are in Parquet segments of one epoch already",
    "against us: `parquet zstd`, with Spark's vectorised reader, keeps no order and syncs no file",
    "against us: a copy binds its range first, which is two more plans of a Python source",
    "`one process` uses threads to decode and to write, Spark two cores for everything",
)


def run(settings: Settings) -> Report:
    """Copy one stream in interleaved rounds."""
    conf = segstore.recommended_conf()
    data = events_parquet(settings.datasets, settings.rows)
    setup = machine(settings.folder)
    with settings.scratch() as scratch, spark_session(conf) as spark:
        stream, parquet = scratch / "stream", scratch / "parquet"
        rows = spark.read.parquet(str(data))
        segstore.write(rows, str(stream), segmentFormat="parquet")
        rows.write.option("compression", "zstd").parquet(str(parquet))
        setup |= describe(spark, conf) | {
            "data": f"{settings.rows:,} rows, {folder_bytes(stream):,} bytes as a stream, "
            f"{folder_bytes(parquet):,} as Parquet",
            "rounds": settings.rounds_text,
        }
        timings = race(_candidates(spark, stream, parquet, settings.rows), settings, scratch)
    seconds = {name: timing.median for name, timing in timings.items()}
    return Report(
        workload="copy_events",
        meaning=MEANING,
        setup=setup,
        rows=[timing.row(name, settings.rows) for name, timing in timings.items()],
        ratios=[
            Ratio(
                "throughput: segstore.copy / parquet zstd",
                seconds["parquet zstd"] / seconds["segstore.copy"],
            ),
            Ratio(
                "throughput: one process / parquet zstd",
                seconds["parquet zstd"] / seconds["one process"],
            ),
            Ratio(
                "throughput: by segments / by events, one process",
                seconds["one process"] / seconds["by segments"],
            ),
        ],
        flatters=FLATTERS,
        raw={name: timing.seconds for name, timing in timings.items()},
    )


def _candidates(
    spark: SparkSession, stream: Path, parquet: Path, rows: int
) -> dict[str, Candidate]:
    def checked(folder: Path) -> int:
        assert segstore.open(folder).tail == rows
        return folder_bytes(folder)

    def through_spark(folder: Path) -> int:
        segstore.copy(spark, str(stream), str(folder), "bench", mode="events")
        return checked(folder)

    def in_process(folder: Path, mode: str) -> int:
        segstore.open(stream).copy_to(folder, mode=mode, copy_id="bench")
        return checked(folder)

    def plain(folder: Path) -> int:
        copied = spark.read.parquet(str(parquet))
        copied.write.option("compression", "zstd").parquet(str(folder))
        return folder_bytes(folder)

    return {
        "segstore.copy": through_spark,
        "parquet zstd": plain,
        "one process": lambda folder: in_process(folder, "events"),
        "by segments": lambda folder: in_process(folder, "segments"),
    }


WORKLOADS = {"copy_events": Workload(MEANING, run, 10_000_000, 5_000)}
