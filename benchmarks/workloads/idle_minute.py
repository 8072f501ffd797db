"""The first job after an idle minute, by when Spark has ended its Python workers."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import describe, spark_session
from benchmarks.workload import Settings, Workload, cpu_seconds

MEANING = "a scan and an append after 75 idle seconds, and at once again (rows: events of each)"
# Spark ends idle workers after a minute, and looks each ten seconds.
IDLE_S = 75
LATE, AT_ONCE, AGAIN = "after an idle minute", "without a wait", "at once again"
FORMATS = ("parquet", "segstore")
FLATTERS = (
    "the JVM and Spark's daemons of Python are warm; what they cost a new session is not here",
    "against us: Parquet needs no Python process, so nothing waits before it, and syncs nothing",
)
Job = Callable[[], Any]


def run(settings: Settings) -> Report:
    """Wait, then scan and scan again; wait, then append and append again."""
    idle_s = 0.1 if settings.tiny else IDLE_S
    conf = segstore.recommended_conf()
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with settings.scratch() as scratch, spark_session(conf) as spark:
        events = spark.range(settings.rows)
        for turn in range(0 if settings.tiny else -1, settings.rounds):
            for form in FORMATS:
                first = LATE if form == "segstore" else AT_ONCE
                for work, job in _jobs(spark, events, form, scratch).items():
                    if first == LATE and turn >= 0:
                        time.sleep(idle_s)
                    for when in (first, AGAIN):
                        took = _timed(job)
                        if turn >= 0:
                            found.setdefault((work, form, when), []).append(took)
        setup = machine(settings.folder) | describe(spark, conf)
    rows = [_row(*key, took) for key, took in found.items()]
    by = {key: median(seconds for seconds, _ in took) for key, took in found.items()}
    return Report(
        workload="idle_minute",
        meaning=MEANING,
        setup=setup | {"rounds": f"{settings.rounds}; idle for {idle_s} s", "rows": settings.rows},
        rows=rows,
        ratios=[
            Ratio(
                f"segstore, {work}: after an idle minute / at once again",
                by[work, "segstore", LATE] / by[work, "segstore", AGAIN],
            )
            for work in ("scan", "append")
        ],
        flatters=FLATTERS,
    )


def _jobs(spark: SparkSession, events: DataFrame, form: str, scratch: Path) -> dict[str, Job]:
    """Return the jobs of a format, which has events to scan."""
    url = str(scratch / form)

    def append() -> None:
        events.write.format(form).mode("append").save(url)

    if not Path(url).exists():
        append()
    return {"scan": lambda: spark.read.format(form).load(url).collect(), "append": append}


def _timed(job: Job) -> tuple[float, float]:
    start, cpu = time.perf_counter(), cpu_seconds()
    job()
    return time.perf_counter() - start, cpu_seconds() - cpu


def _row(work: str, form: str, when: str, took: list[tuple[float, float]]) -> dict[str, Any]:
    seconds = [one for one, _ in took]
    return {
        "job": work,
        "format": form,
        "when": when,
        "seconds": round(median(seconds), 2),
        "spread": f"{min(seconds):.2f}-{max(seconds):.2f}",
        "cpu s": round(median(cpu for _, cpu in took), 2),
    }


WORKLOADS = {"idle_minute": Workload(MEANING, run, 1_000, 100)}
