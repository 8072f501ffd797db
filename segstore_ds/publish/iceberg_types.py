"""Columns and statistics of a stream in the words of Iceberg's specification. Pure."""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.schema.column_ids import column_id
from segstore_ds.format.schema.normal_form import children_of, is_variant
from segstore_ds.format.statistics import Bound, parse_stats

_LARGEST_ID = 2147483447  # Iceberg has the rest for columns of its own
_MOST_DIGITS = 38
_EXACT = Context(prec=2 * _MOST_DIGITS)  # Python's own context would round
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (t.is_boolean, "boolean"),
    (t.is_int8, "int"),
    (t.is_int16, "int"),
    (t.is_int32, "int"),
    (t.is_int64, "long"),
    (t.is_float32, "float"),
    (t.is_float64, "double"),
    (t.is_string, "string"),
    (t.is_binary, "binary"),
    (t.is_date, "date"),
)
_PACKED: Mapping[str, str] = MappingProxyType(
    {
        "boolean": "?",
        "int": "<i",
        "long": "<q",
        "float": "<f",
        "double": "<d",
        "date": "<i",
        "timestamp": "<q",
        "timestamptz": "<q",
    }
)


@dataclass(frozen=True, slots=True)
class IcebergSchema:
    """The columns of a table.

    Attributes:
        fields: Iceberg's JSON of them.
        left_out: The stream's other columns, each with the type that Iceberg lacks.
        last_id: The largest id of a column or of a field inside one.
    """

    fields: tuple[dict[str, Any], ...]
    left_out: dict[str, str]
    last_id: int

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(field["name"] for field in self.fields)


def as_iceberg(schema: pa.Schema) -> IcebergSchema:
    """Return the columns that Iceberg can express; a column with a field that it can't is left out.

    A column is left out, too, if one before it has the same id, as computed ids may.

    >>> as_iceberg(pa.schema([("n", pa.int64()), ("d", pa.duration("us"))])).left_out
    {'d': 'duration[us]'}
    """
    fields, left_out, taken = [], {}, set[int]()
    for field in schema:
        try:
            found = _field(field, ())
        except _UnknownTypeError as unknown:
            left_out[field.name] = str(unknown)
            continue
        ids = list(_ids_of(found))
        if len({*ids} - taken) == len(ids) and max(ids) <= _LARGEST_ID:
            fields.append(found)
            taken.update(ids)
        else:
            left_out[field.name] = str(field.type)
    return IcebergSchema(tuple(fields), left_out, max(taken, default=0))


class _UnknownTypeError(Exception):
    """Iceberg has no such type."""


def _field(field: pa.Field, outer: tuple[str, ...]) -> dict[str, Any]:
    path = (*outer, field.name)
    number, kind = column_id(path, field.type), _type(field.type, path)
    return {"id": number, "name": field.name, "required": False, "type": kind}


def _type(data_type: pa.DataType, path: tuple[str, ...]) -> Any:
    for applies, name in _PLAIN:
        if applies(data_type):
            return name
    if t.is_timestamp(data_type):
        return "timestamptz" if data_type.tz else "timestamp"
    if t.is_decimal(data_type) and data_type.precision <= _MOST_DIGITS:
        return f"decimal({data_type.precision}, {data_type.scale})"
    inner = [] if is_variant(data_type) else [_field(c, path) for c in children_of(data_type)]
    if t.is_struct(data_type) and inner:
        return {"type": "struct", "fields": inner}
    if t.is_list(data_type):
        return {"type": "list", "element-required": False, **_named("element", inner[0])}
    if t.is_map(data_type):
        key, value = _named("key", inner[0]), _named("value", inner[1])
        return {"type": "map", "value-required": False, **key, **value}
    raise _UnknownTypeError(str(data_type))


def _named(role: str, field: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{role}-id": field["id"], role: field["type"]}


def _ids_of(kind: Any) -> Iterator[int]:
    """Yield all ids in a column's JSON."""
    if isinstance(kind, dict):
        for key, value in kind.items():
            if key == "id" or key.endswith("-id"):
                yield value
            else:
                yield from _ids_of(value)
    elif isinstance(kind, list):
        for member in kind:
            yield from _ids_of(member)


def as_iceberg_stats(text: str | None, rows: int, schema: IcebergSchema) -> dict[str, Any]:
    """Return a file's statistics as a manifest has them: counts and bounds by column id."""
    known = parse_stats(text, where="stats") if text else {}
    counts, nulls = [], []
    low: list[dict[str, Any]] = []
    high: list[dict[str, Any]] = []
    for field in schema.fields:
        column = known.get(field["name"])
        if column is None:
            continue
        number = field["id"]
        counts.append({"key": number, "value": rows})
        nulls.append({"key": number, "value": column.nulls})
        for bounds, bound in ((low, column.min), (high, column.max)):
            value = _bound(bound, field["type"])
            if value is not None:
                bounds.append({"key": number, "value": value})
    return {
        "value_counts": counts,
        "null_value_counts": nulls,
        "lower_bounds": low,
        "upper_bounds": high,
    }


def _bound(bound: Bound | None, kind: Any) -> bytes | None:
    """Return a bound in Iceberg's binary form; None if there is none of that type."""
    if isinstance(bound, str):
        return bound.encode() if kind == "string" else None
    if isinstance(bound, bytes):
        return bound if kind == "binary" else None
    if isinstance(bound, Decimal):
        return _unscaled(bound, kind) if str(kind).startswith("decimal") else None
    packed = _PACKED.get(kind) if isinstance(kind, str) else None
    if bound is None or packed is None:
        return None
    try:
        return struct.pack(packed, bound)
    except (struct.error, OverflowError):  # of another type than the column has now
        return None


def _unscaled(bound: Decimal, kind: str) -> bytes:
    scale = int(kind.rstrip(")").rpartition(",")[2])
    number = int(_EXACT.scaleb(bound, scale))
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
