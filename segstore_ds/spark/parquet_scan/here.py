"""Small parts of a scan, read in this process and given to Spark as a local table.

For the source Spark starts Python processes, which takes seconds after an idle minute, and it knows
no size of what they return. A local table needs neither: Spark broadcasts it where it is small.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from segstore_ds.spark.batch.slices import slice_batches
from segstore_ds.spark.parquet_scan.native import is_native_field
from segstore_ds.spark.versions import to_arrow
from segstore_ds.stream.connector.reads import Snapshot
from segstore_ds.stream.connector.tasks import Reading, ReadTask

MOST_BYTES = 16 << 20  # encoded
MOST_MEMORY = 64 << 20
_MOST_SEGMENTS = 256
_THREADS = 8


def read_here(
    spark: SparkSession, snapshot: Snapshot, reading: Reading, result: StructType
) -> DataFrame | None:
    """Return what a bound read leaves to the source; None if that is much, or has special types.

    Types are those that Spark's Parquet reader reads exactly: they have one form in Spark and in
    Arrow. It raises as `Stream.read` does.
    """
    if not result.fields or not all(map(is_native_field, result)):
        return None
    tasks = snapshot.tasks(reading, min_partitions=_THREADS)
    entries = [placed.entry for task in tasks for placed in task.slices]
    if len(entries) > _MOST_SEGMENTS or sum(entry.bytes for entry in entries) > MOST_BYTES:
        return None

    def run(task: ReadTask) -> list[pa.RecordBatch]:
        return [*slice_batches(reading, result, task)]

    with ThreadPoolExecutor(_THREADS) as pool:
        batches = [*chain.from_iterable(pool.map(run, tasks))]
    schema = to_arrow(result)
    whole = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema)
    return spark.createDataFrame(_rebase(whole), result) if whole.nbytes <= MOST_MEMORY else None


def _rebase(batch: pa.RecordBatch) -> pa.Table:
    """Return a table of one batch, even if it is empty, whose columns are no slices of others.

    Spark takes lists and maps of times apart: it needs a chunk, and fails for a slice with nulls.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_all()
