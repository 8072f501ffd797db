"""Writes of a batch: planned in one process, staged by tasks in others, committed once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from segstore_ds.errors import AlreadyExistsError, NotFoundError
from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.log.context import StreamContext, client_name, new_context
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.storage import Storage
from segstore_ds.write.create import run_create
from segstore_ds.write.inputs import writer_key
from segstore_ds.write.job import WriteJob, check_arguments, plan_job
from segstore_ds.write.layout import Layout
from segstore_ds.write.micro_batch import BatchPlan, plan_batch
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask, delete_staged

if TYPE_CHECKING:
    from segstore_ds.stream.stream import Stream

__all__ = [
    "BatchPlan",
    "StagedTask",
    "WriteJob",
    "WriteRequest",
    "build_write",
    "commit_write",
    "discard_staged",
    "plan_batch_write",
    "plan_write",
]


def build_write(
    options: Mapping[str, Any],
    schema: pa.Schema,
    spark_schema: str,
    *,
    client: str,
    overwrite: bool = False,
    query: tuple[str, int, str] | None = None,
) -> WriteRequest:
    """Return the write that options of one of the two scopes ask for.

    `client` names what writes through segstore. `query` has the id, the batch id and the claim of a
    streaming query, which owns its writer id; until they are known, the request has no writer.
    """
    streaming, writer = "batchId" not in options, None
    rules: Any = {"takeover": options["takeover"], "on_repeat": options["onRepeat"]}
    if not streaming:
        writer = writer_key(options["writerId"], options["batchId"], **rules)
    elif query is not None:
        name, batch_id, claim = query
        writer = writer_key(options["writerId"] or name, batch_id, owner=name, **rules)
        writer = writer and replace(writer, claim=claim, dense=True)
    compact = options["compact"] or ("auto" if streaming else "off")
    return WriteRequest(
        schema=schema,
        spark_schema=spark_schema,
        layout=layout_of(options),
        client=client_text(client),
        writer=writer,
        overwrite=overwrite,
        expected_tail=options.get("expectedTail"),
        expected_version=options.get("expectedVersion"),
        merge_schema=options["mergeSchema"],
        replace_schema=options["overwriteSchema"],
        compact=compact == "auto",
        key_columns=options["keyColumns"],
        time_column=options["timeColumn"],
    )


def client_text(client: str) -> str:
    """Return a commit's client for the history: this package, and what writes through it."""
    return client_name(client)


def layout_of(options: Mapping[str, Any]) -> Layout:
    """Return the layout that options ask for."""
    return Layout(
        compression=options["compression"],
        frame_rows=options["frameRows"],
        segment_bytes=options["segmentBytes"],
        inline_bytes=options["inlineBytes"],
        stats_columns=options["statsColumns"],
        segment_format=options["segmentFormat"],
    )


def plan_write(storage: Storage, request: WriteRequest, *, create: bool) -> WriteJob:
    """Plan a write; create the stream if it is missing and `create` is true."""
    return plan_job(open_or_create(storage, request, create=create), request)


def plan_batch_write(storage: Storage, request: WriteRequest, *, create: bool) -> BatchPlan:
    """Plan a micro-batch of a streaming query; raises as `plan_write`.

    If the stream is sealed or has other columns, only a new batch fails: the plan keeps the error
    for `commit_batch`.
    """
    return plan_batch(open_or_create(storage, request, create=create), request)


def commit_write(job: WriteJob, tasks: Sequence[StagedTask]) -> None:
    """Commit what the tasks of a write staged, in task order; raises as `Stream.commit`."""
    open_to_commit(job.storage).commit(job, tasks)


def open_or_create(storage: Storage, request: WriteRequest, *, create: bool) -> StreamContext:
    """Open the stream of a write; create it, with the defaults, if it is missing and `create`."""
    context = new_context(StreamLog(storage))
    try:
        context.log.open()
    except NotFoundError:
        if not create:
            raise
        # Check before creating: a refused write must leave no stream behind.
        check_arguments(request, request.schema.names)
        try:
            run_create(
                context,
                request.schema,
                spark_schema=request.spark_schema,
                key_columns=request.key_columns,
                time_column=request.time_column,
            )
        except AlreadyExistsError:  # another job created it between the two calls
            context = new_context(StreamLog(storage))
            context.log.open()
    return context


def open_to_commit(storage: Storage) -> "Stream":
    """Open a stream in a process that commits and ends: it waits for upkeep, which is bounded."""
    from segstore_ds.stream import opening  # noqa: PLC0415 - plans and tasks commit nothing

    return opening.open(storage, clock=BRIEF_CLOCK)


def discard_staged(storage: Storage, tasks: Sequence[StagedTask]) -> None:
    """Delete what tasks staged for a job whose commit was never tried; never raises."""
    delete_staged(storage, (segment for task in tasks for segment in task.segments))
