"""Rebuild history parts and lists of them from kept commits. This module writes nothing.

Every root holds the rows of the newest commits up to its own. So the kept version that a part is
named after holds the very rows that were moved into the part. Rows from objects that no root lists
any more count only if the result has the digest that the root names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.envelope import decode_envelope, digest_of, encode_envelope
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.history import (
    column_values,
    decode_history,
    encode_history,
    encode_history_list,
    to_batch,
)
from segstore_ds.format.parts.history_rows import HistoryPart, HistoryRow
from segstore_ds.repair.kept_versions import KeptVersions
from segstore_ds.repair.tiling import tile
from segstore_ds.status.history import ROWS_HARD, History

_MOST_TRIED = 200
_ROWS_KIND = "rows"


@dataclass(frozen=True, slots=True)
class FoundHistory:
    """What was found of a lost history object.

    Attributes:
        data: The object; if `proven`, the lost one byte for byte.
        proven: Whether `data` has the digest that the reference names.
        unknown: Versions whose rows are not known; `data` marks them as unknown.
    """

    data: bytes
    proven: bool
    unknown: tuple[int, ...] = ()


class HistoryRebuilder:
    """Rebuilds the lost history objects of one root."""

    def __init__(self, kept: KeptVersions) -> None:
        self._kept = kept
        self._history = History(kept.storage)

    def find_list(self, ref: HistoryPart) -> FoundHistory | None:
        """Find a list of history parts; None if its parts are not known."""
        listed: dict[int, HistoryPart] = {}
        for root in self._kept.older():
            for part in self._parts_of(root.history_lists, root.history_parts):
                if ref.start <= part.start and part.end <= ref.end:
                    listed.setdefault(part.start, part)
            if tile(listed, ref.start, ref.end) is not None:
                break
        tiled = tile(listed, ref.start, ref.end)
        if tiled is not None:
            data = encode_envelope(encode_history_list(tiled))
            return FoundHistory(data, digest_of(data) == ref.digest)
        stored = [part for _, part in self._lying(ref)]
        for parts in islice(_tilings(stored, ref.start, ref.end), _MOST_TRIED):
            data = encode_envelope(encode_history_list(parts))
            if digest_of(data) == ref.digest:
                return FoundHistory(data, proven=True)
        return None

    def find_rows(self, ref: HistoryPart, before: HistoryRow | None) -> FoundHistory:
        """Find the rows of a history part; rows that are not known are marked as unknown.

        `before` is the row before the part's first one, if that can be read.
        """
        rows = self._told(ref)
        if len(rows) == ref.size:
            found = _packed(ref, rows)
            if found.proven or _fits(ref, rows):
                return found
        stored = dict(rows)
        for batch, _ in self._lying(ref):
            for row in _rows_of(batch):
                stored.setdefault(row.version, row)
        if len(stored) == ref.size:
            found = _packed(ref, stored)
            if found.proven:
                return found
        return _marked(ref, rows, before)

    def last_row(self, ref: HistoryPart) -> HistoryRow | None:
        """Return the last row of a part; None if the part can't be read."""
        try:
            return _rows_of(self._history.part(ref).slice(ref.size - 1))[0]
        except FormatError:
            return None

    def _told(self, ref: HistoryPart) -> dict[int, HistoryRow]:
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

    def _parts_of(
        self, lists: Sequence[HistoryPart], parts: Sequence[HistoryPart]
    ) -> Iterator[HistoryPart]:
        for ref in lists:
            try:
                yield from self._history.part_list(ref)
            except FormatError:
                continue
        yield from parts

    def _lying(self, ref: HistoryPart) -> Iterator[tuple[pa.RecordBatch, HistoryPart]]:
        """Yield stored row objects within a range whose bytes have the digest in their name."""
        storage = self._kept.storage
        for info in self._kept.objects(names.HISTORY_FOLDER):
            digest = names.parse_status_digest(info.path)
            if names.parse_status_kind(info.path) != _ROWS_KIND or info.path == ref.path:
                continue
            try:
                data = storage.get(info.path)
                batch = decode_history(decode_envelope(data, where=info.path), where=info.path)
            except FormatError:
                continue
            versions, times = column_values(batch, "version"), column_values(batch, "time")
            if digest != digest_of(data) or not len(versions):
                continue
            ends = (int(versions[0]), int(versions[-1]) + 1, int(times[0]), int(times[-1]))
            if ref.start <= ends[0] and ends[1] <= ref.end and digest is not None:
                yield batch, HistoryPart(info.path, *ends, len(data), digest)


def _packed(ref: HistoryPart, rows: dict[int, HistoryRow]) -> FoundHistory:
    batch = to_batch([rows[version] for version in range(ref.start, ref.end)])
    data = encode_envelope(encode_history(batch))
    return FoundHistory(data, digest_of(data) == ref.digest)


def _fits(ref: HistoryPart, rows: dict[int, HistoryRow]) -> bool:
    return (rows[ref.start].time_us, rows[ref.end - 1].time_us) == (ref.time_us, ref.last_us)


def _marked(
    ref: HistoryPart, rows: dict[int, HistoryRow], before: HistoryRow | None
) -> FoundHistory:
    """Return a part whose missing rows are marked as unknown and say nothing else."""
    unknown = tuple(version for version in range(ref.start, ref.end) if version not in rows)
    last = before or HistoryRow(ref.start, ref.time_us, Operation.UNKNOWN, 0, 0)
    filled = dict(rows)
    for version in range(ref.start, ref.end):
        time_us = ref.last_us if version == ref.end - 1 else max(last.time_us, ref.time_us)
        known = rows.get(version)
        last = known or HistoryRow(version, time_us, Operation.UNKNOWN, last.head, last.tail)
        filled[version] = last
    return replace(_packed(ref, filled), proven=False, unknown=unknown)


def _rows_of(batch: pa.RecordBatch) -> list[HistoryRow]:
    times = column_values(batch, "time")
    rows = batch.drop_columns(["time"]).to_pylist()
    return [HistoryRow(time_us=int(time), **row) for row, time in zip(rows, times, strict=True)]


def _tilings(
    parts: Sequence[HistoryPart], start: int, end: int
) -> Iterator[tuple[HistoryPart, ...]]:
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
