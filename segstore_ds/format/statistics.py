"""Column statistics: bounds and null counts that let a reader skip frames and segments.

Bounds must always hold: a column that cannot be bounded has none. NaN gives no bounds, long strings
and binaries are cut so that the bounds only move outwards, and zero is stored with the sign that
covers both zeros. Bounds are stored in the form in which they are compared, so dates, times,
timestamps and durations are integers in the unit of the column: Arrow's range is wider than
Python's.
"""

import base64
import binascii
import codecs
import math
import struct
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyarrow import lib
from pyarrow import types as t

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format import compute as pc
from segstore_ds.format.record import build_json, is_text, parse_json

ENTRY_STATS_BYTES = 600  # the most that one segment's statistics add to the root
BOUND_LENGTH = 32  # chars of a string, bytes of a binary
_FEW = 64  # values, of which Python finds bounds faster than a call of Arrow
_MAX_CHAR = 0x10FFFF
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000

_NOTHING: Mapping[str, pa.Array] = MappingProxyType({})
# By a type's id: asking one question after the other takes longer than a small column.
_NESTED = frozenset(
    (
        *(lib.Type_LIST, lib.Type_LARGE_LIST, lib.Type_FIXED_SIZE_LIST, lib.Type_MAP),
        *(lib.Type_LIST_VIEW, lib.Type_LARGE_LIST_VIEW, lib.Type_STRUCT),
        *(lib.Type_SPARSE_UNION, lib.Type_DENSE_UNION),
    )
)
_TEXT, _BINARY = lib.Type_STRING, lib.Type_BINARY
_FLOATS = frozenset((lib.Type_FLOAT, lib.Type_DOUBLE, lib.Type_HALF_FLOAT))
_PLAIN = frozenset((type(None), bool, int))  # types of JSON that are bounds as they are

Bound = bool | int | float | str | bytes | Decimal


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Bounds and null count of one column over some rows.

    No value is below `min` or above `max`, and `nulls` is exact. A bound of None is unknown, unless
    `nulls` equals the number of rows: then there are no values.
    """

    min: Bound | None
    max: Bound | None
    nulls: int


Stats = Mapping[str, ColumnStats]

EXACT_FLOAT = 1 << 53  # up to it a double holds every whole number


def in_type(stats: ColumnStats, data_type: pa.DataType) -> ColumnStats:
    """Return a column's statistics as of the type that it was widened to.

    >>> in_type(ColumnStats(-3, 1 << 60, 0), pa.float64())
    ColumnStats(min=-3.0, max=None, nulls=0)
    """
    if type(stats.min) is not int is not type(stats.max) or not t.is_floating(data_type):
        return stats
    low, high = (
        float(bound) if type(bound) is int and abs(bound) <= EXACT_FLOAT else None
        for bound in (stats.min, stats.max)
    )
    return ColumnStats(low, high, stats.nulls)


def columns_with_stats(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that get statistics: all but those of nested types."""
    return [field.name for field in schema if field.type.id not in _NESTED]


def compute(
    batch: pa.RecordBatch,
    columns: Sequence[str],
    *,
    distinct: Mapping[str, pa.Array] = _NOTHING,
    unbounded: Container[str] = (),
) -> dict[str, ColumnStats]:
    """Return the statistics of the named columns, in the order given.

    Nested columns are skipped; an unknown column is an InvalidInputError. `distinct` has the
    distinct values of some texts and binaries, which are faster to go through. Bounds of columns
    in `unbounded` are left unknown.
    """
    schema = batch.schema
    result: dict[str, ColumnStats] = {}
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise InvalidInputError(
                "no such column for statistics", column=name, columns=schema.names
            )
        array = batch.column(index)
        if array.type.id not in _NESTED:
            nulls, low, high = array.null_count, None, None
            if nulls < len(array) and name not in unbounded:
                low, high = _bounds_of(array, distinct.get(name, array))
            result[name] = ColumnStats(low, high, nulls)
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
        values = (array.drop_null() if array.null_count else array).to_pylist()
        return min(values), max(values)
    bounds = pc.min_max(array)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _float_bounds(array: pa.Array) -> tuple[float | None, float | None]:
    # Read as integers, positive floats sort upwards and negative floats downwards, and Arrow finds
    # bounds of integers ten times faster than bounds of floats. NaN lies beyond the infinity of
    # its sign, so if there is a NaN, one of the two bounds is NaN.
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
    """Return the bounds of texts or binaries whose least and greatest bytes are given."""
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


def merge(parts: Iterable[tuple[int, Stats]]) -> dict[str, ColumnStats]:
    """Merge the statistics of adjacent rows, given as pairs of row count and statistics.

    The result has the columns that every part with rows has.
    """
    filled = [(rows, stats) for rows, stats in parts if rows]
    if len(filled) < 2:
        return dict(filled[0][1]) if filled else {}
    names = [name for name in filled[0][1] if all(name in stats for _, stats in filled)]
    return {name: _merge_column([(rows, s[name]) for rows, s in filled]) for name in names}


def _merge_column(parts: Sequence[tuple[int, ColumnStats]]) -> ColumnStats:
    nulls = sum(stats.nulls for _, stats in parts)
    valued = [stats for rows, stats in parts if stats.nulls < rows]
    if not valued:
        return ColumnStats(None, None, nulls)
    lows: list[Any] = [stats.min for stats in valued]
    highs: list[Any] = [stats.max for stats in valued]
    return ColumnStats(
        None if None in lows else min(lows), None if None in highs else max(highs), nulls
    )


