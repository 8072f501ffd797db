"""Micro-batches: the segstore sink beside Spark's file sink, noop, and a sink that does nothing.

An old query is one whose log and checkpoint hold thousands of batches already. They are prepared: a
query runs a few batches, its newest checkpoint files are renamed to the number wanted, and the
sink's log is filled with as many entries as that many batches leave behind.
"""

import json
import shutil
import statistics
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import segstore_ds as segstore
from benchmarks.empty_source import EmptySource
from benchmarks.report import Found, Ratio
from benchmarks.session import QUICK_POLLS, describe, run_batches, spark_session
from benchmarks.workload import Settings, quantile, race, workload

SINKS = ("noop", "empty", "parquet", "segstore")
FIRST = "first batch of a new query"
NEW_PROCESSES = {"spark.python.worker.reuse": "false"}
SMALL, MEDIUM, LARGE = 10, 1_000, 100_000
AGE, TASKS = 5_000, 200
TINY_AGE, TINY_TASKS = 20, 8
WARM_UP = 10
FILE_SINK_COMPACTS_EVERY = 10  # spark.sql.streaming.fileSink.log.compactInterval


@dataclass(frozen=True, slots=True)
class Query:
    """One query: where it writes, and how much a micro-batch holds."""

    sink: str
    folder: Path
    rows: int
    partitions: int = 2

    @property
    def output(self) -> Path:
        """Where the sink writes, if it does."""
        return self.folder / "output"

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps the query's progress."""
        return self.folder / "checkpoint"

    def run(
        self, spark: SparkSession, batches: int, *, warm_up: int = 0
    ) -> tuple[list[dict[str, int]], float]:
        """Run micro-batches; return what `run_batches` says of those after the warm-up."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows)
        writer = source.option("numPartitions", self.partitions).load().writeStream
        writer = writer.format(self.sink).option("checkpointLocation", str(self.checkpoint))
        if self.sink not in ("noop", "empty"):
            writer = writer.option("path", str(self.output))
        if self.sink == "segstore":
            # An old query's batches were never written, which the sink would take for a loss.
            writer = writer.option("takeover", "true")
        times, cpu = run_batches(writer.start(), batches, warm_up)
        return times[:batches], cpu

    def age(self, spark: SparkSession, behind: int) -> None:
        """Make the query look as if so many batches, a multiple of ten, were behind it."""
        self.run(spark, 3)
        for kind in ("offsets", "commits"):
            folder = self.checkpoint / kind
            numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
            kept = [(folder / str(number)).read_bytes() for number in numbers[1:3]]
            shutil.rmtree(folder)
            folder.mkdir()
            for number, content in zip((behind - 2, behind - 1), kept, strict=True):
                (folder / str(number)).write_bytes(content)
        if self.sink == "parquet":
            self._age_file_sink(behind)
        elif self.sink == "segstore":
            self._age_stream(behind)

    def _age_file_sink(self, behind: int) -> None:
        folder = self.output / "_spark_metadata"
        entry = json.loads((folder / "0").read_text().splitlines()[1])
        shutil.rmtree(folder)
        folder.mkdir()
        entries = [
            json.dumps({**entry, "path": f"file://{self.output}/part-{n:032d}.snappy.parquet"})
            for n in range(behind * self.partitions)
        ]
        assert behind % FILE_SINK_COMPACTS_EVERY == 0
        (folder / f"{behind - 1}.compact").write_text("\n".join(["v1", *entries]))

    def _age_stream(self, behind: int) -> None:
        stream = segstore.open(self.output)
        events = pa.table(
            {field.name: pa.array([None] * self.rows, field.type) for field in stream.schema}
        )
        while stream.version < behind:
            stream.append(events)


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
    """Micro-batches of 10 to 100,000 rows, young and at batch 5,000; 200 tasks (rows: batches)."""
    age, tasks = (TINY_AGE, TINY_TASKS) if settings.tiny else (AGE, TASKS)
    batches, fewer, fewest = (max(settings.rows // share, 1) for share in (1, 3, 15))
    # Rows, tasks, batches behind the first and batches, and who takes part.
    cases = {
        f"{SMALL} rows": (SMALL, 2, 0, batches, SINKS),
        f"{SMALL} rows from batch {age:,}": (SMALL, 2, age, batches, SINKS),
        f"{MEDIUM:,} rows": (MEDIUM, 2, 0, batches, SINKS[1:]),
        f"{LARGE:,} rows": (LARGE, 2, 0, fewer, SINKS),
        f"{tasks} tasks of a row": (tasks, tasks, 0, fewest, SINKS[1:]),
    }
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    with settings.scratch() as scratch, spark_session(QUICK_POLLS) as spark:
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
    with settings.scratch() as scratch, spark_session(QUICK_POLLS | NEW_PROCESSES) as spark:
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
    if query.sink in ("parquet", "segstore"):
        found["bytes/event"] = round(_bytes_per_event(query), 2)
    if query.partitions > 2 and query.output.exists():
        found["objects/batch"] = round(_objects_per_batch(query, batches + warm_up), 1)
    return found


def _bytes_per_event(query: Query) -> float:
    """Return the bytes of the files that readers of a sink's output read, by event."""
    if query.sink == "segstore":
        info = segstore.open(query.output).info()
        return float(info["bytes"] / info["events"])
    size = rows = 0
    for path in query.output.glob("*.parquet"):
        with suppress(pa.ArrowInvalid):  # the stop of the query left it half-written
            rows += pq.read_metadata(path).num_rows
            size += path.stat().st_size
    return size / rows


def _objects_per_batch(query: Query, batches: int) -> float:
    """Return how many files a sink keeps per micro-batch, its log included."""
    files = (path for path in query.output.rglob("*") if path.is_file())
    return sum(path.suffix != ".crc" and path.name != "_latest" for path in files) / batches


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
    size = "bytes/event"
    ratios.append(beside(f"{size}: segstore / parquet", 1, ours[size], parquet[size]))
    if small:
        spreads = [row[p99] / row[median] for row in (ours, parquet)]
        ratios.append(beside("p99 / median: segstore / parquet", 1, *spreads))
    return ratios
