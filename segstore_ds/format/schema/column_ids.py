"""Ids of columns, by which other engines find them in Parquet segments (FORMAT.md 6.1).

An id is computed from the path and the kind of a column, so every writer, copy and clone gives a
column the same id, and a wider type of its kind keeps it. Pure.
"""

import hashlib
import json
from functools import lru_cache

import pyarrow as pa

from segstore_ds.format.schema.codec import kind_of
from segstore_ds.format.schema.normal_form import children_of, with_children

FIELD_ID = b"PARQUET:field_id"  # pyarrow's key; Parquet stores the number in its own schema


def column_id(path: tuple[str, ...], data_type: pa.DataType) -> int:
    """Return the id of a column, or of a field inside one, of a schema in normal form.

    >>> column_id(("n",), pa.int32()) == column_id(("n",), pa.int64())
    True
    """
    message = json.dumps([kind_of(data_type), *path], ensure_ascii=True, separators=(",", ":"))
    digest = hashlib.blake2b(message.encode("ascii"), digest_size=4).digest()
    return (int.from_bytes(digest, "big") & 0x7FFFFFFF) or 1


@lru_cache(maxsize=64)
def with_column_ids(schema: pa.Schema) -> pa.Schema:
    """Return a schema in normal form with the ids that a Parquet writer stores."""
    return pa.schema([_with_id(field, (field.name,)) for field in schema])


def _with_id(field: pa.Field, path: tuple[str, ...]) -> pa.Field:
    inner = [_with_id(child, (*path, child.name)) for child in children_of(field.type)]
    number = str(column_id(path, field.type)).encode()
    return field.with_type(with_children(field.type, inner)).with_metadata(
        {**(field.metadata or {}), FIELD_ID: number}
    )
