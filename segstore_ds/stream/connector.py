"""The only door for a connector: what `spark/` needs below the front door, and nothing else.

`Stream` serves people. A connector plans in one process, runs tasks in others and commits in a
third. So each function here does one step of that, by the options of the table, and the other names
are values that travel between the steps.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from segstore_ds.compact.commit import Compaction, Replacement
from segstore_ds.compact.plan import Group
from segstore_ds.compact.rewrite import CompactJob
from segstore_ds.compact.run import bind_range, run_compact, run_groups
from segstore_ds.compact.tasks import (
    PLAN_SCHEMA,
    CompactTasks,
    plan_compact_tasks,
    plan_compaction_rows,
)
from segstore_ds.copy.destination import Copied, CopyRequest
from segstore_ds.copy.event_rows import RowsCopy, plan_rows_copy
from segstore_ds.copy.events import plan_copy_events
from segstore_ds.copy.segments import RowsOfSegments, plan_copy_segments
from segstore_ds.errors import AlreadyExistsError, InternalError, NotFoundError
from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.log.seams import best_effort
from segstore_ds.observe.export import export_samples
from segstore_ds.observe.watch import EVERY_S as MEASURE_EVERY_S
from segstore_ds.observe.watch import Watch
from segstore_ds.options.compaction import CompactRules
from segstore_ds.publish.life import forget_tables
from segstore_ds.read.cuts import CutLike, parse_cut
from segstore_ds.read.filter_literals import NAN
from segstore_ds.read.filters import Condition, FilterLike, Filters
from segstore_ds.read.find_streams import DEPTH, STREAMS_SCHEMA, read_streams
from segstore_ds.read.metadata_tables import METADATA_TABLES
from segstore_ds.read.plan import Reading, ReadTask
from segstore_ds.read.scan import run_task
from segstore_ds.redact.forget import redact_and_forget
from segstore_ds.redact.plan import RedactRequest
from segstore_ds.redact.report import Redacted
from segstore_ds.redact.rewrite import RedactedSegment, RedactJob
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.status.writers import Commit
from segstore_ds.storage import Storage, open_storage, resolve_location
from segstore_ds.stream.commits import AfterCommit
from segstore_ds.stream.micro_batches import MicroBatches
from segstore_ds.stream.opening import create_on, open_on
from segstore_ds.stream.reads import client_name
from segstore_ds.stream.snapshot import ParquetPiece, Snapshot, open_snapshot
from segstore_ds.stream.stream import Stream, context_of
from segstore_ds.write.inputs import writer_key
from segstore_ds.write.job import WriteJob, check_arguments, plan_job
from segstore_ds.write.layout import Layout
from segstore_ds.write.micro_batch import BatchPlan, plan_batch
from segstore_ds.write.request import AutoRules, WriteRequest
from segstore_ds.write.staged import StagedTask, delete_staged

__all__ = [
    "MEASURE_EVERY_S",
    "METADATA",
    "NAN",
    "STREAMS",
    "BatchPlan",
    "Condition",
    "CutLike",
    "FilterLike",
    "Filters",
    "Job",
    "MicroBatches",
    "ParquetPiece",
    "ReadTask",
    "Reading",
    "RowsCopy",
    "Snapshot",
    "StagedTask",
    "Storage",
    "Watch",
    "WriteJob",
    "WriteRequest",
    "build_write",
    "commit_batch",
    "commit_job",
    "commit_write",
    "compact_stream",
    "copy_events",
    "copy_segments",
    "discard_staged",
    "find_write",
    "list_streams_below",
    "open_on",
    "open_snapshot",
    "open_storage",
    "parse_cut",
    "plan_batch_write",
    "plan_compaction",
    "plan_compaction_job",
    "plan_rows_copy",
    "plan_segments_copy",
    "plan_write",
    "redact_stream",
    "resolve_location",
    "run_task",
    "watch_streams",
]

# Runs rows of a job in an engine's tasks, any of them more than once, and returns their results in
# the order of the rows.
Launch = Callable[[Callable[[list[Any]], Iterator[Any]], Sequence[Any]], list[Any]]
SEGMENTS, EVENTS = "segments", "events"  # how a stream is copied
STREAMS = "streams"  # the only metadata table that is of a folder, not of a stream
# The columns of each metadata table, and of a compaction's plan.
METADATA: Mapping[str, pa.Schema] = {
    **{name: table.schema for name, table in METADATA_TABLES.items()},
    "compactionPlan": PLAN_SCHEMA,
    STREAMS: STREAMS_SCHEMA,
}


def list_streams_below(folder: Storage) -> pa.Table:
    """Return the metadata table `streams` of a folder, searched as deep as by default."""
    return read_streams(folder, depth=DEPTH)


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

    `client` is what writes, beside segstore. `query` are the id, the batch id and the claim of a
    streaming query, which owns its writer id; until they are known the request has no writer.

    Raises:
        InvalidInputError: The options of a writer don't fit together.
    """
    streaming, writer = "batchId" not in options, None
    rules: Any = {"takeover": options["writerTakeover"], "on_repeat": options["onRepeat"]}
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
        layout=_layout(options),
        client=_client(client),
        writer=writer,
        overwrite=overwrite,
        expected_tail=options.get("expectedTail"),
        expected_version=options.get("expectedVersion"),
        merge_schema=options["mergeSchema"],
        replace_schema=options["overwriteSchema"],
        compact=AutoRules(CompactRules(), _layout(options)) if compact == "auto" else None,
        key_columns=options["keyColumns"],
        time_column=options["timeColumn"],
    )


