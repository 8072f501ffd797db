"""Rows of dataclasses as one frame: writers and retired objects (FORMAT.md 5.4).

Each field of the dataclass is a column. What is read is checked as the rows of a root are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.rows import decode_rows, encode_rows
from segstore_ds.format.record import Limit, Row, from_json, is_type, stored_fields
from segstore_ds.format.root import Retired, Writer

R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class _NamedWriter(Writer):
    """A writer with its name, as a row."""

    name: Annotated[str, Limit(1000)] = ""


def encode_retired(rows: Sequence[Retired]) -> bytes:
    """Return the body of a part of retired objects."""
    return _encode(Retired, rows)


def decode_retired(body: bytes, *, where: str) -> tuple[Retired, ...]:
    """Decode what `encode_retired` returned."""
    return _decode(Retired, body, where)


def encode_writers(writers: Mapping[str, Writer]) -> bytes:
    """Return the body of a part of writers, by name."""
    cells = attrgetter(*stored_fields(Writer))
    rows = [_NamedWriter(*(*cells(each), name)) for name, each in writers.items()]
    return _encode(_NamedWriter, rows)


def decode_writers(body: bytes, *, where: str) -> Mapping[str, Writer]:
    """Decode what `encode_writers` returned."""
    cells = attrgetter(*stored_fields(Writer))
    rows = _decode(_NamedWriter, body, where)
    return {row.name: Writer(*cells(row)) for row in rows}


def _schema(kind: Any) -> pa.Schema:
    # Texts are binary: a lone surrogate, which a root can hold, is carried through.
    types = {
        name: pa.int64() if is_type(each, int) else pa.binary()
        for name, each in stored_fields(kind).items()
    }
    return pa.schema(types.items())


def _encode(kind: type[R], rows: Sequence[R]) -> bytes:
    schema = _schema(kind)
    columns = [pa.array([_stored(getattr(row, f.name)) for row in rows], f.type) for f in schema]
    return encode_rows(pa.RecordBatch.from_arrays(columns, schema=schema))


def _stored(value: Any) -> Any:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _decode(kind: type[R], body: bytes, where: str) -> tuple[R, ...]:
    batch = decode_rows(body, _schema(kind), where=where)
    try:
        columns = [[*map(_loaded, column.to_pylist())] for column in batch.columns]
    except UnicodeDecodeError as error:
        raise CorruptionError("text is not UTF-8", where=where) from error
    cells = [*map(list, zip(*columns, strict=True))]
    return from_json(tuple[kind, ...], cells, where=where)  # type: ignore[valid-type]


def _loaded(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value
