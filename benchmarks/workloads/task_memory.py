"""Memory of one writing task, measured inside Spark's Python worker."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from benchmarks.report import Found, Ratio
from benchmarks.rivals import PEAKS, MeasuredDrain, MeasuredSegstore
from benchmarks.session import describe, set_batch_sizing, spark_session
from benchmarks.workload import Settings, workload

LIMIT_MIB = 256
SHA_BYTES = 64


@workload(
    "one task in one process; Spark's own memory in the JVM is not counted",
    "start is what the worker takes before the first batch, with pyarrow and pyspark imported",
    "tuned, Spark hands over 10,000 rows at once whatever they weigh: 300 MB with rows of "
    "30 kB, to any sink, as drain shows; spark.sql.execution.arrow.maxRecordsPerBatch lowers it",
    rows=10_000_000,
    tiny_rows=5_000,
)
def task_memory(settings: Settings) -> Found:
    """Peak memory of a writing task with rows of 100 bytes, a tenth and all, and of 30 kB."""
    sizes = [(100, settings.rows // 10), (100, settings.rows), (30_000, settings.rows // 500)]
    rows = []
    with settings.scratch() as scratch:
        os.environ[PEAKS] = str(scratch / "peak.json")
        with spark_session({"spark.python.worker.reuse": "false"}) as spark:
            for sink in (MeasuredDrain, MeasuredSegstore):
                spark.dataSource.register(sink)
            setup = describe(spark) | {"tasks": "one, in a process of its own"}
            for tuned in (True,) if settings.tiny else (True, False):
                set_batch_sizing(spark, tuned=tuned)
                for row_bytes, count in sizes:
                    df = _frame(spark, row_bytes, count)
                    what = {"rows of": row_bytes, "rows": count, "tuned": tuned}
                    rows += [what | _peak(df, sink, scratch) for sink in ("segstore", "drain")]
    few, many, *_ = ours = [row for row in rows if row["sink"] == "segstore"]
    return Found(
        rows,
        [
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
            Ratio(
                "peak with ten times the rows", many["peak MiB"] / few["peak MiB"], 1.1, most=True
            ),
        ],
        setup,
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
    shutil.rmtree(scratch / sink, ignore_errors=True)
    df.write.format(f"measured-{sink}").mode("append").save(str(scratch / sink))
    start, peak = json.loads((scratch / "peak.json").read_text()).values()
    mib = {"start MiB": start, "peak MiB": peak, "over start MiB": peak - start}
    return {"sink": sink, **{name: round(value / 2**20) for name, value in mib.items()}}
