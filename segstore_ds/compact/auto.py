"""Automatic compaction after a commit: bounded work that keeps the number of segments down.

It looks only at the newest segments and rewrites at most `AUTO_BYTES` of them, so a commit never
waits for the stream's whole history. `Stream.compact` does the rest.
"""

from dataclasses import replace

from segstore_ds.compact.commit import Compaction
from segstore_ds.compact.plan import plan_groups
from segstore_ds.compact.rewrite import joins_of, plan_job
from segstore_ds.compact.run import run_batch
from segstore_ds.format.root import Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.context import StreamContext
from segstore_ds.options.compaction import MINOR, CompactRules
from segstore_ds.status.inline import with_inline
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.write.layout import HOT
from segstore_ds.write.request import AutoRules

AUTO_BYTES = 32 << 20  # most input bytes rewritten after one commit
# Parquet is decoded and encoded anew, which the next micro-batch would wait for: rewrite less.
AUTO_PARQUET_BYTES = 4 << 20
AUTO_PARQUET_ROWS = 1 << 18
AUTO_SEGMENTS = 256  # how many of the newest segments are considered


def plan_auto(rules: CompactRules, *, parquet: bool = False) -> CompactRules:
    """Return rules that bound the work after one commit, less with Parquet inputs; pure."""
    budget = min(AUTO_PARQUET_BYTES if parquet else AUTO_BYTES, rules.target_bytes)
    rows = min(AUTO_PARQUET_ROWS, rules.target_rows) if parquet else rules.target_rows
    return replace(rules, minor=MINOR, budget_bytes=budget, target_rows=rows)


def run_auto_compact(context: StreamContext, auto: AutoRules) -> Compaction | None:
    """Replace the newest runs worth compacting; return None if there are none.

    It runs after the acknowledgement, in the process that committed. The query's own next append
    comes after it, and appends of other writers are rebased over. Groups that another compaction
    has already replaced are skipped.
    """
    root = context.log.root
    recent = _recent(context, root)
    parquet = any(segment.entry.format == PARQUET for segment in recent)
    rules = plan_auto(auto.rules, parquet=parquet)
    layout = auto.layout
    if layout.segment_format == "auto":
        # A commit waits for this: large frames are kept, and converted to Parquet later.
        layout = replace(layout, segment_format=HOT)
    job = plan_job(context, root, rules, layout)
    groups = plan_groups(recent, rules, joins=joins_of(job.epochs))
    if not groups:
        return None
    job = replace(job, storage=with_inline(context.log.seams.staging(root), root))
    return run_batch(context, job, groups, attempts=3)


def _recent(context: StreamContext, root: Root) -> list[PlacedSegment]:
    """Return the newest segments: the inline ones and those of the small parts before them."""
    start, count = root.inline_start, len(root.entries)
    for part in reversed(root.parts):
        if count + part.count > AUTO_SEGMENTS:
            break
        start, count = part.start, count + part.count
    return list(context.status.segments(root, start, root.tail))
