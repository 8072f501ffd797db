"""Delta Lake through Spark: bulk append and micro-batches beside segstore and Spark's Parquet.

Needs a pyspark that Delta Lake has jars for, and fetches them by their Maven coordinates.
"""

import statistics
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import segstore_ds as segstore
from benchmarks.datasets import events_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import describe, spark_session
from benchmarks.streaming import CONF, WARM_UP, Query
from benchmarks.workload import (
    Candidate,
    Settings,
    Workload,
    folder_bytes,
    quantile,
    race,
)

MEANING = (
    "Delta Lake: bulk append (rows) and 200 micro-batches of 10 rows; pyspark 4.2 and its jars"
)
PACKAGE = "io.delta:delta-spark_2.13:4.4.0"
DELTA = {
    "spark.jars.packages": PACKAGE,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.parquet.compression.codec": "zstd",
    # What Delta's users set on one machine: its snapshots are Spark jobs of so many tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
}
FORMATS = ("segstore", "parquet", "delta")
FLATTERS = (
    "Delta is tuned for one machine (2 partitions of snapshots and shuffles), segstore by register",
    "against us: every segment and commit is synced to disk; Parquet's and Delta's are not",
    "Delta does more: statistics for data skipping, updates and deletes, generated columns",
)


def run(settings: Settings) -> Report:
    """Append in bulk in interleaved rounds, then run one query per sink."""
    source = events_parquet(settings.datasets, settings.rows)
    conf = {**segstore.recommended_conf(), **CONF, **DELTA}
    setup = machine(settings.folder)
    batches = 3 if settings.tiny else 200
    with settings.scratch() as scratch, spark_session(conf) as spark:
        segstore.register(spark)
        df = spark.read.parquet(str(source))
        setup |= describe(spark, conf) | {
            "delta": PACKAGE,
            "rounds": settings.rounds_text,
            "queries": f"{batches} micro-batches of 10 rows after {WARM_UP} not counted",
        }
        timings = race({name: _append(df, name) for name in FORMATS}, settings, scratch)
        rows: list[dict[str, Any]] = []
        for name, timing in timings.items():
            query = Query(name, scratch / f"query-{name}", 10)
            times = [batch["addBatch"] for batch in query.run(spark, batches, warm_up=WARM_UP)[0]]
            micro = {
                "addBatch median ms": round(statistics.median(times), 1),
                "addBatch p99 ms": quantile(times, 0.99),
            }
            rows.append(timing.row(name, settings.rows) | micro)
    found = {row["candidate"]: row for row in rows}
    ours, delta = found["segstore"], found["delta"]
    return Report(
        workload="delta_lake",
        meaning=MEANING,
        setup=setup,
        rows=rows,
        ratios=[
            Ratio(
                "throughput: segstore / delta",
                timings["delta"].median / timings["segstore"].median,
            ),
            Ratio("bytes: segstore / delta", ours["bytes"] / delta["bytes"]),
            Ratio(
                "addBatch: segstore / delta",
                ours["addBatch median ms"] / delta["addBatch median ms"],
            ),
        ],
        flatters=FLATTERS,
        raw={name: timing.seconds for name, timing in timings.items()},
    )


def _append(df: DataFrame, name: str) -> Candidate:
    def candidate(folder: Path) -> int:
        df.write.format(name).mode("append").save(str(folder))
        return folder_bytes(folder)

    return candidate


WORKLOADS = {"delta_lake": Workload(MEANING, run, 20_000_000, 20_000)}
