"""What Spark's own Parquet reader reads exactly, and filters as Spark's expressions.

Pure, except that it builds Spark columns. Types that are not named here are read through the
source.
"""

from collections.abc import Callable, Iterator
from datetime import date
from functools import reduce
from typing import Any

import pyarrow as pa
from pyarrow import types as t
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from segstore_ds.format.schema.codec import decode_schema, has_nanoseconds
from segstore_ds.spark.schemas import CHAR_KEY
from segstore_ds.stream.connector.reads import NAN, Condition, Filters
from segstore_ds.stream.connector.tasks import Reading

_PLAIN = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)
OFFSET_NAME = "__segstore_offset"
# Spark's hidden column, which a stream's column of that name would hide, and our own.
_RESERVED = ("_metadata", OFFSET_NAME)
# A field's metadata key that Spark's Parquet reader obeys: it finds the column by this number, not
# by its name. Inside structs nothing removes the key.
_FIELD_ID = "parquet.field.id"
# The days that Java's older calendar lacks, and one on either side for zones: before Spark pushes
# down a literal of these days, it turns it into another day.
_GAP = tuple((date(1582, 10, day) - date(1970, 1, 1)).days for day in (4, 15))
_DAY_US = 86_400_000_000
_COMPARE: dict[str, Any] = {
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "starts with": F.startswith,
}


def is_native(data_type: DataType) -> bool:
    """Tell whether Spark's Parquet reader reads a type exactly."""
    if isinstance(data_type, StructType):
        distinct = len({*map(_fold, data_type.names)}) == len(data_type.names)
        plain = not any(_FIELD_ID in (field.metadata or {}) for field in data_type)
        return distinct and plain and all(map(is_native_field, data_type))
    if isinstance(data_type, ArrayType):
        return is_native(data_type.elementType)
    if isinstance(data_type, MapType):
        return is_native(data_type.keyType) and is_native(data_type.valueType)
    if type(data_type) is StringType:
        return bool(data_type.isUTF8BinaryCollation())
    return type(data_type) in _PLAIN


def is_native_field(field: StructField) -> bool:
    """As `is_native`, for a column or a field of a struct."""
    # A char is a string whose length is in the column's metadata; the source pads it.
    return CHAR_KEY not in (field.metadata or {}) and is_native(field.dataType)


def _fold(name: str) -> str:
    """Return a name folded as Java compares it, so that names that Spark may confuse are equal."""
    return name.upper().lower()


def find_native_epochs(reading: Reading, needed: StructType) -> tuple[int, ...]:
    """Return the epochs whose Parquet segments Spark reads as the source would.

    A segment of such an epoch has every needed column in the requested type, or not at all: then
    its values are null in both readers. Epochs with names that differ only in case, requested names
    included, are left to the source, since the session decides which of them Spark confuses.
    """
    wanted = reading.as_stored(reading.needed_schema)
    if not all(map(is_native_field, needed)) or any(has_nanoseconds(f.type) for f in wanted):
        return ()
    made = [*_RESERVED, *filter(None, [reading.offset_column])]
    found = []
    for number, text in reading.epochs.items():
        schema = decode_schema(text)
        names = [*{*schema.names, *wanted.names}, *made]
        if len({*map(_fold, names)}) < len(names):
            continue
        if all(_is_same(schema, field) for field in wanted):
            found.append(number)
    return tuple(found)


def _is_same(schema: pa.Schema, field: pa.Field) -> bool:
    place = schema.get_field_index(field.name)
    return place < 0 or bool(schema.field(place).type.equals(field.type))


def quote(name: str) -> str:
    """Return a column's name as Spark's expressions take it.

    >>> quote("a.b`c")
    '`a.b``c`'
    """
    return "`" + name.replace("`", "``") + "`"


def holds_floats(data_type: DataType) -> bool:
    """Tell whether a filter on floats may be pushed down to a column of a type.

    >>> holds_floats(StructType().add("x", DoubleType()))
    True
    >>> holds_floats(ArrayType(DoubleType()))  # nothing is pushed down into arrays
    False
    """
    if isinstance(data_type, StructType):
        return any(holds_floats(field.dataType) for field in data_type)
    return isinstance(data_type, FloatType | DoubleType)


def find_unpushed(filters: Filters) -> set[str]:
    """Return the columns on which Spark would push down another filter than the requested one."""
    found = {
        condition.column
        for condition in filters.conditions
        if any(map(_in_gap(condition), _literals(condition)))
    }
    return found.union(*(find_unpushed(each) for group in filters.any_of for each in group))


def _in_gap(condition: Condition) -> Callable[[Any], bool]:
    if not t.is_date(condition.type) and not t.is_timestamp(condition.type):
        return lambda _: False
    unit = 1 if t.is_date(condition.type) else _DAY_US
    return lambda value: value is not None and _GAP[0] <= value // unit <= _GAP[1]


def _literals(condition: Condition) -> tuple[Any, ...]:
    found: Any = condition.literal
    return found if isinstance(found, tuple) else (found,)


def filter_column(filters: Filters) -> Column | None:
    """Return the condition that rows must satisfy as one column; None for no filters."""
    columns = [_condition(condition) for condition in filters.conditions]
    for group in filters.any_of:
        either = (filter_column(each) for each in group)
        columns.append(reduce(Column.__or__, (column for column in either if column is not None)))
    return reduce(Column.__and__, columns) if columns else None


def _condition(condition: Condition) -> Column:
    column = F.col(quote(condition.column))
    if condition.op == "is null":
        return column.isNull()
    if condition.op == "is not null":
        return column.isNotNull()
    if condition.op in ("in", "not in"):
        # Spark's IN treats 0.0 and -0.0 as different once its list is long.
        found = reduce(Column.__or__, _each_equal(condition, column))
        return found if condition.op == "in" else ~found
    compared: Column = _COMPARE[condition.op](column, _literal(condition.literal, condition.type))
    return compared


def _each_equal(condition: Condition, column: Column) -> Iterator[Column]:
    literals: Any = condition.literal
    floating = t.is_floating(condition.type)
    many = [] if floating else [_literal(value, condition.type) for value in literals]
    if many:
        yield column.isin(many)
    else:
        for value in literals:
            yield column == _literal(value, condition.type)


def _literal(value: Any, data_type: pa.DataType) -> Column:
    if value is None:
        return F.lit(None)
    if value == NAN and t.is_floating(data_type):
        return F.lit(float("nan"))
    if t.is_date(data_type):
        return F.expr(f"date_from_unix_date({value})")
    if t.is_timestamp(data_type) and data_type.tz is not None:
        return F.expr(f"timestamp_micros({value}L)")
    if t.is_timestamp(data_type):
        return F.expr(f"timestampadd(MICROSECOND, {value}L, TIMESTAMP_NTZ'1970-01-01 00:00:00')")
    return F.lit(value)