def to_json(stats: Stats) -> dict[str, list[Any]]:
    """Return statistics as JSON values: ``{column: [min, max, nulls]}``."""
    return {name: encode_column(column) for name, column in stats.items()}


def encode_column(column: ColumnStats) -> list[Any]:
    """Return the statistics of a column as JSON values: ``[min, max, nulls]``."""
    return [
        low if type(low := column.min) in _PLAIN else encode_bound(low),
        high if type(high := column.max) in _PLAIN else encode_bound(high),
        column.nulls,
    ]


def entry_stats(stats: Stats) -> str | None:
    """Return a segment's statistics as JSON, for as many columns as `ENTRY_STATS_BYTES` allows."""
    found = to_json(stats)
    whole = build_json(found)
    if len(whole) + len(found) < ENTRY_STATS_BYTES:  # as counted below, and all of them fit
        return whole.decode() if found else None
    kept: dict[str, Any] = {}
    used = 2
    for name, value in found.items():
        used += len(build_json({name: value}))
        if used > ENTRY_STATS_BYTES:
            break
        kept[name] = value
    return build_json(kept).decode() if kept else None


def parse_stats(
    text: str,
    *,
    where: str,
    schema: pa.Schema | None = None,
    only: Collection[str] | None = None,
) -> dict[str, ColumnStats]:
    """Parse statistics as an entry has them: the JSON text of what `to_json` returned."""
    # A lone surrogate, which UTF-8 can't hold, is for `from_json` to judge.
    value = parse_json(text.encode("utf-8", "surrogatepass"), where=where)
    return from_json(value, where=where, schema=schema, only=only)


def from_json(
    value: Any,
    *,
    where: str,
    schema: pa.Schema | None = None,
    only: Collection[str] | None = None,
) -> dict[str, ColumnStats]:
    """Parse what `to_json` returned; the value is untrusted.

    If `schema` is given, columns and the types of bounds are checked against it. `only` names the
    columns to parse; None means all.
    """
    if not isinstance(value, dict):
        raise _not_stats(where)
    result = {}
    for name, parts in value.items():
        if only is not None and name not in only:
            continue
        if not is_text(name) or not isinstance(parts, list) or len(parts) != 3:
            raise _not_stats(where)
        result[name] = decode_column(*parts, where=where)
    if schema is not None:
        check_types(result, schema, where=where)
    return result


def decode_column(low: Any, high: Any, nulls: Any, *, where: str) -> ColumnStats:
    """Parse what `encode_column` returned; the values are untrusted."""
    if type(nulls) is not int or nulls < 0:
        raise _not_stats(where)
    return ColumnStats(
        low if type(low) in _PLAIN else _decode_bound(low, where=where),
        high if type(high) in _PLAIN else _decode_bound(high, where=where),
        nulls,
    )


def check_types(stats: Stats, schema: pa.Schema, *, where: str) -> None:
    """Check that bounds have the types of their columns, so that they can be compared."""
    for name, column in stats.items():
        index = schema.get_field_index(name)
        kind = bound_type(schema.field(index).type) if index >= 0 else None
        bounds = [bound for bound in (column.min, column.max) if bound is not None]
        if index < 0 or any(type(bound) is not kind for bound in bounds):
            raise CorruptionError(
                "stored statistics do not match their column", where=where, column=name
            )


def bound_type(data_type: pa.DataType) -> type | None:
    """Return the Python type of a column's bounds; None for types without bounds."""
    if t.is_integer(data_type) or t.is_temporal(data_type):
        return int
    for applies, kind in _BOUND_TYPES:
        if applies(data_type):
            return kind
    return None


_BOUND_TYPES: tuple[tuple[Any, type], ...] = (
    (t.is_floating, float),
    (t.is_string, str),
    (t.is_binary, bytes),
    (t.is_boolean, bool),
    (t.is_decimal, Decimal),
)


def encode_bound(bound: Bound | None) -> Any:
    """Return a bound, never NaN, as a JSON value that keeps its type.

    A type that JSON lacks becomes an object with one tag: ``b`` for binary as base64, ``d`` for
    decimal as text, ``f`` for an infinity.
    """
    if isinstance(bound, bytes):
        return {"b": base64.b64encode(bound).decode("ascii")}
    if isinstance(bound, Decimal):
        return {"d": str(bound)}
    if isinstance(bound, float) and math.isinf(bound):
        return {"f": str(bound)}
    return bound


def _decode_bound(value: Any, *, where: str) -> Bound | None:
    """Parse what `encode_bound` returned; the value is untrusted."""
    if type(value) is str and is_text(value):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    try:
        if isinstance(value, dict) and len(value) == 1:
            tag, text = next(iter(value.items()))
            bound: Bound = _TAGS[tag](text)
            return bound
    except (KeyError, TypeError, ValueError, InvalidOperation, binascii.Error) as error:
        raise _not_stats(where) from error
    raise _not_stats(where)


def _decode_decimal(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError(text)
    return number


def _decode_infinity(text: str) -> float:
    return {"inf": math.inf, "-inf": -math.inf}[text]


_TAGS: Mapping[str, Any] = {
    "b": lambda text: base64.b64decode(text, validate=True),
    "d": _decode_decimal,
    "f": _decode_infinity,
}


def _not_stats(where: str) -> CorruptionError:
    return CorruptionError("stored statistics cannot be read", where=where)
