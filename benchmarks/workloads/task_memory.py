"""Memory of one writing task, measured inside Spark's Python worker."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.rivals import PEAKS, MeasuredDrainDataSource, MeasuredSegstoreDataSource
from benchmarks.session import describe, set_batch_sizing, spark_session
from benchmarks.workload import Settings, Workload, folder_bytes

MEANING = "peak memory of a writing task with rows of 100 bytes and of 30 kB (rows: of 100 bytes)"
LIMIT_MIB = 256
SHA_BYTES = 64
FLATTERS = (
    "one task in one process; Spark's own memory in the JVM is not counted",
    "start is what the worker takes before the first batch, with pyarrow and pyspark imported",
    (
        "tuned, Spark hands over 10,000 rows at once whatever they weigh: 300 MB with rows of "
        "30 kB, to any sink, as drain shows; spark.sql.execution.arrow.maxRecordsPerBatch lowers it"
    ),
)


def run(settings: Settings) -> Report:
    """Write a tenth of the rows, all, and wide ones: the peak must not grow with the rows."""
    sizes = [(100, settings.rows // 10), (100, settings.rows), (30_000, settings.rows // 500)]
    conf = {**segstore.recommended_conf(), "spark.python.worker.reuse": "false"}
    setup = machine(settings.folder)
    rows = []
    with settings.scratch() as scratch:
        os.environ[PEAKS] = str(scratch / "peak.json")
        with spark_session(conf) as spark:
            spark.dataSource.register(MeasuredDrainDataSource)
            spark.dataSource.register(MeasuredSegstoreDataSource)
            setup |= describe(spark, conf) | {"tasks": "one, in a process of its own"}
            for tuned in (True,) if settings.tiny else (True, False):
                set_batch_sizing(spark, tuned=tuned)
                for row_bytes, count in sizes:
                    df = _frame(spark, row_bytes, count)
                    rows += [
                        {
                            "rows of": row_bytes,
                            "rows": count,
                            "tuned": tuned,
                            **_peak(df, sink, scratch),
                        }
                        for sink in ("measured-segstore", "measured-drain")
                    ]
    return Report(
        workload="task_memory",
        meaning=MEANING,
        setup=setup,
        rows=rows,
        ratios=_ratios(rows),
        flatters=FLATTERS,
    )


def _frame(spark: SparkSession, row_bytes: int, rows: int) -> DataFrame:
    pieces = max(row_bytes // SHA_BYTES, 1)
    hashes = F.transform(
        F.sequence(F.lit(1), F.lit(pieces)),
        lambda i: F.sha2(F.concat_ws("-", F.col("id"), i).cast("binary"), 256),
    )
    text = F.rpad(F.array_join(hashes, ""), row_bytes - 8, ".")
    return spark.range(rows, numPartitions=1).select("id", text.alias("payload"))


def _peak(df: DataFrame, sink: str, scratch: Path) -> dict[str, Any]:
    folder = scratch / f"{sink}-output"
    shutil.rmtree(folder, ignore_errors=True)
    df.write.format(sink).mode("append").save(str(folder))
    peak = json.loads((scratch / "peak.json").read_text())
    return {
        "sink": sink.removeprefix("measured-"),
        "start MiB": round(peak["start"] / 2**20),
        "peak MiB": round(peak["peak"] / 2**20),
        "over start MiB": round((peak["peak"] - peak["start"]) / 2**20),
        "bytes": folder_bytes(folder) if folder.exists() else None,
    }


def _ratios(rows: list[dict[str, Any]]) -> list[Ratio]:
    ours = [row for row in rows if row["sink"] == "segstore"]
    few, many = ours[0], ours[1]
    return [
        *(
            Ratio(
                f"of {LIMIT_MIB} MiB over start: rows of {row['rows of']:,} bytes, "
                f"{row['rows']:,} rows, {'tuned' if row['tuned'] else 'as installed'}",
                row["over start MiB"] / LIMIT_MIB,
                1.0 if row["rows of"] == 100 else None,
                most=True,
            )
            for row in ours
        ),
        Ratio("peak with ten times the rows", many["peak MiB"] / few["peak MiB"], 1.1, most=True),
    ]


WORKLOADS = {"task_memory": Workload(MEANING, run, 10_000_000, 5_000)}
