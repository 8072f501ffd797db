"""The streaming sink: each micro-batch is one commit, and a repeated batch changes nothing.

Spark plans a micro-batch in one process, stages it in others, and commits it in yet another, with a
writer that was never planned. So the tasks' messages carry what a commit needs: the job, and the
query's id, which Spark tells only to tasks. The commit carries the data and (writer id, batch id)
together: neither is ever visible without the other.

A failed plan does not end the query by itself: if the batch is in the stream already, it is done,
whatever has changed since.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.errors import InternalError, InvalidInputError, SegstoreError
from segstore_ds.spark.batch.writer import build_request
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.versions import DataSourceStreamArrowWriter
from segstore_ds.spark.workers import ADVICE, QUERY_ID, freeze_worker, measured_rows, show_info
from segstore_ds.stream.connector.reads import Storage
from segstore_ds.stream.connector.writes import (
    BatchPlan,
    StagedTask,
    WriteRequest,
    discard_staged,
    plan_batch_write,
)

CLAIM_LIMIT = 180
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """What one task staged, and how many rows Spark measured; that of task 0 has the plan."""

    staged: StagedTask
    query_id: str
    plan: BatchPlan | None = None
    measured: int = 0


@at_boundary
class SegstoreStreamWriter(DataSourceStreamArrowWriter):
    """Stages micro-batches in tasks and commits each once.

    With `overwrite` each batch replaces the events in the stream (complete mode). `checkpoint` is
    the query's checkpoint location, if that was an option; `open_checkpoint` opens that folder, in
    the process that commits.
    """

    open_checkpoint: Callable[[], Storage] | None = None

    def __init__(
        self,
        storage: Storage,
        options: Mapping[str, Any],
        schema: StructType,
        *,
        client: str,
        overwrite: bool,
        checkpoint: str | None = None,
    ) -> None:
        self._storage = storage
        self._options = options
        self._schema = schema
        self._client = client
        self._overwrite = overwrite
        place = checkpoint.rstrip("/")[-CLAIM_LIMIT:] if checkpoint else ""
        self._claim = f"checkpoint:{place}" if place else ""
        self._plan: BatchPlan | None = None

    def plan(self) -> None:
        """Plan the micro-batch, in the process that makes the writer for its tasks.

        The writer carries the plan to all tasks, and a message brings it back: to commit, Spark
        makes another writer in another process, which must not plan. Raises as `plan_write`.
        """
        create = self._options["createIfMissing"]
        self._plan = plan_batch_write(self._storage, self._request(), create=create)
        freeze_worker()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows, or none if the batch is in the stream already."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        batch_id = context.getLocalProperty(_BATCH_ID) if context else None
        if context is None or query_id is None or batch_id is None or self._plan is None:
            raise InternalError("write runs outside a streaming query's task")
        show_info()
        # A task attempt's id is unique within an application; the token belongs to one plan.
        task, attempt = context.partitionId(), str(context.taskAttemptId())
        request = self._request(query_id, int(batch_id))
        staged = self._plan.stage(request, self._storage, (task, attempt), iterator)
        measured = measured_rows(context, staged.rows)
        return SinkMessage(staged, query_id, self._plan if task == 0 else None, measured)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a micro-batch; a batch that is in the stream already changes nothing.

        Raises:
            InvalidInputError: The query reads the stream too, so it would never end. Nothing of the
                batch is committed.
            SegstoreError: As `Stream.commit`.
        """
        from segstore_ds.stream.connector.queries import commit_batch

        ours = _messages(messages)
        plan = next((message.plan for message in ours if message.plan is not None), None)
        if plan is None:
            raise InternalError("no task sent the plan", batch_id=batchId)
        query_id, staged = ours[0].query_id, [message.staged for message in ours]
        known = {writer.owner for writer in plan.root.writers.values()}
        if query_id not in known and self._reads(plan.root.stream_id, batchId):
            discard_staged(self._storage, staged)
            raise InvalidInputError(
                "the query writes to the stream that it reads",
                remedy="write to another stream; nothing of this batch is committed",
                stream=plan.root.stream_id,
            )
        commit_batch(self._storage, plan, self._request(query_id, batchId), staged)
        ADVICE.add(sum(message.measured for message in ours))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Clean up after a failed micro-batch; never raises.

        If every message arrived, the commit was tried and may have landed, so nothing is deleted.
        """
        if any(message is None for message in messages):
            discard_staged(self._storage, [message.staged for message in _messages(messages)])

    def _reads(self, stream_id: str, batch_id: int) -> bool:
        """Tell whether Spark's log of a batch's offsets names a stream; False if it can't be read.

        The log is written before the batch runs. Where it can't be read, the source refuses the
        batch after this one.
        """
        if self.open_checkpoint is not None:
            with suppress(SegstoreError, ImportError, OSError):
                offsets = self.open_checkpoint().find(f"offsets/{batch_id}")
                return offsets is not None and stream_id.encode() in offsets
        return False

    def _request(self, query_id: str = "", batch_id: int | None = None) -> WriteRequest:
        query = None if batch_id is None else (query_id, batch_id, self._claim)
        return build_request(
            self._options, self._schema, client=self._client, overwrite=self._overwrite, query=query
        )


def _messages(messages: Sequence[WriterCommitMessage | None]) -> list[SinkMessage]:
    return [message for message in messages if isinstance(message, SinkMessage)]
