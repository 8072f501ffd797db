"""Runs compactions: rounds of plan, rewrite and commit, until a round changes nothing.

Segments that can't become fewer are left as they are, so repeated calls do not rewrite them.

Automatic compaction after a commit looks only at the newest segments and rewrites at most
`AUTO_BYTES` of them, so it never has to read the stream's whole history. Parts of tables are merged
here, too. A part that a spill wrote is written again with Bloom filters of whole segments, joined
from those of their frames. Each of these is a commit of its own, for which no commit of events
waits. Reads also work with a part that has no filters: they open its segments instead.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from segstore_ds.compact.commit import Compaction, Replacement, commit_groups, summarise
from segstore_ds.compact.plan import Group, build_row, plan_groups
from segstore_ds.compact.rewrite import CompactJob, joins_of, plan_job, plan_range_groups
from segstore_ds.errors import ConflictError, FormatError, MissingObjectError, PositionError
from segstore_ds.format import names
from segstore_ds.format.indexed_columns import KEY_COLUMNS
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.segments import SegmentFilters, join_frames
from segstore_ds.format.root import PartRef, Root, SegmentEntry
from segstore_ds.format.segment import PARQUET, find_format
from segstore_ds.log.commit import COMMIT_ATTEMPTS
from segstore_ds.log.context import StreamContext, run_here
from segstore_ds.options.arguments import MINOR, CompactRules, Progress, unheard
from segstore_ds.read.cuts import Cut, CutLike, parse_cut, resolve_range
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import Slice, TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.batch_plan import PARQUET_ROWS
from segstore_ds.write.layout import HOT, Layout

COMMIT_BYTES = 4 << 30  # most input bytes of one commit: the work that a lost race can waste
COMMIT_ROWS = 256  # most rows of a job in one commit
ROUNDS = 32
CONFLICTS = 3
AUTO_BYTES = 32 << 20  # most input bytes rewritten after one commit
# Parquet is decoded and encoded again, and the next micro-batch waits for that: rewrite less.
AUTO_PARQUET_BYTES = 4 << 20
AUTO_PARQUET_ROWS = 1 << 18
AUTO_SEGMENTS = 256  # how many of the newest segments are considered
T = TypeVar("T")
MOST_LOOKED = 4096  # segments whose filters one commit collects; the next commit continues
_FILTER_THREADS = 16  # each mostly waits for the storage


def run_compact(
    context: StreamContext,
    rules: CompactRules,
    layout: Layout,
    *,
    bounds: tuple[int, int] | None = None,
    progress: Progress = unheard,
) -> Compaction:
    """Compact a range of a stream, in as many commits as needed.

    `bounds` are ``(start, end)`` offsets; None means all listed events. A budget in `rules` bounds
    the whole call. After an error, earlier commits of the call stay. A second call does nothing.
    """
    total, conflicts = Compaction(context.log.refresh().version), 0
    rows = [0, 0]  # done, and planned so far

    def note(run: Replacement) -> None:
        rows[0] += run.rows
        progress(rows[0], rows[1])

    for _ in range(ROUNDS):
        root = context.log.refresh()
        start, end = bounds or (root.listed_start, root.tail)
        start, job = max(start, root.listed_start), plan_job(context, root, layout, stages=True)
        groups = plan_range_groups(context.status, root, job, rules, (start, end))
        if not groups:
            break
        commits = total.commits
        rows[1] = rows[0] + sum(group.rows for group in groups)
        try:
            for batch in in_commits(groups, lambda group: group.bytes, commit_bytes(context)):
                total += run_batch(context, job, batch, note=note)
        except ConflictError:
            conflicts += 1
            if conflicts >= CONFLICTS:
                raise
            continue
        if rules.budget_bytes is not None or total.commits == commits:
            break
    return total


def bind_range(context: StreamContext, start: CutLike | None, end: CutLike) -> tuple[int, int]:
    """Return the offsets of two cuts on the newest root; `start` of None is the head."""
    first = Cut("head") if start is None else parse_cut(start)
    remedy = "start at 'head', or give no start"
    return resolve_range(context, context.log.refresh(), first, parse_cut(end), remedy=remedy)


def commit_bytes(context: StreamContext) -> int:
    """Return the most input bytes of one commit: no limit where an engine runs the rows."""
    return COMMIT_BYTES if context.launch is run_here else sys.maxsize


def in_commits(rows: Iterable[T], size: Callable[[T], int], most_bytes: int) -> Iterator[list[T]]:
    """Yield the rows of each commit, in order; only a single row may have more bytes than that."""
    batch: list[T] = []
    held = 0
    for row in rows:
        row_bytes = size(row)
        if batch and (held + row_bytes > most_bytes or len(batch) >= COMMIT_ROWS):
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += row_bytes
    if batch:
        yield batch


def run_batch(
    context: StreamContext,
    job: CompactJob,
    groups: Sequence[Group],
    *,
    attempts: int = COMMIT_ATTEMPTS,
    note: Callable[[Replacement], None] = lambda _: None,
) -> Compaction:
    """Write the outputs of some groups, call `note` with each, and replace all in one commit."""
    done: list[Replacement] = []
    with closing(context.launch(job, groups)) as runs:
        for run in runs:
            done.append(run)
            note(run)
    root, kept = commit_groups(context, done, attempts=attempts)
    return summarise(root, groups, done, kept)


def commit_job(context: StreamContext, job: CompactJob, done: Sequence[Replacement]) -> None:
    """Replace in one commit the groups that a job's tasks have rewritten."""
    if context.log.root.stream_id != job.stream_id:
        raise PositionError(
            "the stream was recreated in the meantime", remedy="plan again", url=job.storage.url
        )
    commit_groups(context, done)


