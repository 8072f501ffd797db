"""The table status: a stream's segments by offset, its writers and its retired objects.

A root lists its newest segments itself. When they pass a soft limit, the next commit moves them to
a status part. Neighbouring parts of one level are merged by commits of their own, after the
acknowledgement. An attempt after a lost race moves nothing below the hard limit, so it is not
delayed. Parts are sorted by offset and never overlap.

Old parts are moved from the root to lists. The same holds for writers and retired objects. So a
root stays below 64 KiB however long the stream is.

Source: CarbonData's table status proposal (base, delta, pointer), with geometric merging.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Self

import numpy as np
import pyarrow as pa

from segstore_ds.errors import CorruptionError, FormatError, InternalError
from segstore_ds.format.bounds import labels_of
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.indexed_columns import find_time_field, key_columns_of
from segstore_ds.format.inline import SHARE_BYTES, SHARE_HARD_BYTES
from segstore_ds.format.parts.columns import SegmentColumns, from_entries
from segstore_ds.format.parts.rows import Ints
from segstore_ds.format.parts.segments import SegmentFilters
from segstore_ds.format.root import TIME_COLUMN, PartRef, Retired, Root, SegmentEntry, encode_root
from segstore_ds.format.schema.codec import decode_schema
from segstore_ds.format.statistics import Stats, absent_in, build_text
from segstore_ds.status.epochs import SchemaTexts
from segstore_ds.status.inline import join_inline, put_inline
from segstore_ds.status.parts import (
    WHOLE_SEGMENTS,
    RetiredTable,
    SegmentsTable,
    WritersTable,
    stats_of,
    text_bytes,
)
from segstore_ds.status.table import SEGMENTS, Slot, Table, Wanted, readable_parts
from segstore_ds.storage import Storage

JOINED_SHARE = 2 / 3  # joined inline segments above this part of their share become an object
ROOT_BYTES = 60 << 10  # the log adds the place of the commit and its history row, up to 64 KiB
_ROW_BYTES = 150  # of a row before compression; a history row counts as two

Schemas = Callable[[int], pa.Schema]
FindFilters = Callable[[Sequence[SegmentEntry]], Sequence[SegmentFilters]]


_ALL = (0, 0)
_parts_of, _stats_of = attrgetter("parts"), attrgetter("stats")
_schemas_of = attrgetter("schema", "spark")


@dataclass(frozen=True, slots=True)
class Slice:
    """A listed segment at its offset, and which of its rows to read: all by default; picklable."""

    start: int  # offset of the segment's first event
    entry: SegmentEntry
    # The wanted rows of the segment, ``[first, last)``; all by default.
    rows: tuple[int, int] = _ALL
    # ``[first, last)``: only frames whose first row lies in it are read through this slice.
    claim: tuple[int, int] = _ALL

    def __post_init__(self) -> None:
        """Replace `_ALL` by the range of all rows."""
        for name in ("rows", "claim"):
            if getattr(self, name) is _ALL:
                object.__setattr__(self, name, (0, self.entry.rows))

    @property
    def end(self) -> int:
        """The offset after the last event."""
        return self.start + self.entry.rows

    def cut(self, start: int, end: int) -> Self:
        """Return the slice with the events of ``[start, end)``; there must be some."""
        rows = (max(start - self.start, 0), min(end - self.start, self.entry.rows))
        return replace(self, rows=rows)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Neighbouring segments as columns."""

    start: int  # offset of the first segment's first event
    columns: SegmentColumns
    load_stats: Callable[[], Stats]  # returns the statistics of each segment, read or cached
    # Returns the filters of each segment; empty for inline segments.
    load_filters: Callable[[], Sequence[SegmentFilters]] = tuple

    @property
    def starts(self) -> Ints:
        """Offset of each segment's first event."""
        rows = self.columns.rows
        starts: Ints = np.cumsum(rows) - rows + self.start
        return starts

    def trimmed(self, start: int, end: int) -> "Run":
        """Return the segments that hold events of ``[start, end)``; there must be some."""
        starts = self.starts
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(starts, end, "left"))
        first = max(first, 0)
        if (first, last) == (0, len(starts)):
            return self
        columns, load, filters = self.columns.slice(first, last), self.load_stats, self.load_filters
        return Run(
            int(starts[first]),
            columns,
            lambda: load().slice(first, last),
            lambda: filters()[first:last],
        )


