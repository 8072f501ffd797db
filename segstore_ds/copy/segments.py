"""Copies a range of a stream to a new stream, by its segment objects, as one commit.

Ids, epochs and offsets are the same in both streams: segments are copied byte for byte under new
names, and every frame is checked on the way. If a cut lies within a segment, that segment is
rewritten and gets a number of its own. Writers and reader positions are not copied.

Guarantees: there is no stream at the destination before all segments are there; its first root
lists all of them. If interrupted at any point and run again, the copy continues with the segments
that are not complete. Run again when done, it changes nothing and reports `repeated`. Events that
are appended to the source meanwhile are not part of the copy.

Several objects are copied at a time. If both folders are in one store, the store copies the object
itself and the copy is read back. Otherwise ranges are fetched and written concurrently, and an
object gets its name after all its bytes were checked.

The rows of a `SegmentsCopy` are ranges of offsets, whose segments are looked up in the version that
was planned on. If the rows come from an engine's table, only their offset and id are used.

Source: the second approach of Pravega's copyStream.
"""

import secrets
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

from segstore_ds.compact.rewrite import CompactJob, events_of, plan_job
from segstore_ds.copy.destination import (
    Copied,
    CopyRequest,
    Destination,
    bytes_of,
    open_destination,
)
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
from segstore_ds.format.inline import lay_out, stored_frame
from segstore_ds.format.properties import inherited_properties
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.format.segment import find_format
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.read.decode import read_frames
from segstore_ds.read.prefetch import map_ahead
from segstore_ds.read.scan import is_listed
from segstore_ds.status.table_status import Slice, TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout
from segstore_ds.write.task_writer import TaskWriter

TASK_BYTES = 32 << 20  # least encoded bytes of a row
MOST_TASKS = 256
_THREADS = 8  # objects at a time; only `OBJECTS` of them are transferred, the others wait for syncs


@dataclass(frozen=True, slots=True)
class CopiedSegment:
    """What the destination lists for the events ``[start, end)`` of a segment."""

    start: int
    end: int
    entries: tuple[SegmentEntry, ...]
    reused: bool = False  # an earlier attempt had completed it
    epoch: int | None = None  # the epoch of rewritten entries, which have no numbers yet


def list_copied(
    copied: Iterable[CopiedSegment], root: Root
) -> tuple[tuple[SegmentEntry, ...], int]:
    """Return the entries that the destination lists, and the number of its next segment. Pure."""
    entries, number = list[SegmentEntry](), root.next_segment
    for each in copied:
        if each.epoch is None:
            entries += each.entries
            continue
        for entry in each.entries:
            entries.append(entry.numbered(each.epoch << 32 | number))
            number += 1
    return tuple(entries), number


class SegmentCopier:
    """Copies segments of one version; as a context manager it ends its threads."""

    def __init__(self, job: CompactJob, target: Storage, root: Root, *, token: str) -> None:
        self._source, self._target, self._root = job.storage, target, root
        self._job, self._token = job, token
        self._transfer = Transfer()
        self._reading = threading.Semaphore(OBJECTS)  # bounds memory
        self._there = self._list()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transfer.__exit__()

    def copy(self, slice_: Slice) -> CopiedSegment:
        """Copy the events of a slice: the object as it is, or the rows within the range."""
        try:
            whole = slice_.rows == (0, slice_.entry.rows)
            return self._whole(slice_) if whole else self._edge(slice_)
        except MissingObjectError as error:
            if is_listed(self._source, self._job.stream_id, slice_):
                raise  # it is lost: another copy would not find it either
            raise SnapshotExpiredError(
                "a segment was deleted while it was copied",
                remedy="copy again: segments that were copied are kept",
                version=self._root.version,
            ) from error

    def _whole(self, slice_: Slice) -> CopiedSegment:
        entry, data = slice_.entry, b""
        if (frame := entry.frame) is not None:
            data, made = lay_out([stored_frame(entry, frame)])
            entry = made.numbered(entry.segment_id)
        prefix = f"{entry.segment_id:016x}-"
        for path in self._there.get(prefix, ()):
            if has_arrived(self._target, names.segment_object(path), entry):
                there = replace(entry, path=path)
                return CopiedSegment(slice_.start, slice_.end, (there,), reused=True)
        # The name is unique to this attempt, which so never touches objects of another one.
        form = find_format(entry.format, where=names.segment_object(entry.path))
        name = f"{prefix}{secrets.token_hex(6)}.{form.name}"
        path = names.build_segment_path(self._token, name)
        if frame is not None:
            place = names.segment_place(slice_.entry.path, self._root.version)
            check_frame(frame.data, crc=frame.crc, where=self._source.describe(place))
            self._target.create(names.segment_object(path), data)
        else:
            self._copy(path, slice_)
        return CopiedSegment(slice_.start, slice_.end, (replace(entry, path=path),))

    def _list(self) -> dict[str, list[str]]:
        """Return the objects that earlier attempts left, complete or not, by segment prefix."""
        found: dict[str, list[str]] = {}
        for info in self._target.list(f"{names.SEGMENTS_FOLDER}/{self._token}"):
            path = info.path.removeprefix(f"{names.SEGMENTS_FOLDER}/")
            found.setdefault(path.partition("/")[2][:17], []).append(path)
        return found

    def _copy(self, path: str, slice_: Slice) -> None:
        name = names.segment_object(path)
        source_name = names.segment_object(slice_.entry.path)
        if self._target.copy_from(self._source, source_name, name):
            with self._reading:
                there = replace(slice_.entry, path=path)
                sound = is_sound(self._target, replace(slice_, entry=there))
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

    def _edge(self, slice_: Slice) -> CopiedSegment:
        epoch, (first, last) = slice_.entry.epoch, slice_.rows
        target = self._job.target(epoch, self._token, storage=self._target)
        writer = TaskWriter(target, slice_.start + first, secrets.token_hex(6))
        made = writer.stage(events_of(self._job, epoch, [slice_])).segments
        return CopiedSegment(slice_.start + first, slice_.start + last, made, epoch=epoch)


