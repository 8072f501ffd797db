"""Spark sessions as the benchmarks use them.

Nothing here imports segstore before a session with it asks: Iceberg's Spark is older than ours.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.workload import cpu_seconds

BATCH_SIZING = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TUNED = "2147483647"
QUICK_POLLS = {"spark.sql.streaming.pollingDelay": "1ms"}
MASTER = "local[2]"
FIXED = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "4g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}


def start_spark(conf: Mapping[str, str]) -> SparkSession:
    """Start a quiet local session."""
    # Each Python process of Spark would compile what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    builder = SparkSession.builder.master(MASTER).appName("segstore-benchmarks")
    spark = builder.config(map={**FIXED, **conf}).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


@contextmanager
def spark_session(conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Give a session with the format registered, and by default with what we recommend."""
    import segstore_ds as segstore

    spark = start_spark({**segstore.spark.recommended_conf(), **(conf or {})})
    segstore.spark.register(spark, tune=False)
    try:
        yield spark
    finally:
        spark.stop()


def set_batch_sizing(spark: SparkSession, *, tuned: bool, rows: int = 10_000) -> None:
    """Switch the setting that `segstore.spark.register` tunes, and give a batch so many rows."""
    spark.conf.set(BATCH_ROWS, str(rows))
    if tuned:
        spark.conf.set(BATCH_SIZING, TUNED)
    else:
        spark.conf.unset(BATCH_SIZING)


def drain(df: DataFrame) -> None:
    """Read all of a frame into Spark's sink for nothing."""
    df.write.format("noop").mode("append").save()


def run_batches(
    query: StreamingQuery, batches: int, warm_up: int
) -> tuple[list[dict[str, int]], float]:
    """Let a query run so many batches after those that warm up, and stop it.

    Returns milliseconds by batch and phase, as Spark says them, and CPU seconds per batch of all
    processes: Spark's, the workers' and those that Spark starts for its checkpoint.
    """
    _await_batches(query, warm_up)
    begun, cpu = len(query.recentProgress), cpu_seconds()
    _await_batches(query, warm_up + batches)
    found = [progress["durationMs"] for progress in query.recentProgress]
    cpu = (cpu_seconds() - cpu) / max(len(found) - begun, 1)
    if (error := query.exception()) is not None:
        raise RuntimeError("the query failed") from error
    query.stop()  # what this interrupts, such as a wait before another try, is no failure
    return [times for times in found[warm_up:] if "addBatch" in times], cpu


def _await_batches(query: StreamingQuery, batches: int) -> None:
    while query.isActive and len(query.recentProgress) < batches:
        time.sleep(0.05)


def describe(spark: SparkSession) -> dict[str, Any]:
    """Give the setup lines of a session."""
    jvm: Any = spark.sparkContext._jvm
    return {
        "spark": f"{MASTER}, Spark {spark.version}, Java {jvm.System.getProperty('java.version')}"
    }
