"""What a version of a stream publishes, and how that differs from what a table lists.

The files tile the offsets from the head to the published tail, the first event that is in no
Parquet file yet. A segment that another engine could not read as the stream does gets a file of its
own in the table's folder.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format import names
from segstore_ds.format.root import PartRef, Root
from segstore_ds.format.schema.normal_form import children_of
from segstore_ds.format.segment import PARQUET
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.table_status import PlacedSegment, TableStatus


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file that a table should list: the events ``[start, end)``.

    Attributes:
        key: Names the file among all that a stream ever publishes: the path of a segment's object,
            or what the name of a file of the table's own begins with.
        start: Offset of its first event.
        end: Offset after its last event.
        bytes: Its size; 0 if it has to be written.
        stats: Statistics of the segment, as its entry has them; None for a file to be written.
    """

    key: str
    start: int
    end: int
    bytes: int = 0
    stats: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether the table needs a file of its own, because the segment's does not serve."""
        return not self.bytes


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a version, and the range of offsets that they tile."""

    start: int
    end: int
    files: tuple[WantedFile, ...]


def plan_listing(
    status: TableStatus,
    root: Root,
    *,
    folder: str,
    whole: bool = False,
    known: Collection[PartRef] = (),
    end: int | None = None,
) -> Listing:
    """Return what a version publishes; with `whole`, also what is in no Parquet file yet.

    The files of `known` parts, all of them published, are left out and not read. Nothing from `end`
    on is published. Files of the table's own lie in `folder`.
    """
    recast = _recast_epochs(status, root)
    files: list[WantedFile] = []
    last = root.tail if end is None else end
    place = root.head
    for part in (*status.levels.parts(root, root.head, last), None):
        if part in known and part is not None:
            place = part.end
            continue
        upto = last if part is None else min(part.end, last)
        for placed in status.segments(root, place, upto):
            if placed.entry.format != PARQUET and not whole:
                return Listing(root.head, place, tuple(files))
            files.append(_wanted(placed, root, recast, folder))
            place = placed.end
    return Listing(root.head, place, tuple(files))


def shared_parts(
    status: TableStatus, old: Root, new: Root, published: tuple[int, int]
) -> frozenset[PartRef]:
    """Return the parts that two versions have in common, with published segments alone."""
    start, end = max(published[0], new.head), published[1]
    both = {*status.levels.parts(old, start, end)} & {*status.levels.parts(new, start, end)}
    return frozenset(part for part in both if part.start >= start and part.end <= end)


def _wanted(
    placed: PlacedSegment, root: Root, recast: Mapping[int, bool], folder: str
) -> WantedFile:
    entry, start = placed.entry, max(placed.start, root.head)
    divided = start > placed.start
    if entry.format == PARQUET and not divided and not recast[entry.epoch]:
        path = names.segment_object(entry.path)
        return WantedFile(path, start, placed.end, entry.bytes, entry.stats)
    epoch = root.epoch.number if recast[entry.epoch] else entry.epoch
    key = names.own_file_key(folder, start, entry.segment_id, epoch)
    return WantedFile(key, start, placed.end)


def _recast_epochs(status: TableStatus, root: Root) -> dict[int, bool]:
    """Tell for each epoch whether its files hold a decimal of another scale than is read now.

    Readers widen everything else by themselves, and fill in columns and fields that are missing.
    """
    schema = epoch_schema(status, root.epoch)
    return {
        epoch.number: any(_rescaled(schema, epoch_schema(status, epoch))) for epoch in root.epochs
    }


def _rescaled(now: pa.Schema | pa.DataType, then: pa.Schema | pa.DataType) -> Iterator[bool]:
    fields, stored = _fields(now), {field.name: field.type for field in _fields(then)}
    for field in fields:
        old = stored.get(field.name)
        if old is None:
            continue
        if t.is_decimal(field.type) and t.is_decimal(old):
            yield field.type.scale != old.scale
        yield from _rescaled(field.type, old)


def _fields(kind: pa.Schema | pa.DataType) -> list[pa.Field]:
    return list(kind) if isinstance(kind, pa.Schema) else children_of(kind)


@dataclass(frozen=True, slots=True)
class Listed:
    """What a table lists: offsets `[start, end)` of each file by its key, and of all of them."""

    start: int
    end: int
    spans: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Changes:
    """Files to add, and keys of files to remove, each with whether that changes the rows."""

    added: tuple[tuple[WantedFile, bool], ...]
    removed: tuple[tuple[str, bool], ...]


def plan_changes(listed: Listed, wanted: Listing, *, same_events: bool = True) -> Changes:
    """Compare a table with what a version publishes.

    Files that both have may be left out on both sides. `same_events` says that an offset stands for
    the same event in both. A file that is listed again at other offsets is added, which replaces it
    in the table.

    >>> listed = Listed(0, 20, {"a": (0, 10), "b": (10, 20)})
    >>> merged = Listing(0, 20, (WantedFile("c", 0, 20, 5),))
    >>> changes = plan_changes(listed, merged)
    >>> [(file.key, change) for file, change in changes.added], changes.removed
    ([('c', False)], (('a', False), ('b', False)))
    """
    kept = {file.key for file in wanted.files}
    added = [file for file in wanted.files if listed.spans.get(file.key) != (file.start, file.end)]
    removed = {key: span for key, span in listed.spans.items() if key not in kept}
    spans = [(file.start, file.end) for file in added] + list(removed.values())
    low, high = _moved_range(listed, wanted, spans) if same_events else (0, 0)

    def is_moved(start: int, end: int) -> bool:
        return low <= start and end <= high

    return Changes(
        tuple((file, not is_moved(file.start, file.end)) for file in added),
        tuple((key, not is_moved(*span)) for key, span in removed.items()),
    )


def _moved_range(listed: Listed, wanted: Listing, spans: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the range of offsets whose events the table keeps, and only files move.

    A file that holds other events as well is no moved one, and what it overlaps is none either.
    """
    low, high = max(listed.start, wanted.start), min(listed.end, wanted.end)
    while True:
        next_low = max((end for start, end in spans if start < low < end), default=low)
        next_high = min((start for start, end in spans if start < high < end), default=high)
        if (next_low, next_high) == (low, high):
            return low, high
        low, high = next_low, next_high
