"""Segments as columns: what a status part lists, a million rows without a million objects.

Segments that segstore wrote are named `<version>-<nonce>/<task>-<attempt>-<place><ending>`. These
numbers, the six random bytes of the nonce and the ending are stored in columns of their own, of
which only the random bytes take much space. A name of any other form is stored as text with its row
number.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.parts.packed import Bytes, Ints, Packer, Unpacked, unpack
from segstore_ds.format.root import SegmentEntry

NONCE_BYTES = 6  # On disk: 12 hex digits of a token.
_NUMBER = "(0|[1-9][0-9]{0,17})"
_NAME = re.compile(
    rf"([0-9]{{20}})-([0-9a-f]{{12}})/{_NUMBER}-{_NUMBER}-{_NUMBER}(\.[a-z]{{1,16}})"
)
_ENDING = re.compile(r"\.[a-z]{1,16}")
_MOST = names.MAX_NUMBER - 1
_KINDS_LIMIT = 255


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """Segments in offset order, a numpy array per column. Immutable; slices share memory.

    Attributes:
        epochs: Epoch of each segment's bytes.
        numbers: Number of the segment.
        rows: Number of its events.
        bytes: Size of its object.
        footer_bytes: Length of footer and trailer.
        crcs: CRC-32 of footer and trailer.
        versions: Version in its token.
        nonces: Random bytes of its token, six per row.
        tasks: First number of its name.
        attempts: Second number of its name.
        places: Third number of its name.
        kinds: Index of its (format, ending) in `kind_names`.
        kind_names: The pairs that occur.
        odd: Paths by row, for names of another form.
    """

    epochs: Ints
    numbers: Ints
    rows: Ints
    bytes: Ints
    footer_bytes: Ints
    crcs: Ints
    versions: Ints
    nonces: Bytes
    tasks: Ints
    attempts: Ints
    places: Ints
    kinds: Ints
    kind_names: tuple[tuple[str, str], ...]
    odd: dict[int, str]

    def __len__(self) -> int:
        return len(self.rows)

    def entry(self, row: int, stats: str | None = None) -> SegmentEntry:
        """Return one segment as a value."""
        return SegmentEntry(
            segment_id=int(self.epochs[row]) << 32 | int(self.numbers[row]),
            path=self.path(row),
            rows=int(self.rows[row]),
            bytes=int(self.bytes[row]),
            footer_bytes=int(self.footer_bytes[row]),
            footer_crc=int(self.crcs[row]),
            format=self.kind_names[int(self.kinds[row])][0],
            stats=stats,
        )

    def path(self, row: int) -> str:
        """Return the path of one segment."""
        found = self.odd.get(row)
        if found is not None:
            return found
        ending = self.kind_names[int(self.kinds[row])][1]
        token = f"{int(self.versions[row]):020d}-{self.nonces[row].tobytes().hex()}"
        numbers = f"{int(self.tasks[row])}-{int(self.attempts[row])}-{int(self.places[row])}"
        return f"{token}/{numbers}{ending}"

    def entries(self, stats: Sequence[str | None] | None = None) -> Iterator[SegmentEntry]:
        """Yield all segments as values."""
        return (self.entry(row, stats[row] if stats else None) for row in range(len(self)))

    def slice(self, start: int, end: int) -> "SegmentColumns":
        """Return the rows ``[start, end)`` without a copy of the columns."""
        odd = {row - start: path for row, path in self.odd.items() if start <= row < end}
        parts = {name: getattr(self, name)[start:end] for name in _ARRAYS}
        return SegmentColumns(**parts, kind_names=self.kind_names, odd=odd)

    def take(self, rows: Ints) -> "SegmentColumns":
        """Return the given rows in the given order; a row may be repeated."""
        odd = {}
        if self.odd:
            listed = enumerate(rows.tolist())
            odd = {place: self.odd[row] for place, row in listed if row in self.odd}
        parts = {name: getattr(self, name)[rows] for name in _ARRAYS}
        return SegmentColumns(**parts, kind_names=self.kind_names, odd=odd)


_ARRAYS = tuple(
    field.name for field in fields(SegmentColumns) if field.name not in ("kind_names", "odd")
)


_NUMBERS = tuple(name for name in _ARRAYS if name != "nonces")


def from_entries(entries: Sequence[SegmentEntry]) -> SegmentColumns:
    """Return segments as columns, without their statistics."""
    kinds: dict[tuple[str, str], int] = {}
    odd: dict[int, str] = {}
    rows: list[tuple[int, ...]] = []
    nonces = bytearray()
    for place, entry in enumerate(entries):
        match = _NAME.fullmatch(entry.path)
        if match is None or int(match[1]) > _MOST:
            odd[place] = entry.path
            name, ending = (0, 0, 0, 0), ""
            nonces += bytes(NONCE_BYTES)
        else:
            name, ending = (int(match[1]), int(match[3]), int(match[4]), int(match[5])), match[6]
            nonces += bytes.fromhex(match[2])
        kind = kinds.setdefault((entry.format, ending), len(kinds))
        facts = (entry.rows, entry.bytes, entry.footer_bytes, entry.footer_crc)
        rows.append((entry.epoch, entry.segment_id & 0xFFFFFFFF, *facts, *name, kind))
    columns = np.array(rows, np.int64).reshape(-1, len(_NUMBERS)).T.copy()
    return SegmentColumns(
        **dict(zip(_NUMBERS, columns, strict=True)),
        nonces=np.frombuffer(bytes(nonces), np.uint8).reshape(-1, NONCE_BYTES),
        kind_names=tuple(kinds),
        odd=odd,
    )


def concat(parts: Iterable[SegmentColumns]) -> SegmentColumns:
    """Join the segments of several parts in order."""
    tables = list(parts)
    kinds: dict[tuple[str, str], int] = {}
    recoded, odd, before = [], dict[int, str](), 0
    for table in tables:
        places = [kinds.setdefault(kind, len(kinds)) for kind in table.kind_names]
        recoded.append(np.array(places or [0], np.int64)[table.kinds])
        odd.update({row + before: path for row, path in table.odd.items()})
        before += len(table)
    merged = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in _ARRAYS
        if name != "kinds"
    }
    return SegmentColumns(**merged, kinds=np.concatenate(recoded), kind_names=tuple(kinds), odd=odd)


def encode_columns(columns: SegmentColumns, extra: dict[str, Any]) -> bytes:
    """Return the body of a part."""
    packer = Packer(len(columns), extra)
    for name in _ARRAYS:
        if name == "nonces":
            packer.raw(name, columns.nonces)
        elif name == "crcs":
            crcs = columns.crcs.astype("<u4").view(np.uint8).reshape(-1, 4)
            packer.raw(name, crcs)
        else:
            packer.integers(name, getattr(columns, name))
    packer.json("kind_names", [list(kind) for kind in columns.kind_names])
    if columns.odd:
        packer.integers("odd_rows", np.array(sorted(columns.odd), np.int64))
        packer.json("odd_paths", [columns.odd[row] for row in sorted(columns.odd)])
    return packer.finish()


def decode_columns(body: bytes, *, where: str) -> tuple[SegmentColumns, Unpacked]:
    """Decode the segments of a part, in offset order, and the other fields of its header."""
    packed = unpack(body, where=where)
    kinds = _kind_names(packed)
    crcs = np.ascontiguousarray(packed.raw("crcs", 4)).view("<u4").reshape(-1)
    columns = SegmentColumns(
        epochs=packed.integers("epochs", most=(1 << 31) - 1),
        numbers=packed.integers("numbers", most=(1 << 32) - 1),
        rows=packed.integers("rows", least=1),
        bytes=packed.integers("bytes", least=1),
        footer_bytes=packed.integers("footer_bytes", least=1),
        crcs=crcs,
        versions=packed.integers("versions", most=_MOST),
        nonces=packed.raw("nonces", NONCE_BYTES),
        tasks=packed.integers("tasks", most=_MOST),
        attempts=packed.integers("attempts", most=_MOST),
        places=packed.integers("places", most=_MOST),
        kinds=packed.integers("kinds", most=len(kinds) - 1),
        kind_names=kinds,
        odd=_odd_names(packed),
    )
    unnamed = [place for place, kind in enumerate(kinds) if not kind[1]]
    nameless = np.flatnonzero(np.isin(columns.kinds, unnamed)).tolist() if unnamed else []
    if not all(row in columns.odd for row in nameless):
        raise CorruptionError("segment has no name", where=where)
    return columns, packed


def _kind_names(packed: Unpacked) -> tuple[tuple[str, str], ...]:
    found = packed.columns.get("kind_names")
    kinds = []
    for item in found if isinstance(found, list) else ():
        match item:
            case [str(form), str(ending)] if len(form) <= 20:
                if not ending or _ENDING.fullmatch(ending):
                    kinds.append((form, ending))
                    continue
        raise CorruptionError("segment kind is malformed", where=packed.where)
    if not kinds or len(kinds) > _KINDS_LIMIT:
        raise CorruptionError("part has no kinds of segments", where=packed.where)
    return tuple(kinds)


def _odd_names(packed: Unpacked) -> dict[int, str]:
    if "odd_rows" not in packed.columns:
        return {}
    rows, paths = packed.positions("odd_rows"), packed.texts("odd_paths")
    if len(rows) != len(paths):
        raise CorruptionError("names do not match their rows", where=packed.where)
    for path in paths:
        names.check_segment_path(path, where=packed.where)
    return dict(zip(rows.tolist(), paths, strict=True))
