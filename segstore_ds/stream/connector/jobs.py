"""What a user's own process calls: jobs that an engine's tasks run, and a watch on streams.

Compactions, copies and redactions are planned and committed here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from segstore_ds.compact.commit import Replacement
from segstore_ds.compact.rewrite import CompactJob, plan_job
from segstore_ds.compact.run import commit_job, plan_rows
from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.event_rows import RowsCopy, plan_rows_copy
from segstore_ds.copy.segments import SegmentsCopy, plan_copy_segments
from segstore_ds.log.context import Job, Launch
from segstore_ds.observe.series import export_samples
from segstore_ds.observe.watch import EVERY_S as MEASURE_EVERY_S
from segstore_ds.observe.watch import Watch
from segstore_ds.options.arguments import CompactRules
from segstore_ds.read.cuts import CutLike, cut_text
from segstore_ds.status.writers import Commit
from segstore_ds.storage import Storage
from segstore_ds.stream.commits import AfterCommit
from segstore_ds.stream.connector.reads import Snapshot
from segstore_ds.stream.connector.writes import client_text, layout_of, open_to_commit
from segstore_ds.stream.opening import open as open_stream
from segstore_ds.stream.stream import Stream, context_of

__all__ = [
    "MEASURE_EVERY_S",
    "CutLike",
    "Job",
    "RowsCopy",
    "TableJob",
    "Watch",
    "commit_compaction",
    "cut_text",
    "find_write",
    "open_on_engine",
    "plan_compaction",
    "plan_compaction_job",
    "plan_rows_copy",
    "plan_segments_copy",
    "watch_streams",
]

SEGMENTS = "segments"


class TableJob(Job, Protocol):
    """A job whose rows pass through an engine's data, as rows of a metadata table."""

    def take(self, rows: Iterable[Mapping[str, Any]], /) -> Iterator[Any]:
        """Return the job's rows for rows of the table; InvalidInputError if one was altered."""

    def discard(self, done: Sequence[Any], /) -> None:
        """Delete what tasks staged for a commit that was never tried; never raises."""


def open_on_engine(storage: Storage, launch: Launch, *, client: str) -> Stream:
    """Open a stream whose compactions, copies and redactions run their rows by `launch`."""
    context = context_of(open_to_commit(storage))
    return Stream(replace(context, client=client_text(client), launch=launch))


def find_write(
    storage: Storage, transaction: str, writer_id: str | None, batch_id: int | None
) -> Commit | None:
    """Return the commit of a write that has succeeded; None if it can't be found any more.

    If the writer's batch was committed before, with another transaction id, it is that commit.
    """
    stream = open_stream(storage)
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


def plan_compaction(snapshot: Snapshot, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the compaction of a range as rows of ``METADATA["compactionPlan"]``."""
    reading = snapshot.plan(options["startCut"], options["endCut"])
    rules = CompactRules(options["compactMode"], options["compactRows"], options["compactBytes"])
    return plan_rows(snapshot.context, snapshot.root, rules, (reading.start, reading.end))


def plan_compaction_job(storage: Storage, options: Mapping[str, Any]) -> CompactJob:
    """Return what the tasks and the commit of a compaction share; the rows have the targets."""
    context = context_of(open_stream(storage))
    return plan_job(context, context.log.root, layout_of(options), stages=True)


def commit_compaction(job: CompactJob, client: str, done: Sequence[Replacement]) -> None:
    """Commit what the tasks of a compaction have done, and start upkeep."""
    context = replace(context_of(open_to_commit(job.storage)), client=client_text(client))
    commit_job(context, job, done)
    AfterCommit(context).keep_up()


def plan_segments_copy(
    source: Storage, target: Storage, copy_id: str, *, seal: bool, client: str
) -> SegmentsCopy:
    """Plan a copy whose rows are those of the table `segments`; raises as its methods do."""
    context = replace(context_of(open_stream(source)), client=client_text(client))
    request = CopyRequest(copy_id, SEGMENTS, SEGMENTS, seal)
    return plan_copy_segments(context, target, request, whole=True)


def watch_streams(
    urls: Sequence[Any],
    *,
    storage_options: Mapping[str, Any] | None,
    every_s: float,
    registry: Any,
    meter_provider: Any,
) -> Watch:
    """Return a watch on streams, and on the queries that it is told of; export its samples."""
    watch = Watch(urls, storage_options=storage_options, every_s=every_s)
    export_samples(watch.samples, registry=registry, meter_provider=meter_provider)
    return watch
