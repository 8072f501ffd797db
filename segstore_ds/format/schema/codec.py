"""The normal form of a schema, its stored text, its fingerprint, and the kinds of its types.

Normal form has one Arrow type per Spark type, and nanoseconds, which Spark lacks. So batches of
every client are stored as the same bytes, whatever the client's settings (large variants, session
zones, dictionaries). Every field is nullable, because Spark derives nullability from the query, so
two writes of one table may differ in it. Map keys and the two children of a variant are not
nullable, because Spark requires it. The conversion of batches checks that no value is lost.
"""

import base64
import binascii
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyarrow import lib
from pyarrow import types as t

from segstore_ds.errors import CorruptionError, InvalidInputError, UnsupportedVersionError

MAX_DEPTH = 60  # levels of nested types; a map counts as two; Arrow reads at most 64
MAX_PRECISION = 38
MONTHS = pa.lib.Type_INTERVAL_MONTHS  # the id of a type for which pyarrow has no class
# With its name, an extension type would be restored wherever it is registered. Field ids are
# private to a Parquet writer.
_DROPPED_METADATA = (b"ARROW:extension:name", b"ARROW:extension:metadata", b"PARQUET:field_id")
_PERIOD = "pandas.period"

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (pa.float32(), pa.float64())
EXACT_IN_DOUBLE = INTEGERS[:3]  # a double holds all of their values
_PLAIN = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_KEPT = frozenset(
    (*INTEGERS, *FLOATS, pa.bool_(), pa.null(), pa.string(), pa.binary(), pa.date32())
)
_MAX_SCHEMA_TEXT = 32 << 20
_WITH_UNIT = frozenset(("timestamp", "timestamp_ntz", "duration"))


def normalise_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in its stored form; normalising the result again changes nothing.

    Schema-level metadata is dropped. If a name occurs twice (ignoring case) or a type cannot be
    stored, an InvalidInputError names the column.
    """
    _refuse_duplicates(schema.names, where="schema")
    _refuse_deep(schema)
    folded = Counter(name.casefold() for name in schema.names)
    twins = [name for name in schema.names if folded[name.casefold()] > 1]
    if twins:
        raise InvalidInputError(
            "column names differ only in case", remedy="rename all but one", columns=twins
        )
    return pa.schema([_normalise_field(months_as_numbers(field), field.name) for field in schema])


def months_as_numbers(field: pa.Field) -> pa.Field:
    """Return a column of year-month intervals as one of int32, which has the same bytes."""
    return field.with_type(pa.int32()) if field.type.id == MONTHS else field


def _refuse_deep(schema: pa.Schema) -> None:
    """Refuse types nested deeper than `MAX_DEPTH`, before any code recurses into them."""
    pending = [(field.type, 1, field.name) for field in schema if t.is_nested(field.type)]
    while pending:
        data_type, depth, name = pending.pop()
        if depth > MAX_DEPTH:
            raise InvalidInputError(
                "a column is nested too deeply",
                remedy="flatten it, or store its inner part as JSON text",
                column=name,
                most=MAX_DEPTH,
            )
        for place in range(data_type.num_fields):
            inner = data_type.field(place).type
            if t.is_nested(inner):
                pending.append((inner, depth + 1, name))


def is_variant(data_type: pa.DataType) -> bool:
    """Tell whether a type is Spark's variant: struct<value, metadata> with a mark on `metadata`."""
    if not t.is_struct(data_type) or data_type.num_fields != 2:
        return False
    children = {field.name: field for field in data_type}
    return (
        children.keys() == {"value", "metadata"}
        and (children["metadata"].metadata or {}).get(b"variant") == b"true"
        and all(t.is_binary(f.type) or t.is_large_binary(f.type) for f in children.values())
    )


def _refuse_duplicates(names: Iterable[str], *, where: str) -> None:
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise InvalidInputError(
            "a name occurs twice", remedy="rename all but one", names=duplicates, where=where
        )


def _normalise_field(
    field: pa.Field, path: str, *, name: str | None = None, nullable: bool = True
) -> pa.Field:
    if (field.metadata or {}).get(b"ARROW:extension:name") == _PERIOD.encode():
        raise _no_period(path)
    data_type = normalise_type(field.type, path)
    return pa.field(name or field.name, data_type, nullable, _kept_metadata(field))


