"""Converts batches to a schema: by column names, with safe casts and nulls for missing columns.

A conversion never loses a value. A cast that would lose one raises a SchemaMismatchError that names
the column. So does a decimal with more digits than its type, because a later cast or another format
would change it. A column of the right type is not copied, and a nested column is rebuilt only if a
child differs. A time of Python or NumPy that is finer than the column's unit, or out of its range,
is refused, never rounded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import lib
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.rows import halve_until
from segstore_ds.format.schema.codec import children_of, normalise_type, type_id_of, with_children
from segstore_ds.format.schema.unpacking import (
    OversizeError,
    decode_dictionary,
    is_packed,
    is_part,
    plain_list,
    plain_text,
    unpacked_sizes,
)
from segstore_ds.format.schema.widening import MERGE_REMEDY, merge_type, with_unit_of

_WITH_DECIMALS = frozenset(  # of types in normal form
    (lib.Type_DECIMAL128, lib.Type_LIST, lib.Type_MAP, lib.Type_STRUCT)
)
PIECE_BYTES = 1 << 28  # larger batches are converted in pieces
MANY_ROWS = 1 << 14  # with fewer rows, the missing columns of a batch take little memory
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECONDS = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60}  # units of NumPy that Arrow lacks


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert incoming data to the stored schema; return `batch` itself if it already fits.

    Columns come in any order, in the stored type or a narrower one; time zones, dictionaries and
    large variants are resolved. A missing column becomes null. The stored schema is in normal form.

    Raises:
        InvalidInputError: A column's type cannot be stored, or a name occurs twice.
        SchemaMismatchError: A column is unknown to `schema` or does not fit its type, or a value
            would be lost or has more digits than its type; names the column.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return with_sound_decimals(batch)
    unknown = [name for name in batch.schema.names if schema.get_field_index(name) < 0]
    if unknown:
        raise SchemaMismatchError(
            "the stream has no such column", remedy=MERGE_REMEDY, columns=unknown
        )
    return with_sound_decimals(_assemble(batch, schema))


def conform_pieces(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert incoming data as `conform` does, in pieces of bounded size.

    A batch that already fits is yielded as it is. Raises OversizeError if a single row is too
    large.
    """
    if batch.schema.equals(schema, check_metadata=True):
        yield conform(batch, schema)
        return
    rows, borders = batch.num_rows, [0]
    # Each null in a missing column takes up to eight bytes.
    filled = 8 * _leaf_count(schema) if rows >= MANY_ROWS else 0
    size = batch.get_total_buffer_size()  # counts whole buffers even for a slice, but is free
    if size + filled * rows > PIECE_BYTES or any(map(is_packed, batch.schema.types)):
        sizes = [unpacked_sizes(column) for column in batch.columns]
        if sum([column.sum() for column in sizes]) + filled * rows > PIECE_BYTES:
            pieces = np.cumsum(sum(sizes) + filled) // PIECE_BYTES
            borders += [int(place) + 1 for place in np.flatnonzero(pieces[1:] > pieces[:-1])]

    def convert(piece: pa.RecordBatch) -> pa.RecordBatch | None:
        try:
            return conform(piece, schema)
        except OversizeError:
            if piece.num_rows <= 1:
                raise
            return None

    for start, end in pairwise([*borders, rows]):
        yield from halve_until(batch.slice(start, end - start), convert)


def may_hold_decimals(schema: pa.Schema) -> bool:
    """Tell whether a batch of a schema in normal form may have a decimal with too many digits."""
    # Not cached: hashing a schema takes longer than checking the types of a few columns.
    return not _WITH_DECIMALS.isdisjoint(map(type_id_of, schema.types))


def with_sound_decimals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in stored form; SchemaMismatchError if a decimal has too many digits."""
    if not may_hold_decimals(batch.schema):
        return batch
    overlong = find_overlong(batch, decimal_columns(batch.schema))
    if overlong is not None:
        raise SchemaMismatchError(
            "a decimal has more digits than its type allows",
            remedy="cast the column to a type with enough digits, or correct the value",
            column=overlong,
        )
    return batch


def lift(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of an older epoch to a newer schema, or to a projection of it.

    Missing columns become null, narrower columns are widened, and columns that `schema` lacks are
    dropped. Raises SchemaMismatchError, with the column, if the two schemas are not epochs of one
    stream.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    return _assemble(batch, schema)


def _assemble(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not schema.names:
        return batch.select([])
    names = batch.schema.names
    arrays = dict(zip(names, batch.columns, strict=True))
    if len(arrays) < len(names):
        raise InvalidInputError("a name occurs twice", remedy="rename all but one", names=names)
    columns = [
        _column(arrays[field.name], field)
        if field.name in arrays
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type.equals(field.type):
        return array
    normal = with_unit_of(field.type, normalise_type(array.type, field.name))
    if not merge_type(field.type, normal, field.name).equals(field.type):
        raise SchemaMismatchError(
            "a column's type is wider than in the stream",
            remedy=MERGE_REMEDY,
            column=field.name,
            stream_type=str(field.type),
            type=str(array.type),
        )
    return convert(array, field.type, field.name)


def convert(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    """Convert one array to a type; return `array` itself if it already has that type.

    The caller has checked that `target` is of the same family, and that its children are equal or
    wider; nullability may differ. Raises SchemaMismatchError, with `path`, if a value would be
    lost.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        values = array.dictionary
        if t.is_nested(values.type):
            values = convert(values, target, path)  # Arrow can't `take` views in nested values
        array = decode_dictionary(values, array.indices, path)
    source = array.type
    if source.equals(target):
        return array
    if t.is_null(source):
        return pa.nulls(len(array), target)
    for applies, rebuild in _NESTED:
        if applies(target):
            return rebuild(array, target, path)
    return _cast(array, target, path)


