"""The streaming sink: each micro-batch is one commit, and a repeated batch changes nothing.

Spark plans a micro-batch in one process, stages it in others, and commits it in yet another, with a
writer that was never planned. So the tasks' messages carry what a commit needs: the job, and the
query's id, which Spark tells only to tasks. The commit carries the data and (writer id, batch id)
together: neither is ever visible without the other.

A writer is planned when it is pickled for its tasks, so the commit's writer plans nothing. A failed
plan does not end the query by itself: if the batch is in the stream already, it is done, whatever
has changed since.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.errors import (
    InternalError,
    SchemaMismatchError,
    SealedError,
    SegstoreError,
    WriterConflictError,
)
from segstore_ds.format.schema.codec import conform_pieces, normalise_schema
from segstore_ds.spark.batch.writer import build_request, layout_of, open_or_create
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.schemas import to_stored
from segstore_ds.spark.task_log import show_info
from segstore_ds.stream.connector import (
    BatchTally,
    Root,
    StagedTask,
    Storage,
    Stream,
    TableStatus,
    WriteJob,
    WriterKey,
    check_stream,
    find_repeated,
    gather_facts,
    open_on,
    writer_key,
)

CLAIM_LIMIT = 180
KEPT_HANDLES = 8
_KEPT: dict[bytes, Stream] = {}
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What the tasks of one micro-batch share.

    Attributes:
        root: The version it was planned on, without its lists: tasks look up their writer in it.
        job: The write; None if it can't be planned.
        failure: Why it can't be planned.
    """

    root: Root
    job: WriteJob | None
    failure: SegstoreError | None = None


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """What one task staged; the first task's message also carries the plan."""

    staged: StagedTask
    query_id: str
    plan: SinkPlan | None = None


@at_boundary
class SegstoreStreamWriter(DataSourceStreamArrowWriter):
    """Stages micro-batches in tasks and commits each once.

    With `overwrite` each batch replaces the events in the stream (complete mode). `checkpoint` is
    the query's checkpoint location, if that was an option.
    """

    def __init__(
        self,
        storage: Storage,
        options: Mapping[str, Any],
        schema: StructType,
        *,
        overwrite: bool,
        checkpoint: str | None = None,
    ) -> None:
        self._storage = storage
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        place = checkpoint.rstrip("/")[-CLAIM_LIMIT:] if checkpoint else ""
        self._claim = f"checkpoint:{place}" if place else ""
        self._plan: SinkPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles a writer twice for the same tasks: both copies must share one plan.
        if self._plan is None:
            self._plan = self._make_plan()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows, or none if the batch is in the stream already.

        Raises:
            SchemaMismatchError: A value would be lost.
            StorageError: The filesystem failed; Spark retries the task.
        """
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context else None
        batch_id = context.getLocalProperty(_BATCH_ID) if context else None
        if context is None or query_id is None or batch_id is None or self._plan is None:
            raise InternalError("write runs outside a streaming query's task")
        task = context.partitionId()
        plan = self._plan if task == 0 else None
        key = self._key(query_id, int(batch_id))
        job = self._plan.job
        if job is None or self._is_settled(self._plan.root, key):
            return SinkMessage(self._tally(task, iterator), query_id, plan)
        show_info()
        # A task attempt's id is unique within an application; the token belongs to one plan.
        stager, schema = job.open_task(task, str(context.taskAttemptId())), job.schema
        try:
            for batch in iterator:
                for piece in conform_pieces(batch, schema):
                    stager.append(piece)
            return SinkMessage(stager.finish(), query_id, plan)
        except BaseException:
            stager.abort()
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a micro-batch; a batch that is in the stream already changes nothing.

        Raises:
            WriterConflictError: The batch is older than the query's last one, or holds other events
                than that, or its writer id belongs to another query: a checkpoint was set back,
                deleted or shared.
        """
        ours = _messages(messages)
        plan = next((message.plan for message in ours if message.plan is not None), None)
        if plan is None:
            raise InternalError("no task sent the plan", batch_id=batchId)
        key = self._key(ours[0].query_id, batchId)
        stream = _open_kept(self._storage, plan.root.stream_id)
        check_stream(stream.root, plan.root.stream_id)
        if plan.job is None:
            batch = gather_facts(message.staged.facts for message in ours)
            if find_repeated(TableStatus(self._storage), stream.root, key, batch=batch) is None:
                raise plan.failure or InternalError("plan holds neither a job nor its failure")
            return
        stream.commit(replace(plan.job, writer=key), [message.staged for message in ours])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Clean up after a failed micro-batch; never raises.

        If every message arrived, the commit was tried and may have landed, so nothing is deleted.
        """
        if all(message is not None for message in messages):
            return
        try:
            open_on(self._storage).discard([message.staged for message in _messages(messages)])
        except SegstoreError:
            return

    def _key(self, query_id: str, batch_id: int) -> WriterKey:
        key = writer_key(
            self._options["writerId"] or query_id,
            batch_id,
            takeover=self._options["writerTakeover"],
            owner=query_id,
            on_repeat=self._options["onRepeat"],
        )
        assert key is not None  # noqa: S101 - both ids are given
        return replace(key, claim=self._claim, dense=True)

    def _tally(self, task: int, batches: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage nothing: the commit compares the rows' facts with those in the stream."""
        schema = normalise_schema(to_stored(self._schema))
        tally = BatchTally(schema, layout_of(self._options).chosen_stats(schema))
        for batch in batches:
            for piece in conform_pieces(batch, schema):
                tally.add(piece)
        return StagedTask(task, "", tally.facts.rows, stats=tally.facts.stats)

    def _is_settled(self, root: Root, key: WriterKey) -> bool:
        """Tell whether there is nothing to stage: the batch is known, or will be refused."""
        try:
            return find_repeated(TableStatus(self._storage), root, key, batch=None) is not None
        except WriterConflictError:
            # The commit checks again and raises: an error from a task is harder to read.
            return True

    def _make_plan(self) -> SinkPlan:
        request = build_request(
            self._options, self._schema, overwrite=self._overwrite, writer=None, unset="auto"
        )
        create = self._options["createIfMissing"]
        stream = open_or_create(self._storage, request, create=create)
        job = failure = None
        try:
            job = stream.plan(request)
        except (SealedError, SchemaMismatchError) as error:
            failure = error
        return SinkPlan(_without_lists(stream.root), job, failure)


def _open_kept(storage: Storage, stream_id: str) -> Stream:
    """Return the handle with which this process committed the previous batch, or a new one.

    Spark commits batch after batch in one process, and a kept handle sends fewer requests. A handle
    is not reused if the stream was created again meanwhile.
    """
    key = pickle.dumps(storage)
    kept = _KEPT.pop(key, None)
    if kept is None or kept.refresh().stream_id != stream_id:
        kept = open_on(storage)
    while len(_KEPT) >= KEPT_HANDLES:
        _KEPT.pop(next(iter(_KEPT)))
    _KEPT[key] = kept
    return kept


def _without_lists(root: Root) -> Root:
    return replace(root, parts=(), entries=(), retired=(), retired_blobs=(), history=())


def _messages(messages: Sequence[WriterCommitMessage | None]) -> list[SinkMessage]:
    return [message for message in messages if isinstance(message, SinkMessage)]
