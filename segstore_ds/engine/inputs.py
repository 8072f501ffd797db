"""What callers hand in: Arrow data in any of its forms, and the key of an idempotent write."""

import itertools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from segstore_ds.engine.writers import WriterKey
from segstore_ds.errors import InvalidInputError

WRITER_ID_LIMIT = 200


def as_reader(data: Any) -> pa.RecordBatchReader:
    """Return whatever holds Arrow data as a reader.

    Args:
        data: A Table, RecordBatch, RecordBatchReader, iterable of batches, or anything with
            `__arrow_c_stream__` or `__arrow_c_array__`.

    Raises:
        InvalidInputError: It is none of these, or an iterable without a batch.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    batches = iter(data) if isinstance(data, Iterable) else iter(())
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise InvalidInputError(
            "not Arrow data",
            remedy="give a pyarrow Table, RecordBatch or RecordBatchReader, a non-empty iterable "
            "of batches, or a DataFrame of pandas or Polars",
            type=type(data).__name__,
        )
    return pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))


def writer_key(
    writer_id: str | None, batch_id: int | None, *, takeover: bool, owner: str = ""
) -> WriterKey | None:
    """Return the idempotence key of a writer id and a batch id, or None where neither is given.

    Raises:
        InvalidInputError: Only one is given, or one is out of range.
    """
    if (writer_id is None) != (batch_id is None):
        raise InvalidInputError(
            "a writer id and a batch id go together",
            remedy="give both, or neither",
            writer_id=writer_id,
            batch_id=batch_id,
        )
    if writer_id is None or batch_id is None:
        return None
    if not 0 < len(writer_id) <= WRITER_ID_LIMIT or not 0 <= batch_id < 2**63:
        raise InvalidInputError(
            "writer id or batch id is out of range",
            remedy=f"give 1 to {WRITER_ID_LIMIT} characters and an integer from 0",
            writer_id=writer_id,
            batch_id=batch_id,
        )
    return WriterKey(writer_id, batch_id, owner, takeover)
