"""Rows of a compaction plan: they come back as they went, and nothing else is taken."""

import json

import pyarrow as pa
import pytest

from segstore_ds.compact.plan import Group
from segstore_ds.compact.tasks import PLAN_SCHEMA, build_row, parse_row
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.inline import encoded_entry
from segstore_ds.format.root import SegmentEntry
from segstore_ds.options.compaction import CompactRules
from segstore_ds.status.table_status import PlacedSegment

RULES = CompactRules("split", 10, 100)
GROUP = Group(
    (PlacedSegment(5, SegmentEntry(1 << 32 | 7, "t/a", 30, 200, 9, 4, "arrow", "{}")),), 1, 3
)


def test_rows_come_back() -> None:
    """What a row says is what was planned."""
    row = build_row("id", 3, 2, GROUP, RULES)
    assert [*row] == PLAN_SCHEMA.names
    assert parse_row(row, stream_id="id") == (GROUP, RULES)


def test_rows_hold_the_frames_of_inline_segments() -> None:
    """A task has nothing else to read them from."""
    batch = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
    frame = encode_frame(batch, compression="none", compression_level=None, stats_columns=["n"])
    inline = PlacedSegment(35, encoded_entry(1 << 32 | 8, frame))
    group = Group((*GROUP.inputs, inline), 1, 1)
    row = build_row("id", 3, 2, group, RULES)
    assert parse_row(row, stream_id="id") == (group, RULES)


@pytest.mark.parametrize("name", [name for name in PLAN_SCHEMA.names if name != "plan"])
def test_changed_rows_are_refused(name: str) -> None:
    """Whichever value is changed."""
    row = build_row("id", 3, 2, GROUP, RULES)
    row[name] = row[name] + (1 if isinstance(row[name], int) else "x")
    with pytest.raises(InvalidInputError, match="was changed"):
        parse_row(row, stream_id="id")


def test_changed_inputs_are_refused() -> None:
    """Also within the plan."""
    row = build_row("id", 3, 2, GROUP, RULES)
    plan = json.loads(row["plan"])
    plan["inputs"][0][1] = "../../secret"
    row["plan"] = json.dumps(plan)
    with pytest.raises(InvalidInputError, match="was changed"):
        parse_row(row, stream_id="id")


def test_rows_of_another_stream_are_refused() -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError, match="another stream"):
        parse_row(build_row("other", 3, 2, GROUP, RULES), stream_id="id")
