"""A copy by segment objects in many tasks: each task copies some, one commit lists them all.

A task receives only the offset and id of each segment and looks the segment up in the version that
the job was planned on, so no size, name or checksum comes from outside. As in `copy.segments`,
there is no stream at the destination until all segments are there, and segments that have arrived
stay for the next attempt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from segstore_ds.compact.rewrite import CompactJob, plan_job
from segstore_ds.copy.destination import check_target, first_position
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.copy.segment_copier import SegmentCopier
from segstore_ds.copy.segments import commit_copy
from segstore_ds.errors import ConflictError, InvalidInputError
from segstore_ds.format.root import Root
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.compaction import CompactRules
from segstore_ds.status.table_status import PlacedSegment, TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What every task of a copy shares; picklable.

    Attributes:
        job: The source's folder, and the schemas of its epochs.
        target: The destination's folder.
        root: The source's version that is copied.
        request: What the caller asked for.
        done: The result if the copy had been made before; then there is nothing to do.
        position: The version that the first root gets.
    """

    job: CompactJob = field(repr=False)
    target: Storage = field(repr=False)
    root: Root = field(repr=False)
    request: CopyRequest
    done: Copied | None = None
    position: int = 0


def plan_copy_job(
    source: Storage, target: Storage, request: CopyRequest, *, clock: Clock = SYSTEM_CLOCK
) -> CopyJob:
    """Fix the version that is copied, and find out whether it was copied before.

    Raises:
        NotFoundError: There is no source.
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The destination is the source, or the id stands for another copy.
    """
    check_target(source, target)
    root = StreamLog(source, clock=clock).open()
    job = plan_job(source, TableStatus(source), root, CompactRules(), Layout(inline_bytes=0))
    done, position = first_position(StreamLog(target, clock=clock), request, root)
    return CopyJob(job, target, root, request, done, position)


def copy_segments(
    work: CopyJob, wanted: Iterable[tuple[int, int]], *, clock: Clock = SYSTEM_CLOCK
) -> tuple[PlacedSegment, ...]:
    """Copy some segments whole; segments that have arrived before are reused.

    `wanted` holds the offset of the first event and the id of each segment. Returns the segments
    that the destination is to list.

    Raises:
        ConflictError: The source does not list such a segment as of the job's version.
        SnapshotExpiredError: A segment was deleted meanwhile.
    """
    status = TableStatus(work.job.storage)
    token = work.request.token
    with SegmentCopier(work.job, work.target, work.root, token=token, clock=clock) as copier:
        return tuple(
            PlacedSegment(start, copier.copy(_find(work.root, status, start, segment_id)))
            for start, segment_id in wanted
        )


def _find(root: Root, status: TableStatus, start: int, segment_id: int) -> PlacedSegment:
    inside = root.listed_start <= start < root.tail
    listed = [*status.segments(root, start, start + 1)] if inside else []
    if [(placed.start, placed.entry.segment_id) for placed in listed] != [(start, segment_id)]:
        raise ConflictError(
            "the source does not list this segment",
            remedy="read metadata=segments again, and write its rows unchanged",
            start=start,
            segment_id=segment_id,
            version=root.version,
        )
    return listed[0]


def commit_segments(
    work: CopyJob, found: Sequence[PlacedSegment], *, client: str, clock: Clock = SYSTEM_CLOCK
) -> Copied:
    """Create the destination's first root, which lists the segments that tasks have copied.

    Raises:
        InvalidInputError: There are no segments, or they are not a range without a gap.
        AlreadyExistsError: Another stream was made at the destination meanwhile.
        CommitUnknownError: The storage never said whether the destination was created.
    """
    if work.done is not None:
        return replace(work.done, repeated=True)
    # A duplicated row was copied once, or by two attempts; only one of them counts.
    ordered = sorted(
        {placed.start: placed for placed in found}.values(), key=lambda placed: placed.start
    )
    if not ordered:
        raise InvalidInputError(
            "no segments to copy", remedy="write the rows of at least one segment"
        )
    for before, behind in pairwise(ordered):
        if before.end != behind.start:
            raise InvalidInputError(
                "the segments have a gap between them",
                remedy="write the rows of neighbouring segments",
                gap=f"[{before.end}, {behind.start})",
            )
    bounds = (max(ordered[0].start, work.root.head), ordered[-1].end)
    entries = tuple(placed.entry for placed in ordered)
    status = TableStatus(work.job.storage)
    return commit_copy(
        StreamContext.of(StreamLog(work.target, clock=clock), client=client),
        work.root,
        status,
        work.request,
        entries,
        bounds=bounds,
        next_segment=work.root.next_segment,
        position=work.position,
    )
