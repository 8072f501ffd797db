"""A redaction in many tasks: each takes some segments, and the driver commits what they staged.

Tasks name segments by their place in the driver's list, and answer with texts.
"""

import secrets
from collections.abc import Sequence
from dataclasses import asdict

from segstore_ds.compact.replace import Replacement
from segstore_ds.format.record import build_json, parse_json
from segstore_ds.redact.rewrite import RedactedSegment, RedactJob, redact_segment
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.write.staged import StagedSegment

_WHERE = "answer of a redaction's task"


def redact_place(job: RedactJob, chosen: Sequence[PlacedSegment], place: int) -> str:
    """Look through one of the segments; if that fails, nothing that it staged is left."""
    nonce = secrets.token_hex(6)
    done = redact_segment(job, chosen[place], number=place, nonce=nonce)
    outputs = done.run.outputs if done.run else ()
    return build_json([place, done.rows, [asdict(output) for output in outputs]]).decode()


def parse_answer(text: str, chosen: Sequence[PlacedSegment]) -> RedactedSegment:
    """Return what a task found in one of the segments."""
    place, rows, outputs = parse_json(text.encode(), where=_WHERE)
    placed = chosen[place]
    if not outputs:
        return RedactedSegment(placed)
    entry = placed.entry
    staged = (
        StagedSegment(**{**output, "mirrors": tuple(output["mirrors"])}) for output in outputs
    )
    inputs = ((entry.segment_id, entry.path),)
    run = Replacement(placed.start, inputs, entry.rows, entry.epoch, tuple(staged))
    return RedactedSegment(placed, rows, run)
