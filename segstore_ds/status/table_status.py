"""The table status: the list of a stream's segments by offset, and whatever else outgrows the root.

A root lists its newest segments inline. When they pass a soft limit, the next commit moves them to
a status part. Neighbouring parts of one level are merged by commits of their own, after the
acknowledgement. An attempt that has lost a race moves nothing below the hard limit, so maintenance
never delays the retry. Parts are sorted by offset and never overlap.

Parts that outgrow the root are listed in objects of their own, oldest first. Writers beyond
`WRITERS_INLINE`, retired objects beyond `RETIRED_INLINE` and large schemas go to blobs. So a root
stays below 64 KiB however long the stream is.

Source: CarbonData's table status proposal (base, delta, pointer), with geometric merging.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.parts.columns import SegmentColumns, from_entries
from segstore_ds.format.parts.packed import Ints
from segstore_ds.format.parts.status import (
    decode_part_list,
    encode_part_list,
    encode_retired,
    encode_writers,
)
from segstore_ds.format.root import (
    PartIndex,
    PartRef,
    Retired,
    Root,
    SegmentEntry,
    Writer,
)
from segstore_ds.log.transition import Slot
from segstore_ds.status.blobs import StatusBlobs
from segstore_ds.status.levels import MergeRules, find_run
from segstore_ds.status.levels import plan_merge as plan_part_merge
from segstore_ds.status.part_files import PartFiles
from segstore_ds.storage import Storage

INLINE_SOFT = 64
INLINE_HARD = 160
MERGE_FAN_IN = 10
PART_FINAL_SEGMENTS = 32_768
PARTS_INLINE = 96
INDEX_PARTS = 1024
WRITERS_INLINE = 256
RETIRED_INLINE = 192
RETIRED_FINAL = 100_000
WRITERS_INLINE_BYTES = 9_000
STATS_INLINE_BYTES = 8_000


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment and its offsets: it holds the events ``[start, start + entry.rows)``."""

    start: int
    entry: SegmentEntry

    @property
    def end(self) -> int:
        """The offset after its last event."""
        return self.start + self.entry.rows


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Neighbouring segments as columns.

    Attributes:
        start: Offset of the first segment's first event.
        columns: The segments.
        load_stats: Returns the statistics of each segment; reads them unless they are cached.
    """

    start: int
    columns: SegmentColumns
    load_stats: Callable[[], Sequence[str | None]]

    @property
    def starts(self) -> Ints:
        """Offset of each segment's first event."""
        rows = self.columns.rows
        starts: Ints = np.cumsum(rows) - rows + self.start
        return starts

    def trimmed(self, start: int, end: int) -> "Run":
        """Return the segments that hold events of ``[start, end)``; there is at least one."""
        starts = self.starts
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(starts, end, "left"))
        first = max(first, 0)
        if (first, last) == (0, len(starts)):
            return self
        columns, load = self.columns.slice(first, last), self.load_stats
        return Run(int(starts[first]), columns, lambda: load()[first:last])


