"""Compactions, copies and redactions: planned here, run in an engine's tasks, committed here."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from segstore_ds.compact.commit import Compaction, Replacement
from segstore_ds.compact.plan import Group
from segstore_ds.compact.rewrite import CompactJob
from segstore_ds.compact.run import bind_range, run_compact, run_groups
from segstore_ds.compact.tasks import CompactTasks, plan_compact_tasks, plan_compaction_rows
from segstore_ds.copy.destination import Copied, CopyRequest
from segstore_ds.copy.event_rows import RowsCopy, plan_rows_copy
from segstore_ds.copy.events import plan_copy_events
from segstore_ds.copy.segments import RowsOfSegments, plan_copy_segments
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seams import best_effort
from segstore_ds.options.compaction import CompactRules
from segstore_ds.read.cuts import CutLike
from segstore_ds.read.filters.given import FilterLike
from segstore_ds.redact.forget import redact_and_forget
from segstore_ds.redact.plan import RedactRequest
from segstore_ds.redact.report import Redacted
from segstore_ds.redact.rewrite import RedactedSegment, RedactJob
from segstore_ds.status.table_status import PlacedSegment, TableStatus
from segstore_ds.status.writers import Commit
from segstore_ds.storage import Storage
from segstore_ds.stream.commits import AfterCommit
from segstore_ds.stream.connector.writes import client_text, layout_of, open_to_commit
from segstore_ds.stream.latest_table import forget_published
from segstore_ds.stream.opening import open as open_stream
from segstore_ds.stream.snapshot import Snapshot
from segstore_ds.stream.stream import context_of
from segstore_ds.write.layout import Layout

__all__ = [
    "CutLike",
    "FilterLike",
    "Job",
    "RowsCopy",
    "commit_job",
    "compact_stream",
    "copy_events",
    "copy_segments",
    "find_write",
    "open_stream",
    "plan_compaction",
    "plan_compaction_job",
    "plan_rows_copy",
    "plan_segments_copy",
    "redact_stream",
]

# Runs rows of a job, which have so many encoded bytes to read, and returns their results in the
# order of the rows. An engine's tasks may run any of them more than once.
Launch = Callable[[Callable[[Sequence[Any]], Iterator[Any]], Sequence[Any], int], list[Any]]
SEGMENTS, EVENTS = "segments", "events"  # how a stream is copied


def _context(storage: Storage) -> StreamContext:
    return context_of(open_stream(storage))


def find_write(
    storage: Storage, transaction: str, writer_id: str | None, batch_id: int | None
) -> Commit | None:
    """Return the commit of a write that has succeeded; None if it can't be told apart any more.

    A writer's batch that was there before has another transaction: it is what the writer committed
    last.
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
    context = replace(context_of(open_to_commit(storage)), client=client_text(client))

    def work(job: CompactJob, groups: Sequence[Group]) -> list[Replacement]:
        return launch(partial(run_groups, job), groups, sum(group.bytes for group in groups))

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
            AfterCommit(context_of(open_to_commit(job.job.storage))).keep_up()


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
    context = _context(storage)
    return plan_compact_tasks(context, layout_of(options), client=client_text(client))


def plan_segments_copy(
    source: Storage, target: Storage, copy_id: str, *, seal: bool, client: str
) -> RowsOfSegments:
    """Fix what a copy of rows of the table `segments` copies. Raises as its methods do."""
    request = CopyRequest(copy_id, SEGMENTS, SEGMENTS, seal)
    context = _context(source)
    return RowsOfSegments(plan_copy_segments(context, target, request, client=client_text(client)))


def copy_segments(
    source: Storage, target: Storage, copy_id: str, launch: Launch, *, seal: bool, client: str
) -> Copied:
    """Copy a stream by segments in an engine's tasks; raises as `Stream.copy_to`."""
    request = CopyRequest(copy_id, SEGMENTS, SEGMENTS, seal)
    copy = plan_copy_segments(_context(source), target, request, client=client_text(client))
    if copy.to.done is not None:
        return copy.to.done
    bounds = (copy.to.source.listed_start, copy.to.source.tail)
    size = _bytes_of(source, copy.to.source, bounds)
    return copy.commit(launch(copy.run, copy.spans(), size))


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
    context = _context(source)
    copy = plan_copy_events(context, target, request, client=client_text(client))
    if copy.to.done is None:
        launch(copy.run, copy.missing(), _bytes_of(source, copy.to.source, copy.bounds))
    return copy.commit()


def _bytes_of(storage: Storage, root: Root, bounds: tuple[int, int]) -> int:
    return sum(placed.entry.bytes for placed in TableStatus(storage).segments(root, *bounds))


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
    context = _context(storage)
    redact_id = context.clock.new_id() if redact_id is None else redact_id

    def work(job: RedactJob, chosen: Sequence[PlacedSegment]) -> list[RedactedSegment]:
        return launch(job.run, [*enumerate(chosen)], sum(each.entry.bytes for each in chosen))

    done = redact_and_forget(
        context,
        RedactRequest(filters, columns, reason, redact_id),
        work,
        forget=forget,
        short_grace=short_grace,
        tables=forget_published,
    )
    with best_effort("upkeep"):
        AfterCommit(context).keep_up()
    return done
