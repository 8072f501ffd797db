"""Times and durations of Python, NumPy and Arrow as the numbers that columns hold of them.

A value that is finer than the column's unit, or beyond its range, is refused, never rounded.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.schema.normal_form import children_of, with_children

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECONDS = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60}  # units of NumPy that Arrow lacks


def number_of(value: Any, data_type: pa.DataType, *, finer: int = 0) -> int:
    """Return a timestamp or a duration as the number that a column in normal form holds of it.

    A timestamp has a zone exactly if the column has one. `finer` adds nanoseconds to a `datetime`.
    Raises TypeError, ValueError, ArithmeticError or NotImplementedError for what does not fit.

    >>> number_of(timedelta(seconds=1), pa.duration("ns"))
    1000000000
    """
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = _arrow_scalar(value)
    if isinstance(value, pa.Scalar):
        if value.type.id != data_type.id or _has_zone(value.type) != _has_zone(data_type):
            raise TypeError(value)
        return int(value.cast(data_type).value)
    if t.is_duration(data_type):
        whole, finer = value // _MICROSECOND, getattr(value, "nanoseconds", 0)  # pandas has them
    else:
        if (value.utcoffset() is not None) != _has_zone(data_type):
            raise ValueError(value)
        since = (value if _has_zone(data_type) else value.replace(tzinfo=UTC)) - _EPOCH
        whole, finer = since // _MICROSECOND, getattr(value, "nanosecond", 0) or finer
    if data_type.unit == "us":
        if finer:
            raise ValueError(value)
        return int(whole)
    number = int(whole) * 1000 + finer
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(value)
    return number


def to_array(values: Any, *, from_pandas: bool = False) -> pa.Array:
    """Return values as an array of the type that Arrow infers, and times as fine as they are.

    Arrow infers microseconds for all times of pandas, and cuts their nanoseconds.
    """
    made = pa.array(values, from_pandas=from_pandas)
    fine = in_nanoseconds(made.type)
    if fine == made.type or not _has_nanoseconds(values):
        return made
    return pa.array(values, fine, from_pandas=from_pandas)


def in_nanoseconds(data_type: pa.DataType) -> pa.DataType:
    """Return a type with nanoseconds for all timestamps and durations in it."""
    if t.is_timestamp(data_type):
        return pa.timestamp("ns", data_type.tz)
    if t.is_duration(data_type):
        return pa.duration("ns")
    children = [child.with_type(in_nanoseconds(child.type)) for child in children_of(data_type)]
    return with_children(data_type, children)


def _has_nanoseconds(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return any(map(_has_nanoseconds, value))
    # Of pandas' Timestamp and Timedelta; NaN of its NaT.
    return any(0 < getattr(value, name, 0) < 1000 for name in ("nanosecond", "nanoseconds"))


def _arrow_scalar(value: np.datetime64 | np.timedelta64) -> pa.Scalar:
    if np.isnat(value):
        raise ValueError(value)
    unit, step = np.datetime_data(value.dtype)
    seconds = _SECONDS.get(unit)
    of_unit = pa.timestamp if isinstance(value, np.datetime64) else pa.duration
    number = int(value.astype(np.int64)) * step * (seconds or 1)  # as Python's, which has no limit
    return pa.scalar(number, of_unit("s" if seconds else unit))


def _has_zone(data_type: pa.DataType) -> bool:
    return getattr(data_type, "tz", None) is not None
