"""Bloom filters: bit for bit those that Parquet's own writer makes, and never without a value."""

import base64
import datetime as dt
import io
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format import bloom

RANDOM = random.Random(7)
COUNT = 300
LENGTHS = (0, 1, 3, 4, 5, 7, 8, 9, 12, 15, 16, 31, 32, 33, 36, 40, 63, 64, 65, 100, 1024)

COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "int8": ([n % 256 - 128 for n in range(COUNT)], pa.int8()),
    "int16": ([n * 200 - 30_000 for n in range(COUNT)], pa.int16()),
    "int32": ([n * 7_000_000 - (1 << 30) for n in range(COUNT)], pa.int32()),
    "int64": ([n * 3**38 % (1 << 63) - (1 << 62) for n in range(COUNT)], pa.int64()),
    "string": ([f"größe {n}" * (n % 9) for n in range(COUNT)], pa.string()),
    "binary": ([RANDOM.randbytes(RANDOM.choice(LENGTHS)) for _ in range(COUNT)], pa.binary()),
    "decimal9": ([Decimal(n - 150) / 100 for n in range(COUNT)], pa.decimal128(9, 2)),
    "decimal18": ([Decimal(n - 150) * 10**9 for n in range(COUNT)], pa.decimal128(18, 2)),
    "decimal19": ([Decimal(n - 150) * 10**9 for n in range(COUNT)], pa.decimal128(19, 2)),
    "decimal38": ([Decimal(n - 150) * 10**20 for n in range(COUNT)], pa.decimal128(38, 10)),
    "date": ([dt.date(1900 + n, 2, 3) for n in range(COUNT)], pa.date32()),
    "timestamp": (list(range(-COUNT, COUNT, 2)), pa.timestamp("us", "UTC")),
    "time": ([n * 10**9 for n in range(COUNT)], pa.time64("ns")),
    "duration": (list(range(COUNT)), pa.duration("us")),
    "nanoseconds": (list(range(-COUNT, COUNT, 2)), pa.timestamp("ns", "UTC")),
}


def build(batch: pa.RecordBatch, columns: list[str], frame_bytes: int) -> bloom.Filters:
    """Return the filters of a frame of so many bytes."""
    values = bloom.distinct_values(batch, columns)
    return bloom.build_filters(batch.schema, values, frame_bytes=frame_bytes)


@pytest.mark.skipif(
    "bloom_filter_options" not in pq.ParquetWriter.__doc__, reason="from pyarrow 24 on"
)
@pytest.mark.parametrize("name", COLUMNS)
def test_filters_equal_those_of_parquets_writer(name: str) -> None:
    values, data_type = COLUMNS[name]
    array = pa.array([None, *values, *values[:5]], data_type)
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"key": array}),
        sink,
        store_decimal_as_integer=True,
        bloom_filter_options={"key": {"ndv": COUNT, "fpp": 0.01}},
    )
    chunk = pq.read_metadata(sink).row_group(0).column(0)
    start, size = chunk.bloom_filter_offset, chunk.bloom_filter_length
    blocks = size // bloom.BLOCK_BYTES
    stored = sink.getvalue()[start : start + size][-blocks * bloom.BLOCK_BYTES :]
    assert bloom.insert(bloom.hash_values(array), blocks) == stored


@pytest.mark.parametrize("name", [*COLUMNS, "bool"])
def test_filter_holds_every_value_and_few_others(name: str) -> None:
    values, data_type = COLUMNS.get(name, ([True, None], pa.bool_()))
    array = pa.array([None, *values], data_type).slice(1)
    batch = pa.record_batch([array], names=["key"])
    filters = build(batch, ["key", "missing"], 1 << 20)
    assert not bloom.lacks_value([filters["key"]], array)
    others = bloom.hash_values(pa.array([RANDOM.randbytes(20) for _ in range(2000)], pa.binary()))
    assert bloom.may_hold(filters["key"], others).mean() < 0.01


def test_filters_take_their_share_of_a_frame_at_most() -> None:
    batch = pa.record_batch({"a": range(10_000), "b": [n % 10 for n in range(10_000)]})
    for frame_bytes in (1 << 10, 1 << 17, 1 << 18, 1 << 19, 1 << 22):
        found = build(batch, ["a", "b"], frame_bytes)
        assert sum(map(len, found.values())) <= max(frame_bytes * bloom.SHARE, 32)
        assert ("a" in found) == (frame_bytes >= 1 << 19)  # below it has less than 4 bits a value
        assert len(found["b"]) == bloom.BLOCK_BYTES


def test_column_with_a_very_long_value_has_no_filter() -> None:
    batch = pa.record_batch({"a": ["x" * (bloom.MOST_VALUE_BYTES + 1), "y"]})
    assert build(batch, ["a"], 1 << 20) == {}


@pytest.mark.parametrize("text", ["!", 5, "A", "", base64.b64encode(b"x" * 31).decode(), None])
def test_malformed_filters_are_refused(text: object) -> None:
    for value in ({"a": text}, [text], text):
        with pytest.raises(CorruptionError):
            bloom.decode_filters(value, where="x")
