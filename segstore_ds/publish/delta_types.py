"""Columns and statistics of a stream in the words of Delta's protocol. Pure."""

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.schema.normal_form import is_variant
from segstore_ds.format.statistics import Bound, parse_stats

NTZ = "timestampNtz"
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (t.is_boolean, "boolean"),
    (t.is_int8, "byte"),
    (t.is_int16, "short"),
    (t.is_int32, "integer"),
    (t.is_int64, "long"),
    (t.is_float32, "float"),
    (t.is_float64, "double"),
    (t.is_string, "string"),
    (t.is_binary, "binary"),
    (t.is_date, "date"),
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class DeltaSchema:
    """The columns of a table.

    Attributes:
        text: Delta's JSON of them.
        names: Their names, in order.
        left_out: The stream's other columns, each with the type that Delta lacks.
        features: Reader features that the types need.
    """

    text: str
    names: tuple[str, ...]
    left_out: dict[str, str]
    features: tuple[str, ...]


def as_delta(schema: pa.Schema) -> DeltaSchema:
    """Return the columns that Delta can express; a column with a field that it can't is left out.

    >>> as_delta(pa.schema([("n", pa.int64()), ("d", pa.duration("us"))])).left_out
    {'d': 'duration[us]'}
    """
    fields, left_out = [], {}
    for field in schema:
        try:
            fields.append(_field(field))
        except _UnknownTypeError as unknown:
            left_out[field.name] = str(unknown)
    text = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    return DeltaSchema(
        text,
        tuple(field["name"] for field in fields),
        left_out,
        (NTZ,) if '"timestamp_ntz"' in text else (),
    )


class _UnknownTypeError(Exception):
    """Delta has no such type."""


def _field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}


def _type(data_type: pa.DataType) -> Any:
    for applies, name in _PLAIN:
        if applies(data_type):
            return name
    if t.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    if t.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if t.is_struct(data_type) and data_type.num_fields and not is_variant(data_type):
        return {"type": "struct", "fields": [_field(child) for child in data_type]}
    if t.is_list(data_type):
        inner = _type(data_type.value_type)
        return {"type": "array", "elementType": inner, "containsNull": True}
    if t.is_map(data_type):
        key, value = _type(data_type.key_type), _type(data_type.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    raise _UnknownTypeError(str(data_type))


def as_delta_stats(text: str | None, rows: int, schema: pa.Schema, names: tuple[str, ...]) -> str:
    """Return a file's statistics as Delta stores them: bounds of some columns, and null counts."""
    known = parse_stats(text, where="stats") if text else {}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in names:
        column = known.get(name)
        if column is None:
            continue
        nulls[name] = column.nulls
        kind = schema.field(name).type
        for bounds, bound in ((low, column.min), (high, column.max)):
            value = _bound(bound, kind)
            if value is not None:
                bounds[name] = value
    found: dict[str, Any] = {"numRecords": rows}
    found |= {"minValues": low, "maxValues": high, "nullCount": nulls} if nulls else {}
    return json.dumps(found, separators=(",", ":"), allow_nan=False)


def _bound(bound: Bound | None, kind: pa.DataType) -> Any:
    """Return a bound as Delta's JSON has it; None if it does not, or readers would disagree."""
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
    except OverflowError:  # a year that Python does not know
        return None
    text = moment.isoformat(timespec="microseconds")
    return f"{text}Z" if kind.tz else text
