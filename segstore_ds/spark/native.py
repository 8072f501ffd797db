"""What Spark's own Parquet reader brings back exactly, and filters in its words.

Pure, but that columns of Spark are built. What is not named here goes through the source.
"""

from collections.abc import Iterator
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from segstore_ds.engine.filter_literals import NAN
from segstore_ds.engine.filters import Condition, Filters
from segstore_ds.engine.scan_plan import Reading
from segstore_ds.format.schema import decode_schema

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
START_NAME, OFFSET_NAME = "__segstore_start", "__segstore_offset"
SEGMENT_NAME = "__segstore_segment"
# Spark's hidden column, which a stream's own of that name would stand before, and ours.
_RESERVED = ("_metadata", START_NAME, OFFSET_NAME, SEGMENT_NAME)
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
    """Tell whether Spark's Parquet reader brings a type back exactly."""
    if isinstance(data_type, StructType):
        distinct = len({name.lower() for name in data_type.names}) == len(data_type.names)
        return distinct and all(is_native(field.dataType) for field in data_type)
    if isinstance(data_type, ArrayType):
        return is_native(data_type.elementType)
    if isinstance(data_type, MapType):
        return is_native(data_type.keyType) and is_native(data_type.valueType)
    if type(data_type) is StringType:  # not char, varchar
        return bool(data_type.isUTF8BinaryCollation())
    return type(data_type) in _PLAIN


def find_native_epochs(reading: Reading, needed: StructType) -> tuple[int, ...]:
    """Return the epochs whose Parquet segments Spark reads as the source would.

    A segment of such an epoch has every needed column in the type asked for, or not at all: then
    its values are null in both. Names that differ in case only, those asked for included, are left
    to the source, since it depends on the session what Spark takes them for.

    Raises:
        FormatError: A schema can't be read.
    """
    if not all(is_native(field.dataType) for field in needed):
        return ()
    wanted = reading.needed_schema
    asked = (reading.offset_column, reading.segment_column)
    made = [*_RESERVED, *(name for name in asked if name is not None)]
    found = []
    for number, text in reading.epochs.items():
        schema = decode_schema(text)
        names = [*{*schema.names, *wanted.names}, *made]
        if len({name.lower() for name in names}) < len(names):
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
    >>> holds_floats(ArrayType(DoubleType()))  # nothing is pushed down to what lies in these
    False
    """
    if isinstance(data_type, StructType):
        return any(holds_floats(field.dataType) for field in data_type)
    return isinstance(data_type, FloatType | DoubleType)


def filter_column(filters: Filters) -> Column | None:
    """Return what rows have to satisfy as one column; None for no filters."""
    columns = [_condition(condition) for condition in filters.conditions]
    return reduce(Column.__and__, columns) if columns else None


def _condition(condition: Condition) -> Column:
    column = F.col(quote(condition.column))
    if condition.op == "is null":
        return column.isNull()
    if condition.op == "is not null":
        return column.isNotNull()
    if condition.op in ("in", "not in"):
        # Spark's IN takes the two zeros for different once its list is long.
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