def _client(client: str) -> str:
    return f"{client_name()} {client}"


def _layout(options: Mapping[str, Any]) -> Layout:
    return Layout(
        compression=options["compression"],
        frame_rows=options["frameRows"],
        segment_bytes=options["segmentBytes"],
        inline_bytes=options["inlineBytes"],
        stats_columns=options["statsColumns"],
        segment_format=options["segmentFormat"],
    )


def plan_write(storage: Storage, request: WriteRequest, *, create: bool) -> WriteJob:
    """Plan a write; create the stream if it is missing and `create` is true.

    Raises:
        NotFoundError: There is no stream, and `create` is false.
        SegstoreError: As `Stream.plan_write`.
    """
    return plan_job(context_of(_open_or_create(storage, request, create=create)), request)


def commit_write(job: WriteJob, tasks: Sequence[StagedTask]) -> None:
    """Commit what the tasks of a write staged, in task order; raises as `Stream.commit`."""
    _open_to_commit(job.storage).commit(job, tasks)


def _open_or_create(storage: Storage, request: WriteRequest, *, create: bool) -> Stream:
    try:
        return open_on(storage)
    except NotFoundError:
        if not create:
            raise
    # Check before creating: a refused write must leave no stream behind.
    check_arguments(request, request.schema)
    try:
        return create_on(
            storage,
            request.schema,
            spark_schema=request.spark_schema,
            key_columns=request.key_columns,
            time_column=request.time_column,
        )
    except AlreadyExistsError:
        # Another job created it between the two calls.
        return open_on(storage)


def _open_to_commit(storage: Storage) -> Stream:
    """Open a stream in a process that commits and ends: it waits for upkeep, which is bounded."""
    return open_on(storage, clock=BRIEF_CLOCK)


def discard_staged(storage: Storage, tasks: Sequence[StagedTask]) -> None:
    """Delete what tasks staged for a job that was never handed to a commit; never raises."""
    delete_staged(storage, (segment for task in tasks for segment in task.segments))


def plan_batch_write(storage: Storage, request: WriteRequest, *, create: bool) -> BatchPlan:
    """Plan a micro-batch of a streaming query; raises as `plan_write`.

    That the stream is sealed or has other columns ends the query only if the batch is new: the plan
    keeps the error for `commit_batch`.
    """
    return plan_batch(context_of(_open_or_create(storage, request, create=create)), request)


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
            kept = _open_to_commit(storage)
    except NotFoundError:  # the stream of the handle was dropped
        kept = _open_to_commit(storage)
    while len(_KEPT) >= KEPT_HANDLES:
        _KEPT.pop(next(iter(_KEPT)))
    _KEPT[key] = kept
    return kept


def find_write(
    storage: Storage, transaction: str, writer_id: str | None, batch_id: int | None
) -> Commit | None:
    """Return the commit of a write that has succeeded; None if it can't be told apart any more.

    A writer's batch that was there before has another transaction: it is what the writer committed
    last.
    """
    stream = open_on(storage)
    context = context_of(stream)
    root = context.log.root
    known = None if writer_id is None else context.status.writers.find(root, writer_id)
    if known is not None and known.batch_id == batch_id:
        ours = context.log.history.find_transaction(root, transaction, known.version) is not None
        start = known.end - known.rows
        named = transaction if ours else ""
        return Commit(known.version, named, start, known.end, repeated=not ours)
    version = context.log.history.find_transaction(root, transaction)
    if version is None:
        return None
    (row,) = stream.history(version, version + 1).read_all().to_pylist()
    start = row["tail"] - row["rows"]
    return Commit(version, transaction, start, row["tail"], attempts=row["attempts"])


def compact_stream(
    storage: Storage,
    rules: CompactRules,
    layout: Layout,
    cuts: tuple[CutLike | None, CutLike],
    launch: Launch,
    *,
    client: str,
) -> Compaction:
    """Compact a stream in an engine's tasks, then start upkeep; raises as `Stream.compact`."""
    context = replace(context_of(_open_to_commit(storage)), client=_client(client))

    def work(job: CompactJob, groups: Sequence[Group]) -> list[Replacement]:
        return launch(partial(run_groups, job), groups)

    bounds = bind_range(context, *cuts)
    done = run_compact(context, rules, layout, bounds=bounds, work=work)
    with best_effort("upkeep"):
        AfterCommit(context).keep_up()
    return done