def slices_of_run(root: Root, run: Run, *, with_stats: bool = True) -> Iterator[Slice]:
    """Yield the segments of a run of a root, in offset order."""
    listed = run.start < root.inline_start
    stats = run.load_stats().texts() if with_stats and listed else None
    for offset, entry in zip(run.starts.tolist(), run.columns.entries(stats), strict=True):
        yield Slice(offset, entry)


def slices_of_entries(root: Root, start: int, end: int) -> list[Slice]:
    """Return the slices of a root's own entries with events of ``[start, end)``, in order."""
    found, after = list[Slice](), root.inline_start
    for entry in root.entries:
        first, after = after, after + entry.rows
        if max(first, start) < min(after, end):
            rows = max(start - first, 0), min(end - first, entry.rows)
            found.append(Slice(first, entry, rows))
    return found


class TableStatus(SchemaTexts):
    """Reads and writes the status objects of one stream; the last few are cached by name.

    `table` holds the parts of the segments; writers and retired objects have tables of their own.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.table = SegmentsTable(self._store)
        self.writers = WritersTable(self._store)
        self.retired = RetiredTable(self._store)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables but the history."""
        return self.table, self.writers, self.retired

    def segments(
        self, root: Root, start: int, end: int, *, with_stats: bool = True
    ) -> Iterator[Slice]:
        """Yield the segments that hold events of ``[start, end)``, in offset order.

        Without `with_stats` their statistics are neither read nor returned.
        """
        for run in self.runs(root, start, end):
            yield from slices_of_run(root, run, with_stats=with_stats)

    def runs(
        self,
        root: Root,
        start: int,
        end: int,
        *,
        with_stats: bool = False,
        with_filters: bool = False,
        wanted: Wanted = lambda _ref: True,
    ) -> Iterator[Run]:
        """Yield the segments that hold events of ``[start, end)`` as columns, part by part.

        Each part is read when the iteration reaches it. `with_stats` and `with_filters` say that
        the caller will load them, so they may be read together with the part. Parts and lists that
        are not `wanted` are skipped unread.
        """
        if start >= end:
            return
        for part in self.table.parts(root, start, end, wanted):
            if key_columns_of(root):
                # Filters may be most of a part; those of a large part are read chunk by chunk.
                whole = with_filters and part.count <= WHOLE_SEGMENTS
            else:
                whole = with_stats
            columns = self.table.columns(part, whole=whole)
            if columns.epochs.max(initial=0) >= len(root.epochs):
                where = self._store.where(part)
                raise CorruptionError("a part holds segments of an unknown epoch", where=where)
            load_stats = partial(self.table.stats, part)
            load_filters = partial(self.table.filters, part)
            run = Run(part.start, columns, load_stats, load_filters)
            yield run.trimmed(start, end)
        inline_start = root.inline_start
        if root.entries and inline_start < end and root.tail > start:
            load = partial(stats_of, root.entries)
            yield Run(inline_start, SegmentColumns(None, root.entries), load).trimmed(start, end)

    def sound_runs(
        self, root: Root, start: int, end: int, damaged: Callable[[FormatError], None]
    ) -> Iterator[Run]:
        """Yield `runs` without the parts that can't be read, whose errors `damaged` gets."""
        for part in readable_parts(self.table, root, lambda _path, error: damaged(error)):
            alone = replace(root, lists=(), parts=(part,), entries=())
            try:
                yield from self.runs(alone, max(start, part.start), min(end, part.end))
            except FormatError as error:
                damaged(error)
        yield from self.runs(replace(root, lists=(), parts=()), start, end)

    def tidy(self, root: Root, slot: Slot) -> Root:
        """Return the root with rows moved to status objects if there are too many.

        `root` is about to be committed, and its `version` is still its parent's. `slot` is its
        place in the log; after a lost race only the hard limits count.
        """
        frames_most = SHARE_BYTES if slot.attempt == 0 else SHARE_HARD_BYTES

        inline_bytes = root.inline_bytes
        overflows = inline_bytes > frames_most
        if overflows:
            # Joined events take fewer bytes: usually they still fit into the root.
            root = join_inline(root, self.schemas_of(root))
            inline_bytes = root.inline_bytes
            overflows = inline_bytes > frames_most * JOINED_SHARE
        size = _stats_bytes(root)
        full = SEGMENTS.are_passed(slot, rows=len(root.entries), text_bytes=size)
        if overflows or full or (inline_bytes and _is_heavy(root, inline_bytes, size)):
            root = self.outline(root)
            if SEGMENTS.are_passed(slot, rows=len(root.entries), text_bytes=_stats_bytes(root)):
                root = self._spill_entries(root)
        if root.parts:
            root = self.table.spill(root, slot)
        if root.lists and root.lists[0].start < root.head:
            # Cheap if nothing is to do: the list is cached.
            root = self._trim_lists(root, slot)
        if root.writers or root.writers_parts:
            root = self.writers.tidy(root, slot)
        return self.retired.tidy(root, slot) if root.retired or root.retired_parts else root

    def outline(self, root: Root) -> Root:
        """Return the root with its inline segments written as objects."""
        if not root.inline_bytes:
            return root
        return replace(root, entries=put_inline(self.storage, root, self.schemas_of(root)))

    def schemas_of(self, root: Root) -> Schemas:
        """Return a function that reads the schema of an epoch of a root, by its number."""
        return lambda epoch: decode_schema(self.schema_texts(root.epochs[epoch])[0])

    def put_part(
        self,
        root: Root,
        start: int,
        entries: Sequence[SegmentEntry],
        *,
        old: Sequence[PartRef] = (),
        schema_of: Schemas | None = None,
    ) -> PartRef:
        """Write a part that lists segments from an offset on; none of them is inline.

        `root` is the newest that the writer has seen. `schema_of` reads its schemas if they are in
        another folder. Segments keep the filters that they have in the `old` parts.
        """
        schema_of = schema_of or self.schemas_of(root)
        if any(entry.frame for entry in entries):
            raise InternalError("a part can't list inline segments", start=start)
        known = self.table.filters_by_id(old)
        filters = [known.get(entry.segment_id) for entry in entries] if known else ()
        columns, stats = from_entries(entries), stats_of(entries)
        part = self.table.put(root.version, start, columns, stats, filters)
        return replace(part, stats=self._bounds(root, columns, stats, schema_of))

    def _bounds(
        self, root: Root, columns: SegmentColumns, stats: Stats, schema_of: Schemas
    ) -> str | None:
        """Return the bounds of the time column over segments, for the reference to their part."""
        field = _time_field(root, schema_of)
        if field is None:
            return None
        schemas = {number: schema_of(number) for number in np.unique(columns.epochs).tolist()}
        absent = absent_in(columns.epochs, schemas, field.name)
        found = stats.joined(field, columns.rows, absent)
        return None if found is None else build_text({labels_of(field)[0]: found})

    def add_filters(
        self, root: Root, part: PartRef, find: FindFilters, slot: Slot, *, most: int
    ) -> Root | None:
        """Add the filters that `find` returns to up to `most` segments of a part.

        Returns None if the root no longer names the part, or if there are none to add.
        """
        if part not in root.parts:
            return None
        filled = self.table.add_filters(root.version, part, find, most)
        if filled is None:
            return None
        filled = replace(filled, stats=part.stats)
        parts = [filled if listed == part else listed for listed in root.parts]
        return self.table.change(root, slot, [part], parts=parts)

    def _spill_entries(self, root: Root) -> Root:
        start = root.inline_start
        parts = list(root.parts)
        for first in range(0, len(root.entries), SEGMENTS.final):
            entries = root.entries[first : first + SEGMENTS.final]
            parts.append(self.put_part(root, start, entries))
            start = parts[-1].end
        return replace(root, parts=tuple(parts), entries=())

    def put_listing(self, root: Root) -> tuple[Root, PartRef | None]:
        """Return a root with all segments in parts, and a list of these parts if there are any."""
        root = self._spill_entries(self.outline(root)) if root.entries else root
        parts = tuple(self.table.parts(root))
        if not parts:
            return root, None
        return root, replace(self.table.put_list(root.version, parts), stats=None)

    def bounds(self, root: Root, ref: PartRef) -> str | None:
        """Return the bounds of the time column over a part, for the reference to it."""
        columns, stats = self.table.columns(ref), self.table.stats(ref)
        return self._bounds(root, columns, stats, self.schemas_of(root))

    def lacks_bounds(self, root: Root) -> bool:
        """Tell whether a part in the root itself lacks bounds of the time column."""
        field = _time_field(root, self.schemas_of(root))
        return field is not None and any(_lacks(part, field) for part in root.parts)

    def add_bounds(self, root: Root) -> Root:
        """Return the root with bounds of the time column added to parts that lack them."""
        field, parts = _time_field(root, self.schemas_of(root)), [*root.parts]
        for place, part in enumerate(parts):
            if field is not None and _lacks(part, field):
                with suppress(FormatError):
                    parts[place] = replace(part, stats=self.bounds(root, part))
        return replace(root, parts=tuple(parts))

    def _trim_lists(self, root: Root, slot: Slot) -> Root:
        """Retire the parts in lists that are below the head, and rewrite these lists."""
        gone: list[PartRef] = []
        dropped: list[Retired] = []
        lists = list(root.lists)
        while lists and lists[0].start < root.head:
            listed = self.table.members(lists[0])
            kept = tuple(part for part in listed if part.end > root.head)
            if len(kept) == len(listed):
                break
            dropped += [slot.retire("part", part.path) for part in listed if part not in kept]
            gone.append(lists.pop(0))
            if kept:
                lists.insert(0, self.table.put_list(root.version, kept))
                break
        if not gone:
            return root
        root = replace(root, retired=(*root.retired, *dropped))
        return self.table.change(root, slot, gone, lists=lists)


