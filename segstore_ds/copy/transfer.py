"""Copies objects between two folders, several ranges of several objects at a time.

An object is cut into parts of one size. Several threads fetch parts and pass them to a scattered
write cache, which writes each one at its position, or as a numbered part of an upload. So memory is
bounded however large an object is. If the target takes an object only in order, its ranges are
still fetched ahead, and go through a dense write cache.

The object gets its name in one step, after every byte was verified: head, frames and footer of a
segment by their checksums, and by the cache that no byte is missing. A frame that spans parts is
verified by combining the checksums of its pieces, so nothing is read twice. A part that fails is
fetched once more, which repairs damage in transit, and then from mirrors, which repairs damage in
the source. A target that takes an object only in order has no second try. If a part fails in the
end, the error names it.

Source: the parallel transfers of object stores' own tools.
"""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Self

from segstore_ds.cache.buffer import BufferPool, Record
from segstore_ds.cache.counters import WRITTEN_HERE
from segstore_ds.cache.service import WriteCacheService
from segstore_ds.checksum import crc32
from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    InternalError,
    MissingObjectError,
    StorageError,
    TruncatedObjectError,
)
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import SegmentFormat, find_end, find_format, format_of
from segstore_ds.read.prefetch import map_ahead
from segstore_ds.status.store import is_whole, read_sound
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)

PART_BYTES = 8 << 20  # smaller parts cost more CPU; memory is about one part per request
REQUESTS = 10  # ranges at a time, over all objects
OBJECTS = 4  # objects at a time: one is synced while others are fetched
_ZEROS = bytes(PART_BYTES)
_LOOKS = 3  # at a footer that nothing describes: one answer may have a wrong bit

Range = tuple[int, int]


class Checks:
    """Verifies the records of one object, from ranges in any order; thread-safe."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._starts = [record.offset for record in records]
        self._pieces: list[dict[int, tuple[int, int]]] = [{} for _ in records]
        self._lock = threading.Lock()

    def add(self, start: int, data: memoryview) -> None:
        """Add the bytes of a range; they replace those added before."""
        end = start + data.nbytes
        place = max(bisect_right(self._starts, start) - 1, 0)
        for number in range(place, bisect_right(self._starts, end - 1)):
            record = self._records[number]
            first, last = max(start, record.offset), min(end, record.end)
            if first < last:
                crc = crc32(data[first - start : last - start])
                with self._lock:
                    self._pieces[number][first] = last - first, crc

    def failed(self) -> list[Record]:
        """Return the records whose bytes are missing or fail their checksum."""
        return [
            record
            for record, pieces in zip(self._records, self._pieces, strict=True)
            if _join(pieces) != (record.length, record.crc)
        ]


def _join(pieces: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return length and CRC-32 of pieces that follow each other.

    A CRC-32 is affine in its initial value, so a CRC-32 of zeros shows what that value contributes.
    """
    total, joined = 0, 0
    for start in sorted(pieces):
        length, crc = pieces[start]
        if total:
            zeros = memoryview(_ZEROS)[:length]
            crc ^= crc32(zeros, joined) ^ crc32(zeros)
        total, joined = total + length, crc
    return total, joined


@dataclass(frozen=True, slots=True)
class CopiedObject:
    """One object to copy.

    `entry` is that of a segment that the source lists, which is verified by it. Otherwise `size`
    saves a request, and a segment is verified by its own index if it has one, which is read twice.
    `others` finds folders with the same bytes under the same name; it is called if the source is
    damaged.
    """

    source: Storage
    name: str
    target: Storage
    to: str
    entry: SegmentEntry | None = None
    size: int | None = None
    others: Callable[[], Iterable[Storage]] = tuple

    @property
    def where(self) -> str:
        """The location of the source object, for errors."""
        return self.source.describe(self.name)


class Transfer:
    """The threads and buffers of a copy; several threads may use it, each for another object."""

    def __init__(self) -> None:
        self._requests = ThreadPoolExecutor(REQUESTS, thread_name_prefix="segstore-copy")
        self._pool = BufferPool(REQUESTS + 2 * OBJECTS, PART_BYTES)

    def copy(self, copied: CopiedObject) -> None:
        """Copy an object; it replaces an existing one after all bytes were verified.

        Raises:
            MissingObjectError: The source has no such object.
            CorruptionError: All copies of the object are damaged; nothing was created.
        """
        _Copy(copied, self._each, self._pool).run()

    def _each(self, work: Callable[[Range], None], ranges: Sequence[Range]) -> None:
        """Do the work for all ranges; after a failure start no more, and raise it."""
        errors: list[BaseException] = []

        def run(range_: Range) -> None:
            if not errors:
                try:
                    work(range_)
                except BaseException as error:
                    errors.append(error)
                    raise

        if len(ranges) == 1:
            work(ranges[0])
            return
        try:
            futures = [self._requests.submit(run, range_) for range_ in ranges]
        except RuntimeError:  # no thread can start while the process ends
            for range_ in ranges:
                work(range_)
            return
        try:
            wait(futures)
        except BaseException as error:
            errors.append(error)
            wait(futures)
            raise
        # Raise the cause: after it, the write cache gives an InternalError to the other writers.
        for failure in sorted(errors, key=lambda error: isinstance(error, InternalError)):
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.shutdown()


