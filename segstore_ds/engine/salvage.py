"""Salvage: what can be read of a damaged stream, as a new one. The old stream is left as it is.

Every byte is checked as in a scan. Damage is an error that names the place, unless the caller asks
to skip it; then every range that is skipped is reported, with the offsets that it had.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from segstore_ds.engine.commit import StreamLog
from segstore_ds.engine.epochs import epoch_schema
from segstore_ds.engine.segments import OpenSegment, open_segment
from segstore_ds.engine.table_status import PlacedSegment, TableStatus
from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.format.schema import fingerprint, lift


@dataclass(frozen=True, slots=True)
class Lost:
    """Events that could not be read: their offsets, the object, and what is wrong with it."""

    start: int
    end: int
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Events that were read: the offsets that they had, and where they begin now."""

    start: int
    end: int
    now: int


@dataclass(slots=True)
class SalvageReport:
    """What `salvage` brought over.

    Attributes:
        url: The new stream.
        version: The version of the damaged stream that was read.
        lost_versions: Newer versions of it that can't be read.
        moved: Runs of events that were brought over, in offset order.
        lost: What was skipped, in offset order.
    """

    url: str = ""
    version: int = 0
    lost_versions: range = range(0)
    moved: list[Moved] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many events were brought over."""
        return sum(run.end - run.start for run in self.moved)


class Salvager:
    """Reads what can be read of one version.

    Args:
        log: The damaged stream's log.
        status: Its table status.
        root: The version to read.
        skip_damaged: Report what can't be read instead of raising.
        report: Is filled while batches are taken.
    """

    def __init__(
        self,
        log: StreamLog,
        status: TableStatus,
        root: Root,
        *,
        skip_damaged: bool,
        report: SalvageReport,
    ) -> None:
        self._log = log
        self._status = status
        self._root = root
        self._skip = skip_damaged
        self._report = report
        self.schema = epoch_schema(status, root.epoch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the events that can be read, in offset order, in the newest schema.

        Raises:
            CorruptionError: Something can't be read, and is not to be skipped.
            StorageError: The storage failed.
        """
        root = self._root
        for placed in self._placed():
            for start, batch in self._segment(placed):
                hidden = max(root.head - start, 0)
                kept = batch.slice(hidden)
                if kept.num_rows:
                    self._note(start + hidden, kept.num_rows)
                    yield lift(kept, self.schema)

    def _placed(self) -> Iterator[PlacedSegment]:
        root = self._root
        spans = [(index.start, index.end, index.path) for index in root.indexes]
        spans += [(part.start, part.end, part.path) for part in root.parts]
        for start, end, path in spans:
            alone = replace(
                root,
                indexes=tuple(one for one in root.indexes if one.path == path),
                parts=tuple(one for one in root.parts if one.path == path),
                entries=(),
            )
            try:
                found = list(self._status.segments(alone, start, end, with_stats=False))
            except FormatError as error:
                self._lose(start, end, path, error)
                continue
            yield from (one for one in found if one.end > root.head)
        inline = replace(root, indexes=(), parts=())
        for placed in self._status.segments(inline, root.inline_start, root.tail):
            if placed.end > root.head:
                yield placed

    def _segment(self, placed: PlacedSegment) -> Iterator[tuple[int, pa.RecordBatch]]:
        entry, path = placed.entry, names.segment_object(placed.entry.path)
        try:
            schema = epoch_schema(self._status, self._root.epochs[entry.epoch])
            segment = open_segment(self._log.storage, entry, where=path, whole=False)
        except FormatError as error:
            self._lose(placed.start, placed.end, path, error)
            return
        start = placed.start
        for number, frame in enumerate(segment.frames):
            try:
                yield start, _decode(segment, number, schema)
            except FormatError as error:
                self._lose(start, start + frame.rows, f"{path}[{frame.start}:{frame.end}]", error)
            start += frame.rows

    def _lose(self, start: int, end: int, where: str, error: FormatError) -> None:
        start = max(start, self._root.head)
        if start >= end:
            return
        if not self._skip:
            raise CorruptionError(
                "events can't be read",
                remedy="repair() first; skip_damaged=True leaves them out and reports them",
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


def _decode(segment: OpenSegment, number: int, schema: pa.Schema) -> pa.RecordBatch:
    frame = segment.frames[number]
    if frame.fingerprint != fingerprint(schema):
        where = f"{segment.where}[{frame.start}:{frame.end}]"
        raise CorruptionError("frame is of another schema", where=where)
    return segment.read_frame(number, schema=schema)
