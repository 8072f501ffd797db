"""Times and durations of Python, NumPy and Arrow as the numbers that columns hold of them.

A value that is finer than the column's unit, or beyond its range, is refused, never rounded.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

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
