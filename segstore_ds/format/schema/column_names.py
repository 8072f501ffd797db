"""Names of columns, which callers see; their stored names; their ids.

A column has one stored name as long as the stream exists. Segments, statistics, filters, labels,
ids and properties use it; callers see the name in the newest epoch. So a rename or drop of a column
only adds an epoch, and nothing that reads bytes is affected. The stored name of a dropped column is
never reused (FORMAT.md 3.1).

An id, by which other engines find a column in Parquet segments, is computed from the path and the
kind of a column. So every writer, copy and clone gives a column the same id, also after its type
was widened (FORMAT.md 6.1). Pure.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.record import is_text
from segstore_ds.format.schema.codec import children_of, kind_of, normalise_schema, with_children

# By stored name: the column's name if it differs, None if the column was dropped.
Names = Mapping[str, str | None]


def named_schema(schema: pa.Schema, names: Names) -> pa.Schema:
    """Return a stored schema with the names that callers see; CorruptionError for duplicates.

    >>> named_schema(pa.schema([("a", "int64"), ("b", "int64")]), {"a": "n", "c": None}).names
    ['n', 'b']
    """
    if not names:
        return schema
    called = [names.get(stored) or stored for stored in schema.names]
    if len({*called}) < len(called):
        raise CorruptionError("two columns of an epoch have one name", columns=called)
    return with_names(schema, called)


def with_names(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return a schema with its columns renamed, in order."""
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def stored_names(schema: pa.Schema, names: Names) -> dict[str, str]:
    """Return stored names by names, for the columns of a stored schema where they differ."""
    return {name: stored for stored in schema.names if (name := names.get(stored)) is not None}


def store_columns(schema: pa.Schema, current: pa.Schema, names: Names) -> pa.Schema:
    """Return a schema with names that callers use as a schema with stored names.

    `current` and `names` are those of an epoch. A column of the epoch keeps its stored name. A new
    column is stored under its own name if no column ever had that, else under a new one.

    >>> current, names = pa.schema([("a", "int64")]), {"a": "n", "c": None}
    >>> wanted = pa.schema([("n", "int64"), ("a", "int64"), ("C", "int64"), ("d", "int64")])
    >>> store_columns(wanted, current, names).names
    ['a', 'a-2', 'C-2', 'd']
    """
    if not names:
        return schema
    known = dict(zip(named_schema(current, names).names, current.names, strict=True))
    taken = {stored.casefold() for stored in (*current.names, *names)}
    found = []
    for name in schema.names:
        stored, number = known.get(name, name), 1
        while name not in known and stored.casefold() in taken:
            number += 1
            stored = f"{name}-{number}"
        taken.add(stored.casefold())
        found.append(stored)
    return with_names(schema, found)


def names_of(stored: pa.Schema, names: Sequence[str], before: Names) -> dict[str, str | None]:
    """Return the `Names` of stored columns, including the columns that were dropped `before`."""
    found = {one: name for one, name in zip(stored.names, names, strict=True) if one != name}
    kept = {*stored.names}
    gone = {one: None for one, name in before.items() if name is None and one not in kept}
    return {**found, **gone}


def change_columns(
    schema: pa.Schema, names: Names, rename: Mapping[str, str], drop: Sequence[str]
) -> tuple[pa.Schema, Names]:
    """Return a stored schema and its names after columns were renamed and dropped."""
    called = named_schema(schema, names).names
    known = {*called}
    unknown = [name for name in (*rename, *drop) if name not in known]
    if unknown:
        raise InvalidInputError(
            "no such columns",
            remedy="name whole columns: a field inside one can't be renamed or dropped",
            columns=unknown,
            known=called,
        )
    if {*rename} & {*drop} or len({*drop}) < len(drop):
        raise InvalidInputError("a column is named twice", rename=dict(rename), drop=list(drop))
    if not all(name and is_text(name) for name in rename.values()):
        raise InvalidInputError("not a column name", remedy="give a text", rename=dict(rename))
    kept = [place for place, name in enumerate(called) if name not in drop]
    if not kept:
        raise InvalidInputError(
            "no column would be left", remedy="keep one, or drop the stream", drop=list(drop)
        )
    stored = pa.schema([schema.field(place) for place in kept])
    given = [rename.get(called[place], called[place]) for place in kept]
    normalise_schema(with_names(stored, given))  # refuses a name that is taken
    left = {*stored.names}
    gone = {name: None for name in schema.names if name not in left}
    return stored, names_of(stored, given, {**names, **gone})


FIELD_ID = b"PARQUET:field_id"  # pyarrow's key for the id that Parquet stores in its schema


def column_id(path: tuple[str, ...], data_type: pa.DataType) -> int:
    """Return the id of a column, or of a nested field, of a schema in normal form.

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
