"""Bulk append through Spark, beside Parquet and beside a sink that only drains."""

import statistics
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from benchmarks.datasets import events_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.rivals import DrainDataSource
from benchmarks.session import describe, set_batch_sizing, spark_session
from benchmarks.workload import Candidate, Settings, Timing, Workload, folder_bytes, race

LARGE_BATCH = 65_536
MEANING = "append 20 million events (long, int, double, string, timestamp) read from Parquet"
FLATTERS = (
    (
        "the five columns are narrow and of types that Arrow and Spark lay out alike; wide, nested "
        "rows cost more to hand to Python"
    ),
    "one write of many rows: the fixed cost of a Python task (20 to 50 ms) does not show",
    "bytes: the data are ours; each column gets the encoding that suits its first rows",
    "against us: every segment is synced to disk before the commit, Parquet's files are not",
    "against us: frames carry checksums and statistics of all columns; drain and noop keep nothing",
)


def run_unix(settings: Settings) -> Report:
    """Run over unix sockets, as `recommended_conf` has it."""
    return _run(settings, "bulk_append", segstore.recommended_conf())


def run_tcp(settings: Settings) -> Report:
    """Run over TCP, Spark's default."""
    return _run(settings, "bulk_append_tcp", {"spark.python.unix.domain.socket.enabled": "false"})


def _run(settings: Settings, name: str, conf: dict[str, str]) -> Report:
    source = events_parquet(settings.datasets, settings.rows)
    setup = machine(settings.folder)
    with settings.scratch() as scratch, spark_session(conf) as spark:
        spark.dataSource.register(DrainDataSource)
        df = spark.read.parquet(str(source))
        setup |= describe(spark, conf) | {
            "data": f"{settings.rows:,} rows, {folder_bytes(source):,} bytes as Parquet, "
            f"{df.rdd.getNumPartitions()} partitions",
            "rounds": settings.rounds_text,
        }
        timings = race(_candidates(spark, df, settings.rows), settings, scratch)
    return Report(
        workload=name,
        meaning=MEANING,
        setup=setup,
        rows=[timing.row(candidate, settings.rows) for candidate, timing in timings.items()],
        ratios=_ratios(timings),
        flatters=FLATTERS,
        raw={candidate: timing.seconds for candidate, timing in timings.items()},
    )


def _candidates(spark: SparkSession, df: DataFrame, rows: int) -> dict[str, Candidate]:
    def append(folder: Path, *, tuned: bool, form: str = "auto", batch: int = 10_000) -> int:
        set_batch_sizing(spark, tuned=tuned, rows=batch)
        writer = df.write.format("segstore").option("segmentFormat", form)
        writer.mode("append").save(str(folder))
        assert segstore.open(folder).tail == rows
        return folder_bytes(folder)

    def drain(_: Path, *, tuned: bool, compress: bool = False) -> None:
        set_batch_sizing(spark, tuned=tuned)
        df.write.format("drain").mode("append").option("compress", compress).save()

    def parquet(folder: Path, compression: str) -> int:
        df.write.option("compression", compression).parquet(str(folder))
        return folder_bytes(folder)

    return {
        "segstore tuned": lambda folder: append(folder, tuned=True),
        "segstore tuned, 65,536 rows a batch": lambda folder: append(
            folder, tuned=True, batch=LARGE_BATCH
        ),
        "segstore tuned, Arrow": lambda folder: append(folder, tuned=True, form="arrow"),
        "parquet zstd": lambda folder: parquet(folder, "zstd"),
        "drain tuned": lambda folder: drain(folder, tuned=True),
        "drain and compress, tuned": lambda folder: drain(folder, tuned=True, compress=True),
        "parquet snappy (Spark's default)": lambda folder: parquet(folder, "snappy"),
        "segstore as installed": lambda folder: append(folder, tuned=False),
        "drain as installed": lambda folder: drain(folder, tuned=False),
        "noop (Spark's, no Python)": lambda _: df.write.format("noop").mode("append").save(),
    }


def _ratios(timings: dict[str, Timing]) -> list[Ratio]:
    seconds = {name: timing.median for name, timing in timings.items()}
    tuned, installed = seconds["segstore tuned"], seconds["segstore as installed"]
    zstd, snappy = seconds["parquet zstd"], seconds["parquet snappy (Spark's default)"]
    size = timings["parquet zstd"].bytes or 0
    cpu = {name: statistics.median(timing.cpu_seconds) for name, timing in timings.items()}
    return [
        # As installed large appends become Parquet segments.
        Ratio("throughput: segstore tuned / parquet zstd", zstd / tuned, 1.2),
        Ratio(
            "throughput: segstore tuned, Arrow / parquet zstd (aim 1.5)",
            zstd / seconds["segstore tuned, Arrow"],
            1.4,
        ),
        Ratio(
            "throughput: drain and compress, tuned / parquet zstd (the most that Arrow can reach)",
            zstd / seconds["drain and compress, tuned"],
        ),
        Ratio("throughput: segstore tuned / drain tuned", seconds["drain tuned"] / tuned, 0.72),
        Ratio(
            "throughput: segstore tuned, 65,536 rows a batch / parquet zstd",
            zstd / seconds["segstore tuned, 65,536 rows a batch"],
            1.45,
        ),
        Ratio("throughput: segstore tuned / parquet snappy", snappy / tuned),
        Ratio("throughput: segstore as installed / parquet zstd", zstd / installed),
        Ratio(
            "throughput: segstore as installed / drain as installed",
            seconds["drain as installed"] / installed,
        ),
        Ratio(
            "per CPU second: segstore tuned / parquet zstd",
            cpu["parquet zstd"] / cpu["segstore tuned"],
        ),
        Ratio(
            "per CPU second: segstore tuned / drain tuned",
            cpu["drain tuned"] / cpu["segstore tuned"],
        ),
        Ratio("bytes: segstore / parquet zstd", (timings["segstore tuned"].bytes or 0) / size),
    ]


WORKLOADS = {
    "bulk_append": Workload(f"{MEANING}, over unix sockets", run_unix, 20_000_000, 20_000),
    "bulk_append_tcp": Workload(f"{MEANING}, over TCP", run_tcp, 20_000_000, 20_000),
}
