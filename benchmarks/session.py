"""Spark sessions as the benchmarks use them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import segstore_ds as segstore
from benchmarks.far import sitecustomize as delay

BATCH_SIZING = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TUNED = "2147483647"
MASTER = "local[2]"


@contextmanager
def spark_session(conf: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a quiet local session with the format registered and nothing tuned."""
    builder = SparkSession.builder.master(MASTER).appName("segstore-benchmarks")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = builder.config(map={**fixed, **(conf or {})}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    segstore.register(spark, tune=False)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def delayable_requests(file: Path) -> Iterator[None]:
    """Let requests wait while a file says how long: here, and in workers of a session to come."""
    variables = {delay.VARIABLE: str(file), "PYTHONPATH": str(Path(delay.__file__).parent)}
    before = {name: os.environ.get(name) for name in variables}
    variables["PYTHONPATH"] += os.pathsep + (before["PYTHONPATH"] or "")
    os.environ.update(variables)
    try:
        with delay.delayed_requests():
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})


def set_batch_sizing(spark: SparkSession, *, tuned: bool, rows: int = 10_000) -> None:
    """Switch the setting that `segstore.register` tunes, and give a batch so many rows."""
    spark.conf.set(BATCH_ROWS, str(rows))
    if tuned:
        spark.conf.set(BATCH_SIZING, TUNED)
    else:
        spark.conf.unset(BATCH_SIZING)


def describe(spark: SparkSession, conf: dict[str, str]) -> dict[str, Any]:
    """Give the setup lines of a session."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no other way
    java = jvm.System.getProperty("java.version")
    return {"spark": f"{MASTER}, Java {java}", "session": conf or "Spark's defaults"}
