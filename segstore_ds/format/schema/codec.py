"""Schemas: their stored text, their fingerprint, and one import for the other schema modules.

Normalisation, widening and conversion live in modules of their own and are re-exported here, so
that callers need one import.
"""

import base64
import binascii
import hashlib
from functools import lru_cache

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import CorruptionError, UnsupportedVersionError
from segstore_ds.format.schema.conversion import conform, conform_pieces, lift
from segstore_ds.format.schema.normal_form import children_of, is_variant, normalise_schema
from segstore_ds.format.schema.widening import plan_schema

__all__ = [
    "conform",
    "conform_pieces",
    "decode_schema",
    "encode_schema",
    "fingerprint",
    "is_variant",
    "lift",
    "normalise_schema",
    "plan_schema",
]

_MAX_SCHEMA_TEXT = 32 << 20


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
    text = repr([_describe(field) for field in schema])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _describe(field: pa.Field) -> tuple[object, ...]:
    metadata = sorted((field.metadata or {}).items())
    data_type = field.type
    if not t.is_nested(data_type):
        return field.name, str(data_type), field.nullable, metadata
    kind = "struct" if t.is_struct(data_type) else "map" if t.is_map(data_type) else "list"
    return (
        field.name,
        kind,
        [_describe(f) for f in children_of(data_type)],
        field.nullable,
        metadata,
    )
