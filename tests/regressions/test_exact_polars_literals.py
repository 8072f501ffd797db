"""Polars reads some doubles of its own JSON inexactly, so a filter on one skipped its event."""

import math
import random
import struct

import polars as pl
import pyarrow as pa

import segstore_ds as segstore

CHANCE = random.Random(1)
BITS = [struct.unpack("<d", CHANCE.randbytes(8))[0] for _ in range(25)]
NEAR = [CHANCE.uniform(-5, 5) for _ in range(25)]
VALUES = [-2.9278616905212402, *(each for each in (*BITS, *NEAR) if not math.isnan(each))]
LAYOUT = segstore.Layout(segment_format="arrow", inline_bytes=0, frame_rows=1)


def test_a_filter_finds_each_double_by_its_bits(tmp_path):
    """One event a frame, so that each bound is a literal of a filter."""
    columns = pa.schema([("x", pa.float64()), ("email", pa.string())])
    stream = segstore.create(tmp_path / "s", columns, upkeep=None)
    stream.append(pa.table({"x": VALUES, "email": ["a"] * len(VALUES)}), layout=LAYOUT)
    x, lazy = pl.col("x"), stream.scan().to_polars()
    for value in VALUES:
        some = (x == value) | ((x >= value) & (x <= value)) | x.is_between(value, value)
        assert lazy.filter(some).collect()["x"].to_list() == [value]
        assert lazy.filter(x.is_in([value])).select(pl.len()).collect().item() == 1
    for value in VALUES[:8]:
        assert stream.scan(filters=x == value).count() == 1
    assert stream.redact(x == VALUES[0], columns=["email"]).rows == 1
