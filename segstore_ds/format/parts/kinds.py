"""The kinds of status objects: which values they hold, and how these are encoded (FORMAT.md 5).

A history part has a row for every commit. Versions are dense, so a part's range gives its number of
rows.

Parts are Arrow frames. Those of writers and retired objects have a column for each field of the
dataclass, and their rows are checked as those of a root are. Lists of parts, and schemas that are
too large for the root, are JSON. All are in an envelope.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.parts.rows import decode_rows, encode_rows, integers_of
from segstore_ds.format.parts.segments import Part, decode_part, encode_part
from segstore_ds.format.record import (
    MAX_INT,
    MAX_TIME_US,
    Limit,
    build_json,
    escape_text,
    from_json,
    is_type,
    parse_json,
    stored_fields,
    to_json,
)
from segstore_ds.format.root import HistoryRow, PartRef, Retired, Writer

_NULLABLE = ("writer_id", "batch_id", "merged")
_UTC = pa.timestamp("us", "UTC")
_TEXTS = ("operation", "writer_id", "client", "application", "transaction", "merged")
HISTORY_SCHEMA = pa.schema(
    [
        ("version", pa.int64()),
        ("time", _UTC),
        ("operation", pa.string()),
        ("head", pa.int64()),
        ("tail", pa.int64()),
        ("rows", pa.int64()),
        ("segments", pa.int64()),
        ("bytes", pa.int64()),
        ("writer_id", pa.string()),
        ("batch_id", pa.int64()),
        ("client", pa.string()),
        ("application", pa.string()),
        ("attempts", pa.int64()),
        ("races_lost", pa.int64()),
        ("requests", pa.int64()),
        ("request_bytes", pa.int64()),
        ("transaction", pa.string()),
        ("merged", pa.string()),
    ]
)
_NUMBERS = tuple(field.name for field in HISTORY_SCHEMA if field.name not in (*_TEXTS, "batch_id"))


def to_batch(rows: Sequence[HistoryRow]) -> pa.RecordBatch:
    """Return rows as a batch of `HISTORY_SCHEMA`."""
    columns = []
    for field in HISTORY_SCHEMA:
        values = [getattr(row, "time_us" if field.name == "time" else field.name) for row in rows]
        try:
            columns.append(pa.array(values, field.type))
        except UnicodeEncodeError:
            columns.append(pa.array(map(escape_text, values), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=HISTORY_SCHEMA)


def decode_history(body: bytes, *, where: str) -> pa.RecordBatch:
    """Decode the rows of a history part."""
    batch = decode_rows(body, HISTORY_SCHEMA, where=where, optional=_NULLABLE)
    for name in _NUMBERS:
        most = MAX_TIME_US if name == "time" else MAX_INT
        integers_of(batch, name, where=where, most=most)
    return batch.replace_schema_metadata(None)


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of status object."""

    name: str  # On disk, in the object's name. Never change; add a new one.
    encode: Callable[[T], bytes]  # returns the body of a value; equal values give equal bytes
    # Returns the value of a body; takes `where`, raises CorruptionError.
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


@dataclass(frozen=True, slots=True)
class _NamedWriter(Writer):
    """A writer with its name, as a row."""

    name: Annotated[str, Limit(1000)] = ""


_CELLS = attrgetter(*stored_fields(Writer))


def _encode_writers(writers: Mapping[str, Writer]) -> bytes:
    rows = [_NamedWriter(*(*_CELLS(each), name)) for name, each in writers.items()]
    return _encode_records(_NamedWriter, rows)


def _decode_writers(body: bytes, *, where: str) -> Mapping[str, Writer]:
    rows = _decode_records(_NamedWriter, body, where=where)
    return {row.name: Writer(*_CELLS(row)) for row in rows}


def _encode_records(kind: Any, rows: Iterable[Any]) -> bytes:
    schema = _schema_of(kind)
    cells = [[_stored(getattr(row, name)) for row in rows] for name in schema.names]
    columns = [pa.array(column, each) for column, each in zip(cells, schema.types, strict=True)]
    return encode_rows(pa.RecordBatch.from_arrays(columns, schema=schema))


def _decode_records(kind: Any, body: bytes, *, where: str) -> tuple[Any, ...]:
    batch = decode_rows(body, _schema_of(kind), where=where)
    try:
        columns = [[*map(_loaded, column.to_pylist())] for column in batch.columns]
    except UnicodeDecodeError as error:
        raise CorruptionError("text is not UTF-8", where=where) from error
    cells = [*map(list, zip(*columns, strict=True))]
    return from_json(tuple[kind, ...], cells, where=where)


def _schema_of(kind: Any) -> pa.Schema:
    # Texts are binary, because a root may have lone surrogates, which must be carried through.
    fields = stored_fields(kind).items()
    types = {name: pa.int64() if is_type(each, int) else pa.binary() for name, each in fields}
    return pa.schema(types.items())


def _stored(value: Any) -> Any:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _loaded(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


SEGMENTS: Kind[Part] = Kind("segments", encode_part, decode_part)
HISTORY: Kind[pa.RecordBatch] = Kind("history", encode_rows, decode_history)
LIST: Kind[tuple[PartRef, ...]] = Kind("list", _encode_list, _decode_list)
WRITERS: Kind[Mapping[str, Writer]] = Kind("writers", _encode_writers, _decode_writers)
RETIRED: Kind[tuple[Retired, ...]] = Kind(
    "retired", partial(_encode_records, Retired), partial(_decode_records, Retired)
)
# An epoch's Arrow schema (base64), and Spark's JSON of it.
SCHEMA: Kind[tuple[str, str | None]] = Kind("schema", build_json, _decode_schema)
KINDS: Mapping[str, Kind[Any]] = {
    kind.name: kind for kind in (SEGMENTS, HISTORY, LIST, WRITERS, RETIRED, SCHEMA)
}
