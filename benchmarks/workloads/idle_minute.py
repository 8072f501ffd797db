"""The first job after an idle minute, by when Spark has ended its Python workers."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from benchmarks.empty_source import EmptySource
from benchmarks.report import Found
from benchmarks.session import describe, spark_session
from benchmarks.workload import Race, Settings, Timing, workload

# Spark ends idle workers after a minute, and looks each ten seconds.
IDLE_S = 75
LATE, AT_ONCE, AGAIN = "after an idle minute", "without a wait", "at once again"


@workload(
    "the JVM and Spark's daemons of Python are warm; what they cost a new session is not here",
    "against us: Parquet needs no Python process, so nothing waits before it, and syncs nothing",
    "against us: the empty source and sink touch no file",
    rows=1_000,
    tiny_rows=100,
)
def idle_minute(settings: Settings) -> Found:
    """Scans and appends after 75 idle seconds, and at once again (rows: events of each)."""
    idle_s = 0.1 if settings.tiny else IDLE_S
    found = Race()
    with settings.scratch() as scratch, spark_session() as spark:
        spark.dataSource.register(EmptySource)
        jobs = [*_jobs(spark, spark.range(settings.rows), scratch)]
        for turn in range(0 if settings.tiny else -1, settings.rounds):
            if turn == 0:
                found.clear()  # of the round that warms up
            for name, job in jobs:
                first = AT_ONCE if name.startswith("parquet") else LATE
                if first == LATE and turn >= 0:
                    time.sleep(idle_s)
                for when in (first, AGAIN):
                    found.setdefault(f"{name}, {when}", Timing()).time(job)
        setup = describe(spark) | {"idle for": f"{idle_s} s"}
    ratios = [
        found.faster(f"{ours}, {LATE}", f"{rival}, {when}", 1 / most)
        for ours, rival, when, most in (
            ("segstore, scan by read", "parquet, scan", AT_ONCE, 1.2),
            ("segstore, scan", "empty, scan", LATE, 1.3),
            ("segstore, append", "empty, append", LATE, 1.5),
        )
    ]
    return Found(found.rows(), ratios, setup, found.raw)


def _jobs(
    spark: SparkSession, events: DataFrame, scratch: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the jobs of each format, which has events to scan."""
    for form in ("parquet", "empty", "segstore"):
        reader, url = spark.read.format(form), str(scratch / form)
        writer = events.write.format(form).mode("append")
        writer.save(url)
        yield f"{form}, scan", lambda reader=reader, url=url: reader.load(url).collect()
        yield f"{form}, append", lambda writer=writer, url=url: writer.save(url)
    yield "segstore, scan by read", lambda: segstore.spark.read(spark, url).collect()
