"""Rebuild history, writers, tags and schemas from kept commits. This module writes nothing.

Every root holds the rows of the newest commits up to its own. So the kept version that a history
part is named after holds the very rows that were moved into the part. The versions before and after
a commit tell which writers it moved out of the root, or which parts of writers it joined. A result
is proven if it has the digest that the root names: then it is the lost object itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

import pyarrow as pa

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import HISTORY, LIST, SCHEMA, WRITERS, encode_object, to_batch
from segstore_ds.format.parts.rows import column_values
from segstore_ds.format.root import BlobRef, Epoch, HistoryRow, PartRef, Root, Writer
from segstore_ds.format.schema.codec import encode_schema
from segstore_ds.repair.kept_versions import KeptVersions, find_schema, tile
from segstore_ds.status.history import NUMBERS_SKIPPED, History
from segstore_ds.status.record_tables import WritersTable
from segstore_ds.status.store import ObjectStore, is_proven
from segstore_ds.status.table import HISTORY as LIMITS
from segstore_ds.status.table import readable_parts, readable_rows

REWRITES = frozenset({Operation.COMPACT, Operation.REDACT})


class HistoryFacts:
    """What the history says about commits whose files may be gone: offsets, counts, numbers.

    `next_segment` is the number that the next segment after version `newest` will get.
    """

    def __init__(self, rows: Mapping[int, HistoryRow], newest: int, next_segment: int) -> None:
        self._rows = rows
        self._next = dict(_count_down(rows, newest, next_segment))

    def numbers(self, version: int) -> range | None:
        """Return the segment numbers that a commit assigned; None if they are not known."""
        first, end = self._next.get(version - 1), self._next.get(version)
        if first is None and end is not None and version == min(self._rows):
            first = end - self._rows[version].segments  # a copy made the stream with segments
        return None if first is None or end is None else range(first, end)

    def writers(self, version: int, first: int, end: int) -> dict[str, HistoryRow]:
        """Return the last batches that were committed by versions ``[first, end)``, by writer id.

        Commits after `version` don't count.
        """
        last = {
            row.writer_id: row
            for _, row in sorted(self._rows.items())
            if row.version <= version
            and row.writer_id is not None
            and row.operation != Operation.REDACT
        }
        return {name: row for name, row in last.items() if first <= row.version < end}

    def know(self, first: int, end: int) -> bool:
        """Tell whether the rows of all versions ``[first, end)`` can be read."""
        rows = map(self._rows.get, range(first, end))
        return all(row is not None and row.operation != Operation.UNKNOWN for row in rows)

    def newest(self, before: int) -> list[HistoryRow]:
        """Return the commits below a version, newest first."""
        return [row for _, row in sorted(self._rows.items(), reverse=True) if row.version < before]


def read_facts(history: History, root: Root) -> HistoryFacts:
    """Read all history rows that can be read."""
    rows = chain.from_iterable(map(_rows_of, readable_rows(history, root)))
    found = {row.version: row for row in (*rows, *root.history)}
    return HistoryFacts(found, root.version, root.next_segment)


def _count_down(
    rows: Mapping[int, HistoryRow], newest: int, next_segment: int
) -> Iterator[tuple[int, int]]:
    """Yield the next segment number after each version, as far back as rows are known."""
    yield newest, next_segment
    for version in range(newest, 0, -1):
        row, before = rows.get(version), rows.get(version - 1)
        if row is None or row.operation == Operation.UNKNOWN:
            return
        next_segment -= row.segments
        if row.operation == Operation.REPAIR and (
            before is None or before.operation == Operation.LOST
        ):
            next_segment -= NUMBERS_SKIPPED
        yield version - 1, next_segment


def told_list(ref: PartRef, told: Iterable[Iterable[PartRef]]) -> tuple[PartRef, ...] | None:
    """Return the parts of a lost list as older roots name them; None if they don't.

    `told` has the parts of each older root, newest first.
    """
    found: dict[int, PartRef] = {}
    for parts in told:
        for part in parts:
            if ref.start <= part.start and part.end <= ref.end:
                found.setdefault(part.start, part)
        tiled = tile(found, ref.start, ref.end)
        if tiled is not None and sum(part.count for part in tiled) == ref.count:
            return tuple(tiled)
    return None


# --- history --------------------------------------------------------------------------------------


class HistoryRebuilder:
    """Rebuilds the lost history objects of one root."""

    def __init__(self, kept: KeptVersions) -> None:
        self._kept = kept
        self._history = History(kept.storage)

    def find_list(self, ref: PartRef) -> tuple[PartRef, ...] | None:
        """Find the parts of a list; None if they are not known.

        Without an older version that names them, the longest parts that lie there count if they
        have the list's digest.
        """
        older = self._kept.older()
        found = told_list(ref, (readable_parts(self._history, root) for root in older))
        if found is not None:
            return found
        longest: dict[int, PartRef] = {}
        for _, part in self._stored(ref):
            if part.start not in longest or part.end > longest[part.start].end:
                longest[part.start] = part
        parts = tile(longest, ref.start, ref.end)
        proven = parts is not None and is_proven(ref, encode_object(LIST, tuple(parts)))
        return tuple(parts) if parts is not None and proven else None

    def find_rows(self, ref: PartRef, before: PartRef | None) -> tuple[bytes, tuple[int, ...]]:
        """Find the rows of a history part: the object, and the versions whose rows are not known.

        The object marks those as unknown. `before` is the part before, if there is one. Rows from
        objects that no root lists count only if the result has the digest that the root names.
        """
        rows = told = self._told(ref)
        if len(told) < ref.count:
            stored = (row for batch, _ in self._stored(ref) for row in _rows_of(batch))
            rows = {row.version: row for row in stored} | told
        if len(rows) == ref.count:
            data = _packed(ref, rows)
            if is_proven(ref, data) or (rows is told and _fits(ref, rows)):
                return data, ()
        return _marked(ref, told, None if before is None else self._last_row(before))

    def _last_row(self, ref: PartRef) -> HistoryRow | None:
        try:
            return _rows_of(self._history.part(ref).slice(ref.count - 1))[0]
        except FormatError:
            return None

    def _told(self, ref: PartRef) -> dict[int, HistoryRow]:
        """Return the rows of a part that kept roots hold, by version."""
        found: dict[int, HistoryRow] = {}
        newest = self._kept.newest
        for version in range(ref.end - 1, ref.start - 1, -1):
            # The version's own root holds the row and those before; the next roots keep it a while.
            if version in found:
                continue
            for number in range(version, min(version + LIMITS.hard, newest.version) + 1):
                root = self._kept.at(number)
                if root is not None and root.history and root.history[0].version <= version:
                    found.update((row.version, row) for row in root.history)
                    break
        return {version: row for version, row in found.items() if ref.start <= version < ref.end}

    def _stored(self, ref: PartRef) -> Iterator[tuple[pa.RecordBatch, PartRef]]:
        """Yield stored row objects within a range whose bytes have the digest in their name."""
        store = ObjectStore(self._kept.storage)
        for info in self._kept.objects(names.STATUS_FOLDER):
            if names.parse_status_kind(info.path) != HISTORY.name or info.path == ref.path:
                continue
            try:
                batch, _ = store.read(info.path, HISTORY)
            except FormatError:
                continue
            if batch.num_rows:
                part = self._history.ref_of(info.path, info.size, batch)
                if ref.start <= part.start and part.end <= ref.end:
                    yield batch, part


def _packed(ref: PartRef, rows: dict[int, HistoryRow]) -> bytes:
    batch = to_batch([rows[version] for version in range(ref.start, ref.end)])
    return encode_object(HISTORY, batch)


def _fits(ref: PartRef, rows: dict[int, HistoryRow]) -> bool:
    return (rows[ref.start].time_us, rows[ref.end - 1].time_us) == (ref.time_us, ref.last_us)


def _marked(
    ref: PartRef, rows: dict[int, HistoryRow], before: HistoryRow | None
) -> tuple[bytes, tuple[int, ...]]:
    """Return a part whose missing rows are marked as unknown and say nothing else."""
    unknown = tuple(version for version in range(ref.start, ref.end) if version not in rows)
    last = before or HistoryRow(ref.start, ref.time_us, Operation.UNKNOWN, 0, 0)
    filled = dict(rows)
    for version in range(ref.start, ref.end):
        time_us = ref.last_us if version == ref.end - 1 else max(last.time_us, ref.time_us)
        known = rows.get(version)
        last = known or HistoryRow(version, time_us, Operation.UNKNOWN, last.head, last.tail)
        filled[version] = last
    return _packed(ref, filled), unknown


def _rows_of(batch: pa.RecordBatch) -> list[HistoryRow]:
    times = column_values(batch, "time")
    rows = batch.drop_columns(["time"]).to_pylist()
    return [HistoryRow(time_us=int(time), **row) for row, time in zip(rows, times, strict=True)]


# --- blobs ----------------------------------------------------------------------------------------


Found = tuple[bytes, bool]  # a blob, and whether it lacks something that the lost one held
Facts = Callable[[], HistoryFacts]


def find_writers(kept: KeptVersions, read: Facts, ref: PartRef) -> Found | None:
    """Find the writers of a part; None if they are not known. `read` reads the history if needed.

    One commit moved them out of the root, or joined parts that held them.
    """
    table, made = kept.status.writers, names.parse_status_version(ref.path) or 0
    before, after = kept.at(made), kept.at(made + 1)
    if before is not None and after is not None:
        left = after.writers
        moved = {name: each for name, each in before.writers.items() if name not in left}
        gone = [part for part in before.writers_parts if part not in after.writers_parts]
        try:
            joined = table.join([*map(table.part, gone)])
        except FormatError:
            joined = {}
        for found in (table.join([moved]), joined):
            if found and table.ref_of(ref.path, ref.bytes, found) == ref:
                return encode_object(WRITERS, found), False
    return _writers_by_history(table, read(), ref, made)


def _writers_by_history(
    table: WritersTable, facts: HistoryFacts, ref: PartRef, made: int
) -> Found | None:
    """Find writers by the history rows of their last batches; None if a row is missing.

    The history holds neither owners nor fingerprints. Parts that were joined also hold rows
    that newer ones supersede: which ones makes no difference.
    """
    last = facts.writers(made + 1, ref.start, ref.end)
    within = facts.writers(ref.end - 1, ref.start, ref.end)
    ends = (ref.start, ref.end - 1)
    superseded = sorted(
        (row.version not in ends, name, row) for name, row in within.items() if name not in last
    )
    rows = [*last.items(), *((name, row) for _, name, row in superseded)][: ref.count]
    found = table.join(
        [
            {
                name: Writer("", row.batch_id, row.version, row.rows, row.tail)
                for name, row in rows
                if row.batch_id is not None
            }
        ]
    )
    told = len(last) <= ref.count and facts.know(ref.start, made + 1)
    if not told or not found or table.ref_of(ref.path, ref.bytes, found) != ref:
        return None
    data = encode_object(WRITERS, found)
    return data, not is_proven(ref, data)


def find_epoch(kept: KeptVersions, epoch: Epoch, blob: BlobRef) -> Found | None:
    """Find an epoch's schema in one of its segments; None if no segment can be read.

    No segment stores Spark's own types of the schema: if there were any, it lacks them.
    """
    schema = find_schema(kept, epoch.number)
    if schema is None:
        return None
    data = encode_object(SCHEMA, (encode_schema(schema), None))
    return data, not is_proven(blob, data)
