"""The stored text of a schema, its fingerprint, and the kinds of its types."""

import base64
import binascii
import hashlib
import json
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import lib
from pyarrow import types as t

from segstore_ds.errors import CorruptionError, UnsupportedVersionError
from segstore_ds.format.schema.normal_form import FLOATS, INTEGERS, children_of, normalise_schema

_MAX_SCHEMA_TEXT = 32 << 20
_KINDS = {  # On disk, in fingerprints, labels of statistics and what column ids are computed from.
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

_WITH_UNIT = frozenset(("timestamp", "timestamp_ntz", "duration"))


class SchemaKey:
    """A schema as the key of a cache: equal to another only if its metadata is, too."""

    __slots__ = ("_text", "schema")

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._text = schema.serialize().to_pybytes()

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaKey) and self._text == other._text


def encode_schema(schema: pa.Schema) -> str:
    """Encode a schema in normal form as ASCII text: base64 of its Arrow IPC message."""
    return base64.b64encode(schema.serialize()).decode("ascii")


@lru_cache(maxsize=64)
def decode_schema(text: str) -> pa.Schema:
    """Decode what `encode_schema` returned; the text is untrusted.

    Raises:
        CorruptionError: The text is not that of a schema in normal form.
        UnsupportedVersionError: The schema holds a type that this version of Arrow does not know.
    """
    if len(text) > _MAX_SCHEMA_TEXT:
        raise CorruptionError("a stored schema is too large", characters=len(text))
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        normal = normalise_schema(schema)
    except MemoryError:  # Arrow's is also an ArrowException; it says nothing about the text
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
    return _digest_of(SchemaKey(schema))


@lru_cache(maxsize=64)
def _digest_of(key: SchemaKey) -> str:
    fields = [_describe(field) for field in key.schema]
    # ASCII alone, and keys in order: no interpreter's tables decide what is escaped.
    text = json.dumps(fields, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()[:16]


def _describe(field: pa.Field) -> dict[str, Any]:
    data_type = field.type
    kind: Any = str(data_type)
    if t.is_nested(data_type):
        name = "struct" if t.is_struct(data_type) else "map" if t.is_map(data_type) else "list"
        kind = {name: [_describe(child) for child in children_of(data_type)]}
    # Bytes of metadata as characters U+0000 to U+00FF.
    metadata = {
        key.decode("latin-1"): value.decode("latin-1")
        for key, value in (field.metadata or {}).items()
    }
    return {"metadata": metadata, "name": field.name, "nullable": field.nullable, "type": kind}


def kind_of(data_type: pa.DataType) -> str:
    """Return the kind of a type in normal form, in which widths are alike, but units are not."""
    kind = _KINDS[data_type.id]
    if kind == "timestamp_ntz" and data_type.tz:
        kind = "timestamp"
    return f"{kind}_ns" if kind in _WITH_UNIT and data_type.unit == "ns" else kind
