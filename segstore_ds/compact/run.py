"""Runs compactions: rounds of plan, merge and commit, until there is nothing left to do.

A round that changes nothing is the last one. Segments that can't become fewer are left as they are,
so repeated calls do not rewrite them.

After a commit the work is bounded: it looks only at the newest segments and rewrites at most
`AUTO_BYTES` of them, so a commit never waits for the stream's whole history.
"""

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from segstore_ds.compact.commit import (
    Compaction,
    Replacement,
    commit_groups,
    discard,
    summarise,
)
from segstore_ds.compact.plan import Group, plan_groups
from segstore_ds.compact.rewrite import CompactJob, joins_of, plan_job, plan_range_groups, run_group
from segstore_ds.errors import ConflictError
from segstore_ds.format.root import Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.commit import COMMIT_ATTEMPTS
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.options.compaction import MINOR, CompactRules
from segstore_ds.read.cuts import Cut, CutLike, parse_cut, resolve_range
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.write.batch_plan import PARQUET_ROWS
from segstore_ds.write.layout import HOT, Layout

COMMIT_BYTES = 4 << 30  # most input bytes of one commit: the work that a lost race can waste
COMMIT_GROUPS = 256
ROUNDS = 32
CONFLICTS = 3
AUTO_BYTES = 32 << 20  # most input bytes rewritten after one commit
# Parquet is decoded and encoded anew, which the next micro-batch would wait for: rewrite less.
AUTO_PARQUET_BYTES = 4 << 20
AUTO_PARQUET_ROWS = 1 << 18
AUTO_SEGMENTS = 256  # how many of the newest segments are considered
# Runs the groups of a job, here or in an engine's tasks, and yields what replaces each, in order.
Work = Callable[[CompactJob, Sequence[Group]], Iterable[Replacement]]


def run_compact(
    context: StreamContext,
    rules: CompactRules,
    layout: Layout,
    *,
    bounds: tuple[int, int] | None = None,
    progress: Progress = unheard,
    work: Work | None = None,
) -> Compaction:
    """Compact a range of a stream, in as many commits as needed.

    `bounds` are ``(start, end)`` offsets; None means all listed events. A budget in `rules` bounds
    the whole call. If an error occurs, earlier commits of the call stay. Called again, it does
    nothing. `work` runs the groups elsewhere, many at once, so a commit may have more bytes.
    """
    total, conflicts = Compaction(context.log.refresh().version), 0
    rows = [0, 0]  # done, and planned so far
    most_bytes = COMMIT_BYTES if work is None else sys.maxsize

    def note(run: Replacement) -> None:
        rows[0] += run.rows
        progress(rows[0], rows[1])

    for _ in range(ROUNDS):
        root = context.log.refresh()
        start, end = bounds or (root.listed_start, root.tail)
        job = plan_job(context, root, rules, layout, stages=True)
        groups = plan_range_groups(context.status, root, job, (max(start, root.listed_start), end))
        if not groups:
            break
        commits = total.commits
        rows[1] = rows[0] + sum(group.rows for group in groups)
        try:
            for batch in _batches(groups, most_bytes):
                total += run_batch(context, job, batch, note=note, work=work)
        except ConflictError:
            conflicts += 1
            if conflicts >= CONFLICTS:
                raise
            continue
        if rules.budget_bytes is not None or total.commits == commits:
            break
    return total


def bind_range(context: StreamContext, start: CutLike | None, end: CutLike) -> tuple[int, int]:
    """Return the offsets between two cuts on the newest root; no start is the oldest segment."""
    first = Cut("head") if start is None else parse_cut(start)
    remedy = "start at 'head', or give no start"
    return resolve_range(context, context.log.refresh(), first, parse_cut(end), remedy=remedy)


def _batches(groups: Sequence[Group], most_bytes: int) -> Iterator[list[Group]]:
    batch: list[Group] = []
    for group in groups:
        size = sum(chosen.bytes for chosen in batch) + group.bytes
        if batch and (size > most_bytes or len(batch) >= COMMIT_GROUPS):
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def run_batch(
    context: StreamContext,
    job: CompactJob,
    groups: Sequence[Group],
    *,
    attempts: int = COMMIT_ATTEMPTS,
    note: Callable[[Replacement], None] | None = None,
    work: Work | None = None,
) -> Compaction:
    """Write the outputs of some groups and replace them in one commit; `note` hears of each."""
    done: list[Replacement] = []
    nonce = context.clock.new_id()[:12]
    try:
        for run in work(job, groups) if work else run_groups(job, groups, nonce):
            done.append(run)
            if note is not None:
                note(run)
    except BaseException:
        discard(context.storage, done)
        raise
    transaction = context.clock.new_id()
    root, kept = commit_groups(context, done, transaction=transaction, attempts=attempts)
    return summarise(root, groups, done, kept)


def run_groups(
    job: CompactJob, groups: Iterable[Group], nonce: str | None = None
) -> Iterator[Replacement]:
    """Write the outputs of groups and yield what replaces each.

    An engine's tasks may repeat it: without a nonce, each group that is run has its own.
    """
    for group in groups:
        yield run_group(job, group, nonce=nonce or secrets.token_hex(6))


def plan_auto(rules: CompactRules, *, parquet: bool = False) -> CompactRules:
    """Return rules that bound the work after one commit, less with Parquet inputs; pure."""
    budget = min(AUTO_PARQUET_BYTES if parquet else AUTO_BYTES, rules.target_bytes)
    rows = min(AUTO_PARQUET_ROWS, rules.target_rows) if parquet else rules.target_rows
    return replace(rules, minor=MINOR, budget_bytes=budget, target_rows=rows)


def run_auto_compact(context: StreamContext, layout: Layout) -> Compaction | None:
    """Replace the newest runs worth compacting; return None if there are none.

    It runs after the acknowledgement, in the process that committed. The query's own next append
    comes after it, and appends of other writers are rebased over. Groups that another compaction
    has already replaced are skipped.
    """
    root = context.log.root
    recent = _recent(context, root)
    parquet = any(segment.entry.format == PARQUET for segment in recent)
    if layout.segment_format == "auto":
        # A commit waits for this: small runs stay Arrow, and large ones of few rows, too.
        layout = replace(layout, segment_format=HOT)
        rows = sum(segment.entry.rows for segment in recent)
        size = sum(segment.entry.bytes for segment in recent)
        parquet = parquet or size * PARQUET_ROWS <= rows * AUTO_PARQUET_BYTES
    rules = plan_auto(CompactRules(), parquet=parquet)
    job = plan_job(context, root, rules, layout)
    groups = plan_groups(recent, rules, joins=joins_of(job))
    if not groups:
        return None
    job = replace(job, storage=context.log.seams.staging(root))
    return run_batch(context, job, groups, attempts=3)


def _recent(context: StreamContext, root: Root) -> list[PlacedSegment]:
    """Return the newest segments: the inline ones and those of the small parts before them."""
    start, count = root.inline_start, len(root.entries)
    for part in reversed(root.parts):
        if count + part.count > AUTO_SEGMENTS:
            break
        start, count = part.start, count + part.count
    return list(context.status.segments(root, start, root.tail, with_stats=False))
