"""Batch writes: planned once, staged by tasks, committed once by the driver."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.errors import InternalError
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.schemas import to_spark_json, to_stored
from segstore_ds.spark.task_log import ADVICE, measured_rows, show_info
from segstore_ds.stream.connector import (
    StagedTask,
    Storage,
    WriteJob,
    WriteRequest,
    build_write,
    commit_write,
    discard_staged,
    plan_write,
)

APPLICATION = "application"  # a key beside the users' options: no option has this name


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What one task staged, sent to the driver, and how many of its rows Spark measured."""

    staged: StagedTask
    measured: int = 0


def plan_append_writer(
    storage: Storage,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool,
    transaction: str | None = None,
) -> "SegstoreWriter":
    """Plan a write from Spark's options, of a given transaction; raises as `Stream.plan_write`."""
    request = build_request(options, schema, overwrite=overwrite)
    expected = (options["expectedTail"], options["expectedVersion"])
    create = options["createIfMissing"] and not any(expected)
    job = plan_write(storage, request, create=create)
    return SegstoreWriter(job if transaction is None else replace(job, transaction=transaction))


def build_request(
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool = False,
    query: tuple[str, int, str] | None = None,
) -> WriteRequest:
    """Return the write that Spark's options and a DataFrame's schema ask for, as `build_write`."""
    return build_write(
        options,
        to_stored(schema),
        to_spark_json(schema),
        client=client_of(options),
        overwrite=overwrite,
        query=query,
    )


def client_of(options: Mapping[str, Any]) -> str:
    """Return what writes, for the history: Spark, and the application if it is known.

    Under the key `APPLICATION` the options hold the id that `register` found in its session.
    """
    application = options.get(APPLICATION)
    suffix = f" app/{application}" if application else ""
    return f"pyspark/{pyspark.__version__}{suffix}"


@at_boundary
class SegstoreWriter(DataSourceArrowWriter):
    """Stages in tasks and commits in the driver; every copy of it holds the same job."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows."""
        context = TaskContext.get()
        if context is None:
            raise InternalError("write runs outside a Spark task")
        show_info()
        # A task attempt's id is unique within an application, and the token belongs to one job.
        attempt = str(context.taskAttemptId())
        staged = self._job.stage(context.partitionId(), attempt, iterator)
        return StagedMessage(staged, measured_rows(context, staged.rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit everything that was staged, in partition order; raises as `Stream.commit`."""
        commit_write(self._job, staged_of(messages))
        ADVICE.add(sum(sent.measured for sent in messages if isinstance(sent, StagedMessage)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up after a failed job; never raises.

        If every message arrived, the commit was tried and may have landed, so nothing is deleted.
        """
        if any(message is None for message in messages):
            discard_staged(self._job.storage, staged_of(messages))


def staged_of(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    """Return what tasks staged, from the messages that arrived."""
    return [message.staged for message in messages if isinstance(message, StagedMessage)]
