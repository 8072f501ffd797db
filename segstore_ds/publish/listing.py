"""What a version of a stream publishes, and how that differs from what a table lists.

The files tile the offsets from the head to the published tail, the first event that is in no
Parquet file yet, or a later one that the table has shown. A segment that another engine could not
read as the stream does gets a file of its own in the table's folder.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format import names
from segstore_ds.format.root import PartRef, Root
from segstore_ds.format.schema.codec import children_of
from segstore_ds.format.segment import PARQUET
from segstore_ds.publish import paths
from segstore_ds.publish.snapshot import File, Moves
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.table_status import PlacedSegment, TableStatus


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a version, and the range of offsets that they tile."""

    start: int
    end: int
    files: tuple[File, ...]


def plan_listing(
    status: TableStatus,
    root: Root,
    *,
    folder: str,
    least: int = 0,
    known: Collection[PartRef] = (),
    end: int | None = None,
) -> Listing:
    """Return what a version publishes: to the first event that is in no Parquet file, or further.

    Below offset `least` it publishes what is in no Parquet file, too. The files of `known` parts,
    all of them published, are left out and not read. Nothing from `end` on is published. Files of
    the table's own lie in `folder`.
    """
    recast = _recast_epochs(status, root)
    files: list[File] = []
    last = root.tail if end is None else end
    place = root.head
    for part in (*status.table.parts(root, root.head, last), None):
        if part in known and part is not None:
            place = part.end
            continue
        upto = last if part is None else min(part.end, last)
        for placed in status.segments(root, place, upto):
            if placed.entry.format != PARQUET and place >= least:
                return Listing(root.head, place, tuple(files))
            files.append(_wanted(placed, root, recast, folder))
            place = placed.end
    return Listing(root.head, place, tuple(files))


def shared_parts(
    status: TableStatus, old: Root, new: Root, published: tuple[int, int]
) -> frozenset[PartRef]:
    """Return the parts that two versions have in common, with published segments alone."""
    start, end = max(published[0], new.head), published[1]
    both = {*status.table.parts(old, start, end)} & {*status.table.parts(new, start, end)}
    return frozenset(part for part in both if part.start >= start and part.end <= end)


def _wanted(placed: PlacedSegment, root: Root, recast: Mapping[int, bool], folder: str) -> File:
    entry, start = placed.entry, max(placed.start, root.head)
    divided = start > placed.start
    if entry.format == PARQUET and not divided and not recast[entry.epoch]:
        path = names.segment_object(entry.path)
        return File(path, start, placed.end, entry.bytes, entry.stats)
    epoch = root.epoch.number if recast[entry.epoch] else entry.epoch
    key = paths.own_file_key(folder, start, entry.segment_id, epoch)
    return File(key, start, placed.end)


def _recast_epochs(status: TableStatus, root: Root) -> dict[int, bool]:
    """Tell for each epoch whether its files hold a column that other engines would not widen.

    That is a decimal of another scale than is read now, or an integer that is a float now. Readers
    widen everything else by themselves, and fill in columns and fields that are missing.
    """
    schema = epoch_schema(status, root.epoch)
    return {
        epoch.number: any(_recast(schema, epoch_schema(status, epoch))) for epoch in root.epochs
    }


def _recast(now: pa.Schema | pa.DataType, then: pa.Schema | pa.DataType) -> Iterator[bool]:
    fields, stored = _fields(now), {field.name: field.type for field in _fields(then)}
    for field in fields:
        old = stored.get(field.name)
        if old is None:
            continue
        if t.is_decimal(field.type) and t.is_decimal(old):
            yield field.type.scale != old.scale
        yield t.is_floating(field.type) and t.is_integer(old)
        yield from _recast(field.type, old)


def _fields(kind: pa.Schema | pa.DataType) -> list[pa.Field]:
    return list(kind) if isinstance(kind, pa.Schema) else children_of(kind)


def plan_changes(
    span: tuple[int, int], listed: Mapping[str, File], wanted: Listing, *, same_events: bool = True
) -> tuple[Moves, Moves]:
    """Return what a table has to add and to remove, to list what a version publishes.

    The table lists files, by their keys, of the events of a span. Files that both have may be left
    out on both sides. `same_events` says that an offset stands for the same event in both. A file
    that is listed again at other offsets is added, which replaces it in the table.

    >>> listed = {"a": File("a", 0, 10, 5), "b": File("b", 10, 20, 5)}
    >>> merged = Listing(0, 20, (File("c", 0, 20, 5),))
    >>> added, removed = plan_changes((0, 20), listed, merged)
    >>> [(file.key, changes) for file, changes in (*added, *removed)]
    [('c', False), ('a', False), ('b', False)]
    """
    spans = {key: (file.start, file.end) for key, file in listed.items()}
    kept = {file.key for file in wanted.files}
    added = [file for file in wanted.files if spans.get(file.key) != (file.start, file.end)]
    removed = [file for key, file in listed.items() if key not in kept]
    touched = [(file.start, file.end) for file in (*added, *removed)]
    low, high = max(span[0], wanted.start), min(span[1], wanted.end)
    low, high = _moved_range(low, high, touched) if same_events else (0, 0)

    def moves(files: Iterable[File]) -> Moves:
        return tuple((file, not (low <= file.start and file.end <= high)) for file in files)

    return moves(added), moves(removed)


def _moved_range(low: int, high: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the range of offsets whose events the table keeps, and only files move.

    A file that holds other events as well is no moved one, and what it overlaps is none either.
    """
    while True:
        next_low = max((end for start, end in spans if start < low < end), default=low)
        next_high = min((start for start, end in spans if start < high < end), default=high)
        if (next_low, next_high) == (low, high):
            return low, high
        low, high = next_low, next_high
