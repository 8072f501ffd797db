"""Batch writes: planned once, staged by tasks, committed once by the driver."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.errors import InternalError
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.schemas import to_spark_json, to_stored
from segstore_ds.spark.workers import ADVICE, measured_rows, show_info
from segstore_ds.stream.connector.reads import Storage
from segstore_ds.stream.connector.writes import (
    StagedTask,
    WriteJob,
    WriteRequest,
    build_write,
    commit_write,
    discard_staged,
    plan_write,
)

QUERY_LIMIT = 100  # characters of a query's name in a history


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What one task has done, sent to the driver, and how many of its rows Spark measured."""

    done: Any
    measured: int = 0


def plan_append_writer(
    storage: Storage,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    client: str,
    overwrite: bool,
    transaction: str | None = None,
) -> "SegstoreWriter":
    """Plan a write by Spark's options, with a given transaction; raises as `Stream.plan_write`."""
    request = build_request(options, schema, client=client, overwrite=overwrite)
    expected = (options["expectedTail"], options["expectedVersion"])
    create = options["createIfMissing"] and not any(expected)
    job = plan_write(storage, request, create=create)
    job = job if transaction is None else replace(job, transaction=transaction)
    discard = partial(discard_staged, job.storage)
    return SegstoreWriter(partial(_stage, job), partial(commit_write, job), discard)


def _stage(
    job: WriteJob, context: TaskContext, batches: Iterator[pa.RecordBatch]
) -> tuple[StagedTask, int]:
    # A task attempt's id is unique within an application, and the token belongs to one job.
    task = job.open_task(context.partitionId(), str(context.taskAttemptId()))
    staged = task.stage(batches)
    return staged, staged.rows


def build_request(
    options: Mapping[str, Any],
    schema: StructType,
    *,
    client: str,
    overwrite: bool = False,
    query: tuple[str, int, str] | None = None,
) -> WriteRequest:
    """Return the write that Spark's options and a DataFrame's schema ask for, as `build_write`."""
    return build_write(
        options,
        to_stored(schema),
        to_spark_json(schema),
        client=client,
        overwrite=overwrite,
        query=query,
    )


def client_of(application: str | None, query: str | None = None) -> str:
    """Return the client for the history: Spark, and the names of query and application if known."""
    words = [f"pyspark/{pyspark.__version__}"]
    if query:
        words.append(f"query/{'_'.join(query.split())[:QUERY_LIMIT]}")
    return " ".join([*words, f"app/{application}"] if application else words)


@at_boundary
class SegstoreWriter(DataSourceArrowWriter):
    """Works in tasks and commits in the driver, by three picklable steps; raises as they do.

    `run` takes the rows of one task, and returns its result and their number. `commit` and
    `discard` take the results of all tasks, in the order of partitions.
    """

    def __init__(
        self,
        run: Callable[[TaskContext, Iterator[pa.RecordBatch]], tuple[Any, int]],
        commit: Callable[[list[Any]], None],
        discard: Callable[[list[Any]], None],
    ) -> None:
        self._run, self._commit, self._discard = run, commit, discard

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Run one task's rows."""
        context = TaskContext.get()
        if context is None:
            raise InternalError("write runs outside a Spark task")
        show_info()
        done, rows = self._run(context, iterator)
        return TaskMessage(done, measured_rows(context, rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the results of all tasks."""
        sent = _sent(messages)
        self._commit([message.done for message in sent])
        ADVICE.add(sum(message.measured for message in sent))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up after a failed job; never raises.

        If every message arrived, the commit was tried and may have landed, so nothing is deleted.
        """
        if any(message is None for message in messages):
            self._discard([message.done for message in _sent(messages)])


def _sent(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]
