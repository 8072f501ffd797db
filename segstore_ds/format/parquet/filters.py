"""Bloom filters of Parquet segments: Parquet's own, which Spark and DuckDB use, too.

pyarrow writes them from version 24 on; with an older one, segments have none. They are between the
row groups and the footer, and the checksum of a segment's end covers them.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t

from segstore_ds.format.bloom import (
    BLOCK_BYTES,
    LEAST_VALUE_BITS,
    VALUE_BITS,
    check_filter,
    keys_of,
)
from segstore_ds.format.parquet.encodings import expect_words, take_sample

CAN_WRITE = "bloom_filter_options" in signature(pq.ParquetWriter).parameters
# Share of the first frame's bytes. All frames have filters of one size, also a small last one.
SHARE = 0.015
_RATE = 0.01  # with this rate, Parquet's writer uses between 9.6 and 9.7 bits per value
_BITS = 9.7
# On disk, by Parquet: split blocks, xxHash, uncompressed, and the end of the header.
_HEADER_END = bytes.fromhex("1c1c00001c1c00001c1c000000")
_NUM_BYTES = 0x15  # On disk, by Parquet: the first field of the header.


def choose_filters(
    batch: pa.RecordBatch, columns: Sequence[str], *, frame_bytes: int
) -> dict[str, int]:
    """Return the sizes of the filters in all row groups by column, chosen by the first batch.

    `frame_bytes` is the approximate size of the batch in the file.
    """
    if not CAN_WRITE:
        return {}
    schema = batch.schema
    known = [n for n in keys_of(schema, columns) if not t.is_boolean(schema.field(n).type)]
    left = int(frame_bytes * SHARE)
    found = {}
    sample = take_sample(batch.select(known))
    for place, name in enumerate(known):
        ids = sample.column(name).drop_null().dictionary_encode().indices.to_numpy()
        total = len(ids) * batch.num_rows / sample.num_rows
        count = expect_words(ids, total) if len(ids) else 1
        size, most = BLOCK_BYTES, left // (len(known) - place)
        while size * 8 < count * VALUE_BITS and size * 2 <= most:
            size *= 2
        if size * 8 >= count * LEAST_VALUE_BITS:
            found[name] = size
            left -= size
    return found


def filter_options(filters: Mapping[str, int]) -> dict[str, Any]:
    """Return the sizes of filters, powers of two, as arguments of Parquet's writer."""
    if not filters:
        return {}
    chosen = {name: {"ndv": int(size * 8 / _BITS), "fpp": _RATE} for name, size in filters.items()}
    return {"bloom_filter_options": chosen}


def read_filter(
    column: pq.ColumnChunkMetaData, end: bytes, *, object_bytes: int, where: str
) -> bytes | None:
    """Return the filter of a column chunk; None if it has none, or one of another kind."""
    start = getattr(column, "bloom_filter_offset", None)  # pyarrow before 24 lacks it
    length = getattr(column, "bloom_filter_length", None)
    if start is None or length is None:
        return None
    first = start - (object_bytes - len(end))
    stored = end[max(first, 0) : first + length]
    head, _, bits = stored.partition(_HEADER_END)
    if len(stored) != length or head != _header_start(len(bits)):
        return None
    return check_filter(bits, where=where)


def _header_start(size: int) -> bytes:
    """Return the first bytes of a filter's header: the size as a zigzag varint."""
    found, left = bytearray([_NUM_BYTES]), size * 2
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
