"""The only door for a connector: what `spark/` needs below the front door, and nothing else.

`Stream` serves people. A connector plans in one process, runs tasks in others and commits in a
third. So each function here does one step of that, and the other names are values that travel
between the steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from segstore_ds.compact.commit import Replacement
from segstore_ds.compact.tasks import (
    PLAN_SCHEMA,
    CompactTasks,
    plan_compact_tasks,
    plan_compaction_rows,
)
from segstore_ds.copy.destination import Copied, CopyRequest
from segstore_ds.copy.event_rows import (
    ROWS,
    OffsetCheck,
    RowsCopy,
    check_offsets,
    commit_rows_copy,
    plan_rows_copy,
)
from segstore_ds.copy.events import EventsCopy, plan_copy_events
from segstore_ds.copy.segments import SegmentsCopy, plan_copy_segments
from segstore_ds.errors import AlreadyExistsError, NotFoundError
from segstore_ds.format.clones import origins_of
from segstore_ds.format.names import segment_object
from segstore_ds.format.root import Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.log.seams import best_effort
from segstore_ds.observe.export import export_samples
from segstore_ds.observe.series import Sample
from segstore_ds.observe.watch import EVERY_S as MEASURE_EVERY_S
from segstore_ds.observe.watch import Watch
from segstore_ds.options.compaction import CompactRules
from segstore_ds.publish.life import forget_tables
from segstore_ds.read.cuts import Position, parse_cut
from segstore_ds.read.filter_literals import NAN
from segstore_ds.read.filters import Condition, FilterLike, Filters
from segstore_ds.read.find_streams import DEPTH, STREAMS_SCHEMA, read_streams
from segstore_ds.read.metadata_tables import METADATA_TABLES
from segstore_ds.read.plan import BatchLimits, Reading, ReadTask
from segstore_ds.read.scan import run_task
from segstore_ds.redact.forget import redact_and_forget
from segstore_ds.redact.plan import RedactRequest
from segstore_ds.redact.report import Redacted
from segstore_ds.redact.rewrite import RedactedSegment, RedactJob
from segstore_ds.redact.run import Work
from segstore_ds.retention.readers import NamedReader
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.status.writers import Commit, WriterKey
from segstore_ds.storage import Storage, open_storage, resolve_location
from segstore_ds.storage.locations import Location
from segstore_ds.stream.commits import AfterCommit
from segstore_ds.stream.micro_batches import BoundEnd, MicroBatches
from segstore_ds.stream.opening import create_on, open_on
from segstore_ds.stream.stream import Stream, client_name
from segstore_ds.write.inputs import writer_key
from segstore_ds.write.job import WriteJob, check_arguments
from segstore_ds.write.layout import Layout
from segstore_ds.write.micro_batch import BatchPlan, plan_batch
from segstore_ds.write.request import AutoRules, WriteRequest
from segstore_ds.write.staged import StagedTask, delete_staged

__all__ = [
    "MEASURE_EVERY_S",
    "METADATA",
    "NAN",
    "ROWS",
    "STREAMS",
    "AutoRules",
    "BatchLimits",
    "BatchPlan",
    "BoundEnd",
    "Commit",
    "CompactTasks",
    "Condition",
    "Copied",
    "CopyRequest",
    "EventsCopy",
    "FilterLike",
    "Filters",
    "Job",
    "Layout",
    "Location",
    "MicroBatches",
    "NamedReader",
    "OffsetCheck",
    "PlacedSegment",
    "Position",
    "ReadTask",
    "Reading",
    "RedactJob",
    "RedactRequest",
    "Redacted",
    "RedactedSegment",
    "Replacement",
    "Root",
    "RowsCopy",
    "Sample",
    "StagedTask",
    "Storage",
    "Stream",
    "Watch",
    "WriteJob",
    "WriteRequest",
    "WriterKey",
    "check_offsets",
    "client_name",
    "commit_batch",
    "commit_job",
    "commit_rows_copy",
    "decode_pinned",
    "discard_staged",
    "encode_pinned",
    "export_samples",
    "find_write",
    "list_streams_below",
    "open_on",
    "open_or_create",
    "open_storage",
    "open_to_commit",
    "parse_cut",
    "plan_batch_write",
    "plan_compaction",
    "plan_compaction_job",
    "plan_events_copy",
    "plan_parquet",
    "plan_rows_copy",
    "plan_segments_copy",
    "redact_stream",
    "resolve_location",
    "run_task",
    "segment_object",
    "writer_key",
]

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


def open_or_create(storage: Storage, request: WriteRequest, *, create: bool) -> Stream:
    """Open a stream to write to; create it if it is missing and `create` is true.

    Raises:
        NotFoundError: There is no stream, and `create` is false.
    """
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


def open_to_commit(storage: Storage) -> Stream:
    """Open a stream in a process that commits and ends: it waits for upkeep, which is bounded."""
    return open_on(storage, clock=BRIEF_CLOCK)


def find_write(
    storage: Storage, transaction: str, writer_id: str | None, batch_id: int | None
) -> Commit | None:
    """Return the commit of a write that has succeeded; None if it can't be told apart any more.

    A writer's batch that was there before has another transaction: it is what the writer committed
    last.
    """
    stream = open_on(storage)
    context, root = stream.context, stream.root
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


class Job(Protocol):
    """Work that an engine spreads over its tasks; planned in one process, committed in another.

    Picklable. A compaction, a copy by segments and a copy by events are jobs.
    """

    def run(self, rows: Iterable[Any], /) -> Iterator[Any]:
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
            AfterCommit(open_to_commit(job.job.storage).context).keep_up()


def redact_stream(
    stream: Stream,
    request: RedactRequest,
    work: Work,
    *,
    forget: bool,
    short_grace: bool,
) -> Redacted:
    """Redact a stream by an engine's tasks, then start upkeep; raises as `Stream.redact`."""
    context = stream.context
    done = redact_and_forget(
        context, request, work, forget=forget, short_grace=short_grace, tables=forget_tables
    )
    with best_effort("upkeep"):
        AfterCommit(context).keep_up()
    return done