def is_sound(storage: Storage, slice_: Slice) -> bool:
    """Read back a copy that the store made, and check every byte by checksum."""
    entry, name = slice_.entry, names.segment_object(slice_.entry.path)
    where = storage.describe(name)
    try:
        if storage.info(name).size != entry.bytes:
            return False
        # The frames, and the footer against the checksum in the table status.
        for _ in read_frames(storage, slice_, where=where):
            pass
        form = find_format(entry.format, where=where)
        form.check_head(storage.get_range(name, 0, form.head_bytes), where=where)
    except FormatError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SegmentsCopy:
    """What all rows of a copy by segments share; picklable."""

    job: CompactJob = field(repr=False)  # the source's folder, and the schemas of its epochs
    to: Destination  # the destination, with the source's version that is copied
    bounds: Range | None  # the offsets to copy; None if rows name the segments

    def rows(self, status: TableStatus) -> list[Range]:
        """Return the bounds in ranges that end where segments end, in order."""
        found, size, (start, end) = list[Range](), 0, self.bounds or (0, 0)
        runs = [*status.runs(self.to.source, start, end)]
        total = sum(int(run.columns.bytes.sum()) for run in runs)
        for run in runs:
            columns = run.columns
            for first, rows, held in zip(run.starts, columns.rows, columns.bytes, strict=True):
                last = min(int(first + rows), end)
                if found and size < max(TASK_BYTES, total // MOST_TASKS):
                    found[-1] = (found[-1][0], last)
                else:
                    found.append((max(int(first), start), last))
                    size = 0
                size += int(held)
        return found

    def take(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Range]:
        """Yield the range of each row of the table `segments`, by `start` and `segment_id`."""
        status, source = TableStatus(self.job.storage), self.to.source
        for row in rows if self.to.done is None else ():
            start, segment_id = row["start"], row["segment_id"]
            inside = source.listed_start <= start < source.tail
            found = [*status.segments(source, start, start + 1)] if inside else []
            if [(each.start, each.entry.segment_id) for each in found] != [(start, segment_id)]:
                raise ConflictError(
                    "the source does not list this segment",
                    remedy="read metadata=segments again, and write its rows unchanged",
                    start=start,
                    segment_id=segment_id,
                    version=source.version,
                )
            yield start, found[0].end

    def run(self, rows: Iterable[Range]) -> Generator[CopiedSegment, None, None]:
        """Copy the segments of ranges, several at once; complete copies are reused."""
        status, root = TableStatus(self.job.storage), self.to.source
        slices = (placed.cut(*span) for span in rows for placed in status.segments(root, *span))
        token = self.to.request.token
        with SegmentCopier(self.job, self.to.storage, root, token=token) as copier:
            copied = map_ahead(copier.copy, slices, threads=_THREADS)
            with closing(copied):
                yield from copied

    def size(self, rows: Iterable[Range]) -> int:
        """Return the encoded bytes of the segments in some ranges."""
        return bytes_of(TableStatus(self.job.storage), self.to.source, rows)

    def discard(self, copied: Iterable[CopiedSegment]) -> None:
        """Keep what was copied: the next attempt reuses it."""

    def commit(self, copied: Iterable[CopiedSegment]) -> Copied:
        """Create the destination's first root, which lists what was copied, in order."""
        to, root, status = self.to, self.to.source, TableStatus(self.job.storage)
        if to.done is not None:
            return replace(to.done, repeated=True)
        # Two attempts may have copied a row, or a duplicate of it: one result of each counts.
        by_start = {each.start: each for each in copied}
        ordered = [by_start[start] for start in sorted(by_start)]
        if not ordered and self.bounds is None:
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
        bounds = self.bounds or (max(ordered[0].start, root.head), ordered[-1].end)
        entries, next_segment = list_copied(ordered, root)
        done = to.commit(
            entries,
            bounds,
            copied=bounds,
            mode=SEGMENTS,
            epochs=[(each.since, *status.schema_texts(each), each.names) for each in root.epochs],
            properties=inherited_properties(root),
            next_segment=next_segment,
        )
        reused = sum(each.reused for each in ordered)
        return done if done.repeated else replace(done, reused=reused)


def plan_copy_segments(
    context: StreamContext, target: Storage, request: CopyRequest, *, whole: bool = False
) -> SegmentsCopy:
    """Plan the version that is copied and, unless rows name `whole` segments, the range."""
    to = open_destination(context, target, request)
    job = plan_job(context, to.source, Layout(inline_bytes=0))
    return SegmentsCopy(job, to, None if whole or to.done else request.bind(context, to.source))


def run_copy(
    context: StreamContext, target: Storage, request: CopyRequest, *, progress: Progress = unheard
) -> Copied:
    """Copy a range to a new stream, or continue a copy that was begun."""
    context.log.refresh()
    copy = plan_copy_segments(context, target, request)
    if copy.bounds is None:
        return copy.commit(())
    start, end = copy.bounds
    copied = list[CopiedSegment]()
    with closing(context.launch(copy, copy.rows(context.status))) as found:
        for each in found:
            copied.append(each)
            progress(each.end - start, end - start)
    return copy.commit(copied)
