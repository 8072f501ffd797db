"""Spark's schemas and ours: what is stored of a Spark schema, and how it comes back exactly.

The stored Arrow schema decides; Spark's own JSON is kept beside it for what Arrow cannot say:
comments, char and varchar lengths, collations, user-defined types.
"""

import importlib
import json
from collections.abc import Iterator
from typing import Any

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
    UserDefinedType,
    VarcharType,
)

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format.schema import normalise_schema

CHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"  # Spark's own name for a char's length in metadata
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
    """Return the JSON that is kept of a DataFrame's schema.

    Of a user-defined type only its name is kept: Spark's JSON also holds its pickled class, and a
    stream must never hand code to its readers.
    """
    text = _plain_struct(schema).json()
    return json.dumps(json.loads(text, object_hook=_without_code))


def from_stored(schema: pa.Schema, spark_json: str | None) -> StructType:
    """Return the DataFrame schema of stored columns, everything nullable.

    Args:
        schema: In stored form.
        spark_json: What `to_spark_json` gave, or part of it; columns whose type in it is not the
            stored one any more come from Arrow.
    """
    values = json.loads(spark_json, object_hook=_without_code)["fields"] if spark_json else ()
    known = {field.name: field for field in map(_known_field, values) if field is not None}
    return StructType([_spark_field(field, known.get(field.name)) for field in schema])


def is_nullable(data_type: DataType) -> bool:
    """Tell whether everything inside a type may be null, as everything in a stream may."""
    return bool(_nullable(data_type) == data_type)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark checks a reader's batches against."""
    return to_arrow_schema(schema, timezone="UTC")


def _without_code(value: dict[str, Any]) -> dict[str, Any]:
    value.pop("serializedClass", None)
    return value


def _known_field(value: dict[str, Any]) -> StructField | None:
    """Return a field of Spark's JSON, or None where a user-defined type's class is not here."""
    try:
        _check_classes(value)
        return StructField.fromJson(value)
    except (ImportError, AttributeError, KeyError, TypeError, ValueError, PySparkException):
        return None


def _check_classes(value: Any) -> None:
    """Check that classes named in a schema's JSON are user-defined types, before Spark calls them.

    Raises:
        ImportError: A class is not here, or it is something else.
    """
    if isinstance(value, dict):
        if value.get("type") == "udt":
            module, _, name = str(value["pyClass"]).rpartition(".")
            found = getattr(importlib.import_module(module), name, None)
            if not (isinstance(found, type) and issubclass(found, UserDefinedType)):
                raise ImportError(name)
        for inner in value.values():
            _check_classes(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_classes(inner)


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
        fields = [
            StructField(f.name, _plain(f.dataType), f.nullable, f.metadata) for f in data_type
        ]
        return StructType(fields)
    return StringType() if isinstance(data_type, CharType | VarcharType) else data_type


def _plain_struct(schema: StructType) -> StructType:
    """Turn char and varchar into strings and note the type in the column's metadata, as Spark."""
    fields = []
    for field in schema:
        metadata = dict(field.metadata or {})
        if any(isinstance(inner, CharType | VarcharType) for _, inner in _walk(field.dataType, "")):
            metadata[CHAR_KEY] = field.dataType.simpleString()
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
