"""What a task does: it reads its part of a plan, as batches that Spark expects."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format.schema.codec import has_nanoseconds
from segstore_ds.format.schema.conversion import convert
from segstore_ds.spark.versions import to_arrow
from segstore_ds.stream.connector.tasks import Reading, ReadTask, run_task

SLICE_ROWS = 32_768  # larger batches make Spark's row conversion slower
# Limits of the rows that a plan carries: Spark warns about a task of 1 MB.
_MOST_BYTES = 64 << 10  # encoded
_MOST_MEMORY = 512 << 10
_MOST_SEGMENTS = 8


def slice_batches(reading: Reading, schema: StructType, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the events of a task as the batches that Spark expects."""
    target = to_arrow(schema)
    for batch in run_task(reading, task):
        columns = [_spark_column(batch.column(field.name), field) for field in target]
        for start in range(0, batch.num_rows, SLICE_ROWS):
            piece = [column.slice(start, SLICE_ROWS) for column in columns]
            yield pa.RecordBatch.from_arrays(piece, schema=target)


def read_small(
    reading: Reading, schema: StructType, tasks: Sequence[ReadTask]
) -> list[bytes] | None:
    """Return the rows of each task for `iterate_rows`; None if they exceed the limits."""
    entries = [placed.entry for task in tasks for placed in task.slices]
    if len(entries) > _MOST_SEGMENTS or sum(entry.bytes for entry in entries) > _MOST_BYTES:
        return None
    found: list[bytes] = []
    held_bytes = 0
    for task in tasks:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, to_arrow(schema)) as writer:
            for batch in slice_batches(reading, schema, task):
                held_bytes += batch.nbytes
                if held_bytes > _MOST_MEMORY:
                    return None
                writer.write_batch(batch)
        found.append(sink.getvalue().to_pybytes())
    return found


def _spark_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Give a column Spark's units, and the nullability that it requires inside some types."""
    if not field.nullable and column.null_count:
        # Spark would crash.
        raise SchemaMismatchError(
            "a column that the requested schema declares NOT NULL holds null",
            remedy="declare it nullable",
            column=field.name,
        )
    try:
        return convert(column, field.type, field.name)
    except SchemaMismatchError as error:
        if not has_nanoseconds(column.type):
            raise
        raise SchemaMismatchError(
            "a column holds a time that is finer than Spark's microseconds",
            remedy="leave the column out with the option columns, or read it in Python",
            column=field.name,
            type=str(column.type),
        ) from error
