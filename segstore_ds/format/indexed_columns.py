"""Indexed columns, properties of a stream: its time column and its key columns.

Every segment and frame keeps bounds of the time column. Frames have Bloom filters of key columns.
`format.properties` says what happens when a column is renamed or dropped.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.bloom import has_filter
from segstore_ds.format.record import build_json
from segstore_ds.format.root import TIME_COLUMN, Root, property_of


def time_column_of(root: Root) -> str | None:
    """Return the time column of a stream; CorruptionError if the property can't be read."""
    return property_of(root, TIME_COLUMN, str)


def build_time_column(
    column: str | None, schema: pa.Schema, stored: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return the property's text for a column of a schema in normal form; None for no column.

    `stored` has the stored names of columns that differ from them.
    """
    if column is None:
        return None
    if not isinstance(column, str) or column not in schema.names:
        raise InvalidInputError("no such time column", column=column, known=schema.names)
    data_type = schema.field(column).type
    if not is_time(data_type):
        raise InvalidInputError(
            "a column of this type can't be the time column",
            remedy="choose a column of timestamps, dates or numbers",
            column=column,
            type=str(data_type),
        )
    return build_json(stored.get(column, column)).decode()


def time_field(root: Root, schema: pa.Schema) -> pa.Field:
    """Return the time column's field in the stream's schema as of a root."""
    found = find_time_field(root, schema)
    if found is None:
        name = time_column_of(root)
        raise InvalidInputError(
            "stream has no time column"
            if name is None
            else "stream has no time column any more: a new schema removed it or changed its type",
            remedy="choose one with stream.settings.update(time_column='ts')",
            column=name,
            version=root.version,
        )
    return found


def find_time_field(root: Root, schema: pa.Schema) -> pa.Field | None:
    """Return the time column's field in the stream's schema as of a root; None without one."""
    name = time_column_of(root)
    if name is None or name not in schema.names or not is_time(schema.field(name).type):
        return None
    return schema.field(name)


def is_time(data_type: pa.DataType) -> bool:
    """Tell whether a column of this type, in normal form, can be the time column."""
    tests = (t.is_timestamp, t.is_date32, t.is_integer, t.is_floating)
    return any(applies(data_type) for applies in tests)


KEY_COLUMNS = "key_columns"  # On disk: the property that names them. Never change.
_MOST = 8  # they share the bytes for a frame's filters


def key_columns_of(root: Root) -> tuple[str, ...]:
    """Return the key columns of a stream; CorruptionError if the property can't be read."""
    return property_of(root, KEY_COLUMNS, tuple[str, ...]) or ()


def refuse_lost_keys(root: Root, schema: pa.Schema, merged: pa.Schema) -> None:
    """Raise SchemaMismatchError if a merge gives a key column a type that can't be a key."""
    for name in key_columns_of(root) if merged is not schema else ():
        if name in schema.names and has_filter(schema.field(name).type):
            wider = merged.field(name).type
            if not has_filter(wider):
                raise SchemaMismatchError(
                    "a key column would become a column that can't be a key",
                    remedy="cast the data to the column's type; or first choose others with "
                    "settings.update(key_columns=[...])",
                    column=name,
                    stream_type=str(schema.field(name).type),
                    type=str(wider),
                )


def build_key_columns(
    columns: Sequence[str] | None,
    schema: pa.Schema,
    stored: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """Return the property's text for columns of a schema in normal form; None for no columns.

    `stored` has the stored names of columns that differ from them.
    """
    if not columns:
        return None
    whole = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not whole or len({*columns}) < len(columns) or len(columns) > _MOST:
        raise InvalidInputError(
            "key columns are not a list of names",
            remedy=f"give at most {_MOST} different names",
            columns=columns,
        )
    for name in columns:
        if name not in schema.names:
            raise InvalidInputError("no such key column", column=name, known=schema.names)
        if not has_filter(schema.field(name).type):
            raise InvalidInputError(
                "a column of this type can't be a key",
                remedy="choose a column of integers, texts, binaries, decimals, dates or times",
                column=name,
                type=str(schema.field(name).type),
            )
    return build_json([stored.get(name, name) for name in columns]).decode()
