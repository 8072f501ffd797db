"""Segments as columns: what a status part lists, a million rows without a million objects.

A path is not stored as text but as a template that many segments share, filled with numbers and
random bytes that have columns of their own. Only the random bytes take much space. Four templates
are those of the names that writers, copies and full roots build; any other path is a template
without fields.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.parts.rows import Bytes, Ints, integers_of
from segstore_ds.format.root import SegmentEntry

NONCE_BYTES = 6  # On disk: 12 hex digits of a path.
_NUMBER = "(0|[1-9][0-9]{0,17})"
_WRITTEN = re.compile(
    rf"([0-9]{{20}})-([0-9a-f]{{12}})/{_NUMBER}-{_NUMBER}-{_NUMBER}(\.[a-z]{{1,16}})"
)
_COPIED = re.compile(r"(copy-[A-Za-z0-9-]{1,90})/([0-9a-f]{16})-([0-9a-f]{12})(\.[a-z]{1,16})")
_REWRITTEN = re.compile(
    rf"(copy-[A-Za-z0-9-]{{1,90}})/{_NUMBER}-([0-9a-f]{{12}})-{_NUMBER}(\.[a-z]{{1,16}})"
)
_OUTLINED = re.compile(r"([0-9]{20})-([0-9a-f]{12})(/0-inline-0\.arrow)")
_LONGEST = {  # On disk: the fields of a template, each as long as it can be.
    "version": 20 * "0",
    "nonce": 12 * "0",
    "task": 18 * "0",
    "attempt": 18 * "0",
    "place": 18 * "0",
    "id": 16 * "0",
}
_FIELD = re.compile("{(" + "|".join(_LONGEST) + ")}")
_MOST = names.MAX_NUMBER - 1


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
        versions: Version in its path.
        nonces: Random bytes in its path, six per row.
        tasks: First number in its path.
        attempts: Second number in its path.
        places: Third number in its path.
        kinds: Index of its (format, path template) in `kind_names`.
        frames: Number of its frames; 0 if unknown.
        frame_raws: Their decompressed size in units of 64 KiB.
        kind_names: The pairs that occur.
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
    frames: Ints
    frame_raws: Ints
    kind_names: tuple[tuple[str, str], ...]

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
            frames=int(self.frames[row]),
            frame_raws=int(self.frame_raws[row]),
        )

    def path(self, row: int) -> str:
        """Return the path of one segment."""
        return self.kind_names[int(self.kinds[row])][1].format(
            version=f"{int(self.versions[row]):020d}",
            nonce=self.nonces[row].tobytes().hex(),
            task=int(self.tasks[row]),
            attempt=int(self.attempts[row]),
            place=int(self.places[row]),
            id=f"{int(self.epochs[row]) << 32 | int(self.numbers[row]):016x}",
        )

    def entries(self, stats: Sequence[str | None] | None = None) -> Iterator[SegmentEntry]:
        """Yield all segments as values."""
        return (self.entry(row, stats[row] if stats else None) for row in range(len(self)))

    def slice(self, start: int, end: int) -> "SegmentColumns":
        """Return the rows ``[start, end)`` without a copy of the columns."""
        parts = {name: getattr(self, name)[start:end] for name in _ARRAYS}
        return SegmentColumns(**parts, kind_names=self.kind_names)

    def take(self, rows: Ints) -> "SegmentColumns":
        """Return the given rows in the given order; a row may be repeated."""
        parts = {name: getattr(self, name)[rows] for name in _ARRAYS}
        return SegmentColumns(**parts, kind_names=self.kind_names)


_ARRAYS = tuple(field.name for field in fields(SegmentColumns) if field.name != "kind_names")
_NUMBERS = tuple(name for name in _ARRAYS if name != "nonces")


def from_entries(entries: Sequence[SegmentEntry]) -> SegmentColumns:
    """Return segments as columns, without their statistics."""
    kinds: dict[tuple[str, str], int] = {}
    rows: list[tuple[int, ...]] = []
    nonces = bytearray()
    for entry in entries:
        template, nonce, numbers = _parse_path(entry)
        nonces += bytes.fromhex(nonce)
        kind = kinds.setdefault((entry.format, template), len(kinds))
        facts = (entry.rows, entry.bytes, entry.footer_bytes, entry.footer_crc)
        counts = (kind, entry.frames, entry.frame_raws)
        rows.append((entry.epoch, entry.segment_id & 0xFFFFFFFF, *facts, *numbers, *counts))
    columns = np.array(rows, np.int64).reshape(-1, len(_NUMBERS)).T.copy()
    return SegmentColumns(
        **dict(zip(_NUMBERS, columns, strict=True)),
        nonces=np.frombuffer(bytes(nonces), np.uint8).reshape(-1, NONCE_BYTES),
        kind_names=tuple(kinds),
    )


def _parse_path(entry: SegmentEntry) -> tuple[str, str, tuple[int, int, int, int]]:
    """Return the template of a path, its random bytes, and its version and three numbers."""
    match = _WRITTEN.fullmatch(entry.path)
    if match is not None and int(match[1]) <= _MOST:
        numbers = (int(match[1]), int(match[3]), int(match[4]), int(match[5]))
        return f"{{version}}-{{nonce}}/{{task}}-{{attempt}}-{{place}}{match[6]}", match[2], numbers
    match = _OUTLINED.fullmatch(entry.path)
    if match is not None and int(match[1]) <= _MOST:
        return f"{{version}}-{{nonce}}{match[3]}", match[2], (int(match[1]), 0, 0, 0)
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
    tables = list(parts)
    kinds: dict[tuple[str, str], int] = {}
    recoded = []
    for table in tables:
        places = [kinds.setdefault(kind, len(kinds)) for kind in table.kind_names]
        recoded.append(np.array(places or [0], np.int64)[table.kinds])
    merged = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in _ARRAYS
        if name != "kinds"
    }
    return SegmentColumns(**merged, kinds=np.concatenate(recoded), kind_names=tuple(kinds))


_KIND = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in _NUMBERS if name != "kinds"),
        ("nonces", pa.binary(NONCE_BYTES)),
        ("kind", _KIND),
    ]
)


def to_batch(columns: SegmentColumns) -> pa.RecordBatch:
    """Return segments as a batch of `SCHEMA`."""
    nonces = pa.py_buffer(np.ascontiguousarray(columns.nonces))
    texts = pa.array([f"{form} {template}" for form, template in columns.kind_names], pa.string())
    codes = pa.array(columns.kinds.astype(np.int32))
    arrays = {
        "nonces": pa.Array.from_buffers(pa.binary(NONCE_BYTES), len(columns), [None, nonces]),
        "kind": pa.DictionaryArray.from_arrays(codes, texts),
    }
    numbers = {name: pa.array(np.ascontiguousarray(getattr(columns, name))) for name in _NUMBERS}
    return pa.RecordBatch.from_arrays(
        [arrays[name] if name in arrays else numbers[name] for name in SCHEMA.names], schema=SCHEMA
    )


def from_batch(batch: pa.RecordBatch, *, where: str) -> SegmentColumns:
    """Return the segments of decoded rows of `SCHEMA`, checked."""
    kind = batch.column("kind")
    kinds = tuple(_kind_name(text, where) for text in kind.dictionary.to_pylist())
    nonces = np.frombuffer(batch.column("nonces").buffers()[1], np.uint8)
    return SegmentColumns(
        **{
            name: integers_of(batch, name, where=where, least=_LEAST.get(name, 0), most=most)
            for name, most in _MOSTS.items()
        },
        kinds=kind.indices.to_numpy().astype(np.int64),
        nonces=nonces[: NONCE_BYTES * len(batch)].reshape(-1, NONCE_BYTES),
        kind_names=kinds,
    )


_INT64 = (1 << 63) - 1
_LEAST = {"rows": 1, "bytes": 1, "footer_bytes": 1}
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


def _kind_name(text: str, where: str) -> tuple[str, str]:
    form, _, template = text.partition(" ")
    if not 0 < len(form) <= 20:
        raise CorruptionError("segment kind is malformed", where=where)
    filled = _FIELD.sub(lambda match: _LONGEST[match[1]], template)
    names.check_segment_path(filled, where=where)
    return form, template
