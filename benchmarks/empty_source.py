"""What any Python source and sink of Spark costs: ones that read nothing and keep nothing.

Spark's processes import this module, so it imports no more than such a source needs.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


class EmptySource(DataSource):
    """The format `empty`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "empty"

    def schema(self) -> str:
        """Return one column."""
        return "id bigint"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Read nothing."""
        return _Reader()

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002
        """Keep nothing."""
        return _Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002, N802
        """Keep nothing of a query."""
        return _Writer()


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64())], names=["id"])


class _Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Takes every batch and forgets it, in batch writes and in queries."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int = 0) -> None:  # noqa: N803
        pass

    def abort(self, messages: Any, batchId: int = 0) -> None:  # noqa: N803
        pass
