"""The streaming source: rows per second under AvailableNow, and how soon an event is seen."""

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import describe, spark_session
from benchmarks.streaming import CONF
from benchmarks.workload import Candidate, Settings, Workload, folder_bytes, quantile, race

MEANING = "AvailableNow over 1,000 files or segments, into noop, beside Spark's file source"
SEEN_MEANING = "from stream.append to a running query that sees the event (rows: events)"
FILES = 1_000
FLATTERS = (
    "all is in the page cache; one trigger's limits are the same for both: 100 files or segments",
    "the file source lists a local folder; object stores list slower",
)
SEEN_FLATTERS = (
    "trigger as fast as Spark goes; polling delay 1 ms; one appender, one query, local disk",
    "seen means that foreachBatch got it, the checkpoint's own files included",
)


def run(settings: Settings) -> Report:
    """Write the same events as segments and as Parquet files, then stream both to noop."""
    files = min(FILES, max(settings.rows // 100, 1))
    conf = {**segstore.recommended_conf(), **CONF}
    setup = machine(settings.folder)
    with settings.scratch() as scratch, spark_session(conf) as spark:
        segstore.register(spark)
        stream, parquet = scratch / "stream", scratch / "parquet"
        _prepare(settings.rows, files, stream, parquet)
        setup |= describe(spark, conf) | {
            "data": f"{settings.rows:,} rows in {files:,} segments and {files:,} Parquet files",
            "rounds": settings.rounds_text,
        }
        each = max(files // 10, 1)
        timings = race(
            {
                "segstore": _drain(
                    spark,
                    lambda reader: (
                        reader.format("segstore")
                        .option("maxSegmentsPerTrigger", each)
                        .load(str(stream))
                    ),
                ),
                "parquet file source": _drain(
                    spark,
                    lambda reader: (
                        reader.schema(spark.read.parquet(str(parquet)).schema)
                        .option("maxFilesPerTrigger", each)
                        .parquet(str(parquet))
                    ),
                ),
            },
            settings,
            scratch,
        )
        stored = {"segstore": folder_bytes(stream), "parquet file source": folder_bytes(parquet)}
    seconds = {name: timing.median for name, timing in timings.items()}
    return Report(
        workload="stream_source",
        meaning=MEANING,
        setup=setup,
        rows=[
            timing.row(name, settings.rows) | {"bytes stored": stored[name]}
            for name, timing in timings.items()
        ],
        ratios=[
            Ratio(
                "throughput: segstore / parquet file source",
                seconds["parquet file source"] / seconds["segstore"],
            )
        ],
        flatters=FLATTERS,
        raw={name: timing.seconds for name, timing in timings.items()},
    )


def _prepare(rows: int, files: int, stream: Path, parquet: Path) -> None:
    parquet.mkdir()
    target = segstore.create(stream, EVENTS)
    for n in range(files):
        start, end = rows * n // files, rows * (n + 1) // files
        batch = events(start, end - start)
        target.append(batch)
        pq.write_table(
            pa.Table.from_batches([batch]), parquet / f"{n:05d}.parquet", compression="zstd"
        )


def _drain(spark: SparkSession, load: Callable[[Any], Any]) -> Candidate:
    def candidate(folder: Path) -> None:
        writer = load(spark.readStream).writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder)).start()
        query.awaitTermination()

    return candidate


def run_seen(settings: Settings) -> Report:
    """Append one event after the other and wait until the query has seen it."""
    conf = {**segstore.recommended_conf(), **CONF}
    setup = machine(settings.folder)
    waits: list[float] = []
    with settings.scratch() as scratch, spark_session(conf) as spark:
        segstore.register(spark)
        setup |= describe(spark, conf) | {"events": f"{settings.rows}, one append each, in turn"}
        stream = segstore.create(scratch / "stream", EVENTS)
        arrived, seen = threading.Condition(), [0]

        def note(df: Any, _: int) -> None:
            count = df.count()
            with arrived:
                seen[0] += count
                arrived.notify_all()

        loaded = spark.readStream.format("segstore").load(str(scratch / "stream"))
        writer = loaded.writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", str(scratch / "checkpoint")).start()
        for n in range(settings.rows + 1):
            began = time.perf_counter()
            stream.append(events(n, 1))
            with arrived:
                assert arrived.wait_for(lambda wanted=n + 1: seen[0] >= wanted, timeout=120)
            waits.append((time.perf_counter() - began) * 1000)
        query.stop()
    waits = waits[1:]  # the first one waits for Spark to start its workers
    row = {
        "events": len(waits),
        "median ms": round(statistics.median(waits), 1),
        "p99 ms": round(quantile(waits, 0.99), 1),
        "max ms": round(max(waits), 1),
    }
    return Report(
        workload="append_to_seen",
        meaning=SEEN_MEANING,
        setup=setup,
        rows=[row],
        flatters=SEEN_FLATTERS,
        raw={"milliseconds": waits},
    )


WORKLOADS = {
    "stream_source": Workload(MEANING, run, 10_000_000, 2_000),
    "append_to_seen": Workload(SEEN_MEANING, run_seen, 200, 3),
}
