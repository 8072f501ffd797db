"""Packed columns: the body of status and history parts, small and fast to decode.

::

    4 bytes   length of the header, little-endian
    header    JSON: {"rows": n, "columns": [[name, kind, ...], ...], ...}
    columns   contiguous, in the header's order, up to the end of the body

Integers are stored as differences from a base, in as few bytes as the largest difference needs,
plane by plane: the lowest byte of every value, then the second byte of every value, and so on. A
column that counts up is stored as the steps between its values, and takes no bytes if all steps are
equal. The envelope does the compression. Whole columns are decoded at once: no value becomes a
Python object.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segstore_ds.errors import CorruptionError
from segstore_ds.format.record import build_json, from_json, parse_json

ROWS_LIMIT = 1 << 20  # of one part: more than any writer makes; bounds decoding
_PLAIN, _STEPS = 0, 1  # On disk. Never change; add a new one.
_LENGTH = struct.Struct("<I")

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Packer:
    """Builds a body column by column.

    `rows` is the length of every column that is not given one of its own, and `extra` holds further
    fields of the header.
    """

    def __init__(self, rows: int, extra: Mapping[str, Any] | None = None) -> None:
        self._header: dict[str, Any] = {**(extra or {}), "rows": rows}
        self._columns: list[list[Any]] = []
        self._pieces: list[bytes] = []

    def integers(self, name: str, values: Ints) -> None:
        """Add integers, as they are or as steps, whichever takes fewer bits."""
        if not len(values):
            self._columns.append([name, "int", 0, _PLAIN, 0, 0, 0])
            return
        first, plain_base = int(values[0]), int(values.min())
        if plain_base == int(values.max()):
            # Most columns of a small part are constant; stop here, because commits wait for this.
            self._columns.append([name, "int", len(values), _PLAIN, first, plain_base, 0])
            return
        steps = np.empty_like(values)
        np.subtract(values[1:], values[:-1], out=steps[1:])
        steps[0] = steps[1]  # ignored: the header holds the first value
        steps_base = int(steps.min())
        plain = (values - plain_base).view(np.uint64)
        stepped = (steps - steps_base).view(np.uint64)
        if _bits(stepped) < _bits(plain):
            order, base, stored = _STEPS, steps_base, stepped
        else:
            order, base, stored = _PLAIN, plain_base, plain
        width = (int(stored.max()).bit_length() + 7) // 8
        planes = stored.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
        self._columns.append([name, "int", len(values), order, first, base, width])
        self._pieces.append(planes.T.tobytes())

    def raw(self, name: str, values: Bytes) -> None:
        """Add rows of bytes of one width unchanged: random bytes do not compress."""
        self._columns.append([name, "raw", values.shape[0], values.shape[1]])
        self._pieces.append(np.ascontiguousarray(values).tobytes())

    def json(self, name: str, value: Any) -> None:
        """Add any JSON value."""
        data = build_json(value)
        self._columns.append([name, "json", len(data)])
        self._pieces.append(data)

    def finish(self) -> bytes:
        """Return the body."""
        header = build_json({**self._header, "columns": self._columns})
        return b"".join((_LENGTH.pack(len(header)), header, *self._pieces))


def _bits(values: npt.NDArray[np.uint64]) -> float:
    # A few thousand values are enough to choose by; either choice is correct.
    sample = values[:: len(values) // 4096 + 1]
    return float(np.log2(sample.astype(np.float64) + 1.0).sum())


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A decoded body: the columns by name, and the other fields of its header.

    The methods raise CorruptionError if a column is missing, malformed or out of range.
    """

    rows: int
    columns: Mapping[str, Any]
    extra: Mapping[str, Any]
    where: str

    def integers(self, name: str, *, least: int = 0, most: int = 2**63 - 1) -> Ints:
        """Return a column of integers, one per row, each within ``[least, most]``."""
        values: Ints = self._column(name, np.int64, self.rows)
        check_range(values, least, most, name=name, where=self.where)
        return values

    def raw(self, name: str, width: int) -> Bytes:
        """Return rows of `width` bytes, one per row of the body."""
        values: Bytes = self._column(name, np.uint8, self.rows)
        if values.shape[1:] != (width,):
            raise CorruptionError("column has the wrong width", where=self.where, column=name)
        return values

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self.columns.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CorruptionError("column does not hold strings", where=self.where, column=name)
        return tuple(value)

    def _column(self, name: str, kind: Any, rows: int | None) -> Any:
        values = self.columns.get(name)
        if not isinstance(values, np.ndarray) or values.dtype != kind:
            raise CorruptionError("column is missing", where=self.where, column=name)
        if rows is not None and len(values) != rows:
            raise CorruptionError("column has the wrong length", where=self.where, column=name)
        return values


