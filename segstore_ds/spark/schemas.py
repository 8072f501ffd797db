"""Spark's schemas and ours: what is stored of a Spark schema, and how it comes back exactly.

The stored Arrow schema decides; Spark's own JSON is kept beside it for what Arrow cannot say:
comments, char and varchar lengths, collations, user-defined types.
"""

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format.schema import normalise_schema

_CHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"  # Spark's own name for a char's length in metadata
_REFUSED = {
    "YearMonthIntervalType": "keep months as int, or use a day-time interval",
    "CalendarIntervalType": "use a day-time interval",
}


def to_stored(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which a DataFrame is stored.

    Raises:
        SchemaMismatchError: A column has a type that can't be kept, or a name occurs twice.
    """
    for path, data_type in _walk(schema, ""):
        remedy = _REFUSED.get(type(data_type).__name__)
        if remedy is not None:
            raise SchemaMismatchError(
                "column has a type that can't be kept",
                remedy=remedy,
                column=path,
                type=data_type.simpleString(),
            )
    try:
        arrow = to_arrow_schema(_plain_struct(schema), timezone="UTC")
    except PySparkException as error:
        raise SchemaMismatchError(
            "column has a type that can't be kept", remedy="cast it", reason=str(error)
        ) from error
    return normalise_schema(arrow)


def to_spark_json(schema: StructType) -> str:
    """Return the JSON that is kept of a DataFrame's schema."""
    return json.dumps(_plain_struct(schema).jsonValue())


def from_stored(schema: pa.Schema, spark_json: str | None) -> StructType:
    """Return the DataFrame schema of stored columns, everything nullable.

    Args:
        schema: In stored form.
        spark_json: What `to_spark_json` gave, or part of it; columns whose type in it is not the
            stored one any more come from Arrow.
    """
    known = {}
    for value in json.loads(spark_json)["fields"] if spark_json else ():
        try:
            field = StructField.fromJson(value)
        except (ImportError, AttributeError, PySparkException):
            # A user-defined type whose class is not here: its plain form is.
            continue
        known[field.name] = field
    return StructType([_spark_field(field, known.get(field.name)) for field in schema])


def is_nullable(data_type: DataType) -> bool:
    """Tell whether everything inside a type may be null, as everything in a stream may."""
    return bool(_nullable(data_type) == data_type)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark checks a reader's batches against."""
    return to_arrow_schema(schema, timezone="UTC")


def _spark_field(field: pa.Field, known: StructField | None) -> StructField:
    if known is not None:
        stored = normalise_schema(to_arrow_schema(StructType([known]), timezone="UTC")).field(0)
        if stored.type.equals(field.type):
            return StructField(known.name, _nullable(known.dataType), True, known.metadata)
    return StructField(field.name, _nullable(from_arrow_type(field.type)), True)


def _nullable(data_type: DataType) -> DataType:
    if isinstance(data_type, StructType):
        fields = [StructField(f.name, _nullable(f.dataType), True, f.metadata) for f in data_type]
        return StructType(fields)
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType), True)
    return data_type


def _plain(data_type: DataType) -> DataType:
    """Replace char and varchar by string."""
    if isinstance(data_type, ArrayType):
        return ArrayType(_plain(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, MapType):
        key, value = _plain(data_type.keyType), _plain(data_type.valueType)
        return MapType(key, value, data_type.valueContainsNull)
    if isinstance(data_type, StructType):
        fields = [StructField(f.name, _plain(f.dataType), f.nullable, f.metadata) for f in data_type]
        return StructType(fields)
    return StringType() if isinstance(data_type, CharType | VarcharType) else data_type


def _plain_struct(schema: StructType) -> StructType:
    """Turn char and varchar into strings and note the type in the column's metadata, as Spark."""
    fields = []
    for field in schema:
        metadata = dict(field.metadata or {})
        if any(isinstance(inner, CharType | VarcharType) for _, inner in _walk(field.dataType, "")):
            metadata[_CHAR_KEY] = field.dataType.simpleString()
        fields.append(StructField(field.name, _plain(field.dataType), field.nullable, metadata))
    return StructType(fields)


def _walk(data_type: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    yield path, data_type
    if isinstance(data_type, StructType):
        for field in data_type:
            yield from _walk(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(data_type, ArrayType):
        yield from _walk(data_type.elementType, f"{path}.element")
    elif isinstance(data_type, MapType):
        yield from _walk(data_type.keyType, f"{path}.key")
        yield from _walk(data_type.valueType, f"{path}.value")
