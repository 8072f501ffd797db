"""What a version of a stream publishes: the files of its Parquet-backed history, in offset order.

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
