"""Rebuild history parts and lists of them from kept commits. This module writes nothing.

Every root holds the rows of the newest commits up to its own. So the kept version that a part is
named after holds the very rows that were moved into the part. Rows from objects that no root lists
any more count only if the result has the digest that the root names.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.history import column_values, to_batch
from segstore_ds.format.parts.history_rows import HistoryRow
from segstore_ds.format.parts.kinds import HISTORY, encode_object
from segstore_ds.format.root import PartRef
from segstore_ds.repair.kept_versions import KeptVersions
from segstore_ds.repair.lists import find_list
from segstore_ds.status.history import ROWS_HARD, History, history_ref
from segstore_ds.status.levels import readable_parts
from segstore_ds.status.store import ObjectStore, is_proven

_MOST_TRIED = 200


class HistoryRebuilder:
    """Rebuilds the lost history objects of one root."""

    def __init__(self, kept: KeptVersions) -> None:
        self._kept = kept
        self._history = History(kept.storage)
        self._store = ObjectStore(kept.storage)

    def find_list(self, ref: PartRef) -> tuple[PartRef, ...] | None:
        """Find the parts of a list; None if they are not known."""
        levels = self._history.levels
        told = (readable_parts(levels, root) for root in self._kept.older())
        return find_list(ref, told, self._stored(ref))

    def _stored(self, ref: PartRef) -> Iterator[tuple[PartRef, ...]]:
        """Yield the stored parts that cover a list's range."""
        parts = [part for _, part in self._lying(ref)]
        yield from islice(_tilings(parts, ref.start, ref.end), _MOST_TRIED)

    def find_rows(self, ref: PartRef, before: HistoryRow | None) -> tuple[bytes, tuple[int, ...]]:
        """Find the rows of a history part: the object, and the versions whose rows are not known.

        The object marks those as unknown. `before` is the row before the part's first one, if that
        can be read.
        """
        rows = self._told(ref)
        if len(rows) == ref.count:
            data = _packed(ref, rows)
            if is_proven(ref, data) or _fits(ref, rows):
                return data, ()
        stored = dict(rows)
        for batch, _ in self._lying(ref):
            for row in _rows_of(batch):
                stored.setdefault(row.version, row)
        if len(stored) == ref.count:
            data = _packed(ref, stored)
            if is_proven(ref, data):
                return data, ()
        return _marked(ref, rows, before)

    def last_row(self, ref: PartRef) -> HistoryRow | None:
        """Return the last row of a part; None if the part can't be read."""
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
            for number in range(version, min(version + ROWS_HARD, newest.version) + 1):
                root = self._kept.at(number)
                if root is not None and root.history and root.history[0].version <= version:
                    found.update((row.version, row) for row in root.history)
                    break
        return {version: row for version, row in found.items() if ref.start <= version < ref.end}

    def _lying(self, ref: PartRef) -> Iterator[tuple[pa.RecordBatch, PartRef]]:
        """Yield stored row objects within a range whose bytes have the digest in their name."""
        for info in self._kept.objects(names.STATUS_FOLDER):
            if names.parse_status_kind(info.path) != HISTORY.name or info.path == ref.path:
                continue
            try:
                batch, _ = self._store.read(info.path, HISTORY)
            except FormatError:
                continue
            if batch.num_rows:
                part = history_ref(info.path, info.size, batch)
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


def _tilings(parts: Sequence[PartRef], start: int, end: int) -> Iterator[tuple[PartRef, ...]]:
    """Yield the ways in which parts cover a range without gap or overlap, large parts first."""
    if start == end:
        yield ()
        return
    here = sorted(
        (candidate for candidate in parts if candidate.start == start),
        key=lambda candidate: -candidate.end,
    )
    for part in here:
        if part.end <= end:
            for rest in _tilings(parts, part.end, end):
                yield (part, *rest)
