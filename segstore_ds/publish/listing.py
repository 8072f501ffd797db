"""Plans what a version of a stream publishes, and how that differs from what a table lists. Pure.

The files hold each event from the head to the published tail once. That tail is the first event
that is in no Parquet segment, or the end of what the table has shown, if that is later. A segment
that other engines would read differently is replaced by an *own file* in the table's folder.

Readers of changes expect new events from appends alone. So a commit that adds events which the
table has not shown changes nothing else; if more has changed, `plan_step` plans a commit before it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format import names
from segstore_ds.format.root import PartRef, Root
from segstore_ds.format.schema.codec import children_of
from segstore_ds.format.segment import PARQUET
from segstore_ds.publish import paths
from segstore_ds.publish.snapshot import File, Moves
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.table_status import Slice, TableStatus


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a version, and the range of offsets that they cover."""

    start: int
    end: int
    files: tuple[File, ...]
    own: int = 0  # how many of them are not whole segments of the version
    recast: bool = False  # whether segments of some epochs need own files


def plan_listing(
    status: TableStatus,
    root: Root,
    *,
    folder: str,
    least: int = 0,
    known: Collection[PartRef] = (),
    end: int | None = None,
    cut: int = 0,
) -> Listing:
    """Return the files that publish a version up to its first event that is in no Parquet segment.

    Events below offset `least` are published in any case, and those from `end` on never. Parts in
    `known` are published whole, so their files are left out and the parts are not read. Own files
    lie in `folder`; a segment with events on both sides of offset `cut` gets two of them.
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
                return _listing(root, place, files, recast)
            files.extend(_wanted(placed, root, recast, folder, cut))
            place = placed.end
    return _listing(root, place, files, recast)


def _listing(root: Root, end: int, files: Sequence[File], recast: Mapping[int, bool]) -> Listing:
    own = sum(file.is_wanted for file in files)
    return Listing(root.head, end, tuple(files), own, any(recast.values()))


def shared_parts(
    status: TableStatus, old: Root, new: Root, published: tuple[int, int]
) -> frozenset[PartRef]:
    """Return the parts that two versions share and that lie within a published range."""
    start, end = max(published[0], new.head), published[1]
    both = {*status.table.parts(old, start, end)} & {*status.table.parts(new, start, end)}
    return frozenset(part for part in both if part.start >= start and part.end <= end)


def _wanted(
    placed: Slice, root: Root, recast: Mapping[int, bool], folder: str, cut: int
) -> list[File]:
    entry, start, end = placed.entry, max(placed.start, root.head), placed.end
    is_cut = start < cut < end
    whole = start == placed.start and not is_cut
    if entry.format == PARQUET and whole and not recast[entry.epoch]:
        path = names.segment_object(entry.path)
        return [File(path, start, end, entry.bytes, entry.stats)]
    epoch = root.epoch.number if recast[entry.epoch] else entry.epoch
    return [
        File(paths.own_file_key(folder, low, entry.segment_id, epoch), low, high)
        for low, high in pairwise([start, cut, end] if is_cut else [start, end])
    ]


def _recast_epochs(status: TableStatus, root: Root) -> dict[int, bool]:
    """Tell for each epoch whether its files have a column that other engines can't widen.

    That is a decimal of another scale than now, or an integer that is a float now. Readers widen
    other types by themselves, and fill missing columns and fields with nulls.
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


def plan_step(
    tail: int,
    listed: Mapping[str, File],
    wanted: Listing,
    divide: Callable[[], Listing],
    *,
    same_events: bool,
) -> Listing:
    """Return what the next commit lists, for a table that shows the events below `tail`.

    A first commit replaces files of shown events; the next one adds new events and nothing else. A
    segment with both kinds of events is listed last: before that, own files (of `divide`) or the
    table's old files show them. If no shown event is kept, one commit replaces the table.
    """
    if not wanted.start < tail < wanted.end:
        return wanted
    added, removed = _differences(listed, wanted)
    if not removed and all(file.start >= tail for file in added):
        return wanted
    files, own = wanted.files, wanted.own
    across = next((file for file in added if file.start < tail < file.end), None)
    if across is not None:
        parts = divide()
        files, own = parts.files, parts.own
        old = sorted(
            (file for file in listed.values() if file.start >= across.start),
            key=lambda file: file.start,
        )
        if same_events and not parts.recast and old and old[0].start == across.start:
            rest = [file for file in files if not across.start <= file.start < tail]
            files = tuple(sorted((*rest, *old), key=lambda file: file.start))
            own += len(old) - 1  # they are not segments of this version
    shown = tuple(file for file in files if file.end <= tail)
    first = Listing(wanted.start, tail, shown, own - sum(f.is_wanted for f in files[len(shown) :]))
    if any(_differences(listed, first)):
        return first
    return Listing(wanted.start, wanted.end, files, own)


def plan_changes(
    span: tuple[int, int], listed: Mapping[str, File], wanted: Listing, *, same_events: bool = True
) -> tuple[Moves, Moves]:
    """Return the files to add to a table and to remove, each with whether it changes rows.

    The table has the files `listed`, by their keys, with the events of `span`. Files that both have
    may be left out on both sides. `same_events` says that an offset means the same event in both. A
    file listed at other offsets is added again, which replaces it. A file changes rows if it has
    events that the table did not show before, or does not show afterwards.

    >>> listed = {"a": File("a", 0, 10, 5), "b": File("b", 10, 20, 5)}
    >>> merged = Listing(0, 20, (File("c", 0, 20, 5),))
    >>> added, removed = plan_changes((0, 20), listed, merged)
    >>> [(file.key, changes) for file, changes in (*added, *removed)]
    [('c', False), ('a', False), ('b', False)]
    """
    added, removed = _differences(listed, wanted)
    kept = wanted.start, wanted.end

    def moves(files: Iterable[File], within: tuple[int, int]) -> Moves:
        low, high = within if same_events else (0, 0)
        return tuple((file, not (low <= file.start and file.end <= high)) for file in files)

    return moves(added, span), moves(removed, kept)


def _differences(listed: Mapping[str, File], wanted: Listing) -> tuple[list[File], list[File]]:
    """Return the files that a table lacks, and those that it should no longer list."""
    spans = {key: (file.start, file.end) for key, file in listed.items()}
    kept = {file.key: (file.start, file.end) for file in wanted.files}
    added = [file for file in wanted.files if spans.get(file.key) != kept[file.key]]
    # An own file that is listed with other events is another file.
    own = {key for key, file in listed.items() if file.path != key}
    removed = [
        file
        for key, file in listed.items()
        if key not in kept or (key in own and kept[key] != spans[key])
    ]
    return added, removed
