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
from segstore_ds.options.compaction import CompactRules
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.schemas import to_spark_json, to_stored
from segstore_ds.spark.task_log import ADVICE, measured_rows, show_info
from segstore_ds.stream.connector import (
    AutoRules,
    Layout,
    StagedTask,
    Storage,
    WriteJob,
    WriteRequest,
    WriterKey,
    client_name,
    discard_staged,
    open_or_create,
    open_to_commit,
    writer_key,
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
    expected = (options["expectedTail"], options["expectedVersion"])
    key = writer_key(
        options["writerId"],
        options["batchId"],
        takeover=options["writerTakeover"],
        on_repeat=options["onRepeat"],
    )
    request = build_request(options, schema, overwrite=overwrite, writer=key)
    request = replace(request, expected_tail=expected[0], expected_version=expected[1])
    create = options["createIfMissing"] and not any(expected)
    job = open_or_create(storage, request, create=create).plan(request)
    return SegstoreWriter(job if transaction is None else replace(job, transaction=transaction))


def build_request(
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool,
    writer: WriterKey | None,
    unset: str = "off",
) -> WriteRequest:
    """Return the write that Spark's options and a DataFrame's schema ask for.

    `unset` is what the option `compact` means if it is not given.
    """
    return WriteRequest(
        schema=to_stored(schema),
        spark_schema=to_spark_json(schema),
        layout=layout_of(options),
        writer=writer,
        overwrite=overwrite,
        merge_schema=options["mergeSchema"],
        replace_schema=options["overwriteSchema"],
        client=client_of(options),
        compact=compact_rules(options) if (options["compact"] or unset) == "auto" else None,
        key_columns=options["keyColumns"],
        time_column=options["timeColumn"],
    )


def client_of(options: Mapping[str, Any]) -> str:
    """Return who writes, for the history: the software, and the application if it is known.

    Under the key `APPLICATION` the options hold the id that `register` found in its session.
    """
    application = options.get(APPLICATION)
    suffix = f" app/{application}" if application else ""
    return f"{client_name()} pyspark/{pyspark.__version__}{suffix}"


def compact_rules(options: Mapping[str, Any]) -> AutoRules:
    """Return the compaction targets of Spark's options."""
    rules = CompactRules(options["compactMode"], options["compactRows"], options["compactBytes"])
    return AutoRules(rules, layout_of(options))


def layout_of(options: Mapping[str, Any]) -> Layout:
    """Return the layout of write options."""
    return Layout(
        compression=options["compression"],
        frame_rows=options["frameRows"],
        segment_bytes=options["segmentBytes"],
        inline_bytes=options["inlineBytes"],
        stats_columns=options["statsColumns"],
        segment_format=options["segmentFormat"],
    )


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
        open_to_commit(self._job.storage).commit(self._job, staged_of(messages))
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
