"""The contract between a stream's schema and incoming data: what fits, what needs a merge.

A type widens only within its family (integers, floats, decimals that lose no digits); in addition
integers of at most 32 bits widen to double, which holds them exactly. Null fits every type, and
nested types are compared field by field. Any other change would alter the meaning of stored values
and is refused.
"""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format.schema.codec import (
    EXACT_IN_DOUBLE,
    FLOATS,
    INTEGERS,
    MAX_PRECISION,
    children_of,
    is_variant,
    normalise_schema,
    with_children,
)

MERGE_REMEDY = "set merge_schema=True to change the stream's schema"


def is_wider(field: pa.Field, wanted: pa.Field) -> bool:
    """Tell whether `wanted`, a field of the same name, has the same or a wider type.

    >>> is_wider(pa.field("n", pa.int32()), pa.field("n", pa.int64()))
    True
    """
    try:
        merged = plan_schema(pa.schema([field]), pa.schema([wanted]), merge=True)
    except SchemaMismatchError:
        return False
    return bool(merged.field(0).type.equals(wanted.type))


def plan_schema(current: pa.Schema, incoming: pa.Schema, *, merge: bool) -> pa.Schema:
    """Return the schema of a stream after data with the schema `incoming` was added.

    `current` is in normal form and is returned itself if the data fits it. With `merge`, the result
    is the merged schema, with new columns last, in the order of `incoming`. Without it, data that
    does not fit raises a SchemaMismatchError with columns, types and the remedy. The order of
    columns and their nullability in `incoming` do not matter.
    """
    incoming = normalise_schema(incoming)
    _refuse_other_case(current.names, incoming.names)
    merged = [_merge_field(field, incoming) for field in current]
    known = set(current.names)
    added = [field for field in incoming if field.name not in known]
    result = pa.schema([*merged, *added])
    found = set(incoming.names)
    absent = [name for name in current.names if name not in found]
    changed = [
        f"{old.name}: {old.type} -> {new.type}"
        for old, new in zip(current, merged, strict=True)
        if not old.type.equals(new.type)
    ]
    partial = [
        field.name
        for field in current
        if field.name in found and _lacks_fields(incoming.field(field.name).type, field.type)
    ]
    if not merge and (added or absent or changed or partial):
        names = {
            "new_columns": [f"{field.name}: {field.type}" for field in added],
            "missing_columns": absent,
            "wider_columns": changed,
            "columns_with_missing_fields": partial,
        }
        raise SchemaMismatchError(
            "the data does not fit the stream's schema",
            remedy=MERGE_REMEDY,
            **{key: value for key, value in names.items() if value},
        )
    return result if added or changed else current


def in_units_of(stored: pa.Schema, incoming: pa.Schema) -> pa.Schema:
    """Return an incoming schema in normal form, with times in the units of the stored columns.

    The conversion later refuses values that do not fit these units.
    """
    return pa.schema(_with_units(normalise_schema(incoming), {f.name: f.type for f in stored}))


def _with_units(fields: Iterable[pa.Field], stored: Mapping[str, pa.DataType]) -> list[pa.Field]:
    return [
        field.with_type(with_unit_of(stored[field.name], field.type))
        if field.name in stored
        else field
        for field in fields
    ]


def with_unit_of(stored: pa.DataType, incoming: pa.DataType) -> pa.DataType:
    """Return the type of one column as `in_units_of` does for a schema."""
    if stored.id != incoming.id:
        return incoming
    if t.is_duration(stored) or (t.is_timestamp(stored) and stored.tz == incoming.tz):
        return stored
    known = {child.name: child.type for child in children_of(stored)}
    return with_children(incoming, _with_units(children_of(incoming), known))


def _refuse_other_case(current: Sequence[str], incoming: Sequence[str], path: str = "") -> None:
    by_case = {name.casefold(): name for name in current}
    known = set(current)
    for name in incoming:
        twin = by_case.get(name.casefold(), name)
        if name not in known and twin != name:
            raise SchemaMismatchError(
                "a column's name differs from the stream's only in case",
                remedy="rename the column",
                column=f"{path}{name}",
                stream_column=f"{path}{twin}",
            )


def _merge_field(field: pa.Field, incoming: pa.Schema) -> pa.Field:
    index = incoming.get_field_index(field.name)
    if index < 0:
        return field
    return field.with_type(merge_type(field.type, incoming.field(index).type, field.name))


def merge_type(current: pa.DataType, incoming: pa.DataType, path: str) -> pa.DataType:
    """Return the narrowest type that holds both types; `current` itself if the data fits it.

    Both types are in normal form. Raises SchemaMismatchError, with `path`, if no type of the family
    holds both.
    """
    if t.is_null(incoming) or current.equals(incoming, check_metadata=True):
        return current
    if t.is_null(current):
        return incoming
    merged = _merge_scalar(current, incoming)
    if merged is None and not is_variant(current) and not is_variant(incoming):
        merged = _merge_nested(current, incoming, path)
    if merged is None and current.equals(incoming) and is_variant(current) == is_variant(incoming):
        merged = current
    if merged is None:
        raise SchemaMismatchError(
            "a column has a different type than in the stream",
            remedy="cast the column",
            column=path,
            stream_type=str(current),
            type=str(incoming),
        )
    return merged


def _merge_scalar(current: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
    for family in (INTEGERS, FLOATS):
        if current in family and incoming in family:
            return family[max(family.index(current), family.index(incoming))]
    if pa.float64() in (current, incoming) and {current, incoming} & {*EXACT_IN_DOUBLE}:
        return pa.float64()
    if t.is_decimal(current) and t.is_decimal(incoming):
        scale = max(current.scale, incoming.scale)
        whole = max(current.precision - current.scale, incoming.precision - incoming.scale)
        if whole + scale <= MAX_PRECISION:
            return pa.decimal128(whole + scale, scale)
    return None


def _merge_nested(current: pa.DataType, incoming: pa.DataType, path: str) -> pa.DataType | None:
    if t.is_struct(current) and t.is_struct(incoming):
        return _merge_struct(current, incoming, path)
    if t.is_list(current) and t.is_list(incoming):
        element = current.value_field
        merged = merge_type(element.type, incoming.value_type, f"{path}.element")
        return pa.list_(element.with_type(merged))
    if t.is_map(current) and t.is_map(incoming):
        key = merge_type(current.key_type, incoming.key_type, f"{path}.key")
        item = merge_type(current.item_type, incoming.item_type, f"{path}.value")
        return pa.map_(current.key_field.with_type(key), current.item_field.with_type(item))
    return None


def _merge_struct(current: pa.DataType, incoming: pa.DataType, path: str) -> pa.DataType:
    others = {field.name: field for field in incoming}
    # Spark can't resolve either of two fields that differ only in case.
    _refuse_other_case([field.name for field in current], list(others), f"{path}.")
    fields = [
        field.with_type(merge_type(field.type, others[field.name].type, f"{path}.{field.name}"))
        if field.name in others
        else field
        for field in current
    ]
    known = {field.name for field in current}
    return pa.struct([*fields, *(field for field in incoming if field.name not in known)])


def _lacks_fields(incoming: pa.DataType, current: pa.DataType) -> bool:
    """Tell whether a struct somewhere in `incoming` lacks a field that `current` has."""
    if t.is_null(incoming) or t.is_null(current):
        return False
    if t.is_struct(current):
        others = {field.name: field.type for field in incoming}
        return any(f.name not in others or _lacks_fields(others[f.name], f.type) for f in current)
    pairs = zip(children_of(incoming), children_of(current), strict=True)
    return any(_lacks_fields(given.type, stored.type) for given, stored in pairs)
