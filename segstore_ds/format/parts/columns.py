"""Segments as columns: a status part of a million rows without a million objects.

A path is stored as a template that many segments share, and as numbers and random bytes in columns
of their own. Only the random bytes take much space. The names that writers, copies and full roots
build share a few templates; any other path is a template without fields.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.parts.rows import (
    Bytes,
    Ints,
    as_column,
    as_numbers,
    column_values,
    decode_rows,
    encode_rows,
    integers_of,
    text_column,
)
from segstore_ds.format.root import SegmentEntry

NONCE_BYTES = 6  # On disk: 12 hex digits of a path.
_NUMBER = "(0|[1-9][0-9]{0,17})"
_WRITTEN = re.compile(
    rf"([0-9]{{20}})-([0-9a-f]{{12}})/{_NUMBER}-(?:{_NUMBER}|([A-Za-z0-9]{{1,20}}))-{_NUMBER}"
    r"(\.[a-z]{1,16})"
)
_COPIED = re.compile(r"(copy-[A-Za-z0-9-]{1,90})/([0-9a-f]{16})-([0-9a-f]{12})(\.[a-z]{1,16})")
_REWRITTEN = re.compile(
    rf"(copy-[A-Za-z0-9-]{{1,90}})/{_NUMBER}-([0-9a-f]{{12}})-{_NUMBER}(\.[a-z]{{1,16}})"
)
_LONGEST = {  # On disk: the fields of a template, each with its longest value.
    "version": 20 * "0",
    "nonce": 12 * "0",
    "task": 18 * "0",
    "attempt": 18 * "0",
    "place": 18 * "0",
    "id": 16 * "0",
}
_FIELD = re.compile("{(" + "|".join(_LONGEST) + ")}")
_MOST = names.MAX_NUMBER - 1


_INT64 = (1 << 63) - 1
# On disk: the columns of integers, in order, and the largest value of each.
_MOSTS = {
    "epochs": (1 << 31) - 1,
    "numbers": (1 << 32) - 1,
    "rows": _INT64,
    "bytes": _INT64,
    "footer_bytes": _INT64,
    "crcs": (1 << 32) - 1,
    "versions": _MOST,
    "tasks": _MOST,
    "attempts": _MOST,
    "places": _MOST,
    "frames": _INT64,
    "frame_raws": _INT64,
}
_LEAST = {"rows": 1, "bytes": 1, "footer_bytes": 1}
_KIND = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [*((name, pa.int64()) for name in _MOSTS), ("nonces", pa.binary(NONCE_BYTES)), ("kind", _KIND)]
)


_OF_ENTRIES: Mapping[str, Callable[[SegmentEntry], int]] = {
    "epochs": attrgetter("epoch"),
    "rows": attrgetter("rows"),
    "bytes": attrgetter("bytes"),
    "frames": lambda entry: entry.frames or (entry.frame is not None),
}


class SegmentColumns:
    """Segments in offset order: a batch of `SCHEMA`, or entries. Immutable; slices share memory.

    Segments that a root lists itself stay entries, since a read needs only a few columns of them.

    Each column of integers is an attribute, a numpy array: `epochs` of each segment's bytes, its
    `numbers`, `rows`, `bytes`, `footer_bytes`, `crcs` of its end, the `versions`, `tasks`,
    `attempts` and `places` in its path, and its `frames` (0 if unknown) with their decompressed
    size, `frame_raws`, in units of 64 KiB.
    """

    def __init__(
        self, batch: pa.RecordBatch | None, listed: Sequence[SegmentEntry] | None = None
    ) -> None:
        self._listed = listed
        if batch is not None:
            self.__dict__["batch"] = batch

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """The batch, without the frames of inline entries."""
        return from_entries(self._listed or ()).batch

    def __len__(self) -> int:
        return int(self.batch.num_rows) if self._listed is None else len(self._listed)

    def __getattr__(self, name: str) -> Ints:
        if name not in _MOSTS:
            raise AttributeError(name)
        if self._listed is not None and name in _OF_ENTRIES:
            values = np.fromiter(map(_OF_ENTRIES[name], self._listed), np.int64)
        else:
            values = column_values(self.batch, name)
        self.__dict__[name] = values
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        if self._listed is not None:
            return type(self), (None, self._listed)
        # pickle would include the whole memory that a slice is a part of.
        return _unpickle, (encode_rows(self.batch),)

    @cached_property
    def kinds(self) -> Ints:
        """Index of each segment's (format, path template) in `kind_names`."""
        return as_numbers(self.batch.column("kind").indices).astype(np.int64)

    @cached_property
    def kind_names(self) -> tuple[tuple[str, str], ...]:
        """The pairs of format and path template."""
        texts = self.batch.column("kind").dictionary.to_pylist()
        return tuple((form, template) for form, _, template in (t.partition(" ") for t in texts))

    @cached_property
    def nonces(self) -> Bytes:
        """Random bytes in each path, six per row."""
        column = self.batch.column("nonces")
        start, end = column.offset, column.offset + len(column)
        found = np.frombuffer(column.buffers()[1], np.uint8)  # may be padded
        return found[NONCE_BYTES * start : NONCE_BYTES * end].reshape(-1, NONCE_BYTES)

    def entry(self, row: int, stats: str | None = None) -> SegmentEntry:
        """Return one segment as an entry, with `stats` if it is a row of the batch."""
        if self._listed is not None:
            return self._listed[row]
        return SegmentEntry(
            segment_id=int(self.epochs[row]) << 32 | int(self.numbers[row]),
            path=self.path(row),
            rows=int(self.rows[row]),
            bytes=int(self.bytes[row]),
            footer_bytes=int(self.footer_bytes[row]),
            footer_crc=int(self.crcs[row]),
            format=self.kind_names[int(self.kinds[row])][0],
            stats=stats,
            frames=int(self.frames[row]),
            frame_raws=int(self.frame_raws[row]),
        )

    def path(self, row: int) -> str:
        """Return the path of one segment."""
        if self._listed is not None:
            return self._listed[row].path
        return self.kind_names[int(self.kinds[row])][1].format(
            version=f"{int(self.versions[row]):020d}",
            nonce=self.nonces[row].tobytes().hex(),
            task=int(self.tasks[row]),
            attempt=int(self.attempts[row]),
            place=int(self.places[row]),
            id=f"{int(self.epochs[row]) << 32 | int(self.numbers[row]):016x}",
        )

    def entries(self, stats: Sequence[str | None] | None = None) -> Iterator[SegmentEntry]:
        """Yield all segments as entries."""
        return (self.entry(row, stats[row] if stats else None) for row in range(len(self)))

    def slice(self, start: int, end: int) -> "SegmentColumns":
        """Return the rows ``[start, end)`` without a copy of the columns."""
        if self._listed is not None:
            return SegmentColumns(None, self._listed[start:end])
        return SegmentColumns(self.batch.slice(start, end - start))

    def take(self, rows: Ints) -> "SegmentColumns":
        """Return the given rows in the given order; a row may be repeated."""
        if self._listed is not None:
            return SegmentColumns(None, [self._listed[row] for row in rows.tolist()])
        return SegmentColumns(self.batch.take(as_column(rows)))


