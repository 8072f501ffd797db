"""Micro-batches: the segstore sink beside Spark's file sink, noop, and a sink that does nothing."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import describe, spark_session
from benchmarks.streaming import (
    CONF,
    WARM_UP,
    EmptySinkDataSource,
    Query,
    objects_per_batch,
)
from benchmarks.workload import Settings, Workload, quantile

MEANING = (
    "micro-batches of 10 and 100,000 rows, young and at batch 5,000; 200 tasks (rows: batches)"
)
SINKS = ("noop", "empty", "parquet", "segstore")
SMALL, LARGE = 10, 100_000
AGE, TASKS = 5_000, 200
TINY_AGE, TINY_TASKS = 20, 8
TCP = {"spark.python.unix.domain.socket.enabled": "false"}
FLATTERS = (
    "addBatch is what a sink does; a user waits for the trigger, which includes the checkpoint",
    "sinks run one after the other, not interleaved, so a busy machine can favour one of them",
    (
        "the 5,000 batches behind an old query are prepared, not run: the files that the file sink "
        "lists in its log do not exist, the stream's commits do"
    ),
    "against us: the stream syncs each batch to disk, Spark's file sink and its log do not",
)


def run(settings: Settings, *, conf: dict[str, str], name: str) -> Report:
    """Run each sink young and old with few rows, young with many, and with many tasks."""
    batches = settings.rows
    age, tasks = (TINY_AGE, TINY_TASKS) if settings.tiny else (AGE, TASKS)
    conf = {**segstore.recommended_conf(), **CONF, **conf}
    setup = machine(settings.folder)
    with settings.scratch() as scratch, spark_session(conf) as spark:
        segstore.register(spark)
        spark.dataSource.register(EmptySinkDataSource)
        setup |= describe(spark, conf) | {
            "queries": f"{batches} micro-batches each after {WARM_UP} that are not counted; "
            f"2 partitions; large ones {_fewer(batches)}, {tasks} tasks {_fewest(batches)} batches",
        }
        rows = [
            *(_young(spark, sink, scratch, SMALL, batches) for sink in SINKS),
            *(_old(spark, sink, scratch, batches, age) for sink in SINKS),
            *(_young(spark, sink, scratch, LARGE, _fewer(batches)) for sink in SINKS),
            *(_many_tasks(spark, sink, scratch, _fewest(batches), tasks) for sink in SINKS[1:]),
        ]
    return Report(
        workload=name,
        meaning=MEANING,
        setup=setup,
        rows=rows,
        ratios=_ratios(rows, age, tasks),
        flatters=FLATTERS,
    )


def _fewer(batches: int) -> int:
    return max(batches // 3, 1)


def _fewest(batches: int) -> int:
    return max(batches // 15, 1)


def _young(
    spark: SparkSession, sink: str, scratch: Path, rows: int, batches: int
) -> dict[str, Any]:
    query = Query(sink, scratch / f"{sink}-{rows}", rows)
    return _row(query, "1", query.run(spark, batches, warm_up=WARM_UP))


def _old(spark: SparkSession, sink: str, scratch: Path, batches: int, age: int) -> dict[str, Any]:
    query = Query(sink, scratch / f"{sink}-old", SMALL)
    query.age(spark, age)
    return _row(query, f"{age:,}", query.run(spark, batches, warm_up=WARM_UP))


def _many_tasks(
    spark: SparkSession, sink: str, scratch: Path, batches: int, tasks: int
) -> dict[str, Any]:
    query = Query(sink, scratch / f"{sink}-tasks", tasks, partitions=tasks)
    row = _row(query, "1", query.run(spark, batches, warm_up=1))
    if query.output.exists():
        row["objects/batch"] = round(objects_per_batch(query, batches + 1), 1)
    return row


def _row(query: Query, start: str, ran: tuple[list[dict[str, int]], float]) -> dict[str, Any]:
    times, cpu = ran
    add = [batch["addBatch"] for batch in times]
    trigger = [batch["triggerExecution"] for batch in times]
    return {
        "sink": query.sink,
        "rows": query.rows,
        "tasks": query.partitions,
        "from batch": start,
        "addBatch median ms": round(statistics.median(add), 1),
        "addBatch p99 ms": quantile(add, 0.99),
        "trigger median ms": round(statistics.median(trigger), 1),
        "trigger p99 ms": quantile(trigger, 0.99),
        "cpu s/batch": round(cpu, 3),
    }


def _ratios(rows: list[dict[str, Any]], age: int, tasks: int) -> list[Ratio]:
    found = {(row["sink"], row["tasks"], row["rows"], row["from batch"]): row for row in rows}
    ratios = []
    for parts, size, start in (
        (2, SMALL, "1"),
        (2, SMALL, f"{age:,}"),
        (2, LARGE, "1"),
        (tasks, tasks, "1"),
    ):
        rivals = {sink: found.get((sink, parts, size, start)) for sink in SINKS}
        median = {sink: row["addBatch median ms"] for sink, row in rivals.items() if row}
        what = f"{size:,} rows in {parts} tasks from batch {start}"
        small = size == SMALL
        trigger = {sink: row["trigger median ms"] for sink, row in rivals.items() if row}
        ratios.append(
            Ratio(
                f"trigger: segstore / parquet, {what}",
                trigger["segstore"] / trigger["parquet"],
                0.8 if small else None,
                most=True,
            )
        )
        ratios.append(
            Ratio(
                f"addBatch: segstore / parquet, {what}",
                median["segstore"] / median["parquet"],
                0.7 if small else None,
                most=True,
            )
        )
        ratios.append(
            Ratio(
                f"addBatch: segstore / (empty Python sink + 10 ms), {what}",
                median["segstore"] / (median["empty"] + 10),
                1 if small else None,
                most=True,
            )
        )
        if small:
            spread = {
                sink: found[sink, parts, size, start]["addBatch p99 ms"] / median[sink]
                for sink in ("segstore", "parquet")
            }
            ratios.append(
                Ratio(
                    f"p99 / median: segstore / parquet, {what}",
                    spread["segstore"] / spread["parquet"],
                    1,
                    most=True,
                )
            )
    return ratios


WORKLOADS = {
    "micro_batches": Workload(MEANING, partial(run, conf={}, name="micro_batches"), 300, 3),
    "micro_batches_tcp": Workload(
        f"{MEANING}, Python over TCP", partial(run, conf=TCP, name="micro_batches_tcp"), 300, 3
    ),
}
