"""Converts a stream's columns and statistics to those of Delta and Iceberg. Pure."""

import datetime as dt
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.bounds import Bound, label_of
from segstore_ds.format.schema.codec import children_of, is_variant
from segstore_ds.format.schema.column_names import Names, column_id, named_schema
from segstore_ds.format.statistics import parse_piece
from segstore_ds.publish.snapshot import Columns

MAPPED_ID, MAPPED_NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"
NTZ = "timestampNtz"  # the reader feature of Delta that a timestamp without a zone needs
_LARGEST_ID = 2147483447  # Iceberg reserves larger ids
_MOST_DIGITS = 38
_EXACT = Context(prec=2 * _MOST_DIGITS)  # Python's own context would round
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str, str], ...] = (  # Delta's, Iceberg's
    (t.is_boolean, "boolean", "boolean"),
    (t.is_int8, "byte", "int"),
    (t.is_int16, "short", "int"),
    (t.is_int32, "integer", "int"),
    (t.is_int64, "long", "long"),
    (t.is_float32, "float", "float"),
    (t.is_float64, "double", "double"),
    (t.is_string, "string", "string"),
    (t.is_binary, "binary", "binary"),
    (t.is_date, "date", "date"),
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
        "timestamp_ns": "<q",
        "timestamptz_ns": "<q",
    }
)


class _UnknownTypeError(Exception):
    """The table format has no such type."""


def as_delta(schema: pa.Schema, names: Names = MappingProxyType({})) -> Columns:
    """Return the columns that Delta can express; the others are left out.

    `form` is Delta's JSON of the schema. If a column is stored under another name, all columns are
    mapped: each field has its id and its name in files.

    >>> as_delta(pa.schema([("n", pa.int64()), ("d", pa.duration("us"))])).left_out
    {'d': 'duration[us]'}
    """
    fields, left_out, stored = [], {}, []
    called = named_schema(schema, names)
    mapped = called.names != schema.names
    for own, name in zip(schema, called.names, strict=True):
        try:
            field = _delta_field(own, (own.name,) if mapped else ())
        except _UnknownTypeError as unknown:
            left_out[name] = str(unknown)
            continue
        stored.append(own.name)
        fields.append({**field, "name": name})
    text = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    return Columns(tuple(stored), left_out, text, _labels(schema, stored))


