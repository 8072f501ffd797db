"""Rows as one Arrow frame: the body of a status object that holds many rows (FORMAT.md 5.1).

The frame is an uncompressed Arrow IPC stream of one record batch; the envelope compresses it.
Integers are stored in the narrowest unsigned type that holds them all, or as the steps between them
if these are narrower. Whole columns are decoded at once, and no value becomes a Python object.
Arrow's conversions from and to Python and numpy are avoided: they import pandas if it is installed,
which takes a quarter of a second of CPU.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import CorruptionError
from segstore_ds.format.arrow.frame import declared_bytes
from segstore_ds.format.record import build_json, from_json, parse_json
from segstore_ds.format.rows import only_rows

ROWS_LIMIT = 1 << 20  # most rows that are decoded; writers make smaller parts
_WIDTHS = (pa.uint8(), pa.uint16(), pa.uint32())
_FIRST, _FACTS = b"first", b"facts"  # On disk: keys of metadata. Never change; add a new one.
_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, ArithmeticError)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def encode_rows(batch: pa.RecordBatch, facts: Mapping[str, Any] | None = None) -> bytes:
    """Return the frame of a batch; `facts` is JSON about all of its rows."""
    batch = only_rows(batch)
    narrowed = [
        _narrow(field, column) for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    metadata = {_FACTS: build_json(facts)} if facts else None
    schema = pa.schema([field for field, _ in narrowed], metadata)
    stored = pa.RecordBatch.from_arrays([column for _, column in narrowed], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(stored)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _narrow(field: pa.Field, column: pa.Array) -> tuple[pa.Field, pa.Array]:
    """Return a column as stored: integers and times narrow, repeated texts as a dictionary."""
    if t.is_string(column.type):
        coded = column.dictionary_encode()
        few = 2 * len(coded.dictionary) <= len(column)
        column = coded if few else column
        return pa.field(field.name, column.type), column
    if not (t.is_int64(column.type) or t.is_timestamp(column.type)):
        return field, column
    counted = column.view(pa.int64())
    values: Ints = as_numbers(counted.fill_null(0) if column.null_count else counted)
    steps = values[1:] - values[:-1]
    plain, stepped = _width(values), _width(steps)
    metadata = None
    if len(steps) and not column.null_count and stepped.bit_width < plain.bit_width:
        metadata = {_FIRST: str(int(values[0]))}
        values, plain = np.concatenate([np.zeros(1, np.int64), steps]), stepped
    values = values.astype(plain.to_pandas_dtype())
    if column.null_count:
        mask = column.is_null().to_numpy(zero_copy_only=False)
        return pa.field(field.name, plain), pa.array(values, plain, mask=mask)
    return pa.field(field.name, plain, metadata=metadata), as_column(values)


def _width(values: Ints) -> pa.DataType:
    """Return the narrowest type that holds all integers."""
    if not len(values):
        return _WIDTHS[0]
    low, high = int(values.min()), int(values.max())
    fitting = (kind for kind in _WIDTHS if low >= 0 and high < 1 << kind.bit_width)
    return next(fitting, pa.int64())


def decode_rows(
    body: bytes, schema: pa.Schema | None, *, where: str, optional: Collection[str] = ()
) -> pa.RecordBatch:
    """Decode the columns of `schema`, or all, from a frame of at most `ROWS_LIMIT` rows.

    Only `optional` columns may have nulls. Callers check the values.
    """
    try:
        return _decode(body, schema, optional)
    except MemoryError:  # also an ArrowException, but not caused by the bytes
        raise
    except (*_ERRORS, struct.error) as error:
        raise CorruptionError("rows cannot be decoded", where=where, reason=error) from error


def _decode(body: bytes, schema: pa.Schema | None, optional: Collection[str]) -> pa.RecordBatch:
    data = pa.py_buffer(body)
    if declared_bytes(memoryview(data)) > len(body):
        raise ValueError("buffers are compressed")
    with pa.ipc.open_stream(data) as reader:
        (batch,) = islice(reader, 2)
        if batch.num_rows > ROWS_LIMIT:
            raise ValueError("too many rows")
    batch.validate(full=True)
    if len({*batch.schema.names}) < batch.num_columns:  # names that are not UTF-8 fail, too
        raise ValueError("two columns have one name")
    if schema is None:
        return batch
    columns = []
    for field in schema:
        stored, column = batch.schema.field(field.name), batch.column(field.name)
        columns.append(_widen(stored, column, field.type))
        if columns[-1].null_count and field.name not in optional:
            raise ValueError(f"nulls in {field.name}")
    return pa.RecordBatch.from_arrays(columns, schema=schema.with_metadata(batch.schema.metadata))


def _widen(stored: pa.Field, column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return a stored column in its type in memory."""
    if t.is_dictionary(data_type):
        coded = column if t.is_dictionary(column.type) else column.dictionary_encode()
        return coded if coded.type.equals(data_type) else coded.cast(data_type)
    if t.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (t.is_int64(data_type) or t.is_timestamp(data_type)):
        if not column.type.equals(data_type):
            raise TypeError(f"{stored.name} is {column.type}")
        return column
    if not t.is_integer(column.type):
        raise TypeError(f"{stored.name} is {column.type}")
    first = (stored.metadata or {}).get(_FIRST)
    if column.null_count:
        if first is not None:
            raise ValueError("steps with nulls")
        return column.cast(pa.int64()).view(data_type)
    values = as_numbers(column).astype(np.int64)
    if first is not None and len(values):
        values[0] = np.int64(int(first))
        np.cumsum(values, out=values)
    return as_column(values).view(data_type)


def facts_of(batch: pa.RecordBatch, *, where: str) -> Mapping[str, Any]:
    """Return the facts of decoded rows; empty if there are none."""
    text = (batch.schema.metadata or {}).get(_FACTS)
    return (
        {}
        if text is None
        else from_json(dict[str, Any], parse_json(text, where=where), where=where)
    )


def integers_of(
    batch: pa.RecordBatch, name: str, *, where: str, least: int = 0, most: int = (1 << 63) - 1
) -> Ints:
    """Return a column of integers or times as int64, each within ``[least, most]``."""
    values = column_values(batch, name)
    if len(values) and (int(values.min()) < least or int(values.max()) > most):
        raise CorruptionError("value is out of range", where=where, column=name)
    return values


def column_values(batch: pa.RecordBatch, name: str) -> Ints:
    """Return a column of integers or times as int64."""
    return as_numbers(batch.column(name).view(pa.int64()))


def as_numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column of integers without nulls, without a copy."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, dtype)
    data = column.buffers()[1]
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def as_column(values: npt.NDArray[Any]) -> pa.Array:
    """Return integers as a column of their type, without a copy if they are contiguous."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def text_column(texts: Sequence[str]) -> pa.Array:
    """Return texts as a column."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    data = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), data)
