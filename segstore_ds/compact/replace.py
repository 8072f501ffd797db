"""Replaces runs of segments in the table status: the only place where a compaction changes a root.

A run is found by the offsets of its events and by the ids of its segments. Neither ever changes, so
the run is found again after appends and after parts were merged or spilled. If a segment of the run
is gone, or another one is in its place, the run is skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from segstore_ds.errors import InternalError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import PartRef, Root, SegmentEntry, StagedSegment
from segstore_ds.status.slot import Slot
from segstore_ds.status.table_status import PlacedSegment, TableStatus


@dataclass(frozen=True, slots=True)
class Replacement:
    """A run of neighbouring segments and its outputs."""

    start: int  # offset of the run's first event
    inputs: tuple[tuple[int, str], ...]  # id and path of each segment, in offset order
    rows: int  # number of events in the inputs, and in the outputs
    epoch: int  # epoch of the outputs' bytes
    outputs: tuple[StagedSegment, ...]  # staged segments, in offset order
    # Number of frames of the input that is rewritten within itself; 0 for other runs.
    frames: int = 0


def listed_runs(
    status: TableStatus, root: Root, runs: Sequence[Replacement]
) -> tuple[list[Replacement], list[Replacement]]:
    """Return the runs that can be replaced on a root, and the runs that already are.

    A run can be replaced if the root lists all its inputs, side by side and at their offsets. A run
    is already replaced if the root lists one of its outputs. `runs` are in offset order and do not
    overlap.
    """
    standing, landed = list[Replacement](), list[Replacement]()
    for run in runs:
        # Load one run at a time, without statistics: segments between two runs are not needed.
        first, last = max(run.start, root.listed_start), run.start + run.rows
        found = status.segments(root, first, last, with_stats=False)
        listed = {segment.start: segment for segment in found}
        paths = {segment.entry.path for segment in listed.values()}
        if _stands(run, listed):
            standing.append(run)
        if any(segment.path in paths for segment in run.outputs):
            landed.append(run)
    return standing, landed


def _stands(run: Replacement, listed: Mapping[int, PlacedSegment]) -> bool:
    cursor = run.start
    for segment_id, path in run.inputs:
        placed = listed.get(cursor)
        if placed is None or (placed.entry.segment_id, placed.entry.path) != (segment_id, path):
            return False
        cursor = placed.end
    return cursor == run.start + run.rows


def replace_runs(status: TableStatus, root: Root, runs: Sequence[Replacement], slot: Slot) -> Root:
    """Return the root with the runs replaced, their inputs retired and their parts rewritten.

    The root must list every run. `runs` holds at least one run, in offset order and without
    overlap.
    """
    for run in runs:
        if sum(output.rows for output in run.outputs) != run.rows:
            raise InternalError(
                "outputs hold a different number of events than their inputs",
                start=run.start,
                rows=run.rows,
            )
    root = status.unfold(root, runs[0].start, slot)
    entries, number = _number(root, runs)
    first_of = {run.inputs[0][0]: place for place, run in enumerate(runs)}
    gone = {segment_id for run in runs for segment_id, _ in run.inputs}

    def rewritten(old: Sequence[SegmentEntry]) -> Iterator[SegmentEntry]:
        for entry in old:
            # The outputs of a run that spans several parts all go where its first input was.
            if entry.segment_id in first_of:
                yield from entries[first_of[entry.segment_id]]
            elif entry.segment_id not in gone:
                yield entry

    parts: list[PartRef] = []
    paths = (path for run in runs for _, path in run.inputs)
    retired = [slot.retire("segment", path) for path in paths if not names.is_inline(path)]
    cursor = root.parts[0].start if root.parts else root.inline_start
    for part in root.parts:
        if not any(run.start < part.end and run.start + run.rows > part.start for run in runs):
            parts.append(part)
        else:
            retired.append(slot.retire("status", part.path))
            kept = tuple(rewritten(status.part(part)))
            if kept:
                parts.append(status.put_part(root, cursor, kept, old=(part,)))
        cursor = parts[-1].end if parts else cursor
    return replace(
        root,
        parts=tuple(parts),
        entries=tuple(rewritten(root.entries)),
        next_segment=number,
        retired=(*root.retired, *retired),
        operation=Operation.COMPACT,
    )


def _number(root: Root, runs: Sequence[Replacement]) -> tuple[list[tuple[SegmentEntry, ...]], int]:
    number = root.next_segment
    entries = []
    for run in runs:
        entries.append(
            tuple(
                output.entry(run.epoch << 32 | (number + place))
                for place, output in enumerate(run.outputs)
            )
        )
        number += len(run.outputs)
    return entries, number
