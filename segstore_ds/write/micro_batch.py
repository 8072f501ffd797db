"""One micro-batch of a streaming query: planned once, staged by many tasks, committed once.

Its key is not known when it is planned: tasks and the commit pass it. A failure to plan does not
end the query if the batch is in the stream already. Then tasks stage nothing, and the commit
compares their rows with those in the stream.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from segstore_ds.errors import (
    InternalError,
    SchemaMismatchError,
    SealedError,
    SegstoreError,
    WriterConflictError,
)
from segstore_ds.format.batch_fingerprint import gather_facts
from segstore_ds.format.policies import has_letters
from segstore_ds.format.root import Root
from segstore_ds.format.schema.codec import normalise_schema
from segstore_ds.log.context import StreamContext
from segstore_ds.status.table_status import TableStatus
from segstore_ds.status.writers import WriterKey, find_repeated
from segstore_ds.storage import Storage
from segstore_ds.write.append import check_stream
from segstore_ds.write.job import WriteJob, plan_job
from segstore_ds.write.request import Target, WriteRequest
from segstore_ds.write.staged import StagedTask
from segstore_ds.write.task_writer import TaskWriter


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the tasks of one micro-batch share; picklable."""

    root: Root  # the version it was planned on, reduced: tasks look up their writer in it
    job: WriteJob | None  # the write; None if it can't be planned
    failure: SegstoreError | None = None  # why it can't be planned

    def stage(
        self,
        request: WriteRequest,
        storage: Storage,
        task: tuple[int, str],
        batches: Iterable[pa.RecordBatch],
    ) -> StagedTask:
        """Stage one task's rows, or only count them if there is nothing to write.

        `request` is the planned one with the writer's key; `task` is the task's number, and a text
        that identifies this attempt.
        """
        if self.job is not None and not self._has_nothing_to_stage(storage, request.writer):
            keyed = replace(self.job, request=replace(self.job.request, writer=request.writer))
            return keyed.open_task(*task).stage(batches)
        nowhere = Target(storage, normalise_schema(request.schema), request.layout, token=None)
        if self.job is not None and self.job.names:  # statistics are kept by stored names
            nowhere = replace(nowhere, schema=self.job.schema, names=self.job.names)
        return TaskWriter(nowhere, *task).stage(batches)

    def job_of(
        self, context: StreamContext, key: WriterKey, tasks: Sequence[StagedTask]
    ) -> WriteJob | None:
        """Return the job to commit; None if it could not be planned and the batch is committed."""
        root = context.log.root
        check_stream(root, self.root.stream_id)
        if self.job is not None:
            return replace(self.job, request=replace(self.job.request, writer=key))
        batch = None if has_letters(root) else gather_facts([task.facts for task in tasks])
        if find_repeated(context.status, root, key, batch=batch) is None:
            raise self.failure or InternalError("plan holds neither a job nor its failure")
        context.log.seams.of(root).before_ack(root)
        return None

    def _has_nothing_to_stage(self, storage: Storage, key: WriterKey | None) -> bool:
        """Tell whether the batch is committed, or will be refused."""
        if key is None:
            return False
        try:
            return find_repeated(TableStatus(storage), self.root, key, batch=None) is not None
        except WriterConflictError:
            # The commit checks again and raises: an error from a task is harder to read.
            return True


def plan_batch(context: StreamContext, request: WriteRequest) -> BatchPlan:
    """Plan a micro-batch; keep the error of a sealed stream or of other columns for the commit."""
    job = failure = None
    try:
        job = plan_job(context, request)
    except (SealedError, SchemaMismatchError) as error:
        failure = error
    root = context.log.root
    bare = replace(root, parts=(), entries=(), retired=(), retired_parts=(), history=())
    return BatchPlan(bare, job, failure)
