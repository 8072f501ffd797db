"""The history: a row for every commit, kept when the commit's own file is purged (FORMAT.md 5.3).

A root holds the newest rows. Older rows are in parts of packed columns, one object per range of
versions. Versions are dense, so a part's range gives its number of rows.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.history_rows import (
    TEXTS,
    HistoryRow,
)
from segstore_ds.format.parts.packed import Packer, Unpacked, unpack
from segstore_ds.format.record import MAX_INT, MAX_TIME_US, escape_text

_UTC = pa.timestamp("us", "UTC")
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
    ]
)
_NUMBERS = tuple(field.name for field in HISTORY_SCHEMA if field.name not in (*TEXTS, "batch_id"))
_numbers_of = attrgetter(*("time_us" if name == "time" else name for name in _NUMBERS))


def to_batch(rows: Sequence[HistoryRow]) -> pa.RecordBatch:
    """Return rows as a batch of `HISTORY_SCHEMA`."""
    # Commits wait for this: convert all integers at once instead of calling Arrow per value.
    numbers = np.array([_numbers_of(row) for row in rows], np.int64).reshape(-1, len(_NUMBERS))
    found = dict(zip(_NUMBERS, numbers.T.copy(), strict=True))
    columns = []
    for field in HISTORY_SCHEMA:
        if field.name in found:
            column = pa.array(found[field.name])
            columns.append(column.view(_UTC) if field.name == "time" else column)
        else:
            values = [getattr(row, field.name) for row in rows]
            try:
                columns.append(pa.array(values, field.type))
            except UnicodeEncodeError:
                columns.append(pa.array(map(escape_text, values), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=HISTORY_SCHEMA)


def encode_history(batch: pa.RecordBatch) -> bytes:
    """Return the body of a history part."""
    packer = Packer(batch.num_rows)
    for field in HISTORY_SCHEMA:
        column = batch.column(field.name)
        if field.name in TEXTS:
            coded = column.dictionary_encode()
            packer.json(f"{field.name}_texts", coded.dictionary.to_pylist())
            indices = coded.indices.fill_null(-1) if column.null_count else coded.indices
            codes = indices.to_numpy(zero_copy_only=False).astype(np.int64)
            packer.integers(field.name, codes + 1)
        elif field.name == "batch_id":
            packer.integers(field.name, column.fill_null(-1).to_numpy(zero_copy_only=False))
        else:
            packer.integers(field.name, column.view(pa.int64()).to_numpy(zero_copy_only=False))
    return packer.finish()


def decode_history(body: bytes, *, where: str) -> pa.RecordBatch:
    """Decode the rows of a history part."""
    packed = unpack(body, where=where)
    arrays = []
    for field in HISTORY_SCHEMA:
        if field.name in TEXTS:
            arrays.append(_texts(packed, field.name))
        elif field.name == "batch_id":
            values = packed.integers(field.name, least=-1)
            arrays.append(pa.array(values, mask=values < 0))
        else:
            most = MAX_TIME_US if field.name == "time" else MAX_INT
            arrays.append(pa.array(packed.integers(field.name, most=most)).view(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=HISTORY_SCHEMA)


def _texts(packed: Unpacked, name: str) -> pa.Array:
    texts = packed.texts(f"{name}_texts")
    codes = packed.integers(name, most=len(texts))
    if name != "writer_id" and len(codes) and int(codes.min()) == 0:
        raise CorruptionError("text is missing", where=packed.where, column=name)
    dictionary = pa.array(["", *texts], pa.string())
    indices = pa.array(codes, mask=codes == 0)
    return dictionary.take(indices)


def column_values(batch: pa.RecordBatch, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a column of integers or times as int64."""
    values: np.ndarray[Any, np.dtype[np.int64]] = (
        batch.column(name).view(pa.int64()).to_numpy(zero_copy_only=False)
    )
    return values
