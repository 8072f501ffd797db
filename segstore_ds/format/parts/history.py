"""The history: a row for every commit, kept when the commit's own file is purged (FORMAT.md 5.3).

A root holds the newest rows. Older rows are in parts, one object per range of versions. Versions
are dense, so a part's range gives its number of rows.
"""

from collections.abc import Sequence

import pyarrow as pa

from segstore_ds.format.parts.rows import decode_rows, integers_of
from segstore_ds.format.record import MAX_INT, MAX_TIME_US, escape_text
from segstore_ds.format.root import HistoryRow

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
