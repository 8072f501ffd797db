"""Bounds and null counts of columns, which let a reader skip frames, segments and parts.

Bounds must always hold: a column that cannot be bounded has none. NaN gives no bounds. Long strings
and binaries are cut so that the bounds only move outwards. Zero is stored with the sign that covers
both zeros. Dates, times, timestamps and durations are integers in the unit of the column, because
Arrow's range is wider than Python's.
"""

import codecs
import math
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import lib
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format import compute as pc
from segstore_ds.format.schema.codec import kind_of

BOUND_LENGTH = 32  # most characters of a string, bytes of a binary
EXACT_FLOAT = 1 << 53  # a double holds every whole number up to it
_FEW = 64  # up to this many values Python finds bounds faster than Arrow
_MAX_CHAR = 0x10FFFF
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000

_NOTHING: Mapping[str, pa.Array] = MappingProxyType({})
_UNBOUNDED = frozenset((lib.Type_NA, lib.Type_STRUCT, lib.Type_MAP, lib.Type_LIST))
_TEXT, _BINARY = lib.Type_STRING, lib.Type_BINARY
_FLOATS = frozenset((lib.Type_FLOAT, lib.Type_DOUBLE, lib.Type_HALF_FLOAT))

Bound = bool | int | float | str | bytes | Decimal


class Bounds(NamedTuple):
    """Bounds and null count of one column over some rows.

    No value is below `min` or above `max`, and `nulls` is exact. A bound of None is unknown, unless
    `nulls` equals the number of rows: then there are no values.
    """

    min: Bound | None
    max: Bound | None
    nulls: int


# Bounds of columns over the same rows, by label: `kind:name`.
Piece = Mapping[str, Bounds]


def label_of(field: pa.Field) -> str | None:
    """Return the label of a column; None if its type has no bounds.

    Bounds of one label can be compared, whatever the epochs of their rows.

    >>> label_of(pa.field("ts", pa.timestamp("us", "UTC")))
    'timestamp:ts'
    """
    return None if field.type.id in _UNBOUNDED else f"{kind_of(field.type)}:{field.name}"


def labels_of(field: pa.Field) -> list[str]:
    """Return the labels that a column may have had in any epoch: a float may have been an integer.

    >>> labels_of(pa.field("x", pa.float64()))
    ['float:x', 'int:x']
    """
    label = label_of(field)
    both = [label, f"int:{field.name}" if t.is_floating(field.type) else None]
    return [each for each in both if each is not None]


def as_floats(bounds: Bounds) -> Bounds:
    """Return the bounds of integers as those of floats; unknown where a float is not exact.

    >>> as_floats(Bounds(-3, 1 << 60, 0))
    Bounds(min=-3.0, max=None, nulls=0)
    """
    low, high = (
        float(bound) if type(bound) is int and abs(bound) <= EXACT_FLOAT else None
        for bound in bounds[:2]
    )
    return Bounds(low, high, bounds.nulls)