def check_range(values: Ints, least: int, most: int, *, name: str, where: str) -> None:
    """Raise CorruptionError if a value lies outside ``[least, most]``."""
    if len(values) and (int(values.min()) < least or int(values.max()) > most):
        raise CorruptionError("value is out of range", where=where, column=name)


@dataclass(frozen=True, slots=True)
class _Header:
    rows: int
    columns: list[Any]
    extra: Mapping[str, Any]


def unpack(body: bytes, *, where: str) -> Unpacked:
    """Decode a body of at most `ROWS_LIMIT` rows.

    Callers check what the columns mean.
    """
    start = _LENGTH.size + (_LENGTH.unpack_from(body)[0] if len(body) >= _LENGTH.size else 0)
    if not _LENGTH.size < start <= len(body):
        raise CorruptionError("header of packed columns is truncated", where=where)
    value = parse_json(body[_LENGTH.size : start], where=where)
    header = from_json(_Header, value, where=where)
    if header.rows > ROWS_LIMIT:
        raise CorruptionError("part has too many rows", where=where, rows=header.rows)
    columns: dict[str, Any] = {}
    cursor = start
    for described in header.columns:
        name, value, cursor = _take(body, cursor, described, header.rows, where)
        columns[name] = value
    if cursor != len(body):
        raise CorruptionError("columns do not fill the body", where=where, bytes=len(body))
    return Unpacked(header.rows, columns, header.extra, where)


def _take(body: bytes, cursor: int, described: Any, rows: int, where: str) -> tuple[str, Any, int]:
    """Return the name and the value of the column at `cursor`, and the offset after it."""
    match described:
        case [str(name), "int", int(count), int(order), int(first), int(base), int(width)]:
            size, ok = count * width, 0 <= count <= rows and 0 <= width <= 8 and order in (0, 1)
            if ok and _is_int64(first) and _is_int64(base) and cursor + size <= len(body):
                stored = _planes(body, cursor, count, width)
                return name, _integers(stored, order, first, base), cursor + size
        case [str(name), "raw", int(count), int(width)]:
            size, ok = count * width, 0 <= count <= rows and 0 < width <= 64
            if ok and cursor + size <= len(body):
                raw = np.frombuffer(body, np.uint8, size, cursor).reshape(count, width)
                return name, raw, cursor + size
        case [str(name), "json", int(size)]:
            if size >= 0 and cursor + size <= len(body):
                value = parse_json(body[cursor : cursor + size], where=where)
                return name, value, cursor + size
    raise CorruptionError("packed column is malformed", where=where, column=str(described)[:100])


def _is_int64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _planes(body: bytes, cursor: int, count: int, width: int) -> Ints:
    if width == 0:
        # One value for all rows takes no memory.
        return np.broadcast_to(np.int64(0), (count,))
    stored = np.zeros((count, 8), np.uint8)
    planes = np.frombuffer(body, np.uint8, count * width, cursor).reshape(width, count)
    stored[:, :width] = planes.T
    return stored.view("<i8").reshape(count).astype(np.int64, copy=False)


def _integers(stored: Ints, order: int, first: int, base: int) -> Ints:
    if order == _PLAIN or not len(stored):
        if stored.strides == (0,) and len(stored):
            return np.broadcast_to(stored[:1] + np.int64(base), stored.shape)
        return stored + np.int64(base)
    steps = stored + np.int64(base)
    steps[0] = first
    return np.cumsum(steps)
