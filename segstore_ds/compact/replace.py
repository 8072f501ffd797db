"""Replacing runs of segments in the table status: the one place where a compaction meets a root.

A run is found by where its events lie and by the ids of its segments, neither of which ever
changes; so it is found again after appends, and after parts were merged or spilled. Where a segment
of it is gone, or is another one, the run gives way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from segstore_ds.errors import InternalError
from segstore_ds.format.root import PartRef, Root, SegmentEntry, add_format_features
from segstore_ds.log.transition import Slot
from segstore_ds.status.table_status import PlacedSegment, TableStatus
from segstore_ds.write.task_writer import StagedSegment


@dataclass(frozen=True, slots=True)
class Replacement:
    """A run of neighbouring segments and what takes its place.

    Attributes:
        start: Offset of the run's first event.
        inputs: Ids and places of its segments, in offset order.
        rows: How many events the inputs hold, and the outputs too.
        epoch: Of the outputs' bytes.
        outputs: Staged, in offset order.
    """

    start: int
    inputs: tuple[tuple[int, str], ...]
    rows: int
    epoch: int
    outputs: tuple[StagedSegment, ...]


def listed_runs(
    status: TableStatus, root: Root, runs: Sequence[Replacement]
) -> tuple[list[Replacement], list[Replacement]]:
    """Return the runs that can be replaced on a root, and those that are replaced already.

    The first are those whose inputs it lists, all of them, side by side and at their place; the
    second those of whose outputs it lists one.

    Args:
        status: The stream's table status.
        root: The newest root.
        runs: In offset order, apart from each other.

    Raises:
        FormatError: A part can't be read.
        StorageError: The storage failed.
    """
    standing, landed = list[Replacement](), list[Replacement]()
    for run in runs:
        # One run at a time, without statistics: what lies between two is none of their business.
        first, last = max(run.start, root.listed_start), run.start + run.rows
        found = status.segments(root, first, last, with_stats=False)
        listed = {one.start: one for one in found}
        paths = {one.entry.path for one in listed.values()}
        if _stands(run, listed):
            standing.append(run)
        if any(one.path in paths for one in run.outputs):
            landed.append(run)
    return standing, landed


def _stands(run: Replacement, listed: Mapping[int, PlacedSegment]) -> bool:
    cursor = run.start
    for segment_id, path in run.inputs:
        one = listed.get(cursor)
        if one is None or (one.entry.segment_id, one.entry.path) != (segment_id, path):
            return False
        cursor = one.end
    return cursor == run.start + run.rows


def replace_runs(status: TableStatus, root: Root, runs: Sequence[Replacement], slot: Slot) -> Root:
    """Return the root with runs replaced, their inputs retired, the parts they lie in rewritten.

    Args:
        status: The stream's table status.
        root: The newest root, which lists every run.
        runs: In offset order, apart from each other; one at least.
        slot: Where it will land.

    Raises:
        InternalError: A run's outputs hold another number of events.
        FormatError: A part can't be read.
        StorageError: A part can't be read or put.
    """
    for run in runs:
        if sum(one.rows for one in run.outputs) != run.rows:
            raise InternalError(
                "outputs hold another number of events", start=run.start, rows=run.rows
            )
    root = status.unfold(root, runs[0].start, slot)
    entries, number = _number(root, runs)
    first_of = {run.inputs[0][0]: place for place, run in enumerate(runs)}
    gone = {segment_id for run in runs for segment_id, _ in run.inputs}

    def rewritten(old: Sequence[SegmentEntry]) -> Iterator[SegmentEntry]:
        for entry in old:
            # A run that straddles parts stands, whole, where its first input stood.
            if entry.segment_id in first_of:
                yield from entries[first_of[entry.segment_id]]
            elif entry.segment_id not in gone:
                yield entry

    parts: list[PartRef] = []
    retired = [slot.retire("segment", path) for run in runs for _, path in run.inputs]
    cursor = root.parts[0].start if root.parts else root.inline_start
    for part in root.parts:
        if not any(run.start < part.end and run.start + run.rows > part.start for run in runs):
            parts.append(part)
        else:
            retired.append(slot.retire("status", part.path))
            kept = tuple(rewritten(status.part(part)))
            if kept:
                parts.append(status.put_part(root.version, cursor, kept))
        cursor = parts[-1].end if parts else cursor
    formats = {one.format for run in runs for one in run.outputs}
    return replace(
        add_format_features(root, formats),
        parts=tuple(parts),
        entries=tuple(rewritten(root.entries)),
        next_segment=number,
        retired=(*root.retired, *retired),
        operation="compact",
    )


def _number(root: Root, runs: Sequence[Replacement]) -> tuple[list[tuple[SegmentEntry, ...]], int]:
    number = root.next_segment
    entries = []
    for run in runs:
        entries.append(
            tuple(
                one.entry(run.epoch << 32 | (number + place))
                for place, one in enumerate(run.outputs)
            )
        )
        number += len(run.outputs)
    return entries, number
