"""Slices of batches, their exact types, and the memory pool for rows."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

import pyarrow as pa
from pyarrow import types as t

T = TypeVar("T")


def slice_for_readers(batch: pa.RecordBatch, start: int, rows: int) -> pa.RecordBatch:
    """Return a slice of a batch; a copy if it has structs.

    DuckDB 1.5 ignores the offset of a struct in a struct, and so would read other rows.
    """
    piece = batch.slice(start, rows)
    sliced = any(column.offset and t.is_struct(column.type) for column in piece.columns)
    return pa.concat_batches([piece]) if sliced else piece


def only_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose memory has no other rows: a copy unless it has none already.

    Of a slice, Arrow writes up to 63 bytes behind each buffer: values that are not in the batch.
    """
    exact = all(column.get_total_buffer_size() == column.nbytes for column in batch.columns)
    return batch if exact else pa.concat_batches([batch])


def with_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose columns have exactly the types of its schema.

    Arrow counts types as equal even if children of lists and maps have other names or metadata. A
    C import sets those of the schema, but cuts names at a NUL; then the batch is returned as it is.
    """
    imported = pa.record_batch(batch)
    return imported if imported.schema.equals(batch.schema) else batch


def slice_evenly(batch: pa.RecordBatch, pieces: int) -> Iterator[pa.RecordBatch]:
    """Yield `pieces` slices of about equal rows; no more slices than there are rows."""
    rows = batch.num_rows
    pieces = min(pieces, rows)
    for piece in range(pieces):
        start, end = rows * piece // pieces, rows * (piece + 1) // pieces
        yield batch.slice(start, end - start)


def halve_until(batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], T | None]) -> Iterator[T]:
    """Yield `take` of a batch or, if that is None, of its halves, and so on.

    `take` must not return None for a single row.
    """
    taken = take(batch)
    if taken is not None:
        yield taken
        return
    half = batch.num_rows // 2
    yield from halve_until(batch.slice(0, half), take)
    yield from halve_until(batch.slice(half), take)


@cache
def rows_pool() -> pa.MemoryPool:
    """Return jemalloc if Arrow has it and would use mimalloc; otherwise Arrow's own choice.

    For a result of 150 MiB, mimalloc takes 230 MiB from the kernel, in pages of 2 MiB, and jemalloc
    165. The kernel clears these pages, which takes longer than decoding the rows.
    """
    default = pa.default_memory_pool()
    try:
        return pa.jemalloc_memory_pool() if default.backend_name == "mimalloc" else default
    except NotImplementedError:
        return default
