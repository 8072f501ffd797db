"""The first job after an idle minute, by when Spark has ended its Python workers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.report import Found
from benchmarks.session import describe, spark_session
from benchmarks.workload import Race, Settings, Timing, cpu_seconds, timed, workload

# Spark ends idle workers after a minute, and looks each ten seconds.
IDLE_S = 75
LATE, AT_ONCE, AGAIN = "after an idle minute", "without a wait", "at once again"


@workload(
    "the JVM and Spark's daemons of Python are warm; what they cost a new session is not here",
    "against us: Parquet needs no Python process, so nothing waits before it, and syncs nothing",
    rows=1_000,
    tiny_rows=100,
)
def idle_minute(settings: Settings) -> Found:
    """A scan and an append after 75 idle seconds, and at once again (rows: events of each)."""
    idle_s = 0.1 if settings.tiny else IDLE_S
    found = Race()
    with settings.scratch() as scratch, spark_session() as spark:
        events = spark.range(settings.rows)
        for turn in range(0 if settings.tiny else -1, settings.rounds):
            for form, first in (("parquet", AT_ONCE), ("segstore", LATE)):
                for work, job in _jobs(spark, events, form, scratch).items():
                    if first == LATE and turn >= 0:
                        time.sleep(idle_s)
                    for when in (first, AGAIN):
                        cpu = cpu_seconds()
                        seconds = timed(job)
                        if turn >= 0:
                            timing = found.setdefault(f"{form}, {work}, {when}", Timing())
                            timing.seconds.append(seconds)
                            timing.cpu_seconds.append(cpu_seconds() - cpu)
        setup = describe(spark) | {"idle for": f"{idle_s} s"}
    ratios = [
        found.faster(f"segstore, {work}, {LATE}", f"segstore, {work}, {AGAIN}")
        for work in ("scan", "append")
    ]
    return Found(found.rows(), ratios, setup, found.raw)


def _jobs(
    spark: SparkSession, events: DataFrame, form: str, scratch: Path
) -> dict[str, Callable[[], Any]]:
    """Return the jobs of a format, which has events to scan."""
    url = str(scratch / form)

    def append() -> None:
        events.write.format(form).mode("append").save(url)

    if not Path(url).exists():
        append()
    return {"scan": lambda: spark.read.format(form).load(url).collect(), "append": append}
