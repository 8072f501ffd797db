"""The groups of a compaction as rows of a table, one each.

Rows pass through Spark and whatever its user does with them. So each row names its stream and
version and carries a digest of everything that is acted on. A row that was altered, or is of
another stream, is refused before anything is read. The commit detects changes of the stream since
the plan.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from segstore_ds.compact.plan import Group
from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.inline import attach_to, join_frames
from segstore_ds.format.record import Positive, build_json, from_json, parse_json, to_json
from segstore_ds.format.root import SegmentEntry
from segstore_ds.options.arguments import CompactRules
from segstore_ds.status.table_status import PlacedSegment

PLAN_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("version", pa.int64()),
        ("number", pa.int64()),
        ("start", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("segments", pa.int64()),
        ("plan", pa.string()),
        ("digest", pa.string()),
    ]
)
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


def build_row(stream_id: str, version: int, number: int, group: Group) -> dict[str, Any]:
    """Return a group as a row of `PLAN_SCHEMA`."""
    entries = tuple(placed.entry for placed in group.inputs)
    plan = _Plan(
        group.rules.mode,
        group.rules.target_rows,
        group.rules.target_bytes,
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


def parse_row(row: Mapping[str, Any], *, stream_id: str) -> Group:
    """Return the group that a row plans; InvalidInputError unless it is unchanged."""
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
    group = Group(tuple(placed), plan.epoch, plan.pieces, rules)
    if not placed or group.rows != row["rows"]:
        raise InvalidInputError(
            "not a row of a compaction plan", remedy=_UNCHANGED, number=row["number"]
        )
    return group


def _digest(row: Mapping[str, Any]) -> str:
    kept = {name: row[name] for name in PLAN_SCHEMA.names if name != "digest"}
    return digest_of(build_json(kept))
