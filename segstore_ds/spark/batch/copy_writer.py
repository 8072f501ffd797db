"""The write of a copy whose rows a transformation makes: a job of `segstore.spark.copy`."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from segstore_ds.options import WRITE, parse_options
from segstore_ds.spark.batch.writer import SegstoreWriter, build_request
from segstore_ds.spark.option_texts import CopiedRows
from segstore_ds.stream.connector import (
    RowsCopy,
    StagedTask,
    Storage,
    discard_staged,
    plan_rows_copy,
)


def plan_copied_rows(
    source: Storage, target: Storage, schema: StructType, copied: CopiedRows, *, client: str
) -> RowsCopy:
    """Fix the range, and what all tasks of a job share."""
    write = build_request(parse_options({}, WRITE), schema, client=client)
    return plan_rows_copy(
        source,
        target,
        write,
        copied.copy_id,
        copied.cuts,
        seal=copied.seal,
        span=copied.span,
        made_by=copied.made_by,
    )


def plan_copy_writer(
    open_storage: Callable[[Mapping[str, Any]], Storage],
    options: Mapping[str, Any],
    schema: StructType,
    copied: CopiedRows,
    *,
    client: str,
) -> SegstoreWriter:
    """Return the writer of one job."""
    source, target = open_storage({**options, "path": copied.source}), open_storage(options)
    work = plan_copied_rows(source, target, schema, copied, client=client)
    return SegstoreWriter(partial(_stage, work), work.commit, partial(discard_staged, target))


def _stage(
    work: RowsCopy, context: TaskContext, batches: Iterator[pa.RecordBatch]
) -> tuple[StagedTask, int]:
    staged = work.stage(context.partitionId(), batches)
    return staged, staged.rows