def _cast(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    if t.is_timestamp(target) and array.type.unit == target.unit:
        return array.view(target)  # the same instants in another zone
    if t.is_string(target) or t.is_binary(target):
        array = plain_text(array, path)
    try:
        return array.cast(target, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            "a column's values do not fit the stored type",
            remedy="cast the column",
            column=path,
            stored_type=str(target),
            type=str(array.type),
        ) from error


def _convert_struct(array: pa.StructArray, target: pa.DataType, path: str) -> pa.Array:
    names = {field.name: index for index, field in enumerate(array.type)}
    children = [
        convert(array.field(names[field.name]), field.type, f"{path}.{field.name}")
        if field.name in names
        else pa.nulls(len(array), field.type)
        for field in target
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _convert_map(array: pa.MapArray, target: pa.DataType, path: str) -> pa.Array:
    if is_part(array):
        array = pa.concat_arrays([array])
    keys = convert(array.keys, target.key_type, f"{path}.key")
    items = convert(array.items, target.item_type, f"{path}.value")
    entries = pa.StructArray.from_arrays(
        [keys, items], fields=[target.key_field, target.item_field]
    )
    return _with_child(array, target, entries)


def _convert_list(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    array = plain_list(array, path)
    return _with_child(array, target, convert(array.values, target.value_type, path + ".element"))


def _with_child(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    # The buffers of a slice are not sliced: keep the offset and pass the whole child.
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], offset=array.offset, children=[child]
    )


_NESTED = ((t.is_struct, _convert_struct), (t.is_map, _convert_map), (t.is_list, _convert_list))


@lru_cache(maxsize=64)
def _leaf_count(schema: pa.Schema) -> int:
    counted, pending = 0, [field.type for field in schema]
    while pending:
        counted += 1
        pending += [child.type for child in children_of(pending.pop())]
    return counted


@lru_cache(maxsize=64)
def decimal_columns(schema: pa.Schema) -> tuple[int, ...]:
    """Return the indexes of the columns that are or contain decimals.

    >>> decimal_columns(pa.schema([("n", pa.int64()), ("d", pa.list_(pa.decimal128(9, 2)))]))
    (1,)
    """
    return tuple(place for place, field in enumerate(schema) if _holds_decimals(field.type))


def find_overlong(batch: pa.RecordBatch, places: Sequence[int]) -> str | None:
    """Return the path of the first decimal column with a value of too many digits.

    `places` is what `decimal_columns` returns for the batch's schema. Ignores nulls, and values in
    nested columns whose parent is null.
    """
    for place in places:
        for path, leaf in _leaves(batch.column(place), batch.schema.field(place).name):
            try:
                leaf.validate(full=True)
            except pa.ArrowInvalid:
                return path
    return None


def _holds_decimals(data_type: pa.DataType) -> bool:
    within = any(_holds_decimals(child.type) for child in children_of(data_type))
    return within or bool(t.is_decimal(data_type))


def _leaves(array: pa.Array, path: str) -> Iterator[tuple[str, pa.Array]]:
    """Yield the decimal leaves of a column, without values whose parent is null."""
    if t.is_map(array.type):
        # Arrow can't flatten a map, but it can flatten the same buffers as a list of entries.
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        validity, offsets = array.buffers()[:2]
        array = pa.Array.from_buffers(
            pa.list_(entries.type),
            len(array),
            [validity, offsets],
            offset=array.offset,
            children=[entries],
        )
        yield from _leaves(array.flatten(), path)
    elif t.is_list(array.type):
        if _holds_decimals(array.type):
            yield from _leaves(array.flatten(), f"{path}.element")
    elif t.is_struct(array.type):
        if _holds_decimals(array.type):
            for field, child in zip(array.type, array.flatten(), strict=True):
                yield from _leaves(child, f"{path}.{field.name}")
    elif t.is_decimal(array.type):
        yield path, array


def number_of(value: Any, data_type: pa.DataType, *, finer: int = 0) -> int:
    """Return a timestamp or a duration as the number that a column in normal form stores.

    A timestamp must have a zone exactly if the column has one. `finer` adds nanoseconds to a
    `datetime`. Raises TypeError, ValueError, ArithmeticError or NotImplementedError if the value
    does not fit.

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
        whole, finer = value // _MICROSECOND, getattr(value, "nanoseconds", 0)  # of pandas
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
    """Return values as an array of the type that Arrow infers, but with nanoseconds if needed.

    Arrow infers microseconds for all times of pandas, and would cut off their nanoseconds.
    """
    made = pa.array(values, from_pandas=from_pandas)
    fine = in_nanoseconds(made.type)
    if fine == made.type or not _has_nanoseconds(values):
        return made
    return pa.array(values, fine, from_pandas=from_pandas)


def in_nanoseconds(data_type: pa.DataType) -> pa.DataType:
    """Return a type with all timestamps and durations in it in nanoseconds."""
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
    # Attributes of pandas' Timestamp and Timedelta; NaN for NaT.
    return any(0 < getattr(value, name, 0) < 1000 for name in ("nanosecond", "nanoseconds"))


def _arrow_scalar(value: np.datetime64 | np.timedelta64) -> pa.Scalar:
    if np.isnat(value):
        raise ValueError(value)
    unit, step = np.datetime_data(value.dtype)
    seconds = _SECONDS.get(unit)
    of_unit = pa.timestamp if isinstance(value, np.datetime64) else pa.duration
    number = int(value.astype(np.int64)) * step * (seconds or 1)  # Python ints can't overflow
    return pa.scalar(number, of_unit("s" if seconds else unit))


def _has_zone(data_type: pa.DataType) -> bool:
    return getattr(data_type, "tz", None) is not None
