"""Times of events: moments that a user gives, in the type of the time column.

The column's own type decides how a moment is written: with a zone, without one, as a date or as a
number. A moment between two values that the type can hold is rounded up, which changes neither
"at or after" nor "before".
"""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.filter_literals import NAN, Literal, expected_of, parse_literal
from segstore_ds.read.filters import Condition

EventTime = Sequence[Any] | None
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_conditions(field: pa.Field, interval: Sequence[Any]) -> tuple[Condition, ...]:
    """Return the conditions of the events in a half-open interval. Pure.

    A bound of None is open. Nulls and NaN are in no interval.

    Raises:
        InvalidInputError: Not a pair, a bound does not fit the column, or the start is after the
            end.
    """
    if isinstance(interval, str) or not isinstance(interval, Sequence) or len(interval) != 2:
        raise InvalidInputError(
            "not an interval of event times",
            remedy="give event_time=(start, end); None leaves an end open",
            event_time=interval,
        )
    start, end = (None if given is None else parse_moment(field, given) for given in interval)
    if start is not None and end is not None and start > end:  # type: ignore[operator]
        raise InvalidInputError("start of event_time is after its end", event_time=interval)
    found = [] if end is None else [Condition(field.name, "<", end, field.type)]
    if start is not None:
        found.append(Condition(field.name, ">=", start, field.type))
    return (*(found or [Condition(field.name, "is not null", None, field.type)]), *_valid(field))


def _valid(field: pa.Field) -> tuple[Condition, ...]:
    """Return the condition that leaves NaN out, which compares as above all other numbers."""
    return (Condition(field.name, "!=", NAN, field.type),) if t.is_floating(field.type) else ()


def parse_moment(field: pa.Field, given: Any) -> Literal:
    """Return a moment in the form of the column's bounds, rounded up to its unit. Pure.

    >>> parse_moment(pa.field("day", pa.date32()), "1970-01-02T00:00:01Z")
    2
    """
    try:
        parsed = parse_literal(_fitting(field.type, given), field.type)
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        parsed = NAN
    if parsed == NAN:
        raise InvalidInputError(
            "an event time does not fit the time column",
            remedy=f"use {expected_of(field.type)}",
            column=field.name,
            type=str(field.type),
            given=given,
        )
    return parsed


def _fitting(data_type: pa.DataType, given: Any) -> Any:
    """Return what parses as a literal of the type: the same moment, or the next that it holds."""
    if t.is_date32(data_type):
        return _day(given)
    if t.is_integer(data_type):
        return math.ceil(Decimal(given))
    if t.is_floating(data_type):
        return Decimal(given)
    return given


def _day(given: Any) -> Any:
    moment = given
    if isinstance(given, str):
        try:
            return date.fromisoformat(given)
        except ValueError:
            moment = datetime.fromisoformat(given)
    if not isinstance(moment, datetime):
        return moment
    moment = moment.replace(tzinfo=UTC) if moment.utcoffset() is None else moment
    return _EPOCH.date() + timedelta(days=-((_EPOCH - moment) // timedelta(days=1)))