def _delta_field(field: pa.Field, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a field; `path` is its path by stored names, empty if columns are not mapped."""
    facts: dict[str, Any] = {}
    if path:
        facts = {MAPPED_ID: column_id(path, field.type), MAPPED_NAME: field.name}
    kind = _delta_type(field.type, path)
    return {"name": field.name, "type": kind, "nullable": True, "metadata": facts}


def _delta_type(data_type: pa.DataType, path: tuple[str, ...] = ()) -> Any:
    for applies, name, _ in _PLAIN:
        if applies(data_type):
            return name
    if t.is_timestamp(data_type) and data_type.unit == "us":
        return "timestamp" if data_type.tz else "timestamp_ntz"
    if t.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if t.is_struct(data_type) and data_type.num_fields and not is_variant(data_type):
        within = [_delta_field(child, path and (*path, child.name)) for child in data_type]
        return {"type": "struct", "fields": within}
    if t.is_list(data_type):
        inner = _delta_type(data_type.value_type, path and (*path, "element"))
        return {"type": "array", "elementType": inner, "containsNull": True}
    if t.is_map(data_type):
        inner = children_of(data_type)
        key, value = (_delta_type(each.type, path and (*path, each.name)) for each in inner)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    raise _UnknownTypeError(str(data_type))


def as_iceberg(schema: pa.Schema, names: Names = MappingProxyType({})) -> Columns:
    """Return the columns that Iceberg can express; the others are left out.

    Ids are computed, so two may be equal: then the later column is left out, too. `form` is
    Iceberg's JSON of each column.

    >>> as_iceberg(pa.schema([("n", pa.int64()), ("d", pa.duration("us"))])).left_out
    {'d': 'duration[us]'}
    """
    fields, left_out, stored, taken = [], {}, [], set[int]()
    for field in schema:
        name = names.get(field.name) or field.name
        try:
            form = {**_iceberg_field(field, ()), "name": name}
        except _UnknownTypeError as unknown:
            left_out[name] = str(unknown)
            continue
        ids = list(ids_of(form))
        if len({*ids} - taken) == len(ids) and max(ids) <= _LARGEST_ID:
            fields.append(form)
            stored.append(field.name)
            taken.update(ids)
        else:
            left_out[name] = str(field.type)
    return Columns(tuple(stored), left_out, fields, _labels(schema, stored))


def _iceberg_field(field: pa.Field, outer: tuple[str, ...]) -> dict[str, Any]:
    path = (*outer, field.name)
    number, kind = column_id(path, field.type), _iceberg_type(field.type, path)
    return {"id": number, "name": field.name, "required": False, "type": kind}


def _iceberg_type(data_type: pa.DataType, path: tuple[str, ...]) -> Any:
    for applies, _, name in _PLAIN:
        if applies(data_type):
            return name
    if t.is_timestamp(data_type):
        name = "timestamptz" if data_type.tz else "timestamp"
        return f"{name}_ns" if data_type.unit == "ns" else name
    if t.is_decimal(data_type) and data_type.precision <= _MOST_DIGITS:
        return f"decimal({data_type.precision}, {data_type.scale})"
    within = () if is_variant(data_type) else children_of(data_type)
    inner = [_iceberg_field(child, path) for child in within]
    if t.is_struct(data_type) and inner:
        return {"type": "struct", "fields": inner}
    if t.is_list(data_type):
        return {"type": "list", "element-required": False, **_named("element", inner[0])}
    if t.is_map(data_type):
        key, value = _named("key", inner[0]), _named("value", inner[1])
        return {"type": "map", "value-required": False, **key, **value}
    raise _UnknownTypeError(str(data_type))


def _labels(schema: pa.Schema, stored: Iterable[str]) -> tuple[str, ...]:
    return tuple(label_of(schema.field(name)) or "" for name in stored)


def _named(role: str, field: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{role}-id": field["id"], role: field["type"]}


def ids_of(kind: Any) -> Iterator[int]:
    """Yield all ids in Iceberg's JSON of columns."""
    if isinstance(kind, dict):
        for key, value in kind.items():
            if key == "id" or key.endswith("-id"):
                yield value
            else:
                yield from ids_of(value)
    elif isinstance(kind, list):
        for member in kind:
            yield from ids_of(member)


def as_delta_stats(
    text: str | None, rows: int, schema: pa.Schema, columns: Columns
) -> dict[str, Any]:
    """Return a file's statistics in Delta's form: row count, bounds and null counts."""
    known = parse_piece(text, where="stats")
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, label in zip(columns.names, columns.labels, strict=True):
        column = known.get(label)
        if column is None:
            continue
        nulls[name], kind = column.nulls, schema.field(name).type
        for bounds, bound in ((low, column.min), (high, column.max)):
            value = _delta_bound(bound, kind)
            if value is not None:
                bounds[name] = value
    stats: dict[str, Any] = {"numRecords": rows}
    return stats | ({"minValues": low, "maxValues": high, "nullCount": nulls} if nulls else {})


def bounded_columns(stats: Iterable[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """Return the columns with both bounds or only nulls in all of `stats` that have bounds.

    >>> some = {"numRecords": 2, "nullCount": {"a": 2, "b": 0}, "minValues": {"b": 1}}
    >>> bounded_columns([some | {"maxValues": {}}, {"numRecords": 5}], ["a", "b"])
    ['a']
    """
    bounded = [*names]
    for each in stats:
        if "nullCount" in each:
            low, high, nulls = each["minValues"], each["maxValues"], each["nullCount"]
            empty = {name for name, count in nulls.items() if count == each["numRecords"]}
            bounded = [name for name in bounded if (name in low and name in high) or name in empty]
    return bounded


def _delta_bound(bound: Bound | None, kind: pa.DataType) -> Any:
    """Return a bound in Delta's JSON; None if Delta has none, or readers differ about it."""
    if t.is_date(kind) or t.is_timestamp(kind):
        return _moment(bound, kind) if isinstance(bound, int) else None
    if isinstance(bound, str):
        return bound if t.is_string(kind) else None
    number = isinstance(bound, int | float) and (t.is_integer(kind) or t.is_floating(kind))
    return bound if number and bound not in (float("inf"), float("-inf")) else None


def _moment(bound: int, kind: pa.DataType) -> str | None:
    try:
        if t.is_date(kind):
            return (_EPOCH + dt.timedelta(days=bound)).date().isoformat()
        moment = (_EPOCH + dt.timedelta(microseconds=bound)).replace(tzinfo=None)
    except OverflowError:  # a year outside Python's range
        return None
    text = moment.isoformat(timespec="microseconds")
    return f"{text}Z" if kind.tz else text


def as_iceberg_stats(text: str | None, rows: int, columns: Columns) -> dict[str, Any]:
    """Return a file's statistics in a manifest's form: counts and bounds by column id."""
    known = parse_piece(text, where="stats")
    stats: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    }
    for label, field in zip(columns.labels, columns.form, strict=True):
        column = known.get(label)
        if column is None:
            continue
        kind = field["type"]
        bounds = (_iceberg_bound(bound, kind) for bound in (column.min, column.max))
        values = rows, column.nulls, *bounds
        for pairs, value in zip(stats.values(), values, strict=True):
            if value is not None:
                pairs.append({"key": field["id"], "value": value})
    return stats


def _iceberg_bound(bound: Bound | None, kind: Any) -> bytes | None:
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
    except (struct.error, OverflowError):  # the column had another type then
        return None


def _unscaled(bound: Decimal, kind: str) -> bytes:
    scale = int(kind.rstrip(")").rpartition(",")[2])
    number = int(_EXACT.scaleb(bound, scale))
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
