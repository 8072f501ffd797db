"""Copies a range of a stream to a new stream, by its segment objects, as one commit.

Ids, epochs and offsets are the same in both streams: segments are copied byte for byte under new
names, and every frame is checked on the way. If a cut lies within a segment, that segment is
rewritten and gets a number of its own. Writers and reader positions are not copied.

Guarantees: there is no stream at the destination before all segments are there; its first root
lists all of them. If interrupted at any point and run again, the copy goes on with the segments
that have not arrived whole. Run again when done, it changes nothing and reports `repeated`. Events
appended to the source meanwhile are not part of the copy.

Several objects are copied at a time. If both folders are in one store, the store copies the object
itself and the copy is read back. Otherwise ranges are fetched and written at once, and an object
gets its name when all its bytes were checked.

An engine's tasks may copy the segments (`SegmentsCopy.run`), of a range of offsets each, which they
look up in the version that was planned on. So do rows that pass through the engine's data
(`RowsOfSegments`): only the offset and id of each count.

Source: the second approach of Pravega's copyStream.
"""

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

from segstore_ds.compact.rewrite import CompactJob, events_of, plan_job
from segstore_ds.copy.destination import Copied, CopyRequest, Destination, open_destination
from segstore_ds.copy.staging import Range
from segstore_ds.copy.transfer import OBJECTS, CopiedObject, Transfer, has_arrived
from segstore_ds.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    SnapshotExpiredError,
)
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import check_frame
from segstore_ds.format.copies import SEGMENTS
from segstore_ds.format.indexed_columns import inherited_properties
from segstore_ds.format.inline import lay_out, stored_frame
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.format.segment import find_format
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.options.compaction import CompactRules
from segstore_ds.read.decode import read_frames
from segstore_ds.read.prefetch import map_ahead
from segstore_ds.status.table_status import PlacedSegment, TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout
from segstore_ds.write.task_writer import TaskWriter

TASK_BYTES = 32 << 20  # of an engine's task, at least
MOST_TASKS = 256
_SYNCED = 8  # objects at a time, of which `OBJECTS` are read or transferred: syncing mostly waits