def copy_small(source: Storage, target: Storage, path: str) -> None:
    """Copy a status object, or its twin if it is damaged; replace only a damaged target."""
    data = read_sound(source, path)
    if not target.create(path, data) and not is_whole(path, target.get(path)):
        target.put(path, data)


def copy_objects(objects: Iterable[CopiedObject], *, skip_damaged: bool = False) -> Iterator[str]:
    """Copy objects of any size, several at a time; yield their names in order.

    An existing object is replaced after all bytes have arrived. Objects with an `entry` are
    verified, so the store does not copy them itself. With `skip_damaged` an object that is damaged
    or gone is skipped with a warning.
    """
    with Transfer() as transfer:

        def copy(copied: CopiedObject) -> str:
            source, name, to = copied.source, copied.name, copied.to
            try:
                if copied.entry or not copied.target.copy_from(source, name, to, replace=True):
                    transfer.copy(copied)
            except FormatError as error:
                if not skip_damaged:
                    raise
                _LOG.warning("%s is not copied: %s", copied.where, error)
            return to

        with closing(map_ahead(copy, iter(objects), threads=OBJECTS)) as names:
            yield from names


class _Copy:
    """The copy of one object."""

    def __init__(
        self,
        copied: CopiedObject,
        each: Callable[[Callable[[Range], None], Sequence[Range]], None],
        pool: BufferPool,
    ) -> None:
        self._copied, self._each, self._pool = copied, each, pool
        size = copied.size if copied.entry is None else copied.entry.bytes
        self._size = copied.source.info(copied.name).size if size is None else size
        self._form = _find_form(copied)
        self._end_start, self._end, self._checks = self._open()

    def run(self) -> None:
        """Copy the object, in parts or, if the target takes none, in order."""
        target, to = self._copied.target, self._copied.to
        parts = target.open_scattered(to, self._size, PART_BYTES)
        writer = parts or target.open_staged(to, replace=True)
        pool = self._pool if parts else BufferPool(OBJECTS, PART_BYTES)
        with WriteCacheService(writer, pool, size=self._size if parts else None) as out:
            if parts:
                self._write_parts(out)
            else:
                ranges = map_ahead(
                    self._fetch,
                    cut(0, self._end_start),
                    threads=OBJECTS,
                    weigh=lambda _: PART_BYTES,
                    most_bytes=OBJECTS * PART_BYTES,
                )
                with closing(ranges):
                    for data in chain(ranges, starmap(self._take_end, self._end_parts())):
                        out.write(data, frozen=True)
            for record in self._checks.failed():
                raise CorruptionError(
                    "a frame fails its checksum",
                    where=f"{self._copied.where}[{record.offset}:{record.end}]",
                    expected=record.crc,
                )
            out.commit()
            WRITTEN_HERE.add(target.url, out.counters)

    def _write_parts(self, out: WriteCacheService) -> None:
        def land(range_: Range) -> None:
            out.write(self._fetch(range_), at=range_[0], frozen=True)

        for start, end in self._end_parts():
            out.write(self._take_end(start, end), at=start, frozen=True)
        self._each(land, [*cut(0, self._end_start)])
        self._fetch_again(out, land)

    def _fetch_again(self, out: WriteCacheService, land: Callable[[Range], None]) -> None:
        """Fetch the parts that fail again: from the source, then from the others."""
        if wrong := self._wrong_parts():
            self._each(land, wrong)
        for other in self._copied.others() if self._wrong_parts() else ():
            if not (wrong := self._wrong_parts()):
                return
            for range_ in wrong:
                self._fetch_elsewhere(other, range_, out)
            if not self._wrong_parts():
                where = self._copied.where
                _LOG.warning("%s is damaged; parts of its copy are from %s", where, other.url)

    def _fetch_elsewhere(self, other: Storage, range_: Range, out: WriteCacheService) -> None:
        try:
            data = memoryview(other.get_range(self._copied.name, *range_))
            self._check(range_[0], data)
        except (FormatError, StorageError) as error:
            _LOG.warning("%s has no intact copy of %s: %s", other.url, self._copied.where, error)
            return
        out.write(data, at=range_[0], frozen=True)

    def _wrong_parts(self) -> list[Range]:
        wrong = self._checks.failed()
        return sorted({part for record in wrong for part in self._parts_of(record)})

    def _end_parts(self) -> Iterator[Range]:
        return cut(self._end_start, self._size)

    def _fetch(self, range_: Range) -> memoryview:
        data = memoryview(self._copied.source.get_range(self._copied.name, *range_))
        self._check(range_[0], data)
        return data

    def _take_end(self, start: int, end: int) -> memoryview:
        data = self._end[start - self._end_start : end - self._end_start]
        self._check(start, data)
        return data

    def _check(self, start: int, data: memoryview) -> None:
        if start == 0 and self._form is not None:
            head = bytes(data[: self._form.head_bytes])
            self._form.check_head(head, where=self._copied.where)
        self._checks.add(start, data)

    def _parts_of(self, record: Record) -> Iterator[Range]:
        first = record.offset // PART_BYTES * PART_BYTES
        return cut(first, min(-(-record.end // PART_BYTES) * PART_BYTES, self._size))

    def _open(self) -> tuple[int, memoryview, Checks]:
        """Return where the end begins, its bytes, and the checks that its index allows."""
        failed: FormatError | None = None
        own = self._copied.source
        # What nothing else describes is read again where two reads of its index differ.
        tries = 1 if self._copied.entry is not None else _LOOKS
        for source in chain((own,) * tries, self._copied.others()):
            try:
                start, end = self._fetch_end(source)
                return start, end, Checks(self._records(source, bytes(end)))
            except FormatError as error:
                failed = failed or error
            except StorageError:
                if source is own:
                    raise
        raise failed or InternalError("no source of an object to copy", where=self._copied.where)

    def _fetch_end(self, source: Storage) -> tuple[int, memoryview]:
        """Fetch the footer, which has the checksums; a small object is fetched whole."""
        name = self._copied.name

        def fetch_last(count: int) -> bytes:
            return bytes(source.get_range(name, self._size - count, self._size))

        entry = self._copied.entry
        if self._size <= PART_BYTES:
            length = self._size
        elif entry is not None:
            length = entry.footer_bytes
        elif self._form is not None:
            length = find_end(self._form, fetch_last, object_bytes=self._size)
        else:
            length = 0
        start = max(self._size - length, 0)
        return start, memoryview(source.get_range(name, start, self._size) if length else b"")

    def _records(self, source: Storage, end: bytes) -> list[Record]:
        """Return the records to verify: a segment's frames and its footer."""
        if self._form is None:
            return []
        entry = self._copied.entry
        length = (
            entry.footer_bytes
            if entry
            else find_end(self._form, lambda count: end[-count:], object_bytes=self._size)
        )
        tail = end[max(len(end) - length, 0) :]
        crc = crc32(tail) if entry is None else entry.footer_crc
        place = self._size - len(tail), self._size
        if entry is None and tail != bytes(source.get_range(self._copied.name, *place)):
            raise CorruptionError("two reads of a footer differ", where=self._copied.where)
        try:
            index = self._form.parse_index(
                tail, object_bytes=self._size, where=self._copied.where, footer_crc=crc
            )
        except FormatError:
            if entry is not None:
                raise
            # No commit lists it: an interrupted write left it, so there is nothing to verify by.
            self._form = None
            return []
        frames = [Record(frame.start, frame.bytes, frame.crc) for frame in index.frames]
        return [*frames, Record(self._size - len(tail), len(tail), crc)]


def has_arrived(target: Storage, name: str, entry: SegmentEntry) -> bool:
    """Tell whether an object is a complete segment, by the footer at its end; make it durable."""
    try:
        end = target.get_range(name, entry.bytes - entry.footer_bytes, entry.bytes)
    except (MissingObjectError, TruncatedObjectError):
        return False
    if crc32(end) != entry.footer_crc:
        return False
    target.sync(name)
    return True


def cut(start: int, end: int) -> Iterator[Range]:
    """Cut a range at the boundaries of parts.

    >>> [*cut(3, 2 * PART_BYTES + 1)] == [
    ...     (3, PART_BYTES), (PART_BYTES, 2 * PART_BYTES), (2 * PART_BYTES, 2 * PART_BYTES + 1)
    ... ]
    True
    """
    while start < end:
        border = min((start // PART_BYTES + 1) * PART_BYTES, end)
        yield start, border
        start = border


def _find_form(copied: CopiedObject) -> SegmentFormat | None:
    if copied.entry is not None:
        return find_format(copied.entry.format, where=copied.where)
    return format_of(copied.name)
