"""Single events: checked on arrival, collected into batches later.

An event is a mapping of column names to Python values. It is refused at once if a value would not
read back unchanged, so every accepted event can be written. Plain numbers and ASCII texts need only
one or two comparisons. For other types Arrow converts the value, and the result is compared with
the input. Nothing is rounded or truncated, except to the precision of a float column. NumPy and
Arrow values count as Python values, at every level.
"""

import datetime as dt
import math
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from decimal import Decimal
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.schema.codec import has_nanoseconds, normalise_schema
from segstore_ds.format.schema.conversion import number_of, to_array
from segstore_ds.format.schema.widening import merge_type

BATCH_ROWS = 4096
BATCH_BYTES = 1 << 20
_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, RecursionError)
_NATIVE = frozenset(
    (str, int, float, bool, bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal)
)

# By Arrow's type id: the Python types that need no conversion, if the value is in range.
_PLAIN_TYPES = {
    kind.id: frozenset((plain, type(None)))
    for plain, kinds in (
        (int, (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        (float, (pa.float64(),)),
        (bool, (pa.bool_(),)),
        (str, (pa.string(),)),
        (bytes, (pa.binary(),)),
    )
    for kind in kinds
}

_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}  # type codes of `array`, by the bits of an integer

_Take = Callable[[Any], tuple[Any, int]]  # returns the value to store and its size in bytes


class EventRows:
    """Collects events of one stored schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.bytes = 0
        self._rows: list[tuple[Any, ...]] = []
        self._names = frozenset(schema.names)
        self._columns = tuple((field.name, _taker(field)) for field in schema)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        """True when the events should become a batch."""
        return len(self._rows) >= BATCH_ROWS or self.bytes >= BATCH_BYTES

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a copy of an event, with null for a missing column; add nothing of a misfit."""
        if not event.keys() <= self._names:
            raise SchemaMismatchError(
                "event has unknown columns",
                remedy="append them to the stream with merge_schema=True, or leave them out",
                columns=sorted(map(str, event.keys() - self._names)),
                known=self.schema.names,
            )
        row = []
        size = 0
        for name, take in self._columns:
            value = event.get(name)
            if value is not None:
                value, taken = take(value)
                size += taken
            row.append(value)
        self._rows.append(tuple(row))
        self.bytes += size

    def peek(self) -> pa.RecordBatch:
        """Return the events as a batch and keep them."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(self.schema)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def clear(self) -> None:
        """Drop the events."""
        self._rows, self.bytes = [], 0


def check_events(events: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield events; raise InvalidInputError for the first item that is no event."""
    for place, event in enumerate(events):
        if not isinstance(event, Mapping):
            raise InvalidInputError(
                "not an event",
                remedy="give every event as a dict",
                event=place,
                type=type(event).__name__,
            )
        yield event


def few_rows(events: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch | None:
    """Return a few dicts of plain values as a batch; None if values have to be checked singly."""
    if len(events) > BATCH_ROWS or {*map(type, events)} != {dict}:
        return None
    names = schema.names
    if not {*chain.from_iterable(events)} <= {*names}:
        return None
    columns: Iterable[Sequence[Any]]
    if {*map(len, events)} == {len(names)} and len(names) > 1:
        columns = zip(*map(itemgetter(*names), events), strict=True)  # a loop in C
    else:
        columns = ([event.get(name) for event in events] for name in names)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        if not {*map(type, values)} <= _PLAIN_TYPES.get(field.type.id, frozenset()):
            return None
        try:
            arrays.append(_plain_array(values, field.type))
        except MemoryError:
            raise
        except _ERRORS:  # such as a too large integer: `EventRows` raises an error with its column
            return None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return plain values as an array; `pa.array` would import pandas if it is installed."""
    valid = None
    if None in values:
        valid = _bits([value is not None for value in values])
        empty: Any = "" if t.is_string(kind) else b"" if t.is_binary(kind) else 0
        values = [empty if value is None else value for value in values]
    if t.is_boolean(kind):
        parts = [_bits(values)]
    elif t.is_primitive(kind):
        code = "d" if t.is_floating(kind) else _CODES[kind.bit_width]
        parts = [array(code, values)]
    else:
        items = [*map(str.encode, values)] if t.is_string(kind) else values
        parts = [array("i", accumulate(map(len, items), initial=0)), b"".join(items)]
    return pa.Array.from_buffers(kind, len(values), [valid, *map(pa.py_buffer, parts)])


def _bits(values: Iterable[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits([*map(bool, values)], bitorder="little"))


def table_of(events: Sequence[Any]) -> pa.Table:
    """Return events without a known schema as a table with all columns that they have."""
    names = dict.fromkeys(chain.from_iterable(check_events(events)))
    columns = [_to_array(name, [event.get(name) for event in events]) for name in names]
    return pa.table(columns, names=[*names])


def own_copy(value: Any) -> Any:
    """Return a value with its mutable parts copied, at every level."""
    if isinstance(value, Mapping):
        return {key: own_copy(item) for key, item in value.items()}
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray | set | deque):
        return deepcopy(value)
    column = isinstance(value, Collection | pa.Array) and hasattr(value, "__array__")
    if isinstance(value, list | tuple) or (column and not isinstance(value, str | bytes)):
        return (tuple if isinstance(value, tuple) else list)(map(own_copy, value))
    # A scalar may be a view of its array.
    return pa.repeat(value, 1)[0] if isinstance(value, pa.Scalar) else value


def with_new_columns(schema: pa.Schema, events: Iterable[Any]) -> pa.Schema:
    """Return a stored schema plus the columns that only events have, with inferred types.

    A column of type null gets a type, too.
    """
    known = {field.name for field in schema if not t.is_null(field.type)}
    new = dict[str, list[Any]]()
    for event in events:
        if isinstance(event, Mapping):
            for name in event:
                if name not in known and isinstance(name, str):
                    new.setdefault(name, []).append(event[name])
    for name, values in new.items():
        field, place = _inferred(name, values), schema.get_field_index(name)
        schema = schema.append(field) if place < 0 else schema.set(place, field)
    return schema


def with_wider_columns(schema: pa.Schema, events: Iterable[Any]) -> pa.Schema:
    """Return a stored schema with columns widened as the events need."""
    misfits = dict[str, list[Any]]()
    takers = {field.name: _taker(field) for field in schema}
    for event in events:
        if isinstance(event, Mapping):
            for name in event.keys() & takers.keys():
                try:
                    if event[name] is not None:
                        takers[name](event[name])
                except SchemaMismatchError:
                    misfits.setdefault(name, []).append(event[name])
    for name, values in misfits.items():
        place = schema.get_field_index(name)
        with suppress(SchemaMismatchError):  # the value that does not fit raises it again
            kind = merge_type(schema.field(place).type, _inferred(name, values).type, name)
            schema = schema.set(place, schema.field(place).with_type(kind))
    return schema


def _inferred(name: str, values: list[Any]) -> pa.Field:
    field = pa.field(name, _to_array(name, values).type)
    return normalise_schema(pa.schema([field])).field(0)


def _to_array(name: Any, values: list[Any]) -> pa.Array:
    try:
        name.encode()
        return to_array(values)
    except MemoryError:
        raise
    except _ERRORS as error:
        raise SchemaMismatchError(
            "values of a new column have no common type",
            remedy="give a pyarrow.table whose schema says the type; names are texts in UTF-8",
            column=name,
        ) from error


def _taker(field: pa.Field) -> _Take:
    general = _general(field)
    kind = field.type
    if t.is_signed_integer(kind):
        least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
        width = kind.bit_width // 8

        def take_int(value: Any) -> tuple[Any, int]:
            if type(value) is int and least <= value <= most:
                return value, width
            return general(value)

        return take_int
    if t.is_float64(kind):
        return lambda value: (value, 8) if type(value) is float else general(value)
    if t.is_boolean(kind):
        return lambda value: (value, 1) if type(value) is bool else general(value)
    if t.is_binary(kind):
        return lambda value: (value, len(value)) if type(value) is bytes else general(value)
    if t.is_string(kind):

        def take_text(value: Any) -> tuple[Any, int]:
            if type(value) is str and value.isascii():
                return value, len(value)
            return general(value)

        return take_text
    return general


def _general(field: pa.Field) -> _Take:
    fine = has_nanoseconds(field.type) and not t.is_nested(field.type)

    def take(value: Any) -> tuple[Any, int]:
        if fine:  # finer than Python's own times, so they become numbers
            with suppress(*_ERRORS):
                return number_of(value, field.type), 8
        try:
            given = _plain(value)
            made = pa.array([given], field.type)
            comes_back = _same(given, made.to_pylist()[0])
        except MemoryError:  # also an ArrowException, but not caused by the value
            raise
        except _ERRORS as error:
            raise _refuse(field, value) from error
        if not comes_back:
            raise _refuse(field, value)
        return given, made.nbytes

    return take


def _plain(value: Any) -> Any:
    """Return a copy of a value made of plain Python values; ValueError if that is impossible."""
    if value is None or type(value) in _NATIVE:
        return value
    if isinstance(value, pa.Scalar | np.generic):
        return _of_scalar(value)
    if isinstance(value, bytearray | memoryview | UUID):
        return value.bytes if isinstance(value, UUID) else bytes(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):  # `tolist` would make numbers of its times
        value = list(value) if value.dtype.kind in "mM" else value.tolist()
    if isinstance(value, Collection | pa.Array) and not isinstance(value, str | bytes):
        return (tuple if isinstance(value, tuple) else list)(map(_plain, value))
    return value


def _of_scalar(value: pa.Scalar | np.generic) -> Any:
    if isinstance(value, pa.Scalar):
        given = value.as_py()
        comes_back = pa.scalar(given, value.type).equals(value)
    elif isinstance(value, np.datetime64 | np.timedelta64):
        unit = value.dtype.str.replace("[ns]", "[us]")
        # If Python has no such time, this is an int, which no column of times accepts.
        given = (coarse := value.astype(unit)).tolist()
        comes_back = bool(coarse == value)  # also False for NaT
    else:
        return value.tolist()
    if not comes_back:
        raise ValueError("a value is finer than Python's")
    return given


def _same(given: Any, kept: Any) -> bool:
    """Tell whether a value of `_plain` equals the one that Arrow returns."""
    if isinstance(kept, dict):
        return given.keys() <= kept.keys() and all(
            _same(given.get(name), item) for name, item in kept.items()
        )
    if isinstance(kept, list | tuple):
        items = list(given.items()) if isinstance(given, dict) else given
        return isinstance(items, list | tuple) and all(
            _same(item, other) for item, other in zip(items, kept, strict=True)
        )
    if given is None or kept is None or isinstance(given, bool) or isinstance(kept, bool):
        return given is kept
    if isinstance(kept, float) and isinstance(given, float | int):
        # A float32 may round, but must not overflow to infinity.
        return not math.isinf(kept) or given == kept
    if isinstance(given, dt.datetime) and isinstance(kept, dt.datetime) and given.tzinfo:
        # In the hour that a zone repeats or skips, times of two zones are never equal in Python,
        # even for the same instant (PEP 495).
        return kept.tzinfo is not None and given.astimezone(dt.UTC) == kept.astimezone(dt.UTC)
    return bool(given == kept)


_CONVERT = (
    "convert the value: numbers and times are not rounded, and a time needs a zone if the column"
    " has one"
)
_COLUMNS = "a dict is one event: give columns of values as pyarrow.table(...)"


def _refuse(field: pa.Field, value: Any) -> SchemaMismatchError:
    many = isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray)
    return SchemaMismatchError(
        "value does not fit its column",
        remedy=_COLUMNS if many and not t.is_nested(field.type) else _CONVERT,
        column=field.name,
        expected=str(field.type),
        type=type(value).__name__,
    )
