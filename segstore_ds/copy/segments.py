"""Copies a range of a stream to a new stream, by its segment objects, as one commit.

Ids, epochs and offsets are the same in both streams: segments are copied byte for byte under new
names, and every frame is checked on the way. If a cut lies within a segment, that segment is
rewritten and gets a number of its own. Writers and reader positions are not copied.

Guarantees: there is no stream at the destination before all segments are there; its first root
lists all of them. If interrupted at any point and run again, the copy goes on with the segments
that have not arrived whole. Run again when done, it changes nothing and reports `repeated`. Events
appended to the source meanwhile are not part of the copy.

An engine's tasks may copy the segments (`SegmentsCopy.run`). They receive only the offset and id of
each and look it up in the version that was planned on, so no size, name or checksum comes from
outside.

Source: the second approach of Pravega's copyStream.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from segstore_ds.compact.rewrite import CompactJob, plan_job
from segstore_ds.copy.destination import Destination, open_destination
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.copy.segment_copier import SegmentCopier
from segstore_ds.errors import ConflictError, InvalidInputError
from segstore_ds.format.copies import SEGMENTS
from segstore_ds.format.indexed_columns import inherited_properties
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.options.compaction import CompactRules
from segstore_ds.options.progress import Progress, unheard
from segstore_ds.status.table_status import PlacedSegment, TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout


@dataclass(frozen=True, slots=True)
class SegmentsCopy:
    """What all tasks of a copy by segments share; picklable."""

    job: CompactJob = field(repr=False)  # the source's folder, and the schemas of its epochs
    to: Destination  # the destination, with the source's version that is copied

    def run(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[PlacedSegment]:
        """Copy whole segments and yield what the destination is to list.

        Of each row the `start` and `segment_id` count. A segment that has arrived before is reused.
        """
        if self.to.done is not None:
            return
        status = TableStatus(self.job.storage)
        with self.copier() as copier:
            for row in rows:
                placed = self._find(status, row["start"], row["segment_id"])
                yield PlacedSegment(placed.start, copier.copy(placed))

    def commit(self, found: Sequence[PlacedSegment], *, clock: Clock = SYSTEM_CLOCK) -> Copied:
        """Create the destination's first root, which lists the segments that tasks have copied."""
        if self.to.done is not None:
            return replace(self.to.done, repeated=True)
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
        bounds = (max(ordered[0].start, self.to.source.head), ordered[-1].end)
        entries = tuple(placed.entry for placed in ordered)
        return self.commit_entries(entries, bounds, self.to.source.next_segment, clock=clock)

    def commit_entries(
        self,
        entries: tuple[SegmentEntry, ...],
        bounds: tuple[int, int],
        next_segment: int,
        *,
        clock: Clock,
    ) -> Copied:
        """Create the destination's first root, with the source's epochs."""
        root, status = self.to.source, TableStatus(self.job.storage)
        return self.to.commit(
            entries,
            bounds,
            copied=bounds,
            mode=SEGMENTS,
            epochs=[(epoch.since, *status.schema_texts(epoch)) for epoch in root.epochs],
            properties=inherited_properties(root),
            next_segment=next_segment,
            clock=clock,
        )

    def discard(self, found: Sequence[PlacedSegment]) -> None:
        """Leave what was copied to the next attempt."""

    def copier(self) -> SegmentCopier:
        """Return what copies segments to the destination."""
        return SegmentCopier(self.job, self.to.storage, self.to.source, token=self.to.request.token)

    def _find(self, status: TableStatus, start: int, segment_id: int) -> PlacedSegment:
        inside = self.to.source.listed_start <= start < self.to.source.tail
        listed = [*status.segments(self.to.source, start, start + 1)] if inside else []
        if [(placed.start, placed.entry.segment_id) for placed in listed] != [(start, segment_id)]:
            raise ConflictError(
                "the source does not list this segment",
                remedy="read metadata=segments again, and write its rows unchanged",
                start=start,
                segment_id=segment_id,
                version=self.to.source.version,
            )
        return listed[0]


def plan_copy_segments(
    context: StreamContext, target: Storage, request: CopyRequest, *, client: str
) -> SegmentsCopy:
    """Fix the version that is copied, and find out whether it was copied before.

    `context` is the source's, refreshed.
    """
    to = open_destination(context, target, request, client=client)
    rules, layout = CompactRules(), Layout(inline_bytes=0)
    return SegmentsCopy(plan_job(context, to.source, rules, layout), to)


def run_copy(
    context: StreamContext,
    target: Storage,
    request: CopyRequest,
    bind: Callable[[Root], tuple[int, int]],
    *,
    progress: Progress = unheard,
) -> Copied:
    """Copy a range to a stream that does not exist yet.

    The version that `context` is at is copied. `bind` returns the range for that root, and is not
    called if the copy is already done.
    """
    copy = plan_copy_segments(context, target, request, client=context.client)
    if copy.to.done is not None:
        return copy.to.done
    bounds = bind(copy.to.source)
    with copy.copier() as work:
        entries, rows = list[SegmentEntry](), 0
        for entry in work.entries(context.status, bounds):
            entries.append(entry)
            rows += entry.rows
            progress(rows, bounds[1] - bounds[0])
    copied = copy.commit_entries(tuple(entries), bounds, work.next_segment, clock=context.clock)
    return copied if copied.repeated else replace(copied, reused=work.reused)
