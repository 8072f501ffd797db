"""Copying a range of a stream to a new stream, by its segment objects, in one commit.

Ids, epochs and offsets are invariants between the two: segments are copied byte for byte under new
names, every frame checked on the way. Where a cut lies within a segment, that one segment is
written anew and gets a number of its own. Writers and reader positions are not copied.

Guarantees: there is no stream at the destination before everything is there; its first commit holds
all of it. Interrupted anywhere and run again, it goes on with what has not arrived whole. Run again
when done, it does nothing and says so. What is appended to the source meanwhile is not part of it.

Source: the second approach of Pravega's copyStream.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from segstore_ds.cache.service import WriteCacheService
from segstore_ds.engine.clock import Clock
from segstore_ds.engine.commit import StreamLog
from segstore_ds.engine.compact import CompactJob, events_of, plan_job
from segstore_ds.engine.compact_plan import CompactRules
from segstore_ds.engine.history import NO_NOTE, describe_commit
from segstore_ds.engine.scan import read_frames
from segstore_ds.engine.scan_plan import plan_slices
from segstore_ds.engine.segment_stager import open_pool
from segstore_ds.engine.slices import Slice
from segstore_ds.engine.staging import Layout, TaskStager
from segstore_ds.engine.state import Slot, broken_invariants
from segstore_ds.engine.table_status import PlacedSegment, TableStatus
from segstore_ds.errors import (
    AlreadyExistsError,
    CorruptionError,
    InternalError,
    InvalidInputError,
    MissingObjectError,
    SnapshotExpiredError,
)
from segstore_ds.format import names
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.fields import build_json
from segstore_ds.format.root import Epoch, Root, SegmentEntry, add_features, add_format_features
from segstore_ds.format.schema import decode_schema
from segstore_ds.format.segment import find_format
from segstore_ds.storage import Storage

_COPY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What a caller asks to copy.

    Attributes:
        copy_id: Names the copy: the same one again goes on, or does nothing.
        start: Where it begins, as given; part of what the id stands for.
        end: Where it ends, as given.
        seal: The destination ends with the last event.
        mode: ``segments``, ``events``, ``rows`` (of a job, made of the events) or ``clone``.
    """

    copy_id: str
    start: str
    end: str
    seal: bool = False
    mode: str = "segments"

    def __post_init__(self) -> None:
        """Check the id.

        Raises:
            InvalidInputError: It is no plain name.
        """
        if _COPY_ID.fullmatch(self.copy_id) is None:
            raise InvalidInputError(
                "not a copy id", remedy="use letters, digits and dashes", copy_id=self.copy_id
            )

    @property
    def token(self) -> str:
        """Name of the folder that the copied objects lie in."""
        return names.build_copy_token(self.copy_id)

    def digest(self, source: Root) -> str:
        """Return what tells this request from another one under the same id."""
        given = [source.stream_id, source.generation, self.start, self.end, self.seal, self.mode]
        return digest_of(build_json(given))


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did: the destination holds the source's events ``[start, end)``, or a job's rows.

    `repeated` says that it had been done before; `reused` how many segments had arrived whole.
    """

    start: int
    end: int
    segments: int
    bytes: int
    reused: int = 0
    repeated: bool = False


def run_copy(
    source: StreamLog,
    status: TableStatus,
    target: Storage,
    request: CopyRequest,
    bounds: tuple[int, int],
    *,
    client: str,
    clock: Clock,
) -> Copied:
    """Copy a range to a stream that does not exist yet.

    Args:
        source: The source's log; what it stands on is what is copied.
        status: The source's table status.
        target: The destination's folder.
        request: What was asked.
        bounds: ``(start, end)`` offsets, checked against the source's root.
        client: Who copies.
        clock: Time and ids.

    Raises:
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The destination is the source, or the id stands for another copy.
        SnapshotExpiredError: A segment was deleted while it was copied: copy again.
        FormatError: Metadata or a segment can't be read; names object and frame.
        CommitUnknownError: The storage never said whether the destination was created.
        UnsafeFilesystemError: The destination can't create exclusively.
        StorageError: A storage failed.
    """
    root = source.root
    check_target(source.storage, target)
    log = StreamLog(target, clock=clock)
    done = find_done(log, request, root)
    if done is not None:
        return done
    job = plan_job(source.storage, status, root, CompactRules(), Layout(inline_bytes=0))
    work = SegmentCopier(job, target, root, token=request.token, clock=clock)
    entries = tuple(work.entries(status, bounds))
    copied = commit_copy(
        log,
        root,
        status,
        request,
        entries,
        bounds=bounds,
        next_segment=work.next_segment,
        client=client,
    )
    return copied if copied.repeated else replace(copied, reused=work.reused)


def check_target(source: Storage, target: Storage) -> None:
    """Check that a stream may be made at the destination.

    Raises:
        InvalidInputError: It is the source.
        UnsafeFilesystemError: It can't create exclusively.
        StorageError: It failed.
    """
    if target.url == source.url:
        raise InvalidInputError("a stream can't be copied onto itself", url=target.url)
    target.ensure_exclusive()


def commit_copy(
    log: StreamLog,
    source: Root,
    source_status: TableStatus,
    request: CopyRequest,
    entries: tuple[SegmentEntry, ...],
    *,
    bounds: tuple[int, int],
    next_segment: int,
    client: str,
) -> Copied:
    """Create the destination's first root, which lists everything that was copied.

    Returns:
        What was copied; `repeated` where another runner of the same copy was first.

    Raises:
        AlreadyExistsError: Another stream was made there meanwhile.
        CommitUnknownError: The storage never said whether it was created.
        FormatError: Metadata can't be read.
        StorageError: A storage failed.
    """
    first = _first_root(
        log.storage,
        source,
        source_status,
        entries,
        bounds=bounds,
        clock=log.clock,
        client=client,
    )
    copied = Copied(*bounds, len(entries), sum(one.bytes for one in entries))
    first = replace(
        first,
        sealed=request.seal,
        next_segment=next_segment,
        copies={request.copy_id: _record(request, source, copied)},
    )
    broken = [*broken_invariants(first)]
    if broken:
        raise InternalError("copy would break the stream", rules=broken)
    if not log.create(first):
        done = find_done(log, request, source)
        if done is None:
            raise InternalError("a stream that exists can't be found", url=log.storage.url)
        return done
    return copied


def _record(request: CopyRequest, source: Root, copied: Copied) -> dict[str, Any]:
    return {
        "source": source.stream_id,
        "generation": source.generation,
        "version": source.version,
        "mode": "segments",
        "start": copied.start,
        "end": copied.end,
        "segments": copied.segments,
        "bytes": copied.bytes,
        "digest": request.digest(source),
        "done": True,
    }


def find_done(log: StreamLog, request: CopyRequest, source: Root) -> Copied | None:
    """Return what an earlier call has done; None where there is no stream at the destination.

    Raises:
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The id stands for another copy.
        FormatError: The stream there can't be read.
        StorageError: The storage failed.
    """
    if log.files.newest_listed() is None:
        return None
    known = log.open().copies.get(request.copy_id)
    if known is None:
        raise AlreadyExistsError(
            "there is a stream already",
            remedy="copy to a location without one",
            url=log.storage.url,
        )
    try:
        same = known["digest"] == request.digest(source)
        done = Copied(
            known["start"], known["end"], known["segments"], known["bytes"], repeated=True
        )
    except (KeyError, TypeError) as error:
        raise CorruptionError("record of a copy can't be read", where=log.storage.url) from error
    if not same:
        raise InvalidInputError(
            "the copy id stands for another copy",
            remedy="repeat it with the arguments it was begun with, or take another id",
            copy_id=request.copy_id,
            url=log.storage.url,
        )
    return done


def _first_root(
    target: Storage,
    source: Root,
    source_status: TableStatus,
    entries: tuple[SegmentEntry, ...],
    *,
    bounds: tuple[int, int],
    clock: Clock,
    client: str,
) -> Root:
    status = TableStatus(target)
    epochs: tuple[Epoch, ...] = ()
    for epoch in source.epochs:
        texts = source_status.schema_texts(epoch)
        made = status.put_epoch(0, epoch.number, epoch.since, *texts, beside=epochs)
        epochs = (*epochs, made)
    root = Root(
        stream_id=clock.new_id(),
        version=0,
        transaction=clock.new_id(),
        parent="",
        time_us=clock.wall_us(),
        operation="copy",
        client=client,
        epochs=epochs,
        head=bounds[0],
        tail=bounds[1],
        entries=entries,
    )
    row = replace(describe_commit(None, root, NO_NOTE), segments=len(entries))
    root = add_format_features(replace(root, history=(row,)), {one.format for one in entries})
    return status.tidy(add_features(root), Slot(0, root.time_us, 0))


def _check_end(end: bytes, entry: SegmentEntry, where: str) -> None:
    if zlib.crc32(end) != entry.footer_crc:
        raise CorruptionError("a segment is not the one that was committed", where=where)


class SegmentCopier:
    """One copy on its way: which segments are there, and the numbers of those written anew."""

    def __init__(
        self, job: CompactJob, target: Storage, root: Root, *, token: str, clock: Clock
    ) -> None:
        self._source, self._target, self._root = job.storage, target, root
        self._job, self._token, self._clock = job, token, clock
        self.next_segment = root.next_segment
        self.reused = 0
        self._pool = open_pool(
            target, buffers=job.layout.cache_buffers, buffer_bytes=job.layout.cache_buffer_bytes
        )
        self._there = self._list()

    def entries(self, status: TableStatus, bounds: tuple[int, int]) -> Iterator[SegmentEntry]:
        """Copy what holds events of the range and yield what the destination lists of it."""
        for placed in status.segments(self._root, *bounds):
            (one,) = plan_slices([placed], *bounds)
            try:
                if one.rows == (0, placed.entry.rows):
                    yield self._whole(placed, one)
                else:
                    yield from self._edge(one)
            except MissingObjectError as error:
                raise self._expired() from error

    def copy(self, placed: PlacedSegment) -> SegmentEntry:
        """Copy a whole segment, and return what the destination lists; raises as `entries`."""
        try:
            return self._whole(placed, *plan_slices([placed], placed.start, placed.end))
        except MissingObjectError as error:
            raise self._expired() from error

    def _expired(self) -> SnapshotExpiredError:
        return SnapshotExpiredError(
            "a segment was deleted while it was copied",
            remedy="copy again: what has arrived is kept",
            version=self._root.version,
        )

    def _whole(self, placed: PlacedSegment, one: Slice) -> SegmentEntry:
        entry = placed.entry
        prefix = f"{entry.segment_id:016x}-"
        for path in self._there.get(prefix, ()):
            if self._arrived(path, entry):
                self.reused += 1
                return replace(entry, path=path)
        # A name that no other attempt has: nothing that another one may commit is ever touched.
        form = find_format(entry.format, where=names.segment_object(entry.path))
        name = f"{prefix}{self._clock.new_id()[:12]}{form.ending}"
        path = names.build_segment_path(self._token, name)
        self._copy(names.segment_object(path), entry, one)
        return replace(entry, path=path)

    def _list(self) -> dict[str, list[str]]:
        """Return what earlier attempts left, whole or not, by the segment that it is of."""
        found: dict[str, list[str]] = {}
        for info in self._target.list(f"{names.SEGMENTS_FOLDER}/{self._token}"):
            path = info.path.removeprefix(f"{names.SEGMENTS_FOLDER}/")
            found.setdefault(path.partition("/")[2][:17], []).append(path)
        return found

    def _arrived(self, path: str, entry: SegmentEntry) -> bool:
        """Tell whether a segment is there: its end is written last, and made durable with it."""
        name = names.segment_object(path)
        try:
            size = self._target.info(name).size
            if size != entry.bytes:
                return False
            end = self._target.get_range(name, size - entry.footer_bytes, size)
        except MissingObjectError:
            return False
        return zlib.crc32(end) == entry.footer_crc

    def _copy(self, name: str, entry: SegmentEntry, one: Slice) -> None:
        source = names.segment_object(entry.path)
        where = f"{self._source.url}/{source}"
        form = find_format(entry.format, where=where)
        # Through the write cache: the next frames are read while full buffers are written.
        with WriteCacheService(self._target.open_staged(name), self._pool) as out:
            header = self._source.get_range(source, 0, form.head_bytes)
            form.check_head(header, where=where)
            out.write(header)
            for frame, data in read_frames(self._source, one):
                actual = zlib.crc32(data)
                if actual != frame.crc:
                    raise CorruptionError(
                        "a frame fails its checksum",
                        where=f"{where}[{frame.start}:{frame.end}]",
                        expected=frame.crc,
                        actual=actual,
                    )
                out.write(data, frame.crc, frozen=True)
            # `read_frames` has held it against the checksum in the table status.
            out.write(self._source.get_range(source, entry.bytes - entry.footer_bytes, entry.bytes))
            out.commit()

    def _edge(self, one: Slice) -> Iterator[SegmentEntry]:
        schema = decode_schema(self._job.epochs[one.epoch])
        stager = TaskStager(
            self._target,
            schema,
            self._job.layout,
            token=self._token,
            task=one.start + one.rows[0],
            attempt=self._clock.new_id()[:12],
        )
        try:
            for batch in events_of(self._job, schema, [one]):
                stager.append(batch)
            staged = stager.finish().segments
        except BaseException:
            stager.abort()
            raise
        for segment in staged:
            yield SegmentEntry(
                segment_id=one.epoch << 32 | self.next_segment,
                path=segment.path,
                rows=segment.rows,
                bytes=segment.bytes,
                footer_bytes=segment.footer_bytes,
                footer_crc=segment.footer_crc,
                format=segment.format,
                stats=segment.stats,
            )
            self.next_segment += 1
