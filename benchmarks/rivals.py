"""Rivals that are no products: a source whose batches are ready, and sinks that are measured."""

import json
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from benchmarks.empty_source import EmptySource
from segstore_ds.spark.source import SegstoreDataSource

PEAKS = "SEGSTORE_BENCHMARK_PEAKS"


class ReadyDataSource(DataSource):
    """A source that yields one ready-made batch again and again: what any Python source costs.

    Options: `batch`, a file of one Arrow batch; `rows` in all; `tasks`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ready"

    def schema(self) -> StructType:
        """Return the batch's columns."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(_read_batch(self.options["batch"]).schema)

    def reader(self, schema: StructType) -> "ReadyReader":  # noqa: ARG002 - Spark's
        """Return the reader."""
        return ReadyReader(
            self.options["batch"], int(self.options["rows"]), int(self.options["tasks"])
        )


@dataclass(frozen=True)
class ReadyReader(DataSourceReader):
    """Yields slices of the batch until its share of rows is given."""

    batch: str
    rows: int
    tasks: int

    def partitions(self) -> list[InputPartition]:
        """Split the rows evenly."""
        ends = [self.rows * n // self.tasks for n in range(self.tasks + 1)]
        return [InputPartition(end - start) for start, end in pairwise(ends)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield batches."""
        batch, left = _read_batch(self.batch), partition.value
        while left:
            piece = batch.slice(0, left)
            left -= piece.num_rows
            yield piece


def write_batch(path: str, batch: pa.RecordBatch) -> None:
    """Keep a batch for `ReadyDataSource`."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _read_batch(path: str) -> pa.RecordBatch:
    with pa.OSFile(path) as source:
        return pa.ipc.open_file(source).get_batch(0)


class _Measured(DataSource):
    """A sink whose task leaves its peak memory in the file that the variable `PEAKS` names."""

    def writer(self, schema: StructType, overwrite: bool) -> "_MeasuredWriter":
        return _MeasuredWriter(super().writer(schema, overwrite))


class MeasuredDrain(_Measured, EmptySource):
    """`empty`, measured."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "measured-drain"


class MeasuredSegstore(_Measured, SegstoreDataSource):
    """`segstore`, measured in the same way."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "measured-segstore"


class _MeasuredWriter(DataSourceArrowWriter):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # The peak is that of the process: it needs a worker that is not reused.
        start = psutil.Process().memory_info().rss
        message = self._inner.write(iterator)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        Path(os.environ[PEAKS]).write_text(json.dumps({"start": start, "peak": peak}))
        return message

    def commit(self, messages: Any) -> None:
        self._inner.commit(messages)

    def abort(self, messages: Any) -> None:
        self._inner.abort(messages)
