"""History: what every commit did, kept after the commit's own file is purged.

Each commit adds its row to the root. When the rows pass a soft limit, the next commit moves them to
a part. Parts are merged by levels and moved to lists, as those of segments are. No operation drops
or changes a row, so cuts by version and by time mean the same for as long as the stream exists.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format import compute as pc
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import HISTORY, to_batch
from segstore_ds.format.parts.rows import Ints, column_values
from segstore_ds.format.record import build_json
from segstore_ds.format.root import HistoryRow, PartRef, Root
from segstore_ds.status.store import ObjectStore
from segstore_ds.status.table import HISTORY as LIMITS
from segstore_ds.status.table import Fields, RowsTable, Slot
from segstore_ds.storage import Storage

NUMBERS_SKIPPED = 1 << 16  # segment numbers that commits abandoned by a repair may have assigned
APPLICATION = "app/"  # prefix of the word in a client's name that names its application


@dataclass(frozen=True, slots=True)
class Note:
    """What a history row says and the root does not."""

    writer_id: str | None = None
    batch_id: int | None = None
    bytes: int | None = None  # encoded bytes of the new segments; None: sum of those in the root
    merged: str | None = None
    changed: Mapping[str, Any] = field(default_factory=dict)


NO_NOTE = Note()


@dataclass(frozen=True, slots=True)
class Moment:
    """A version as the history knows it."""

    version: int
    time_us: int
    tail: int


class History(RowsTable[pa.RecordBatch]):
    """The history of one stream: a row for each commit, in parts of adjacent versions."""

    kind, limits = HISTORY, LIMITS
    fields = Fields("history", "history_parts", "history_lists")

    def __init__(self, storage: Storage) -> None:
        super().__init__(ObjectStore(storage))

    def part(self, ref: PartRef) -> pa.RecordBatch:
        """Return the rows of a part."""
        batch = super().part(ref)
        if not np.array_equal(column_values(batch, "version"), np.arange(ref.start, ref.end)):
            raise CorruptionError("part covers other versions", where=self._store.where(ref))
        return batch

    def batches(self, root: Root, start: int = 0, end: int = 1 << 63) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the versions ``[start, end)``, part by part."""
        for ref in self.parts(root, start, end):
            batch = self.part(ref)
            first = max(start - ref.start, 0)
            yield batch.slice(first, min(end, ref.end) - ref.start - first)
        rows = [row for row in root.history if start <= row.version < end]
        if rows:
            yield to_batch(rows)

    def batches_back(self, root: Root) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all versions, the batch of the newest ones first."""
        if root.history:
            yield to_batch(root.history)
        yield from map(self.part, reversed([*self.parts(root)]))

    def moment(self, root: Root, version: int) -> Moment | None:
        """Return a version's time and tail, or None if the history has no row of it."""
        for batch in self.batches(root, version, version + 1):
            return _moment(batch, 0)
        return None

    def latest(self, root: Root, time_us: int) -> Moment | None:
        """Return the newest version committed at or before a time; None if there is no row."""
        if root.history and root.history[0].time_us <= time_us:
            row = [row for row in root.history if row.time_us <= time_us][-1]
            return Moment(row.version, row.time_us, row.tail)
        groups = (root.history_parts, root.history_lists)
        for refs in groups:
            for ref in reversed(refs):
                if ref.time_us <= time_us:
                    return self._latest_in(ref, time_us, listed=refs is groups[1])
        return None

    def _latest_in(self, ref: PartRef, time_us: int, *, listed: bool) -> Moment:
        if listed:
            ref = [entry for entry in self.members(ref) if entry.time_us <= time_us][-1]
        batch = self.part(ref)
        place = int(np.searchsorted(column_values(batch, "time"), time_us, "right")) - 1
        return _moment(batch, place)

    def lost(self, root: Root, start: int, end: int) -> frozenset[int]:
        """Return the versions of ``[start, end)`` that a repair abandoned."""
        found: set[int] = set()
        for batch in self.batches(root, start, end):
            rows = batch.filter(pc.equal(batch["operation"], Operation.LOST.value))
            found.update(rows["version"].to_pylist())
        return frozenset(found)

    def operations(self, root: Root, versions: Collection[int]) -> dict[int, str]:
        """Return the operations of some versions; reads only the parts that hold them."""
        wanted = sorted(versions)
        found = {row.version: row.operation for row in root.history if row.version in versions}
        for ref in self.parts(root, wanted[0], wanted[-1] + 1) if wanted else ():
            inside = wanted[bisect_left(wanted, ref.start) : bisect_left(wanted, ref.end)]
            if inside:
                done = self.part(ref)["operation"]
                found |= {version: done[version - ref.start].as_py() for version in inside}
        return found

    def find_transaction(
        self, root: Root, transaction: str, version: int | None = None
    ) -> int | None:
        """Return the version that a transaction committed, or None; only `version` if given."""
        if version is None:
            # Newest rows first: most lookups then need neither a request nor an older part.
            for row in reversed(root.history):
                if row.transaction == transaction:
                    return row.version
        start, end = (0, root.version + 1) if version is None else (version, version + 1)
        for batch in self.batches(root, start, end):
            found = batch.filter(pc.equal(batch["transaction"], transaction))
            if found.num_rows:
                number: int = found["version"][0].as_py()
                return number
        return None

    def transactions(self, root: Root, start: int, end: int = 1 << 63) -> Iterator[tuple[int, str]]:
        """Yield the versions ``[start, end)`` with the transactions that committed them."""
        for batch in self.batches(root, start, end):
            versions, found = column_values(batch, "version"), batch["transaction"]
            yield from zip(versions.tolist(), found.to_pylist(), strict=True)

    def base_of(self, root: Root, version: int) -> int:
        """Return the version that a version was built on; abandoned ones are skipped."""
        base = version - 1
        while self.lost(root, base, version):
            base, version = base - 1, base
        return base

    def commit_times(self, root: Root, start: int, end: int) -> tuple[Ints, Ints]:
        """Return the tail and the time of each commit that added some of the events of a range."""
        tails, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for batch in self._batches_from(root, start) if start < end else ():
            ends, rows = column_values(batch, "tail"), column_values(batch, "rows")
            tails.append(ends[rows > 0])
            times.append(column_values(batch, "time")[rows > 0])
            if int(ends[-1]) >= end:
                break
        found, moments = np.concatenate(tails), np.concatenate(times)
        low = int(np.searchsorted(found, start, "right"))
        high = int(np.searchsorted(found, end, "left")) + 1
        return found[low:high], moments[low:high]

    def _batches_from(self, root: Root, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from the commit of the event at `offset` onwards, and some before it."""
        inline = root.history
        if not inline or inline[0].tail - inline[0].rows > offset:
            refs = list(self.parts(root))
            # References have no offsets: the bisection reads log n of the parts.
            first = bisect_right(refs, offset, key=lambda ref: _moment(self.part(ref), -1).tail)
            yield from map(self.part, refs[first:])
        if inline:
            yield to_batch(inline)

    def tidy(self, root: Root, slot: Slot) -> Root:
        """Move rows to a part, and parts to a list, if there are too many in the root."""
        size = _texts_bytes(root.history)
        # The row of this commit is added afterwards.
        if LIMITS.are_passed(slot, rows=len(root.history) + 1, text_bytes=size):
            part = self.put(root.version, to_batch(root.history))
            root = replace(root, history=(), history_parts=(*root.history_parts, part))
        return self.spill(root, slot) if root.history_parts else root

    def ref_of(self, path: str, size: int, rows: pa.RecordBatch) -> PartRef:
        """Return the reference to a part. Pure."""
        versions, times = column_values(rows, "version"), column_values(rows, "time")
        ends = (int(versions[0]), int(versions[-1]) + 1)
        return PartRef(path, *ends, len(rows), size, int(times[0]), int(times[-1]))

    def join(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows of several parts as those of one. Pure."""
        return pa.concat_batches(parts)


def describe_commit(old: Root | None, new: Root, note: Note, **known: Any) -> HistoryRow:
    """Return a commit's history row. Pure.

    `old` is the root before it, None for the first commit. `new` is the root about to be committed,
    before any of its entries moved to parts. `known` are other columns: its place in the log, and
    what it cost.
    """
    first = old.next_segment if old else 0
    client, application = _parts_of(new.client)
    size = note.bytes
    if size is None:
        added = (entry for entry in new.entries if entry.segment_id & 0xFFFFFFFF >= first)
        size = sum(entry.bytes for entry in added)
    place = {"version": new.version, "time_us": new.time_us, "transaction": new.transaction}
    return HistoryRow(
        operation=new.operation,
        head=new.head,
        tail=new.tail,
        rows=new.tail - (old.tail if old else new.head),
        segments=new.next_segment - first,
        bytes=size,
        writer_id=note.writer_id,
        batch_id=note.batch_id,
        client=client,
        application=application,
        merged=note.merged or _changes(old, new, note.changed),
        **{**place, **known},
    )


_NAMED = ("properties", "tags", "pins", "origins")
_CHANGES = 400  # most characters of the changes in a row


def _changes(old: Root | None, new: Root, known: Mapping[str, Any]) -> str | None:
    """Return as JSON what a commit changed beside events, by name; None if nothing.

    Too many names are replaced by their number. Values are left out, as they may be secret.
    """
    found: dict[str, Any] = {**known}
    for name in _NAMED if old is not None else ():
        before, after = getattr(old, name), getattr(new, name)
        if before is not after and before != after:
            either = sorted(before.keys() | after.keys())
            found[name] = [each for each in either if before.get(each) != after.get(each)]
    if old is not None and len(old.epochs) < len(new.epochs):
        was, now = old.epoch.names, new.epoch.names
        named = {each: (was.get(each, each), now.get(each, each)) for each in {**was, **now}}
        found["epoch"] = new.epoch.number
        found["columns"] = {
            one or stored: other for stored, (one, other) in named.items() if one != other
        }
    if found:
        found = {name: value for name, value in found.items() if value not in ([], {})}
    if not found:
        return None
    text = build_json(found).decode()
    if len(text) > _CHANGES:
        counted = {name: len(value) for name, value in found.items() if isinstance(value, Sized)}
        text = build_json(counted).decode()
    return text


@lru_cache(maxsize=16)
def _parts_of(client: str) -> tuple[str, str]:
    """Split a client's name into software and application, which is "" if there is none."""
    words = client.split(" ")
    named = [word[len(APPLICATION) :] for word in words if word.startswith(APPLICATION)]
    return " ".join(word for word in words if not word.startswith(APPLICATION)), "".join(named[:1])


def begin_history(root: Root, *, segments: int | None = None) -> Root:
    """Return a stream's first root with its own history row. Pure.

    `segments` is the row's number of segments, if it differs from `next_segment`.
    """
    row = describe_commit(None, root, NO_NOTE, requests=1)
    return replace(root, history=(row if segments is None else replace(row, segments=segments),))


_texts_of = attrgetter("writer_id", "client", "application", "merged")


def _texts_bytes(rows: Sequence[HistoryRow]) -> int:
    return sum(map(len, {*chain.from_iterable({*map(_texts_of, rows)})} - {None}))


def _moment(batch: pa.RecordBatch, place: int) -> Moment:
    return Moment(*(int(column_values(batch, name)[place]) for name in ("version", "time", "tail")))