class SegmentCopier:
    """One running copy: the segments that have arrived, and numbers for rewritten segments.

    As a context manager it ends its threads.
    """

    def __init__(self, job: CompactJob, target: Storage, root: Root, *, token: str) -> None:
        self._source, self._target, self._root = job.storage, target, root
        self._job, self._token = job, token
        self.next_segment = root.next_segment
        self.reused = 0
        self._counting = threading.Lock()
        self._transfer = Transfer()
        self._reading = threading.Semaphore(OBJECTS)  # bounds memory
        self._there = self._list()

    def entries(self, status: TableStatus, bounds: tuple[int, int]) -> Iterator[SegmentEntry]:
        """Copy the segments of a range and yield the entries that the destination lists."""
        slices = (placed.cut(*bounds) for placed in status.segments(self._root, *bounds))
        copied = map_ahead(self._part, slices, threads=_SYNCED)
        with closing(copied):
            for epoch, part in copied:
                if isinstance(part, SegmentEntry):
                    yield part
                else:
                    yield from self._numbered(epoch, part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transfer.__exit__()

    def _part(self, slice_: PlacedSegment) -> tuple[int, SegmentEntry | tuple[SegmentEntry, ...]]:
        entry = slice_.entry
        try:
            whole = slice_.rows == (0, entry.rows)
            return entry.epoch, self._whole(slice_) if whole else self._edge(slice_)
        except MissingObjectError as error:
            raise SnapshotExpiredError(
                "a segment was deleted while it was copied",
                remedy="copy again: segments that were copied are kept",
                version=self._root.version,
            ) from error

    def _whole(self, slice_: PlacedSegment) -> SegmentEntry:
        entry, data = slice_.entry, b""
        if (frame := entry.frame) is not None:
            data, made = lay_out([stored_frame(entry, frame)])
            entry = made.numbered(entry.segment_id)
        prefix = f"{entry.segment_id:016x}-"
        for path in self._there.get(prefix, ()):
            if has_arrived(self._target, names.segment_object(path), entry):
                with self._counting:
                    self.reused += 1
                return replace(entry, path=path)
        # The name is unique to this attempt: no object that another one may commit is touched.
        form = find_format(entry.format, where=names.segment_object(entry.path))
        name = f"{prefix}{secrets.token_hex(6)}.{form.name}"
        path = names.build_segment_path(self._token, name)
        if frame is not None:
            place = names.segment_place(slice_.entry.path, self._root.version)
            check_frame(frame.data, crc=frame.crc, where=self._source.describe(place))
            self._target.create(names.segment_object(path), data)
        else:
            self._copy(path, slice_)
        return replace(entry, path=path)

    def _list(self) -> dict[str, list[str]]:
        """Return what earlier attempts left, whole or not, by the prefix of its segment."""
        found: dict[str, list[str]] = {}
        for info in self._target.list(f"{names.SEGMENTS_FOLDER}/{self._token}"):
            path = info.path.removeprefix(f"{names.SEGMENTS_FOLDER}/")
            found.setdefault(path.partition("/")[2][:17], []).append(path)
        return found

    def _copy(self, path: str, slice_: PlacedSegment) -> None:
        name = names.segment_object(path)
        source_name = names.segment_object(slice_.entry.path)
        if self._target.copy_from(self._source, source_name, name):
            with self._reading:
                sound = self._is_sound(path, slice_)
            if sound:
                return
            self._target.delete(name)  # damaged in the source, or on the way
        copied = CopiedObject(
            self._source, source_name, self._target, name, slice_.entry, others=self._mirrors
        )
        with self._reading:
            self._transfer.copy(copied)

    def _mirrors(self) -> Iterator[Storage]:
        mirrors = self._job.mirrors
        return iter(mirrors.folders(self._source) if mirrors else ())

    def _is_sound(self, path: str, slice_: PlacedSegment) -> bool:
        """Read back a copy that the store made, and check every byte against its checksum."""
        there, name = replace(slice_.entry, path=path), names.segment_object(path)
        where = self._target.describe(name)
        try:
            if self._target.info(name).size != there.bytes:
                return False
            # The frames, and the footer against the checksum in the table status.
            for _ in read_frames(self._target, replace(slice_, entry=there), where=where):
                pass
            form = find_format(there.format, where=where)
            form.check_head(self._target.get_range(name, 0, form.head_bytes), where=where)
        except FormatError:
            return False
        return True

    def _edge(self, slice_: PlacedSegment) -> tuple[SegmentEntry, ...]:
        epoch = slice_.entry.epoch
        target = self._job.target(epoch, self._token, storage=self._target)
        writer = TaskWriter(target, slice_.start + slice_.rows[0], secrets.token_hex(6))
        return writer.stage(events_of(self._job, epoch, [slice_])).segments

    def _numbered(self, epoch: int, staged: Sequence[SegmentEntry]) -> Iterator[SegmentEntry]:
        for segment in staged:
            yield segment.numbered(epoch << 32 | self.next_segment)
            self.next_segment += 1


@dataclass(frozen=True, slots=True)
class SegmentsCopy:
    """What all tasks of a copy by segments share; picklable."""

    job: CompactJob = field(repr=False)  # the source's folder, and the schemas of its epochs
    to: Destination  # the destination, with the source's version that is copied

    def spans(self) -> list[Range]:
        """Return the ranges of whole segments that tasks copy, in order."""
        root, spans, size = self.to.source, list[Range](), 0
        listed = [*TableStatus(self.job.storage).segments(root, root.listed_start, root.tail)]
        total = sum(placed.entry.bytes for placed in listed)
        task_bytes = max(TASK_BYTES, total // MOST_TASKS)
        for placed in listed:
            if spans and size < task_bytes:
                spans[-1] = (spans[-1][0], placed.end)
            else:
                spans.append((placed.start, placed.end))
                size = 0
            size += placed.entry.bytes
        return spans

    def run(self, rows: Iterable[Range]) -> Iterator[SegmentEntry]:
        """Copy the segments of ranges and yield what the destination is to list, in order.

        It is safe to repeat, and to run twice at once: what has arrived whole is reused.
        """
        status = TableStatus(self.job.storage)
        with self.copier() as copier:
            for span in rows:
                yield from copier.entries(status, span)

    def commit(
        self,
        entries: Sequence[SegmentEntry],
        bounds: Range | None = None,
        next_segment: int | None = None,
    ) -> Copied:
        """Create the destination's first root, which lists what was copied of a range, in order."""
        root, status = self.to.source, TableStatus(self.job.storage)
        bounds = bounds or (root.head, root.tail)
        return self.to.commit(
            tuple(entries),
            bounds,
            copied=bounds,
            mode=SEGMENTS,
            epochs=[(each.since, *status.schema_texts(each), each.names) for each in root.epochs],
            properties=inherited_properties(root),
            next_segment=next_segment or root.next_segment,
        )

    def copier(self) -> SegmentCopier:
        """Return what copies segments to the destination."""
        return SegmentCopier(self.job, self.to.storage, self.to.source, token=self.to.request.token)


@dataclass(frozen=True, slots=True)
class RowsOfSegments:
    """A copy of the segments that rows of the metadata table `segments` name; picklable."""

    copy: SegmentsCopy

    def run(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[PlacedSegment]:
        """Copy whole segments and yield what the destination is to list.

        Of each row the `start` and `segment_id` count. A segment that has arrived before is reused.
        """
        if self.copy.to.done is not None:
            return
        status = TableStatus(self.copy.job.storage)
        with self.copy.copier() as copier:
            for row in rows:
                placed = self._find(status, row["start"], row["segment_id"])
                for entry in copier.entries(status, (placed.start, placed.end)):
                    yield PlacedSegment(placed.start, entry)

    def commit(self, found: Sequence[PlacedSegment]) -> Copied:
        """Create the destination's first root, which lists the segments that tasks have copied."""
        to = self.copy.to
        if to.done is not None:
            return replace(to.done, repeated=True)
        # A duplicated row was copied once, or by two attempts; only one of them counts.
        by_start = {placed.start: placed for placed in found}
        ordered = [by_start[start] for start in sorted(by_start)]
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
        bounds = (max(ordered[0].start, to.source.head), ordered[-1].end)
        return self.copy.commit([placed.entry for placed in ordered], bounds)

    def discard(self, found: Sequence[PlacedSegment]) -> None:
        """Leave what was copied to the next attempt."""

    def _find(self, status: TableStatus, start: int, segment_id: int) -> PlacedSegment:
        source = self.copy.to.source
        inside = source.listed_start <= start < source.tail
        listed = [*status.segments(source, start, start + 1)] if inside else []
        if [(placed.start, placed.entry.segment_id) for placed in listed] != [(start, segment_id)]:
            raise ConflictError(
                "the source does not list this segment",
                remedy="read metadata=segments again, and write its rows unchanged",
                start=start,
                segment_id=segment_id,
                version=source.version,
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
    context: StreamContext, target: Storage, request: CopyRequest, *, progress: Progress = unheard
) -> Copied:
    """Copy a range of the version that `context` is at to a stream that does not exist yet."""
    copy = plan_copy_segments(context, target, request, client=context.client)
    if copy.to.done is not None:
        return copy.to.done
    bounds = request.bind(context, copy.to.source)
    with copy.copier() as work:
        entries, rows = list[SegmentEntry](), 0
        for entry in work.entries(context.status, bounds):
            entries.append(entry)
            rows += entry.rows
            progress(rows, bounds[1] - bounds[0])
    copied = copy.commit(entries, bounds, work.next_segment)
    return copied if copied.repeated else replace(copied, reused=work.reused)