def columns_with_stats(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that get statistics: all but nested ones and nulls."""
    return [field.name for field in schema if field.type.id not in _UNBOUNDED]


def compute(
    batch: pa.RecordBatch,
    columns: Sequence[str],
    *,
    distinct: Mapping[str, pa.Array] = _NOTHING,
    unbounded: Container[str] = (),
) -> dict[str, Bounds]:
    """Return the bounds of the named columns by label, in the given order.

    Skips columns whose type has no bounds; an unknown column raises InvalidInputError. `distinct`
    has the distinct values of some texts and binaries, which are faster to search. Bounds of
    columns in `unbounded` are left unknown.
    """
    schema = batch.schema
    result: dict[str, Bounds] = {}
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise InvalidInputError(
                "no such column for statistics", column=name, columns=schema.names
            )
        array = batch.column(index)
        if array.type.id not in _UNBOUNDED:
            nulls, low, high = array.null_count, None, None
            if nulls < len(array) and name not in unbounded:
                low, high = _bounds_of(array, distinct.get(name, array))
            result[f"{kind_of(array.type)}:{name}"] = Bounds(low, high, nulls)
    return result


def _bounds_of(array: pa.Array, values: pa.Array) -> tuple[Bound | None, Bound | None]:
    data_type = array.type
    kind = data_type.id
    if kind in _FLOATS:
        return _float_bounds(array)
    if kind in (_TEXT, _BINARY):
        return _bytes_bounds(values, text=kind == _TEXT)
    if t.is_temporal(data_type):
        array = array.view(pa.int32() if data_type.bit_width == 32 else pa.int64())
    return _min_max(array)


def _min_max(array: pa.Array) -> tuple[Any, Any]:
    if len(array) <= _FEW:
        values = array.to_pylist()
        if array.null_count:
            values = [value for value in values if value is not None]
        return min(values), max(values)
    bounds = pc.min_max(array)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _float_bounds(array: pa.Array) -> tuple[float | None, float | None]:
    # Viewed as integers, positive floats sort upwards and negative ones downwards, and Arrow finds
    # bounds of integers ten times faster. NaN sorts beyond the infinity of its sign, so if there is
    # a NaN, one of the two bounds is NaN.
    wide = t.is_float64(array.type)
    signed, unsigned = (pa.int64(), pa.uint64()) if wide else (pa.int32(), pa.uint32())
    low, high = _min_max(array.view(signed))
    if low < 0:
        most_negative = pc.max(array.view(unsigned)).as_py() - (1 << signed.bit_width)
        low, high = most_negative, (high if high >= 0 else low)
    pack, unpack = ("<qq", "<dd") if wide else ("<ii", "<ff")
    least, most = struct.unpack(unpack, struct.pack(pack, low, high))
    if math.isnan(least) or math.isnan(most):
        return None, None
    return (-0.0 if least == 0 else least), (0.0 if most == 0 else most)


def _bytes_bounds(array: pa.Array, *, text: bool) -> tuple[Bound | None, Bound | None]:
    array = array.view(pa.binary())
    if array.null_count or len(array) <= _FEW:
        low, high = _min_max(array)
    else:
        # Selecting the top value is twice as fast as min_max, but only if there are no nulls.
        low, high = (
            array[pc.select_k_unstable(array, 1, [("", order)])[0].as_py()].as_py()
            for order in ("ascending", "descending")
        )
    return cut_bounds(low, high, text=text)


def cut_bounds(low: bytes, high: bytes, *, text: bool) -> tuple[Bound | None, Bound | None]:
    """Return the bounds of texts or binaries from the least and the greatest value."""
    return (_text_bounds if text else _binary_bounds)(low, high)


def _text_bounds(low: bytes, high: bytes) -> tuple[str | None, str | None]:
    floor, _ = _text_prefix(low)
    ceiling, cut = _text_prefix(high)
    return floor, _next_text(ceiling) if cut and ceiling is not None else ceiling


def _text_prefix(value: bytes) -> tuple[str | None, bool]:
    """Return the first characters and whether more follow; None if they are not UTF-8."""
    if value.isascii():
        return value[:BOUND_LENGTH].decode(), len(value) > BOUND_LENGTH
    head = value[: 4 * BOUND_LENGTH]
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        prefix = decoder.decode(head, final=len(head) == len(value))[:BOUND_LENGTH]
    except UnicodeDecodeError:
        return None, False
    return prefix, len(prefix.encode()) < len(value)


def _next_text(prefix: str) -> str | None:
    for place in range(len(prefix) - 1, -1, -1):
        char = ord(prefix[place])
        if char < _MAX_CHAR:
            after = _AFTER_SURROGATES if char == _BEFORE_SURROGATES else char + 1
            return prefix[:place] + chr(after)
    return None


def _binary_bounds(low: bytes, high: bytes) -> tuple[bytes, bytes | None]:
    if len(high) <= BOUND_LENGTH:
        return low[:BOUND_LENGTH], high
    ceiling = high[:BOUND_LENGTH].rstrip(b"\xff")
    if not ceiling:
        return low[:BOUND_LENGTH], None
    return low[:BOUND_LENGTH], ceiling[:-1] + bytes([ceiling[-1] + 1])


def merge(parts: Iterable[tuple[int, Piece]]) -> dict[str, Bounds]:
    """Merge bounds of several parts, each with its number of rows, of labels that all have."""
    filled = [(rows, stats) for rows, stats in parts if rows]
    if len(filled) < 2:
        return dict(filled[0][1]) if filled else {}
    labels = [label for label in filled[0][1] if all(label in stats for _, stats in filled)]
    return {label: _merged([(rows, stats[label]) for rows, stats in filled]) for label in labels}


def _merged(parts: Sequence[tuple[int, Bounds]]) -> Bounds:
    nulls = sum(bounds.nulls for _, bounds in parts)
    valued = [bounds for rows, bounds in parts if bounds.nulls < rows]
    if not valued:
        return Bounds(None, None, nulls)
    lows: list[Any] = [bounds.min for bounds in valued]
    highs: list[Any] = [bounds.max for bounds in valued]
    return Bounds(None if None in lows else min(lows), None if None in highs else max(highs), nulls)
