"""The reader of a finished plan; a process that only passes the plan on imports nothing else."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition

from segstore_ds.spark.boundary import at_boundary


def pack(value: Any) -> bytes:
    """Pickle a value to bytes, so that processes that only pass it on don't import its classes."""
    packed: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return packed


def read_packed(read: bytes, part: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a packed function returns for a packed part."""
    yield from pickle.loads(read)(pickle.loads(part))  # noqa: S301 - both are our own


def iterate_rows(rows: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part that were read when the DataFrame was loaded."""
    with pa.ipc.open_stream(rows) as reader:
        yield from reader


@at_boundary
class PartsReader(DataSourceReader):
    """Reads the parts of a plan, one in each task; a task does not get the other parts.

    `run` is picklable: it yields a part's batches as Spark expects them.
    """

    def __init__(
        self, run: Callable[[Any], Iterator[pa.RecordBatch]], parts: Sequence[Any]
    ) -> None:
        self.run, self.parts = run, parts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "parts": ()}

    def partitions(self) -> list[InputPartition]:
        """Return one partition per part; for an empty list Spark makes one with the value None."""
        return [InputPartition(part) for part in self.parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in their order."""
        if partition is not None and partition.value is not None:
            yield from self.run(partition.value)