def encode_pinned(root: Root) -> bytes:
    """Return a version's root as bytes that travel with a plan."""
    return ROOT_CODEC.encode_file(root)


def decode_pinned(data: bytes) -> Root:
    """Return the root that `encode_pinned` was given."""
    return ROOT_CODEC.decode_file(data, "pinned")


def plan_events_copy(
    source: Storage, target: Storage, request: CopyRequest, *, client: str
) -> EventsCopy:
    """Fix what a copy by events copies; its methods are its steps. Raises as they do."""
    return plan_copy_events(open_on(source).context, target, request, client=client)


def plan_segments_copy(
    source: Storage, target: Storage, request: CopyRequest, *, client: str
) -> SegmentsCopy:
    """Fix what a copy by segments copies; its methods are its steps. Raises as they do."""
    return plan_copy_segments(open_on(source).context, target, request, client=client)


def discard_staged(storage: Storage, tasks: Sequence[StagedTask]) -> None:
    """Delete what tasks staged for a job that was never handed to a commit; never raises."""
    delete_staged(storage, (segment for task in tasks for segment in task.segments))


def plan_batch_write(storage: Storage, request: WriteRequest, *, create: bool) -> BatchPlan:
    """Plan a micro-batch of a streaming query; raises as `open_or_create`.

    That the stream is sealed or has other columns ends the query only if the batch is new: the plan
    keeps the error for `commit_batch`.
    """
    return plan_batch(open_or_create(storage, request, create=create).context, request)


def commit_batch(
    stream: Stream, plan: BatchPlan, key: WriterKey, tasks: Sequence[StagedTask]
) -> None:
    """Commit a micro-batch; a batch that is in the stream already changes nothing.

    Raises:
        WriterConflictError: The batch is older than the writer's last one, or holds other events
            than that, or its writer id has another owner.
        SegstoreError: As `Stream.commit`; or why the batch could not be planned.
    """
    job = plan.job_of(stream.context, key, tasks)
    if job is not None:
        stream.commit(job, tasks)


def plan_parquet(
    stream: Stream, reading: Reading, root: Root, epochs: Sequence[int]
) -> tuple[list[PlacedSegment], bool]:
    """Return the Parquet segments of a read that a plain Parquet reader reads as we do.

    They are those of the given epochs. The second value says whether they are all of the read. None
    if the read wants commit times, which no file holds, or a clone's stream is elsewhere.
    """
    if reading.commit_time_column is not None or any(origins_of(root)):
        return [], False
    slices = stream.plan_slices(reading, root=root)
    plain = slices.select(PARQUET, epochs)
    return list(plain), len(plain) == len(slices)


def plan_compaction(
    stream: Stream, rules: CompactRules, reading: Reading, root: Root
) -> list[dict[str, Any]]:
    """Return the compaction of a read's range as rows of ``METADATA["compactionPlan"]``."""
    return plan_compaction_rows(stream.context, root, rules, (reading.start, reading.end))


def plan_compaction_job(
    storage: Storage, rules: CompactRules, layout: Layout, *, client: str
) -> CompactTasks:
    """Fix what the tasks and the commit of a compaction share; its methods are their steps."""
    return plan_compact_tasks(open_on(storage).context, rules, layout, client=client)
