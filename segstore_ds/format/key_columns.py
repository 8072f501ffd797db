"""Key columns: those of which every frame gets a Bloom filter, a property of the stream."""

from collections.abc import Sequence

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.bloom import has_filter
from segstore_ds.format.record import build_json
from segstore_ds.format.root import TIME_COLUMN, Root, property_of

PROPERTY = "key_columns"  # On disk. Never change; add a new one.
_MOST = 8  # each takes its share of a frame's bytes


def key_columns_of(root: Root) -> tuple[str, ...]:
    """Return the key columns of a stream; a CorruptionError if the property can't be read."""
    return property_of(root, PROPERTY, tuple[str, ...]) or ()


def inherited_properties(source: Root) -> dict[str, str]:
    """Return the properties of a stream that a clone or a copy of it has, too."""
    kept = (PROPERTY, TIME_COLUMN)
    return {name: text for name, text in source.properties.items() if name in kept}


def build_key_columns(columns: Sequence[str] | None, schema: pa.Schema) -> str | None:
    """Return the property's text for columns of a schema in normal form; None for no columns.

    Raises:
        InvalidInputError: A column is unknown or named twice, there are too many, or a type can't
            be a key.
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
    return build_json(list(columns)).decode()
