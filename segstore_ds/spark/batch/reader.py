"""Batch reads: the planner makes a plan once, and tasks carry out parts of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructType, TimestampType

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.schema.conversion import convert
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.schemas import from_stored, is_nullable
from segstore_ds.spark.versions import to_arrow
from segstore_ds.stream.connector.reads import Reading, ReadTask, Snapshot, run_task

SLICE_ROWS = 32_768  # larger batches make Spark's row conversion slower
_ASKED = (
    "name columns of the stream with their types, in any order, and cast afterwards; if the "
    "stream has changed since, load it again"
)


def plan_reading(snapshot: Snapshot, options: Mapping[str, Any]) -> Reading:
    """Bind a read to offsets and columns from Spark's options; raises as `Stream.read`."""
    return snapshot.plan(
        options["startCut"],
        options["endCut"],
        columns=options["columns"],
        filters=options["filters"],
        event_time=event_time_of(options),
        offset_column=options["offsetColumn"],
        commit_time_column=options["commitTimeColumn"],
        fail_on_data_loss=options["failOnDataLoss"],
        read_cache_bytes=options["readCacheBytes"],
    )


def event_time_of(options: Mapping[str, Any]) -> tuple[str | None, str | None] | None:
    """Return the interval of event times that Spark's options ask for; None for all events."""
    interval = (options["startEventTime"], options["endEventTime"])
    return None if interval == (None, None) else interval


def plan_reader(
    snapshot: Snapshot,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    native_epochs: tuple[int, ...] = (),
) -> "PartsReader":
    """Plan a read and its tasks, without the Parquet segments of `native_epochs`.

    It raises as `Stream.read` does.
    """
    reading = replace(plan_reading(snapshot, options), native_epochs=native_epochs)
    return PartsReader(
        partial(slice_batches, reading, schema), plan_tasks(snapshot, options, reading)
    )


def plan_tasks(snapshot: Snapshot, options: Mapping[str, Any], reading: Reading) -> list[ReadTask]:
    """Split a bound read into tasks by Spark's options; raises as `Scan.tasks`."""
    return snapshot.tasks(
        reading,
        partition_bytes=options["partitionBytes"],
        min_partitions=options["minPartitions"],
    )


def slice_batches(reading: Reading, schema: StructType, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the events of a task as the batches that Spark expects."""
    target = to_arrow(schema)
    for batch in run_task(reading, task):
        columns = [_spark_column(batch.column(field.name), field) for field in target]
        for start in range(0, batch.num_rows, SLICE_ROWS):
            piece = [column.slice(start, SLICE_ROWS) for column in columns]
            yield pa.RecordBatch.from_arrays(piece, schema=target)


def project(snapshot: Snapshot, options: Mapping[str, Any], schema: StructType) -> tuple[str, ...]:
    """Return the stream's columns that a schema asks for, in the schema's order."""
    offset, time = options["offsetColumn"], options["commitTimeColumn"]
    wanted = {*schema.names}
    asked = [field for field in snapshot.schema if field.name in wanted]
    stored = from_stored(pa.schema(asked), snapshot.spark_schema)
    known = {field.name: field.dataType for field in stored}
    known |= {offset: LongType(), time: TimestampType()}
    if not schema.fields:
        raise SchemaMismatchError("the requested schema has no columns", remedy=_ASKED)
    for field in schema:
        found = known.get(field.name)
        if found is None or found.simpleString() != field.dataType.simpleString():
            raise SchemaMismatchError(
                "the requested schema does not match the stream's",
                remedy=_ASKED,
                column=field.name,
                asked=field.dataType.simpleString(),
                stream=found.simpleString() if found else "no such column",
            )
        if not is_nullable(field.dataType):
            raise SchemaMismatchError(
                "the requested schema has NOT NULL inside a column",
                remedy="declare it nullable: all columns of a stream are",
                column=field.name,
            )
    columns = tuple(field.name for field in schema if field.name not in (offset, time))
    if options["columns"] is not None and set(columns) != set(options["columns"]):
        raise InvalidInputError(
            "the option columns and the schema name different columns",
            remedy="give one of the two",
            columns=options["columns"],
            schema=columns,
        )
    return columns


@at_boundary
class PartsReader(DataSourceReader):
    """Reads the parts of a plan, one in each task, which gets the others not at all.

    `read` is picklable: it yields a part's batches as Spark expects them.
    """

    def __init__(
        self, read: Callable[[Any], Iterator[pa.RecordBatch]], parts: Sequence[Any]
    ) -> None:
        self._read, self._parts = read, parts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_parts": ()}

    def partitions(self) -> list[InputPartition]:
        """Return one partition per part; for an empty list Spark makes one with the value None."""
        return [InputPartition(part) for part in self._parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in their order."""
        if partition is not None and partition.value is not None:
            yield from self._read(partition.value)


def _spark_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Give a column Spark's own nullability, which Spark requires inside some types."""
    if not field.nullable and column.null_count:
        # Spark would crash.
        raise SchemaMismatchError(
            "a column that the requested schema declares NOT NULL holds null",
            remedy="declare it nullable",
            column=field.name,
        )
    return convert(column, field.type, field.name)
