"""Streaming queries as the benchmarks run them: one sink, so many micro-batches, young or old.

An old query is one whose log and checkpoint hold thousands of batches already. They are prepared: a
query runs a few batches, its newest checkpoint files are renamed to the number wanted, and the
sink's log is filled with as many entries as that many batches leave behind.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import segstore_ds as segstore
from benchmarks.session import run_batches

WARM_UP = 10
FILE_SINK_COMPACTS_EVERY = 10  # spark.sql.streaming.fileSink.log.compactInterval
CONF = {"spark.sql.streaming.pollingDelay": "1ms"}


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
            writer = writer.option("writerTakeover", "true")
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


def objects_per_batch(query: Query, batches: int) -> float:
    """Return how many files a sink keeps per micro-batch, its log included."""
    files = (path for path in query.output.rglob("*") if path.is_file())
    return sum(path.suffix != ".crc" and path.name != "_latest" for path in files) / batches
