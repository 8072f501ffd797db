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
    AGE,
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
SMALL, LARGE, TASKS = 10, 100_000, 200
TCP = {"spark.python.unix.domain.socket.enabled": "false"}
FLATTERS = (
    "addBatch is what a sink can influence; planning, the checkpoint and polling come on top",
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
    conf = {**segstore.recommended_conf(), **CONF, **conf}
    setup = machine(settings.folder)
    with settings.scratch() as scratch, spark_session(conf) as spark:
        segstore.register(spark)
        spark.dataSource.register(EmptySinkDataSource)
        setup |= describe(spark, conf) | {
            "queries": f"{batches} micro-batches each after {WARM_UP} that are not counted; "
            f"2 partitions; large ones {_fewer(batches)}, {TASKS} tasks {_fewest(batches)} batches",
        }
        rows = [
            *(_young(spark, sink, scratch, SMALL, batches) for sink in SINKS),
            *(_old(spark, sink, scratch, batches) for sink in SINKS),
            *(_young(spark, sink, scratch, LARGE, _fewer(batches)) for sink in SINKS),
            *(_many_tasks(spark, sink, scratch, _fewest(batches)) for sink in SINKS[1:]),
        ]
    return Report(
        workload=name,
        meaning=MEANING,
        setup=setup,
        rows=rows,
        ratios=_ratios(rows),
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
    times = query.run(spark, batches + WARM_UP)[WARM_UP:]
    return _row(query, "1", times)


def _old(spark: SparkSession, sink: str, scratch: Path, batches: int) -> dict[str, Any]:
    query = Query(sink, scratch / f"{sink}-old", SMALL)
    query.age(spark)
    return _row(query, f"{AGE:,}", query.run(spark, batches + WARM_UP)[WARM_UP:])


def _many_tasks(spark: SparkSession, sink: str, scratch: Path, batches: int) -> dict[str, Any]:
    query = Query(sink, scratch / f"{sink}-tasks", TASKS, partitions=TASKS)
    row = _row(query, "1", query.run(spark, batches))
    if query.output.exists():
        row["objects/batch"] = round(objects_per_batch(query, batches), 1)
    return row


def _row(query: Query, start: str, times: list[dict[str, int]]) -> dict[str, Any]:
    add = [one["addBatch"] for one in times]
    return {
        "sink": query.sink,
        "rows": query.rows,
        "tasks": query.partitions,
        "from batch": start,
        "addBatch median ms": round(statistics.median(add), 1),
        "addBatch p99 ms": quantile(add, 0.99),
        "trigger median ms": round(statistics.median(one["triggerExecution"] for one in times), 1),
    }


def _ratios(rows: list[dict[str, Any]]) -> list[Ratio]:
    found = {(row["sink"], row["rows"], row["from batch"]): row for row in rows}
    ratios = []
    for size, start in ((SMALL, "1"), (SMALL, f"{AGE:,}"), (LARGE, "1"), (TASKS, "1")):
        median = {
            sink: max(found[sink, size, start]["addBatch median ms"], 1)
            for sink in SINKS
            if (sink, size, start) in found
        }
        what = f"{size:,} rows from batch {start}" + (", a task each" if size == TASKS else "")
        goal = 0.7 if size == SMALL else None
        ratios.append(
            Ratio(
                f"addBatch: segstore / parquet, {what}",
                median["segstore"] / median["parquet"],
                goal,
                most=True,
            )
        )
        ratios.append(
            Ratio(
                f"ms over the empty Python sink, {what}",
                median["segstore"] - median["empty"],
                10 if size == SMALL else None,
                most=True,
            )
        )
        if size == SMALL:
            spread = {
                sink: found[sink, size, start]["addBatch p99 ms"] / median[sink]
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