class TableStatus(StatusBlobs):
    """Reads and writes the status objects of one stream; the last few are cached by name."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._files = PartFiles(storage)

    # --- reading -----------------------------------------------------------------------------

    def segments(
        self, root: Root, start: int, end: int, *, with_stats: bool = True
    ) -> Iterator[PlacedSegment]:
        """Yield the segments that hold events of ``[start, end)``, in offset order.

        Without `with_stats` their statistics are neither read nor returned.
        """
        for run in self.runs(root, start, end):
            stats = run.load_stats() if with_stats else None
            for offset, entry in zip(run.starts.tolist(), run.columns.entries(stats), strict=True):
                yield PlacedSegment(offset, entry)

    def runs(self, root: Root, start: int, end: int) -> Iterator[Run]:
        """Yield the segments that hold events of ``[start, end)`` as columns, part by part.

        Reads each part when the iteration reaches it, and no statistics.
        """
        if start >= end:
            return
        for part in self.parts(root, start, end):
            columns = self._files.columns(part)
            if columns.epochs.max(initial=0) >= len(root.epochs):
                where = self._where(part.path)
                raise CorruptionError("a part holds segments of an unknown epoch", where=where)
            yield Run(part.start, columns, self._stats_loader(part)).trimmed(start, end)
        inline_start = root.inline_start
        if root.entries and inline_start < end and root.tail > start:
            stats = [entry.stats for entry in root.entries]
            run = Run(inline_start, from_entries(root.entries), lambda: stats)
            yield run.trimmed(start, end)

    def parts(self, root: Root, start: int = 0, end: int = 1 << 63) -> Iterator[PartRef]:
        """Yield the parts that hold events of ``[start, end)``, including those in lists."""
        for index in root.indexes:
            if index.start < end and index.end > start:
                listed = self.part_list(index)
                yield from (
                    member for member in listed if member.start < end and member.end > start
                )
        yield from (member for member in root.parts if member.start < end and member.end > start)

    def part_list(self, index: PartIndex) -> tuple[PartRef, ...]:
        """Return the parts of a list."""
        found = self._cache.get(index.path)
        if isinstance(found, tuple):
            return found
        where = self._where(index.path)
        parts = decode_part_list(self._read(index), where=where)
        joined = all(member.end == other.start for member, other in pairwise(parts))
        found_sizes = (len(parts), sum(part.segments for part in parts))
        if not joined or found_sizes != (index.parts, index.segments):
            raise CorruptionError("list of parts contradicts the root", where=where)
        if (parts[0].start, parts[-1].end) != (index.start, index.end):
            raise CorruptionError("list of parts covers another range", where=where)
        self._keep(index.path, parts)
        return parts

    def part(self, ref: PartRef) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part with their statistics."""
        columns = self._files.columns(ref)
        return tuple(columns.entries(self._files.stats(ref)))

    def _stats_loader(self, ref: PartRef) -> Callable[[], Sequence[str | None]]:
        return lambda: self._files.stats(ref)

    def retired_part(self, path: str, *, required: bool = False) -> tuple[SegmentEntry, ...]:
        """Return the entries of a retired part, none where it was deleted since.

        With `required` a deleted part raises MissingObjectError.
        """
        return self._files.retired(path, required=required)

    def whole_part(self, path: str) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part, even of one that no root names."""
        return self._files.whole(path)

    # --- writing -----------------------------------------------------------------------------

    def tidy(self, root: Root, slot: Slot) -> Root:
        """Return the root, with what outgrew its share of it moved to status objects.

        `root` is about to be committed, and its `version` is still its parent's. `slot` says where
        it will land; after a lost race only the hard limits count.
        """
        first_attempt = slot.attempt == 0
        stats_most = STATS_INLINE_BYTES if first_attempt else 2 * STATS_INLINE_BYTES
        entries_most = INLINE_SOFT if first_attempt else INLINE_HARD
        if len(root.entries) > entries_most or _stats_bytes(root) > stats_most:
            root = self._spill_entries(root)
        if len(root.parts) > (PARTS_INLINE if slot.attempt == 0 else 2 * PARTS_INLINE):
            root = self._spill_parts(root, slot)
        if root.indexes and root.indexes[0].start < root.head:
            # The list is cached once read; only a commit that moved the head has work here.
            root = self._trim_indexes(root, slot)
        if len(root.writers) > WRITERS_INLINE or _writers_bytes(root) > WRITERS_INLINE_BYTES:
            root = self._spill_writers(root, slot)
        if len(root.retired) > RETIRED_INLINE:
            body = encode_retired(root.retired)
            blob = self.put(root.version, "retired", body, len(root.retired))
            root = replace(root, retired=(), retired_blobs=(*root.retired_blobs, blob))
        return root

    def merge(self, root: Root, paths: tuple[str, ...], slot: Slot) -> Root | None:
        """Replace neighbouring parts by one; None when the root no longer has them side by side."""
        first = find_run([part.path for part in root.parts], paths)
        if first is None:
            return None
        merged = root.parts[first : first + len(paths)]
        part = self._files.merge(root.version, merged)
        retired = tuple(slot.retire("status", old.path) for old in merged)
        parts = (*root.parts[:first], part, *root.parts[first + len(paths) :])
        return replace(root, parts=parts, retired=(*root.retired, *retired))

    def merge_retired(self, root: Root, paths: tuple[str, ...], slot: Slot) -> Root | None:
        """Replace neighbouring blobs of retired objects by one; None as in `merge`."""
        first = find_run([blob.path for blob in root.retired_blobs], paths)
        if first is None:
            return None
        last = first + len(paths)
        old = root.retired_blobs[first:last]
        items = tuple(item for blob in old for item in self.retired_blob(blob))
        blob = self.put(root.version, "retired", encode_retired(items), len(items))
        gone = (slot.retire("status", member.path) for member in old)
        blobs = (*root.retired_blobs[:first], blob, *root.retired_blobs[last:])
        return replace(root, retired_blobs=blobs, retired=(*root.retired, *gone))

    def unfold(self, root: Root, offset: int, slot: Slot) -> Root:
        """Return the root with all parts that end after an offset inline, ready for changes.

        The lists that held them are retired. `tidy` makes new ones.
        """
        opened = tuple(index for index in root.indexes if index.end > offset)
        if not opened:
            return root
        listed = tuple(part for index in opened for part in self.part_list(index))
        gone = tuple(slot.retire("status", member.path) for member in opened)
        return replace(
            root,
            indexes=root.indexes[: len(root.indexes) - len(opened)],
            parts=(*listed, *root.parts),
            retired=(*root.retired, *gone),
        )

    def put_part(self, version: int, start: int, entries: Sequence[SegmentEntry]) -> PartRef:
        """Write a part that lists segments from an offset on."""
        stats = [entry.stats for entry in entries]
        return self._files.put(version, start, from_entries(entries), stats)

    def _spill_entries(self, root: Root) -> Root:
        start = root.inline_start
        parts = list(root.parts)
        for first in range(0, len(root.entries), PART_FINAL_SEGMENTS):
            entries = root.entries[first : first + PART_FINAL_SEGMENTS]
            parts.append(self.put_part(root.version, start, entries))
            start = parts[-1].end
        return replace(root, parts=tuple(parts), entries=())

    def _spill_parts(self, root: Root, slot: Slot) -> Root:
        """Move the older half of the parts to lists; the last existing list is filled up first."""
        moved, kept = root.parts[: -PARTS_INLINE // 2], root.parts[-PARTS_INLINE // 2 :]
        indexes, retired = list(root.indexes), root.retired
        if indexes and indexes[-1].parts < INDEX_PARTS:
            old = indexes.pop()
            moved = (*self.part_list(old), *moved)
            retired = (*retired, slot.retire("status", old.path))
        groups = (moved[first : first + INDEX_PARTS] for first in range(0, len(moved), INDEX_PARTS))
        indexes.extend(self._put_index(root.version, group) for group in groups)
        return replace(root, indexes=tuple(indexes), parts=kept, retired=retired)

    def _trim_indexes(self, root: Root, slot: Slot) -> Root:
        """Retire the listed parts below the head, and the lists that change because of it."""
        gone: list[Retired] = []
        indexes = list(root.indexes)
        while indexes:
            old, listed = indexes[0], self.part_list(indexes[0])
            kept = tuple(part for part in listed if part.end > root.head)
            if len(kept) == len(listed):
                break
            dropped = listed[: len(listed) - len(kept)]
            gone += [slot.retire("part", part.path) for part in dropped]
            gone.append(slot.retire("status", old.path))
            indexes = indexes[1:]
            if kept:
                indexes.insert(0, self._put_index(root.version, kept))
                break
        if not gone:
            return root
        return replace(root, indexes=tuple(indexes), retired=(*root.retired, *gone))

    def _put_index(self, version: int, parts: tuple[PartRef, ...]) -> PartIndex:
        blob = self.put(version, "index", encode_part_list(parts), len(parts))
        self._keep(blob.path, parts)
        segments = sum(part.segments for part in parts)
        start, end = parts[0].start, parts[-1].end
        return PartIndex(blob.path, start, end, len(parts), segments, blob.bytes, blob.digest)

    def _spill_writers(self, root: Root, slot: Slot) -> Root:
        by_age = sorted(root.writers.items(), key=lambda item: item[1].version)
        first = max(0, len(by_age) - WRITERS_INLINE // 4)
        while _text_bytes(by_age[first:]) > WRITERS_INLINE_BYTES // 4:
            first += 1
        # This commit's writers stay inline, so all that moves is also in the parent root.
        own = sum(1 for _, writer in by_age if writer.version == slot.version)
        first = min(first, len(by_age) - own)
        moved, kept = by_age[:first], by_age[first:]
        old = root.writers_blob
        writers = dict(self.writers_blob(old)) if old else {}
        # A writer that returned is inline again: drop its older entry.
        writers = {name: writer for name, writer in writers.items() if name not in root.writers}
        writers.update(moved)
        blob = self.put(root.version, "writers", encode_writers(writers), len(writers))
        retired = root.retired
        if old is not None:
            retired = (*retired, slot.retire("status", old.path))
        return replace(root, writers=dict(kept), writers_blob=blob, retired=retired)


def _stats_bytes(root: Root) -> int:
    """Return about how many bytes the entries' statistics take in a commit file."""
    texts = [entry.stats for entry in root.entries if entry.stats is not None]
    plain = sum(map(len, texts))
    if plain <= STATS_INLINE_BYTES:
        return plain
    # Column names and much else repeat, so only the compressed size is a fair estimate.
    return len(encode_envelope("".join(texts).encode("utf-8", "surrogatepass")))


def _writers_bytes(root: Root) -> int:
    return _text_bytes(root.writers.items())


def _text_bytes(writers: Iterable[tuple[str, Writer]]) -> int:
    """Return about how many bytes the names, owners and fingerprints of writers take."""
    texts = (text for name, each in writers for text in (name, each.owner, each.fingerprint))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def plan_merge(root: Root) -> tuple[str, ...] | None:
    """Choose neighbouring parts to merge; None when nothing is due. Pure."""
    rules = MergeRules(INLINE_HARD, MERGE_FAN_IN, PART_FINAL_SEGMENTS)
    return plan_part_merge(root.parts, rules)


def plan_retired_merge(root: Root) -> tuple[str, ...] | None:
    """Choose neighbouring blobs of retired objects to merge; None when nothing is due. Pure."""
    rules = MergeRules(2 * RETIRED_INLINE + 1, MERGE_FAN_IN, RETIRED_FINAL)
    return plan_part_merge(root.retired_blobs, rules)