def _unpickle(body: bytes) -> SegmentColumns:
    return SegmentColumns(decode_rows(body, SCHEMA, where="segments of a plan"))


def from_entries(entries: Sequence[SegmentEntry]) -> SegmentColumns:
    """Return segments as columns, without their statistics."""
    kinds: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    nonces: list[bytes] = []
    for entry in entries:
        template, nonce, numbers = _parse_path(entry)
        nonces.append(bytes.fromhex(nonce))
        kind = kinds.setdefault(f"{entry.format} {template}", len(kinds))
        facts = (entry.rows, entry.bytes, entry.footer_bytes, entry.footer_crc)
        counts = (entry.frames, entry.frame_raws, kind)
        rows.append((entry.epoch, entry.segment_id & 0xFFFFFFFF, *facts, *numbers, *counts))
    *integers, codes = np.array(rows, np.int64).reshape(-1, len(_MOSTS) + 1).T.copy()
    return from_columns(dict(zip(_MOSTS, integers, strict=True)), nonces, codes, [*kinds])


def from_columns(
    integers: Mapping[str, Ints], nonces: Sequence[bytes], kinds: Ints, kind_names: Sequence[str]
) -> SegmentColumns:
    """Return segments from columns of integers, nonces, and indexes into names of kinds."""
    coded = pa.DictionaryArray.from_arrays(
        as_column(kinds.astype(np.int32)), text_column(kind_names)
    )
    random = pa.Array.from_buffers(
        pa.binary(NONCE_BYTES), len(kinds), [None, pa.py_buffer(b"".join(nonces))]
    )
    arrays = [*map(as_column, integers.values()), random, coded]
    found = SegmentColumns(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    found.__dict__.update(integers)  # a cache, to save reading them from the batch
    return found


def _parse_path(entry: SegmentEntry) -> tuple[str, str, tuple[int, int, int, int]]:
    """Return the template of a path, its random bytes, and its version and three numbers."""
    match = _WRITTEN.fullmatch(entry.path)
    if match is not None and int(match[1]) <= _MOST:
        attempt = match[5] or "{attempt}"  # a word if no task of an append wrote the segment
        numbers = (int(match[1]), int(match[3]), int(match[4] or 0), int(match[6]))
        return f"{{version}}-{{nonce}}/{{task}}-{attempt}-{{place}}{match[7]}", match[2], numbers
    match = _COPIED.fullmatch(entry.path)
    if match is not None and int(match[2], 16) == entry.segment_id:
        return f"{match[1]}/{{id}}-{{nonce}}{match[4]}", match[3], (0, 0, 0, 0)
    match = _REWRITTEN.fullmatch(entry.path)
    if match is not None:
        template = f"{match[1]}/{{task}}-{{nonce}}-{{place}}{match[5]}"
        return template, match[3], (0, int(match[2]), 0, int(match[4]))
    return entry.path, NONCE_BYTES * "00", (0, 0, 0, 0)


def concat(parts: Iterable[SegmentColumns]) -> SegmentColumns:
    """Join the segments of several parts in order."""
    table = pa.Table.from_batches([part.batch for part in parts], SCHEMA)
    (batch,) = table.unify_dictionaries().combine_chunks().to_batches()
    return SegmentColumns(batch)


def from_batch(batch: pa.RecordBatch, *, where: str) -> SegmentColumns:
    """Return the segments of decoded rows of `SCHEMA`, checked."""
    for name, most in _MOSTS.items():
        integers_of(batch, name, where=where, least=_LEAST.get(name, 0), most=most)
    for text in batch.column("kind").dictionary.to_pylist():
        _check_kind(text or "", where)
    return SegmentColumns(batch.replace_schema_metadata(None))


def _check_kind(text: str, where: str) -> None:
    form, _, template = text.partition(" ")
    if not 0 < len(form) <= 20:
        raise CorruptionError("segment kind is malformed", where=where)
    filled = _FIELD.sub(lambda match: _LONGEST[match[1]], template)
    names.check_segment_path(filled, where=where)