def _kept_metadata(field: pa.Field) -> dict[bytes, bytes] | None:
    found = {k: v for k, v in (field.metadata or {}).items() if k not in _DROPPED_METADATA}
    return found or None


def normalise_type(data_type: pa.DataType, path: str) -> pa.DataType:
    """Return a type in its stored form; normalising the result again changes nothing."""
    if data_type in _KEPT:
        return data_type
    if data_type in _PLAIN:
        return _PLAIN[data_type]
    for applies, normal in _RULES:
        if applies(data_type):
            return normal(data_type, path)
    raise _unsupported(data_type, path)


def _unsupported(data_type: pa.DataType, path: str) -> InvalidInputError:
    remedy = "cast or drop the column"
    return InvalidInputError(
        "a column's type cannot be stored", remedy=remedy, column=path, type=str(data_type)
    )


def _normalise_extension(data_type: pa.DataType, path: str) -> pa.DataType:
    if data_type.extension_name == _PERIOD:
        raise _no_period(path)
    return normalise_type(data_type.storage_type, path)


def _no_period(path: str) -> InvalidInputError:
    return InvalidInputError(
        "periods of pandas would become numbers whose meaning is lost",
        remedy="store df[column].dt.to_timestamp(), or texts by df[column].astype(str)",
        column=path,
    )


def _normalise_decimal(data_type: pa.DataType, path: str) -> pa.DataType:
    precision, scale = data_type.precision, data_type.scale
    if precision > MAX_PRECISION or not 0 <= scale <= precision:
        raise _unsupported(data_type, path)
    return pa.decimal128(precision, scale)


def _normalise_struct(data_type: pa.DataType, path: str) -> pa.DataType:
    if is_variant(data_type):
        children = [(field.name, pa.binary(), False, _kept_metadata(field)) for field in data_type]
        return pa.struct([pa.field(*child) for child in children])
    _refuse_duplicates((field.name for field in data_type), where=path)
    return pa.struct([_normalise_field(field, f"{path}.{field.name}") for field in data_type])


def _normalise_map(data_type: pa.DataType, path: str) -> pa.DataType:
    if t.is_null(data_type.key_type):
        raise _unsupported(data_type, path)
    key = _normalise_field(data_type.key_field, f"{path}.key", name="key", nullable=False)
    return pa.map_(key, _normalise_field(data_type.item_field, f"{path}.value", name="value"))


def _normalise_list(data_type: pa.DataType, path: str) -> pa.DataType:
    return pa.list_(_normalise_field(data_type.value_field, f"{path}.element", name="element"))


def _unit(data_type: pa.DataType) -> str:
    return "ns" if data_type.unit == "ns" else "us"


def _is_list(data_type: pa.DataType) -> bool:
    return bool(
        t.is_list(data_type)
        or t.is_large_list(data_type)
        or t.is_fixed_size_list(data_type)
        or t.is_list_view(data_type)
        or t.is_large_list_view(data_type)
    )


_RULES: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], pa.DataType]], ...
] = (
    (lambda d: isinstance(d, pa.BaseExtensionType), _normalise_extension),
    (t.is_dictionary, lambda d, p: normalise_type(d.value_type, p)),
    (t.is_timestamp, lambda d, _: pa.timestamp(_unit(d), "UTC" if d.tz is not None else None)),
    (t.is_time, lambda _, __: pa.time64("ns")),
    (t.is_duration, lambda d, _: pa.duration(_unit(d))),
    (t.is_decimal, _normalise_decimal),
    (t.is_fixed_size_binary, lambda _, __: pa.binary()),
    (t.is_struct, _normalise_struct),
    (t.is_map, _normalise_map),
    (_is_list, _normalise_list),
)


def children_of(data_type: pa.DataType) -> list[pa.Field]:
    """Return the child fields of a type in normal form: none if it is not nested."""
    if t.is_map(data_type):
        return [data_type.key_field, data_type.item_field]
    if t.is_list(data_type):
        return [data_type.value_field]
    return list(data_type) if t.is_struct(data_type) else []