def plan_rows(
    context: StreamContext, root: Root, rules: CompactRules, bounds: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return the compaction of a range as rows of `PLAN_SCHEMA`, one per group."""
    job = plan_job(context, root, Layout())
    groups = plan_range_groups(context.status, root, job, rules, bounds)
    return [build_row(root.stream_id, root.version, *each) for each in enumerate(groups)]


def plan_auto(rules: CompactRules, *, parquet: bool = False) -> CompactRules:
    """Return rules that bound the work after one commit, less with Parquet inputs; pure."""
    budget = min(AUTO_PARQUET_BYTES if parquet else AUTO_BYTES, rules.target_bytes)
    rows = min(AUTO_PARQUET_ROWS, rules.target_rows) if parquet else rules.target_rows
    return replace(rules, minor=MINOR, budget_bytes=budget, target_rows=rows)


def run_auto_compact(context: StreamContext, layout: Layout) -> Compaction | None:
    """Replace the newest runs worth compacting; return None if there are none.

    It runs after the acknowledgement, in the process that committed, and delays the next append of
    the same writer; other writers append meanwhile. Groups that another compaction has replaced are
    skipped.
    """
    root = context.log.root
    recent = _recent(context, root)
    parquet = any(segment.entry.format == PARQUET for segment in recent)
    if layout.segment_format == "auto":
        # The next append waits for this: small runs stay Arrow, and large ones of few rows, too.
        layout = replace(layout, segment_format=HOT)
        rows = sum(segment.entry.rows for segment in recent)
        size = sum(segment.entry.bytes for segment in recent)
        parquet = parquet or size * PARQUET_ROWS <= rows * AUTO_PARQUET_BYTES
    job = plan_job(context, root, layout)
    groups = plan_groups(recent, plan_auto(CompactRules(), parquet=parquet), joins=joins_of(job))
    if not groups:
        return None
    job = replace(job, storage=context.log.seams.staging(root))
    return run_batch(context, job, groups, attempts=3)


def _recent(context: StreamContext, root: Root) -> list[Slice]:
    """Return the newest segments: the inline ones and those of the small parts before them."""
    start, count = root.inline_start, len(root.entries)
    for part in reversed(root.parts):
        if count + part.count > AUTO_SEGMENTS:
            break
        start, count = part.start, count + part.count
    return list(context.status.segments(root, start, root.tail, with_stats=False))


_Merge = Callable[[Root, tuple[str, ...], Slot], Root | None]


def run_due_merge(context: StreamContext, *, complete: bool = False) -> None:
    """Merge parts of one table if due, else add missing filters to a part.

    `complete` also considers parts that are not in memory, and missing bounds.

    Runs at most one merge: a merge that this one makes due waits for the next commit, so that no
    commit pays for all of them.
    """
    root = context.log.root
    for table in (*context.status.tables, context.log.history):
        if (paths := table.due(root)) is not None:
            _commit(context, table.merge, paths)
            return
    keyed = KEY_COLUMNS in root.properties
    if keyed and (part := plan_key_filters(context.status, root, complete=complete)) is not None:
        _add_filters(context, part)
    elif complete:
        add_bounds(context)


def add_bounds(context: StreamContext) -> None:
    """Add bounds of the time column to parts that lack them; commit only if there are any."""
    if not context.status.lacks_bounds(context.log.root):
        return

    def next_root(root: Root, _slot: Slot) -> Root | None:
        if not context.status.lacks_bounds(root):
            return None
        found = context.status.add_bounds(root)
        pairs = zip(found.parts, root.parts, strict=True)
        changed = any(new.stats != old.stats for new, old in pairs)
        return replace(found, operation=Operation.MERGE) if changed else None

    context.commit(next_root)


def _add_filters(context: StreamContext, part: PartRef) -> None:
    """Add filters on key columns to segments of a part."""
    find = partial(find_filters, context.status.storage)

    def add(root: Root, _paths: tuple[str, ...], slot: Slot) -> Root | None:
        return context.status.add_filters(root, part, find, slot, most=MOST_LOOKED)

    _commit(context, add, ())


def _commit(context: StreamContext, merge: _Merge, paths: tuple[str, ...]) -> None:
    def next_root(root: Root, slot: Slot) -> Root | None:
        # After a lost race give up: the winner merges.
        merged = merge(root, paths, slot) if slot.attempt == 0 else None
        return merged and replace(merged, operation=Operation.MERGE)

    context.commit(next_root)


def plan_key_filters(status: TableStatus, root: Root, *, complete: bool = False) -> PartRef | None:
    """Return the newest part whose filters were not collected yet; None if there is none.

    Without `complete` only parts in memory count, such as those that this process wrote. Parts in
    lists are skipped: each was the newest part once.
    """
    parts = (part for part in reversed(root.parts) if complete or status.table.holds(part))
    return next((part for part in parts if status.table.lacks_filters(part)), None)


def find_filters(storage: Storage, entries: Sequence[SegmentEntry]) -> list[SegmentFilters]:
    """Return the filters of segments, from their footers; several are fetched at once."""

    def look(entry: SegmentEntry) -> SegmentFilters:
        try:
            return segment_filters(storage, entry)
        except MissingObjectError:
            return None  # not collected: a repair may restore the segment
        except FormatError:
            return {}  # no filter: readers open the segment and report the damage

    with ThreadPoolExecutor(_FILTER_THREADS, "segstore-key-filters") as threads:
        return list(threads.map(look, entries))


def segment_filters(storage: Storage, entry: SegmentEntry) -> SegmentFilters:
    """Return the filters of a segment: those of its frames, joined."""
    path = names.segment_object(entry.path)
    where = storage.describe(path)
    end = storage.get_range(path, entry.bytes - entry.footer_bytes, entry.bytes)
    index = find_format(entry.format, where=where).parse_index(
        end, object_bytes=entry.bytes, where=where, footer_crc=entry.footer_crc
    )
    return join_frames([frame.filters for frame in index.frames], segment_bytes=entry.bytes)
