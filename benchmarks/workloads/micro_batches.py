"""Micro-batches: the segstore sink beside Spark's file sink, noop, and a sink that does nothing."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.empty_source import EmptySource
from benchmarks.report import Found, Ratio
from benchmarks.session import describe, spark_session
from benchmarks.streaming import CONF, WARM_UP, Query, objects_per_batch
from benchmarks.workload import Settings, quantile, race, workload

SINKS = ("noop", "empty", "parquet", "segstore")
FIRST = "first batch of a new query"
NEW_PROCESSES = {"spark.python.worker.reuse": "false"}
SMALL, LARGE = 10, 100_000
AGE, TASKS = 5_000, 200
TINY_AGE, TINY_TASKS = 20, 8


@workload(
    "addBatch is what a sink does; a user waits for the trigger, which includes the checkpoint",
    "sinks run one after the other, not interleaved, so a busy machine can favour one of them",
    "the 5,000 batches behind an old query are prepared, not run: the files that the file sink "
    "lists in its log do not exist, the stream's commits do",
    "the first batch of a new query is timed from its start, with a checkpoint, an output and "
    "Python processes that are new too; the JVM is warm",
    "against us: the stream syncs each batch to disk, Spark's file sink and its log do not",
    rows=300,
    tiny_rows=3,
)
def micro_batches(settings: Settings) -> Found:
    """Micro-batches of 10 and 100,000 rows, young and at batch 5,000; 200 tasks (rows: batches)."""
    age, tasks = (TINY_AGE, TINY_TASKS) if settings.tiny else (AGE, TASKS)
    batches, fewer, fewest = (max(settings.rows // share, 1) for share in (1, 3, 15))
    # Rows, tasks, batches behind the first and batches, and who takes part.
    cases = {
        f"{SMALL} rows": (SMALL, 2, 0, batches, SINKS),
        f"{SMALL} rows from batch {age:,}": (SMALL, 2, age, batches, SINKS),
        f"{LARGE:,} rows": (LARGE, 2, 0, fewer, SINKS),
        f"{tasks} tasks of a row": (tasks, tasks, 0, fewest, SINKS[1:]),
    }
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    with settings.scratch() as scratch, spark_session(CONF) as spark:
        spark.dataSource.register(EmptySource)
        setup = describe(spark) | {
            "first batches": f"{settings.rounds} new queries after one that is not counted",
            "queries": f"{batches} micro-batches each after {WARM_UP} that are not counted; "
            f"large ones {fewer}, of many tasks {fewest}",
        }
        for case, (size, parts, behind, count, sinks) in cases.items():
            found = {}
            for sink in sinks:
                query = Query(sink, scratch / f"{sink} {case}", size, partitions=parts)
                if behind:
                    query.age(spark, behind)
                warm_up = 1 if parts > 2 else WARM_UP
                found[sink] = _measure(spark, query, count, warm_up)
                rows.append({"case": case, "sink": sink, **found[sink]})
            ratios += _ratios(case, found, small=size == SMALL)
    with settings.scratch() as scratch, spark_session(CONF | NEW_PROCESSES) as spark:
        spark.dataSource.register(EmptySource)
        queries = {sink: partial(_first_batch, spark, sink) for sink in SINKS[1:]}
        first = race(queries, settings, scratch)
    rows += [{"case": FIRST, **row} for row in first.rows()]
    goals: dict[str, float | None] = {"parquet": 1.5, "empty": None}
    for rival, most in goals.items():
        ratio = first["segstore"].median / first[rival].median
        ratios.append(Ratio(f"{FIRST}: segstore / {rival}", ratio, most, most=True))
    return Found(rows, ratios, setup, first.raw)


def _first_batch(spark: SparkSession, sink: str, folder: Path) -> None:
    Query(sink, folder, SMALL).run(spark, 1)


def _measure(spark: SparkSession, query: Query, batches: int, warm_up: int) -> dict[str, Any]:
    times, cpu = query.run(spark, batches, warm_up=warm_up)
    found: dict[str, Any] = {}
    for phase, name in (("addBatch", "addBatch"), ("trigger", "triggerExecution")):
        ms = [batch[name] for batch in times]
        found[f"{phase} median ms"] = round(statistics.median(ms), 1)
        found[f"{phase} p99 ms"] = quantile(ms, 0.99)
    found["cpu s/batch"] = round(cpu, 3)
    if query.partitions > 2 and query.output.exists():
        found["objects/batch"] = round(objects_per_batch(query, batches + warm_up), 1)
    return found


def _ratios(case: str, found: dict[str, dict[str, Any]], *, small: bool) -> list[Ratio]:
    def beside(what: str, goal: float, ours: float, rival: float) -> Ratio:
        return Ratio(f"{what}, {case}", ours / rival, goal if small else None, most=True)

    ours, parquet = found["segstore"], found["parquet"]
    trigger, median, p99 = "trigger median ms", "addBatch median ms", "addBatch p99 ms"
    ratios = [
        beside("trigger: segstore / parquet", 0.8, ours[trigger], parquet[trigger]),
        beside("addBatch: segstore / parquet", 0.7, ours[median], parquet[median]),
        beside(
            "addBatch: segstore / (a Python sink that does nothing + 10 ms)",
            1,
            ours[median],
            found["empty"][median] + 10,
        ),
    ]
    if small:
        spreads = [row[p99] / row[median] for row in (ours, parquet)]
        ratios.append(beside("p99 / median: segstore / parquet", 1, *spreads))
    return ratios