class Job(Protocol):
    """Work whose rows pass through an engine's data; planned here, run in tasks, committed once.

    Picklable. A compaction and a copy by segments are such jobs.
    """

    def run(self, rows: Iterable[Mapping[str, Any]], /) -> Iterator[Any]:
        """Do some rows in a task and yield what the commit takes, picklable.

        Any attempt of any task may be repeated, killed, or run twice at once.
        """

    def commit(self, results: Sequence[Any], /) -> Any:
        """Commit what all tasks have done, once."""

    def discard(self, results: Sequence[Any], /) -> None:
        """Delete what tasks did for a commit that was never tried; never raises."""


def commit_job(job: Job, results: Sequence[Any]) -> None:
    """Commit what the tasks of a job have done; a compaction then starts upkeep."""
    job.commit(results)
    if isinstance(job, CompactTasks):
        with best_effort("upkeep"):
            AfterCommit(context_of(_open_to_commit(job.job.storage))).keep_up()


def plan_compaction(snapshot: Snapshot, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the compaction of a range as rows of ``METADATA["compactionPlan"]``."""
    reading = snapshot.plan(options["startCut"], options["endCut"])
    rules = CompactRules(options["compactMode"], options["compactRows"], options["compactBytes"])
    bounds = (reading.start, reading.end)
    return plan_compaction_rows(snapshot.context, snapshot.root, rules, bounds)


def plan_compaction_job(
    storage: Storage, options: Mapping[str, Any], *, client: str
) -> CompactTasks:
    """Fix what the tasks and the commit of a compaction share; its rows have its targets."""
    context = context_of(open_on(storage))
    return plan_compact_tasks(context, _layout(options), client=_client(client))


def plan_segments_copy(
    source: Storage, target: Storage, copy_id: str, *, seal: bool, client: str
) -> RowsOfSegments:
    """Fix what a copy of rows of the table `segments` copies. Raises as its methods do."""
    request = CopyRequest(copy_id, SEGMENTS, SEGMENTS, seal)
    context = context_of(open_on(source))
    return RowsOfSegments(plan_copy_segments(context, target, request, client=_client(client)))


def copy_segments(
    source: Storage, target: Storage, copy_id: str, launch: Launch, *, seal: bool, client: str
) -> Copied:
    """Copy a stream by segments in an engine's tasks; raises as `Stream.copy_to`."""
    request = CopyRequest(copy_id, SEGMENTS, SEGMENTS, seal)
    copy = plan_copy_segments(context_of(open_on(source)), target, request, client=_client(client))
    return copy.to.done or copy.commit(launch(copy.run, copy.spans()))


def copy_events(
    source: Storage,
    target: Storage,
    copy_id: str,
    cuts: tuple[str, str],
    launch: Launch,
    *,
    seal: bool,
    client: str,
) -> Copied:
    """Copy a stream by events in an engine's tasks; raises as `Stream.copy_to`."""
    request = CopyRequest(copy_id, *cuts, seal, EVENTS)
    context = context_of(open_on(source))
    copy = plan_copy_events(context, target, request, client=_client(client))
    if copy.to.done is None:
        launch(copy.run, copy.missing())
    return copy.commit()


def redact_stream(
    storage: Storage,
    filters: FilterLike,
    columns: Sequence[str],
    launch: Launch,
    *,
    reason: str,
    redact_id: str | None,
    forget: bool,
    short_grace: bool,
) -> Redacted:
    """Redact a stream in an engine's tasks, then start upkeep; raises as `Stream.redact`."""
    context = context_of(open_on(storage))
    redact_id = context.clock.new_id() if redact_id is None else redact_id

    def work(job: RedactJob, chosen: Sequence[PlacedSegment]) -> list[RedactedSegment]:
        return launch(job.run, [*enumerate(chosen)])

    done = redact_and_forget(
        context,
        RedactRequest(filters, columns, reason, redact_id),
        work,
        forget=forget,
        short_grace=short_grace,
        tables=forget_tables,
    )
    with best_effort("upkeep"):
        AfterCommit(context).keep_up()
    return done


def watch_streams(
    urls: Sequence[Any],
    *,
    storage_options: Mapping[str, Any] | None,
    every_s: float,
    registry: Any,
    meter_provider: Any,
) -> Watch:
    """Return a watch on streams and on queries that are told to it; its samples are exported.

    Raises:
        InvalidInputError: As `export_samples`, or a location is not valid.
    """
    watch = Watch(urls, storage_options=storage_options, every_s=every_s)
    export_samples(watch.samples, registry=registry, meter_provider=meter_provider)
    return watch
