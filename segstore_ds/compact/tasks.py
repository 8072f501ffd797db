"""A compaction in many tasks: each row of its plan is one group, and one commit replaces them all.

Tasks rewrite whole groups, which they get as the rows that `compact/rows.py` builds and checks.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from segstore_ds.compact.commit import commit_groups
from segstore_ds.compact.replace import Replacement
from segstore_ds.compact.rewrite import CompactJob, plan_job, plan_range_groups, run_group
from segstore_ds.compact.rows import build_row, parse_row
from segstore_ds.errors import PositionError
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.compaction import CompactRules
from segstore_ds.status.inline import with_entries
from segstore_ds.write.layout import Layout
from segstore_ds.write.staged import delete_staged


def plan_compaction_rows(
    context: StreamContext, root: Root, rules: CompactRules, bounds: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return the compaction of a range as rows of `PLAN_SCHEMA`, one per group."""
    job = plan_job(context, root, rules, Layout())
    groups = plan_range_groups(context.status, root, job, bounds)
    return [
        build_row(root.stream_id, root.version, number, group, rules)
        for number, group in enumerate(groups)
    ]


@dataclass(frozen=True, slots=True)
class CompactTasks:
    """What every task of one compaction shares; picklable."""

    # The stream's folder, the schemas of its epochs, and the layout of what is written.
    job: CompactJob = field(repr=False)
    transaction: str  # of the one commit
    client: str  # who commits, for the history

    def run(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Replacement]:
        """Write and yield what replaces the groups of some rows."""
        for row in rows:
            group, rules, number = parse_row(row, stream_id=self.job.stream_id)
            inputs = [placed.entry for placed in group.inputs]
            storage = with_entries(self.job.storage, inputs, version=int(row["version"]))
            job = replace(self.job, rules=rules, storage=storage)
            yield run_group(job, group, number=number, nonce=secrets.token_hex(6))

    def commit(self, done: Sequence[Replacement]) -> None:
        """Replace all groups in one commit."""
        if not done:
            return
        context = StreamContext.of(StreamLog(self.job.storage), client=self.client)
        if context.log.open().stream_id != self.job.stream_id:
            raise PositionError(
                "the stream was recreated in the meantime",
                remedy="plan again",
                url=self.job.storage.url,
            )
        commit_groups(context, done, transaction=self.transaction)

    def discard(self, done: Iterable[Replacement]) -> None:
        """Delete what tasks wrote for a commit that was never tried; never raises."""
        delete_staged(self.job.storage, (output for run in done for output in run.outputs))


def plan_compact_tasks(
    context: StreamContext, rules: CompactRules, layout: Layout, *, client: str
) -> CompactTasks:
    """Fix what all tasks of a compaction share, on the newest root that was seen."""
    root = context.log.root
    job = plan_job(context, root, rules, layout, stages=True)
    return CompactTasks(job, context.clock.new_id(), client)
