"""Event times: moments that a user gives, in the type of the time column, and cuts at them.

The column's own type decides how a moment is written: with a zone, without one, as a date or as a
number. A moment between two values that the type can hold is rounded up, which changes neither
"at or after" nor "before".
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.indexed_columns import time_field
from segstore_ds.format.root import Root
from segstore_ds.format.schema.codec import has_nanoseconds
from segstore_ds.log.context import StreamContext
from segstore_ds.options import quantities
from segstore_ds.options import table as options
from segstore_ds.read.filters.conditions import Condition, Filters
from segstore_ds.read.filters.literals import NAN, Literal, expected_of, parse_literal
from segstore_ds.read.plan import Reading, ReadTask, plan_range
from segstore_ds.read.prune import part_test
from segstore_ds.read.scan import run_task
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.slices import EXACT_LIMIT
from segstore_ds.status.table_status import Slice, TableStatus

EventTime = Sequence[Any] | None
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = -62_135_596_800_000_000  # the first moment of year 1
_NS_RANGE = (-(1 << 63) // 1000 + 1, (1 << 63) // 1000 - 1)  # in microseconds: 1677 to 2262
_OFFSET = "offset"
_LAST_ROWS = 65_536  # rows that are read at once to find the last event before a moment


def time_conditions(field: pa.Field, interval: Sequence[Any]) -> tuple[Condition, ...]:
    """Return the conditions of an interval, open at None; nulls and NaN never match. Pure."""
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
    """Return the condition that excludes NaN, which is above all other numbers."""
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


def moment_of(field: pa.Field | None, time_us: int) -> str:
    """Return a time as text, moved to the nearest moment that the time column can hold."""
    kind = None if field is None else field.type
    first, last = _NS_RANGE if kind is not None and has_nanoseconds(kind) else (_FIRST_US, time_us)
    return quantities.to_moment(max(first, min(last, time_us))).isoformat()


def _fitting(data_type: pa.DataType, given: Any) -> Any:
    """Return a moment, or the next one that the type can hold, in a form of its literals."""
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
            return quantities.parse_moment(date, given)
        except ValueError:
            moment = quantities.parse_moment(datetime, given)
    if not isinstance(moment, datetime):
        return moment
    moment = moment.replace(tzinfo=UTC) if moment.utcoffset() is None else moment
    return _EPOCH.date() + timedelta(days=-((_EPOCH - moment) // timedelta(days=1)))


def resolve_event_time(context: StreamContext, root: Root, moment: str, *, end: bool) -> int:
    """Return the offset of a moment among the events that a root shows.

    As a start it is the offset of the first event at or after the moment, or the tail; as an end
    the offset after the last event before it, or the head. Bounds tell which parts, segments and
    frames may hold that event. If they are exact, one part and one frame are read, or a few small
    ones.
    """
    schema = epoch_schema(context.status, root.epoch)
    field = time_field(root, schema)
    conditions = time_conditions(field, (None, moment) if end else (moment, None))
    reading = Reading.of(
        context,
        root,
        start=root.head,
        end=root.tail,
        schema=pa.schema([field]),
        columns=(),
        filters=Filters(conditions),
        offset_column=f"{field.name}_{_OFFSET}",
        read_cache_bytes=options.default("readCacheBytes"),
    )
    spans = _spans(context.status, root, reading)
    for start, stop in reversed(list(spans)) if end else spans:
        found = _search(context.status, root, replace(reading, start=start, end=stop), last=end)
        if found is not None:
            return found + 1 if end else found
    return root.head if end else root.tail


def _spans(status: TableStatus, root: Root, reading: Reading) -> Iterator[tuple[int, int]]:
    """Yield the ranges of parts that may hold the event, and that of the root's own segments."""
    wanted = part_test(reading.filters, reading.schema)
    for part in status.table.parts(root, root.head, root.tail, wanted):
        yield max(part.start, root.head), part.end
    yield max(root.inline_start, root.head), root.tail


def _search(status: TableStatus, root: Root, reading: Reading, *, last: bool) -> int | None:
    """Return the offset of the first or the last match in the range of a read."""
    slices = plan_range(status, root, reading)
    if last:
        # Slices are read forwards. Split, only the last frames of a large one are read.
        slices = slices.exact().split(EXACT_LIMIT, _LAST_ROWS)
    edges = (_edge(reading, part, last=last) for part in (reversed(slices) if last else slices))
    return next((edge for edge in edges if edge is not None), None)


def _edge(reading: Reading, part: Slice, *, last: bool) -> int | None:
    """Return the offset of the first or the last match in a slice; None without a match."""
    found: Any = None
    for batch in run_task(reading, ReadTask((part,))):
        found = batch.column(0)[-1 if last else 0]
        if not last:
            break
    return None if found is None else int(found.as_py())
