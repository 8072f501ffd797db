"""Literals of filters, typed by their column.

A literal becomes a value of the column's type. A literal that does not fit, or would lose digits
(except in a float), is an error: it never becomes a different comparison. Literals have the form of
bounds in statistics (dates and times as integers). NaN is a text, so that equal filters compare
equal.
"""

import base64
import math
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.schema.conversion import number_of
from segstore_ds.options.quantities import parse_moment

NAN = "NaN"
_ERRORS = (
    *(StopIteration, TypeError, ValueError, KeyError),
    *(ArithmeticError, NotImplementedError),
)
Literal = bool | int | float | str | bytes | Decimal

_EPOCH = date(1970, 1, 1)
_FINER = re.compile(r"(?<=[.,][0-9]{6})[0-9]{1,3}(?![0-9])")  # digits that Python does not parse


def parse_literal(value: Any, data_type: pa.DataType) -> Literal:
    """Convert a value from JSON or Python, not None, to the form of bounds in statistics.

    `data_type` is the column's type in normal form, not nested. NaN becomes the text "NaN".

    Raises:
        ValueError: The value does not fit the type; the text says what is expected.
    """
    try:
        parse = next(parse for applies, parse, _ in _TYPES if applies(data_type))
        return parse(value, data_type)
    except _ERRORS as error:
        raise ValueError(expected_of(data_type)) from error


def typed_array(literals: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Return literals as an array of their column's type."""
    if t.is_temporal(data_type):
        stored = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return pa.array(literals, stored).view(data_type)
    return pa.array(literals, data_type)


def expected_of(data_type: pa.DataType) -> str:
    """Return an error text that says which literals a column of this type takes."""
    found = (words for applies, _, words in _TYPES if applies(data_type))
    zoned = getattr(data_type, "tz", None) is not None
    zone, z = ("with a zone", "Z") if zoned else ("without a zone", "")
    unit = "nanoseconds" if getattr(data_type, "unit", None) == "ns" else "microseconds"
    return next(found, "null tests only").format(zone=zone, z=z, unit=unit)


def _require(value: Any, *kinds: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(value)
    return value


def _boolean(value: Any, _: pa.DataType) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _integer(value: Any, data_type: pa.DataType) -> int:
    if isinstance(value, Decimal) and value.adjusted() > 20:
        raise ValueError(value)  # as an int, 1e999999999 would fill the memory
    number = int(_require(value, int, float, Decimal))
    limit = 1 << (data_type.bit_width - 1)
    if number != value or not -limit <= number < limit:
        raise ValueError(value)
    return number


def _floating(value: Any, data_type: pa.DataType) -> float | str:
    if isinstance(value, str):
        value = _SPECIAL_FLOATS[value.casefold()]
    number = float(_require(value, int, float, Decimal))
    if math.isnan(number):
        return NAN
    if math.isinf(number) and number != value:
        raise ValueError(value)
    if t.is_float32(data_type):
        (number,) = struct.unpack("<f", struct.pack("<f", number))
    return number


def _decimal(value: Any, data_type: pa.DataType) -> Decimal:
    number = Decimal(str(_require(value, int, float, Decimal, str)))
    if not number.is_finite():
        raise ValueError(value)
    quantum = Decimal(1).scaleb(-data_type.scale)
    exact = number.quantize(quantum, context=_EXACT)
    if exact.adjusted() >= data_type.precision - data_type.scale and exact:
        raise ValueError(value)
    return exact


def _text(value: Any, _: pa.DataType) -> str:
    text: str = _require(value, str)
    text.encode()  # raises on lone surrogates, which no stored string contains
    return text


def _binary(value: Any, _: pa.DataType) -> bytes:
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    return bytes(_require(value, bytes, bytearray, memoryview))


def _date(value: Any, _: pa.DataType) -> int:
    day = parse_moment(date, value) if isinstance(value, str) else _require(value, date)
    if isinstance(day, datetime):
        raise TypeError(value)
    return (day - _EPOCH).days


def _timestamp(value: Any, data_type: pa.DataType) -> int:
    if not isinstance(value, str):
        return number_of(_require(value, datetime, np.datetime64, pa.Scalar), data_type)
    finer = _FINER.search(value) if data_type.unit == "ns" else None
    if finer is None:
        return number_of(parse_moment(datetime, value), data_type)
    text = value[: finer.start()] + value[finer.end() :]
    nanoseconds = int(finer[0].ljust(3, "0"))
    return number_of(parse_moment(datetime, text), data_type, finer=nanoseconds)


def _time(value: Any, _: pa.DataType) -> int:
    moment = parse_moment(time, value) if isinstance(value, str) else _require(value, time)
    if moment.tzinfo is not None:
        raise ValueError(value)
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    return (seconds * 1_000_000 + moment.microsecond) * 1000


def _duration(value: Any, data_type: pa.DataType) -> int:
    if isinstance(value, timedelta | np.timedelta64 | pa.Scalar):
        return number_of(value, data_type)
    number = Decimal(str(_require(value, int, float, Decimal)))
    return _integer(number * 1000 if data_type.unit == "ns" else number, data_type)


_SPECIAL_FLOATS = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}
_EXACT = Context(prec=76, traps=[Inexact, InvalidOperation, Overflow])

_Applies = Callable[[pa.DataType], bool]
# For each type: the function that converts a value to a literal, and which values it accepts.
_TYPES: tuple[tuple[_Applies, Callable[[Any, pa.DataType], Literal], str], ...] = (
    (t.is_boolean, _boolean, "true or false"),
    (t.is_integer, _integer, "a whole number within the column's range"),
    (t.is_floating, _floating, 'a number, "NaN", "Infinity" or "-Infinity"'),
    (t.is_decimal, _decimal, "a decimal as text or number that fits the column's digits exactly"),
    (t.is_string, _text, "a text"),
    (t.is_binary, _binary, "bytes, or their base64 as text"),
    (t.is_date32, _date, "an ISO date such as 2013-01-05"),
    (
        t.is_timestamp,
        _timestamp,
        "an ISO timestamp {zone} such as 2013-01-05T00:00:00{z}, at most {unit}, or a datetime",
    ),
    (t.is_time64, _time, "an ISO time such as 12:34:56.123456, at most microseconds"),
    (t.is_duration, _duration, "a number of microseconds or a timedelta"),
)
