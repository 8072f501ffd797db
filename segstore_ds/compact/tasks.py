"""A compaction in many tasks: each row of its plan is one group, and one commit replaces them all.

Rows pass through Spark and whatever its user does with them. So each row names its stream and
version and carries a digest of everything that is acted on. A row that was altered, or is of
another stream, is refused before anything is read. The commit detects changes of the stream since
the plan.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from segstore_ds.compact.commit import Replacement, commit_groups, discard
from segstore_ds.compact.plan import Group
from segstore_ds.compact.rewrite import CompactJob, plan_job, plan_range_groups
from segstore_ds.compact.run import run_groups
from segstore_ds.errors import FormatError, InvalidInputError, PositionError
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.inline import attach_to, join_frames
from segstore_ds.format.record import Positive, build_json, from_json, parse_json, to_json
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.compaction import CompactRules
from segstore_ds.read.metadata_tables import PLAN_SCHEMA
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.write.layout import Layout

_WHERE = "compaction plan"
_UNCHANGED = "write the rows of metadata=compactionPlan unchanged"


@dataclass(frozen=True, slots=True)
class _Plan:
    mode: str
    target_rows: Positive
    target_bytes: Positive
    epoch: int
    pieces: Positive
    inputs: tuple[SegmentEntry, ...]
    frames: str


def build_row(
    stream_id: str, version: int, number: int, group: Group, rules: CompactRules
) -> dict[str, Any]:
    """Return a group as a row of `PLAN_SCHEMA`."""
    entries = tuple(placed.entry for placed in group.inputs)
    plan = _Plan(
        rules.mode,
        rules.target_rows,
        rules.target_bytes,
        group.epoch,
        group.pieces,
        entries,
        # No task opens a log file, and the newest one may hold other events by then.
        b64encode(join_frames(entries)).decode(),
    )
    row: dict[str, Any] = {
        "stream": stream_id,
        "version": version,
        "number": number,
        "start": group.start,
        "rows": group.rows,
        "bytes": group.bytes,
        "segments": len(group.inputs),
        "plan": build_json(to_json(plan)).decode(),
    }
    return {**row, "digest": _digest(row)}


def parse_row(row: Mapping[str, Any], *, stream_id: str) -> tuple[Group, CompactRules]:
    """Return what a row plans: the group and the targets."""
    if row["digest"] != _digest(row):
        raise InvalidInputError(
            "a row of the compaction plan was changed",
            remedy=_UNCHANGED,
            number=row["number"],
        )
    if row["stream"] != stream_id:
        raise InvalidInputError(
            "the compaction plan belongs to another stream",
            remedy="plan the compaction of the stream that you write to",
            plan=row["stream"],
            stream=stream_id,
        )
    try:
        plan = from_json(_Plan, parse_json(row["plan"], where=_WHERE), where=_WHERE)
        rules = CompactRules(plan.mode, plan.target_rows, plan.target_bytes)
        attach_to(plan.inputs, b64decode(plan.frames), where=_WHERE)
    except FormatError as error:
        raise InvalidInputError(
            "not a row of a compaction plan", remedy=_UNCHANGED, number=row["number"]
        ) from error
    placed, start = [], int(row["start"])
    for entry in plan.inputs:
        placed.append(PlacedSegment(start, entry))
        start += entry.rows
    group = Group(tuple(placed), plan.epoch, plan.pieces)
    if not placed or group.rows != row["rows"]:
        raise InvalidInputError(
            "not a row of a compaction plan", remedy=_UNCHANGED, number=row["number"]
        )
    return group, rules


def _digest(row: Mapping[str, Any]) -> str:
    kept = {name: row[name] for name in PLAN_SCHEMA.names if name != "digest"}
    return digest_of(build_json(kept))


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
            group, rules = parse_row(row, stream_id=self.job.stream_id)
            job = replace(self.job, rules=rules)
            yield from run_groups(job, [group])

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
        discard(self.job.storage, done)


def plan_compact_tasks(context: StreamContext, layout: Layout, *, client: str) -> CompactTasks:
    """Fix what all tasks of a compaction share, on the newest root that was seen."""
    root = context.log.root
    job = plan_job(context, root, CompactRules(), layout, stages=True)
    return CompactTasks(job, context.clock.new_id(), client)
