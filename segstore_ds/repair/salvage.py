"""Salvage: copies the readable events of a damaged stream into a new one. It never changes the old.

Every byte is checked as in a scan. If some events of the newest version can't be read, salvage
reads what other kept versions list for the same offsets: the segments of a lost part, segments that
a compaction replaced, and inline events in commit files. Remaining damage is an error that names
the place, unless the caller asks to skip it. Then every skipped range is reported with its old
offsets.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.parquet.segment import ParquetIndex
from segstore_ds.format.redactions import clean_since
from segstore_ds.format.root import Epoch, PartRef, Root
from segstore_ds.format.schema.codec import fingerprint
from segstore_ds.format.schema.column_names import named_schema
from segstore_ds.format.schema.conversion import lift
from segstore_ds.log.context import StreamContext
from segstore_ds.read.segments import OpenSegment, open_segment
from segstore_ds.repair.witnesses import KeptVersions
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.table_status import Slice


@dataclass(frozen=True, slots=True)
class Lost:
    """Events that could not be read: their offsets, the object, and what is wrong with it."""

    start: int
    end: int
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Events that were copied: their old offsets, and the offset where they begin now."""

    start: int
    end: int
    now: int


@dataclass(slots=True)
class SalvageReport:
    """What `salvage` copied.

    Attributes:
        url: The new stream.
        version: The version of the damaged stream that was read.
        lost_versions: Newer versions of it that can't be read.
        moved: Runs of events that were copied, in offset order.
        lost: What was skipped, in offset order.
    """

    url: str = ""
    version: int = 0
    lost_versions: range = range(0)
    moved: list[Moved] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many events were copied."""
        return sum(run.end - run.start for run in self.moved)


class Salvager:
    """Reads the readable events of one version.

    It fills `report` while the caller takes batches. With `skip_damaged` it reports unreadable
    events instead of raising.
    """

    def __init__(
        self, context: StreamContext, root: Root, *, skip_damaged: bool, report: SalvageReport
    ) -> None:
        self._context = context
        self._root = root
        self._skip = skip_damaged
        self._report = report
        self._kept = KeptVersions(context, root)
        self._stored = self._schema(root.epoch)
        self.schema = named_schema(self._stored, root.epoch.names)

    @property
    def spark(self) -> str | None:
        """Spark's JSON of the newest schema; None if there is none or it can't be read."""
        try:
            return self._context.status.schema_texts(self._root.epoch)[1]
        except FormatError:
            return None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the readable events, in offset order, in the newest schema.

        An empty batch comes first, so that the schema is known even without events.
        """
        root = self._root
        yield pa.RecordBatch.from_pylist([], self.schema)
        for start, batch in self._rows():
            hidden = max(root.head - start, 0)
            kept = batch.slice(hidden)
            if kept.num_rows:
                self._note(start + hidden, kept.num_rows)
                lifted = lift(kept, self._stored)
                yield pa.RecordBatch.from_arrays(lifted.columns, schema=self.schema)

    def _rows(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        root = self._root
        for index in root.lists:
            try:
                parts = list(self._context.status.table.members(index))
            except FormatError as error:
                yield from self._reread(index.start, index.end, index.path, error, listed=False)
                continue
            for part in parts:
                yield from self._part(part)
        for part in root.parts:
            yield from self._part(part)
        inline = replace(root, lists=(), parts=())
        for placed in self._context.status.segments(inline, root.inline_start, root.tail):
            yield from self._segment(placed)

    def _part(self, part: PartRef) -> Iterator[tuple[int, pa.RecordBatch]]:
        alone = replace(self._root, lists=(), parts=(part,), entries=())
        try:
            listed = list(
                self._context.status.segments(alone, part.start, part.end, with_stats=False)
            )
        except FormatError as error:
            yield from self._reread(part.start, part.end, part.path, error, listed=False)
            return
        for placed in listed:
            yield from self._segment(placed)

    def _segment(self, placed: Slice) -> Iterator[tuple[int, pa.RecordBatch]]:
        if placed.end <= self._root.head:
            return
        whole = [(placed.start, placed.end)]
        for start, end, where, found in self._frames(placed, whole):
            if isinstance(found, FormatError):
                yield from self._reread(start, end, where, found)
            else:
                yield start, found

    def _frames(
        self, placed: Slice, ranges: list[tuple[int, int]]
    ) -> Iterator[tuple[int, int, str, pa.RecordBatch | FormatError]]:
        """Yield the frames of a segment in some ranges: offsets, place, and events or the error."""
        path = names.segment_object(placed.entry.path)
        try:
            schema = self._schema(self._root.epochs[placed.entry.epoch])
            segment = open_segment(self._context.storage, placed.entry, where=path, whole=False)
        except FormatError as error:
            yield placed.start, placed.end, path, error
            return
        start = placed.start
        for number, frame in enumerate(segment.frames):
            end = start + frame.rows
            if any(lower < end and upper > start for lower, upper in ranges):
                found: pa.RecordBatch | FormatError
                try:
                    found = _decode(segment, number, schema)
                except FormatError as error:
                    found = error
                yield start, end, f"{path}[{frame.start}:{frame.end}]", found
            start = end

    @cached_property
    def _other_copies(self) -> list[tuple[int, int, int, bool]]:
        """Kept versions: each version, a range of events, and whether it has other copies of them.

        It has other copies if a compaction has replaced their segments, or if they are inline.
        Versions from before a redaction are left out: redacted values must not come back.
        """
        found: list[tuple[int, int, int, bool]] = []
        above = self._root
        clean = clean_since(self._root)
        for root in self._kept.older():
            if root.version < clean:
                break
            if above.operation == Operation.COMPACT or above.version != root.version + 1:
                found.append((root.version, root.listed_start, root.tail, True))
            else:
                found.append((root.version, root.listed_start, root.tail, False))
                if root.inline_bytes:
                    found.append((root.version, root.inline_start, root.tail, True))
            above = root
        return found

    def _reread(
        self, start: int, end: int, where: str, error: FormatError, *, listed: bool = True
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the events of a range from other versions; report those that none of them has.

        `listed` says that the segment is known and damaged, so only other copies help.
        """
        start = max(start, self._root.head)
        found: list[tuple[int, pa.RecordBatch]] = []
        for version, first, last, other in self._other_copies if start < end else ():
            if listed and not other:
                continue
            spans = ((place, place + batch.num_rows) for place, batch in found)
            missing = list(uncovered(spans, start, end))
            if not any(first < upper and last > lower for lower, upper in missing):
                continue
            root = self._kept.at(version)
            if root is None:
                continue
            for placed in self._kept.segments_of(root, start, end):
                if any(placed.start < last and placed.end > first for first, last in missing):
                    for place, _, _, batch in self._frames(placed, missing):
                        if not isinstance(batch, FormatError):
                            found += _clips(place, batch, missing)
        found.sort(key=lambda item: item[0])
        cursor = start
        for first, batch in found:
            self._lose(cursor, first, where, error)
            yield first, batch
            cursor = first + batch.num_rows
        self._lose(cursor, end, where, error)

    def _schema(self, epoch: Epoch) -> pa.Schema:
        try:
            return epoch_schema(self._context.status, epoch)
        except FormatError:
            found = find_schema(self._kept, epoch.number)
            if found is None:
                raise
            return found

    def _lose(self, start: int, end: int, where: str, error: FormatError) -> None:
        start = max(start, self._root.head)
        if start >= end:
            return
        if not self._skip:
            raise CorruptionError(
                "some events can't be read",
                remedy="call repair() first; or set skip_damaged=True, which leaves them out and "
                "reports them",
                lost=f"[{start}, {end})",
                where=where,
            ) from error
        self._report.lost.append(Lost(start, end, where, str(error)))

    def _note(self, start: int, rows: int) -> None:
        moved = self._report.moved
        if moved and moved[-1].end == start:
            moved[-1] = replace(moved[-1], end=start + rows)
            return
        moved.append(Moved(start, start + rows, self._report.rows))


def _clips(
    start: int, batch: pa.RecordBatch, ranges: list[tuple[int, int]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of a batch in some ranges, each with its offset."""
    for lower, upper in ranges:
        first, last = max(start, lower), min(start + batch.num_rows, upper)
        if first < last:
            yield first, batch.slice(first - start, last - first)


def find_schema(kept: KeptVersions, number: int) -> pa.Schema | None:
    """Return an epoch's schema as one of its segments stores it; None if none can be read."""
    root = kept.newest
    for placed in kept.segments_of(root, root.listed_start, root.tail):
        if placed.entry.epoch != number:
            continue
        try:
            segment = open_segment(kept.storage, placed.entry, whole=False)
            if isinstance(segment.index, ParquetIndex):
                schema = segment.index.schema.remove_metadata()
            else:
                with pa.ipc.open_stream(segment.stored(0)) as stream:
                    schema = stream.schema
        except (FormatError, pa.ArrowInvalid, OSError):
            continue
        if fingerprint(schema) == segment.frames[0].fingerprint:
            return schema
    return None


def uncovered(spans: Iterable[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that no span covers; spans may overlap. Pure.

    >>> list(uncovered([(2, 4), (3, 5), (7, 9)], 0, 10))
    [(0, 2), (5, 7), (9, 10)]
    """
    cursor = start
    for first, last in sorted(spans):
        if first > cursor:
            yield cursor, first
        cursor = max(cursor, last)
    if cursor < end:
        yield cursor, end


def _decode(segment: OpenSegment, number: int, schema: pa.Schema) -> pa.RecordBatch:
    frame = segment.frames[number]
    if frame.fingerprint != fingerprint(schema):
        where = f"{segment.where}[{frame.start}:{frame.end}]"
        raise CorruptionError("the frame has another schema than its epoch", where=where)
    return segment.read_frame(number, schema=schema)
