"""One value of an event: which Python types it may have, and whether it reads back unchanged.

NumPy and Arrow values are unwrapped at every level first, so that only Python's own values are
compared with what Arrow made of them. Nothing here may round or truncate, except to the precision
of a float column.
"""

import datetime as dt
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.schema.conversion import conform

_NATIVE = frozenset(
    (str, int, float, bool, bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal)
)
_PLAIN_DTYPES = "biufUS"  # NumPy kinds whose `tolist` returns Python values


def plain(value: Any, field: pa.Field) -> Any:
    """Return a value as Python's own, guided by the type of the column or nested field.

    NumPy scalars and arrays are unwrapped at every level. A null of Arrow becomes None; any other
    Arrow scalar is cast to exactly the column's type.

    Raises:
        ValueError: An Arrow scalar or a NumPy time does not fit without loss.
        TypeError: As ValueError, or an array has no elements to iterate over.
    """
    if value is None or type(value) in _NATIVE:
        return value
    if isinstance(value, pa.Scalar):
        return _of_arrow(value, field)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind and kind in _PLAIN_DTYPES:
        return value.tolist()
    if kind in ("M", "m") and not getattr(value, "shape", ()):
        return _of_numpy_time(value, field.type)
    if isinstance(value, memoryview):
        return bytes(value) if t.is_binary(field.type) else value
    return _plain_parts(value, field.type)


def _plain_parts(value: Any, kind: pa.DataType) -> Any:
    if t.is_struct(kind) and isinstance(value, Mapping):
        types = {part.name: part for part in kind}
        return {
            name: plain(item, types[name]) if name in types else item
            for name, item in value.items()
        }
    if t.is_map(kind) and isinstance(value, Collection) and not isinstance(value, str | bytes):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(plain(key, kind.key_field), plain(item, kind.item_field)) for key, item in pairs]
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if t.is_list(kind) and is_list:
        return [plain(item, kind.value_field) for item in value]
    if not isinstance(value, Collection) and hasattr(value, "tolist"):
        return value.tolist()
    return value


def _of_arrow(value: pa.Scalar, field: pa.Field) -> pa.Scalar | None:
    if not value.is_valid:
        return None
    # The rules of a batch: narrower types and other zones fit; nothing is truncated.
    array = pa.repeat(value, 1)  # an array of scalars can't hold null lists within lists
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([field.with_type(value.type)]))
    return conform(batch, pa.schema([field])).column(0)[0]


def _of_numpy_time(value: Any, kind: pa.DataType) -> Any:
    """Convert a NumPy datetime64 or timedelta64, which have no zone, to the column's unit."""
    name = value.dtype.name.partition("[")[0]
    if t.is_date32(kind):
        unit = "D"
    elif t.is_duration(kind) or (t.is_timestamp(kind) and kind.tz is None):
        unit = kind.unit
    else:
        raise TypeError("a NumPy time has no zone and is neither text nor number")
    if not value.dtype.name.endswith("]"):
        raise TypeError("a NumPy time has no unit")
    # Not casting="unsafe", which takes a month of a duration as 30.4 days.
    cast = value.astype(f"{name}[{unit}]", casting="same_kind")
    if cast.astype(value.dtype) != value:
        raise ValueError("a NumPy time is finer than the column, or out of its range")
    return cast.tolist()


def same(given: Any, kept: Any, kind: pa.DataType) -> bool:
    """Tell whether a value from `plain` equals the value `kept` that Arrow returns.

    `kind` is the type of the column or nested field.

    Raises:
        TypeError: The value does not have the shape of the type. ValueError, OverflowError and
            AttributeError mean the same.
    """
    if given is None or kept is None:
        return given is kept
    if isinstance(given, pa.Scalar):
        return bool(given.type == kind)  # `plain` made it with the rules of a batch
    if t.is_map(kind) or t.is_struct(kind) or t.is_list(kind):
        return _same_parts(given, kept, kind)
    return isinstance(given, bool) is isinstance(kept, bool) and _same_plain(given, kept, kind)


def _same_plain(given: Any, kept: Any, kind: pa.DataType) -> bool:
    if t.is_float32(kind):
        # A float32 may round, but must not overflow to infinity.
        return isinstance(given, float | int) and (abs(kept) != float("inf") or given == kept)
    if isinstance(given, dt.datetime) and given.tzinfo is not None and t.is_timestamp(kind):
        # In the hour that a zone repeats or skips, Python never finds times of two zones equal,
        # even if they are the same instant (PEP 495).
        return kind.tz is not None and bool(given.astimezone(dt.UTC) == kept.astimezone(dt.UTC))
    return bool(given == kept) or (given != given and kept != kept)  # noqa: PLR0124 - NaN


def _same_parts(given: Any, kept: Any, kind: pa.DataType) -> bool:
    if t.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return given.keys() <= {field.name for field in fields} and all(
            same(given.get(field.name), kept[field.name], field.type) for field in fields
        )
    if t.is_list(kind):
        return len(given) == len(kept) and all(
            same(element, other, kind.value_type)
            for element, other in zip(given, kept, strict=True)
        )
    return len(given) == len(kept) and all(
        same(key, other_key, kind.key_type) and same(item, other_item, kind.item_type)
        for (key, item), (other_key, other_item) in zip(given, kept, strict=True)
    )
