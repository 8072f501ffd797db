"""The kinds of status objects: which values they hold, and how (FORMAT.md 5).

Parts are Arrow frames. Lists of parts, and schemas that are too large for the root, are JSON. All
are in an envelope.
"""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.parts.history import decode_history
from segstore_ds.format.parts.records import (
    decode_retired,
    decode_writers,
    encode_retired,
    encode_writers,
)
from segstore_ds.format.parts.rows import encode_rows
from segstore_ds.format.parts.segments import Part, decode_part, encode_part
from segstore_ds.format.record import build_json, from_json, parse_json, to_json
from segstore_ds.format.root import PartRef, Retired, Writer

T = TypeVar("T", bound=Sized)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of status object.

    Attributes:
        name: On disk, in the object's name. Never change; add a new one.
        encode: Returns the body of a value; equal values give equal bytes.
        decode: Returns the value of a body, or raises CorruptionError; takes `where`.
    """

    name: str
    encode: Callable[[T], bytes]
    decode: Callable[..., T]


def encode_object(kind: Kind[T], value: T) -> bytes:
    """Return the envelope of a value."""
    return encode_envelope(kind.encode(value))


def _encode_list(parts: tuple[PartRef, ...]) -> bytes:
    return build_json(to_json(parts, tuple[PartRef, ...]))


def _decode_list(body: bytes, *, where: str) -> tuple[PartRef, ...]:
    parts = from_json(tuple[PartRef, ...], parse_json(body, where=where), where=where)
    if not parts:
        raise CorruptionError("object holds no parts", where=where)
    return parts


def _decode_schema(body: bytes, *, where: str) -> tuple[str, str | None]:
    match parse_json(body, where=where):
        case [str(schema), (str() | None) as spark]:
            return schema, spark
    raise CorruptionError("blob holds no schema", where=where)


SEGMENTS: Kind[Part] = Kind("segments", encode_part, decode_part)
HISTORY: Kind[pa.RecordBatch] = Kind("history", encode_rows, decode_history)
LIST: Kind[tuple[PartRef, ...]] = Kind("list", _encode_list, _decode_list)
WRITERS: Kind[Mapping[str, Writer]] = Kind("writers", encode_writers, decode_writers)
RETIRED: Kind[tuple[Retired, ...]] = Kind("retired", encode_retired, decode_retired)
# An epoch's Arrow schema (base64), and Spark's JSON of it.
SCHEMA: Kind[tuple[str, str | None]] = Kind("schema", build_json, _decode_schema)
KINDS: Mapping[str, Kind[Any]] = {
    kind.name: kind for kind in (SEGMENTS, HISTORY, LIST, WRITERS, RETIRED, SCHEMA)
}