def _time_field(root: Root, schema_of: Schemas) -> pa.Field | None:
    if TIME_COLUMN not in root.properties:
        return None
    return find_time_field(root, schema_of(root.epoch.number))


def _lacks(part: PartRef, field: pa.Field) -> bool:
    return part.stats is None or not any(label in part.stats for label in labels_of(field))


def parts_and_lists(root: Root) -> tuple[PartRef, ...]:
    """Return the parts and lists of all tables that a root itself names. Pure."""
    return (
        *(*root.lists, *root.parts, *root.history_lists, *root.history_parts),
        *filter(None, map(_parts_of, root.kept.values())),
        *(*root.retired_lists, *root.retired_parts, *root.writers_lists, *root.writers_parts),
    )


def _is_heavy(root: Root, inline_bytes: int, stats_bytes: int) -> bool:
    """Tell whether a commit file with these inline segments would exceed its 64 KiB."""
    refs = parts_and_lists(root)
    timed = [*filter(None, map(_stats_of, refs))]
    counted = (refs, timed, root.retired, root.tags, root.pins, root.epochs, root.entries)
    rows = sum(map(len, counted)) + 2 * len(root.history)
    texts = filter(None, chain.from_iterable(map(_schemas_of, root.epochs)))
    guess = _ROW_BYTES * rows + sum(map(len, texts)) + stats_bytes
    guess += text_bytes(root.writers) if root.writers else 0
    if guess + inline_bytes < ROOT_BYTES:
        return False  # the encoded root is smaller than the guess
    return len(encode_envelope(encode_root(root))) + inline_bytes > ROOT_BYTES


def _stats_bytes(root: Root) -> int:
    """Return about how many bytes the entries' statistics take in a commit file."""
    texts = [*filter(None, map(_stats_of, root.entries))]
    plain = sum(map(len, texts))
    if plain <= SEGMENTS.text_bytes:
        return plain
    # Column names and much else repeat, so only the compressed size is a good estimate.
    return len(encode_envelope("".join(texts).encode("utf-8", "surrogatepass")))