def with_children(data_type: pa.DataType, children: list[pa.Field]) -> pa.DataType:
    """Return a type in normal form with other child fields, in the order of `children_of`."""
    if t.is_struct(data_type):
        return pa.struct(children)
    if t.is_map(data_type):
        return pa.map_(*children)
    return pa.list_(*children) if t.is_list(data_type) else data_type


def has_nanoseconds(data_type: pa.DataType) -> bool:
    """Tell whether a type in normal form is or contains a timestamp or duration in nanoseconds.

    >>> has_nanoseconds(pa.list_(pa.timestamp("ns"))), has_nanoseconds(pa.time64("ns"))
    (True, False)
    """
    if t.is_timestamp(data_type) or t.is_duration(data_type):
        return bool(data_type.unit == "ns")
    return any(has_nanoseconds(child.type) for child in children_of(data_type))


_KINDS = {  # On disk, in fingerprints, in labels of statistics, and in the hash of column ids.
    **dict.fromkeys((kind.id for kind in INTEGERS), "int"),
    **dict.fromkeys((kind.id for kind in FLOATS), "float"),
    lib.Type_NA: "null",
    lib.Type_BOOL: "bool",
    lib.Type_DECIMAL128: "decimal",
    lib.Type_STRING: "string",
    lib.Type_BINARY: "binary",
    lib.Type_DATE32: "date",
    lib.Type_TIME64: "time",
    lib.Type_TIMESTAMP: "timestamp_ntz",
    lib.Type_DURATION: "duration",
    lib.Type_STRUCT: "struct",
    lib.Type_MAP: "map",
    lib.Type_LIST: "list",
}


def encode_schema(schema: pa.Schema) -> str:
    """Encode a schema in normal form as ASCII text: base64 of its Arrow IPC message."""
    return base64.b64encode(schema.serialize()).decode("ascii")


@lru_cache(maxsize=64)
def decode_schema(text: str) -> pa.Schema:
    """Decode what `encode_schema` returned; the text is untrusted."""
    if len(text) > _MAX_SCHEMA_TEXT:
        raise CorruptionError("a stored schema is too large", characters=len(text))
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        normal = normalise_schema(schema)
    except MemoryError:  # also an ArrowException, but not caused by the text
        raise
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedVersionError("a stored schema holds an unknown type") from error
    except (pa.ArrowException, binascii.Error, ValueError, OSError, KeyError) as error:
        raise CorruptionError("a stored schema cannot be read") from error
    if not normal.equals(schema, check_metadata=True):
        raise CorruptionError("a stored schema is not in normal form", schema=str(schema))
    return schema


def fingerprint(schema: pa.Schema) -> str:
    """Return a digest that differs when names, types, nullability or field metadata differ.

    The schema is in normal form. The digest is 16 hexadecimal digits, the same for every version of
    Arrow.
    """
    return _digest_of(schema.serialize().to_pybytes())


@lru_cache(maxsize=64)
def _digest_of(message: bytes) -> str:
    fields = [_describe(field) for field in pa.ipc.read_schema(pa.py_buffer(message))]
    # ASCII and sorted keys: the text must not depend on the interpreter.
    text = json.dumps(fields, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()[:16]


def _describe(field: pa.Field) -> dict[str, Any]:
    data_type = field.type
    kind: Any = str(data_type)
    if t.is_nested(data_type):
        name = "struct" if t.is_struct(data_type) else "map" if t.is_map(data_type) else "list"
        kind = {name: [_describe(child) for child in children_of(data_type)]}
    metadata = {
        key.decode("latin-1"): value.decode("latin-1")
        for key, value in (field.metadata or {}).items()
    }
    return {"metadata": metadata, "name": field.name, "nullable": field.nullable, "type": kind}


type_id_of = attrgetter("id")  # of types, for loops in C


def kind_of(data_type: pa.DataType) -> str:
    """Return the kind of a type in normal form; types of different widths have one kind."""
    kind = _KINDS[data_type.id]
    if kind == "timestamp_ntz" and data_type.tz:
        kind = "timestamp"
    return f"{kind}_ns" if kind in _WITH_UNIT and data_type.unit == "ns" else kind
