"""Streaming queries: which events a micro-batch reads, and how one is committed."""

import pickle
from collections.abc import Sequence

from segstore_ds.errors import InternalError, NotFoundError
from segstore_ds.storage import Storage
from segstore_ds.stream.connector.writes import open_to_commit
from segstore_ds.stream.micro_batches import MicroBatches
from segstore_ds.stream.stream import Stream, context_of
from segstore_ds.write.micro_batch import BatchPlan
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

__all__ = ["MicroBatches", "commit_batch"]


def commit_batch(
    storage: Storage, plan: BatchPlan, request: WriteRequest, tasks: Sequence[StagedTask]
) -> None:
    """Commit a micro-batch by its request's writer; one that is in the stream changes nothing.

    Raises:
        WriterConflictError: The batch is older than the writer's last one, or holds other events
            than that, or its writer id has another owner.
        SegstoreError: As `Stream.commit`; or why the batch could not be planned.
    """
    if request.writer is None:
        raise InternalError("a micro-batch without a writer")
    stream = _open_kept(storage, plan.root.stream_id)
    job = plan.job_of(context_of(stream), request.writer, tasks)
    if job is not None:
        stream.commit(job, tasks)


_KEPT: dict[bytes, Stream] = {}
KEPT_HANDLES = 8


def _open_kept(storage: Storage, stream_id: str) -> Stream:
    """Return the handle with which this process committed the previous batch, or a new one.

    An engine commits batch after batch in one process, and a kept handle sends fewer requests. A
    handle is not reused if the stream was created again meanwhile.
    """
    key = pickle.dumps(storage)
    kept = _KEPT.pop(key, None)
    try:
        if kept is None or context_of(kept.refresh()).log.root.stream_id != stream_id:
            kept = open_to_commit(storage)
    except NotFoundError:  # the stream of the handle was dropped
        kept = open_to_commit(storage)
    while len(_KEPT) >= KEPT_HANDLES:
        _KEPT.pop(next(iter(_KEPT)))
    _KEPT[key] = kept
    return kept
