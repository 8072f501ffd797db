"""Time per micro-batch: the segstore sink beside a sink that does nothing, noop and Parquet files.

`python benchmarks/streaming_batches.py [--rows 10] [--batches 300] [--tcp] [--sinks noop,segstore]`

One line per sink: median and p99 of addBatch and of the whole trigger, in milliseconds, first and
last third of its life beside each other, so that growth shows.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import segstore_ds as segstore

SINKS = ("noop", "empty", "parquet", "segstore")
WARM_UP = 10


class EmptySink(DataSource):
    """Drains the batches and keeps nothing: what any Python sink costs."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "empty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "EmptyWriter":  # noqa: ARG002, N802
        """Return the writer."""
        return EmptyWriter()


class EmptyWriter(DataSourceStreamArrowWriter):
    """The writer of `EmptySink`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drain."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep nothing."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep nothing."""


def open_session(*, tcp: bool) -> SparkSession:
    """Start Spark on two cores."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = {
        **segstore.recommended_conf(),
        "spark.ui.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        "spark.sql.streaming.pollingDelay": "1ms",
    }
    if tcp:
        conf["spark.python.unix.domain.socket.enabled"] = "false"
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    segstore.register(spark)
    spark.dataSource.register(EmptySink)
    return spark


def run_sink(
    spark: SparkSession, sink: str, folder: Path, *, rows: int, batches: int, partitions: int
) -> list[dict[str, int]]:
    """Run one query for that many batches and return their times by phase."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    source = source.option("numPartitions", partitions)
    writer = source.load().writeStream.format(sink)
    writer = writer.option("checkpointLocation", str(folder / f"{sink}-checkpoint"))
    if sink in ("parquet", "segstore"):
        writer = writer.option("path", str(folder / sink))
    query = writer.start()
    while len(query.recentProgress) < batches + WARM_UP and query.isActive:
        time.sleep(0.2)
    found = [p["durationMs"] for p in query.recentProgress if "addBatch" in p["durationMs"]]
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    return found[WARM_UP : WARM_UP + batches]


def show(sink: str, times: list[dict[str, int]]) -> None:
    """Print a sink's line."""
    parts = []
    third = max(len(times) // 3, 1)
    for phase in ("addBatch", "triggerExecution"):
        values = sorted(one[phase] for one in times)
        p99 = values[min(len(values) - 1, len(values) * 99 // 100)]
        early = statistics.median(one[phase] for one in times[:third])
        late = statistics.median(one[phase] for one in times[-third:])
        parts.append(
            f"{phase} median {statistics.median(values):6.1f} p99 {p99:6.1f} "
            f"(first third {early:6.1f}, last {late:6.1f})"
        )
    print(f"{sink:9s} {len(times):4d} batches  " + "   ".join(parts), flush=True)


def main() -> None:
    """Run the sinks one after the other, each with a stream and a checkpoint of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--sinks", default=",".join(SINKS))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="streaming-batches-"))
    spark = open_session(tcp=given.tcp)
    try:
        for sink in given.sinks.split(","):
            show(
                sink,
                run_sink(
                    spark,
                    sink,
                    folder,
                    rows=given.rows,
                    batches=given.batches,
                    partitions=given.partitions,
                ),
            )
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
