"""The streaming source: rows per second under AvailableNow."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found
from benchmarks.session import QUICK_POLLS, describe, spark_session
from benchmarks.workload import Settings, race, workload

FILES = 1_000
RIVAL = "parquet file source"


@workload(
    "all is in the page cache; one trigger's limits are the same for both: 100 files or segments",
    "the file source lists a local folder; object stores list slower",
    rows=10_000_000,
    tiny_rows=2_000,
)
def stream_source(settings: Settings) -> Found:
    """AvailableNow over 1,000 files or segments, into noop, beside Spark's file source."""
    files = min(FILES, max(settings.rows // 100, 1))
    with settings.scratch() as scratch, spark_session(QUICK_POLLS) as spark:
        stream, parquet = scratch / "stream", scratch / "parquet"
        parquet.mkdir()
        target = segstore.create(stream, EVENTS)
        for n in range(files):
            start, end = settings.rows * n // files, settings.rows * (n + 1) // files
            batch = events(start, end - start)
            target.append(batch)
            table = pa.Table.from_batches([batch])
            pq.write_table(table, parquet / f"{n:05d}.parquet", compression="zstd")
        each, reader = max(files // 10, 1), spark.readStream
        schema = spark.read.parquet(str(parquet)).schema
        ours = reader.format("segstore").option("maxRowsPerTrigger", settings.rows // files * each)
        theirs = spark.readStream.schema(schema).option("maxFilesPerTrigger", each)
        loads: dict[str, Callable[[], DataFrame]] = {
            "segstore": lambda: ours.load(str(stream)),
            RIVAL: lambda: theirs.parquet(str(parquet)),
        }
        found = race({name: partial(_run, load) for name, load in loads.items()}, settings, scratch)
        setup = describe(spark) | {"segments and files": files}
    return Found(found.rows(settings.rows), [found.faster("segstore", RIVAL)], setup, found.raw)


def _run(load: Callable[[], DataFrame], folder: Path) -> None:
    writer = load().writeStream.format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder)).start().awaitTermination()
