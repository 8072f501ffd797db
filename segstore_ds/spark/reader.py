"""Batch reads: a plan that is made once in the planner, and tasks that carry parts of it out."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segstore_ds.engine.scan import run_task
from segstore_ds.engine.scan_plan import Reading, ReadTask
from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format.conversion import convert
from segstore_ds.format.root import Root
from segstore_ds.spark.schemas import to_arrow
from segstore_ds.stream import Stream

SLICE_ROWS = 32_768  # larger batches make Spark's row conversion slower


def plan_reading(stream: Stream, options: Mapping[str, Any], root: Root) -> Reading:
    """Bind a read to offsets and columns from Spark's options.

    Raises:
        As `segstore_ds.Stream.read`.
    """
    return stream.plan_read(
        options["startCut"],
        options["endCut"],
        columns=options["columns"],
        filters=options["filters"],
        offset_column=options["offsetColumn"],
        segment_column=options["segmentColumn"],
        fail_on_data_loss=options["failOnDataLoss"],
        root=root,
    )


def plan_reader(
    stream: Stream, options: Mapping[str, Any], root: Root, schema: StructType
) -> "SegstoreReader":
    """Plan a read and its tasks.

    Raises:
        As `segstore_ds.Stream.read`.
    """
    reading = plan_reading(stream, options, root)
    tasks = stream.plan_tasks(
        reading,
        partition_bytes=options["partitionBytes"],
        partition_rows=options["partitionRows"],
        min_partitions=options["minPartitions"],
        root=root,
    )
    return SegstoreReader(reading, tasks, schema)


class SegstoreReader(DataSourceReader):
    """Reads the tasks of a plan; only what all tasks share travels with each of them."""

    def __init__(self, reading: Reading, tasks: list[ReadTask], schema: StructType) -> None:
        self._reading = reading
        self._tasks = tasks
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        return {"_reading": self._reading, "_tasks": [], "_schema": self._schema}

    def partitions(self) -> list[InputPartition]:
        """Return a partition per task; Spark makes one of None out of an empty list."""
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition in offset order, as Spark wants its batches.

        Raises:
            SchemaMismatchError: A column of the user's schema is NOT NULL and there is a null.
            As `segstore_ds.engine.scan.run_task` otherwise.
        """
        if partition is None or partition.value is None:
            return
        target = to_arrow(self._schema)
        for batch in run_task(self._reading, partition.value):
            columns = [_spark_column(batch.column(field.name), field) for field in target]
            for start in range(0, batch.num_rows, SLICE_ROWS):
                piece = [column.slice(start, SLICE_ROWS) for column in columns]
                yield pa.RecordBatch.from_arrays(piece, schema=target)


def _spark_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Give a column Spark's own nullability, which some of its types insist on inside."""
    if not field.nullable and column.null_count:
        # Spark would crash.
        raise SchemaMismatchError(
            "a column that the schema asked for as NOT NULL holds null",
            remedy="declare it nullable",
            column=field.name,
        )
    return convert(column, field.type, field.name)
