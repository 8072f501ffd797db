"""Nulls in the place of values: no buffer holds what was there, whatever the type."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.redact.rewrite import with_nulls

NEEDLE = "SECRET42"
BITS = int.from_bytes(NEEDLE.encode(), "little")
COLUMNS = {
    "string": pa.array(["a", NEEDLE, None, NEEDLE]),
    "binary": pa.array([b"a", NEEDLE.encode(), None, NEEDLE.encode()]),
    "int64": pa.array([1, BITS, None, BITS], pa.int64()),
    "double": pa.array(np.array([1, BITS, 3, BITS], np.int64).view(np.float64)),
    "time": pa.array([1, BITS, None, BITS], pa.int64()).view(pa.timestamp("us", "UTC")),
    "decimal": pa.array([Decimal(1), Decimal(BITS), None, Decimal(BITS)], pa.decimal128(38, 0)),
    "date": pa.array([dt.date(2020, 1, 1), dt.date(2021, 2, 3), None, dt.date(2021, 2, 3)]),
    "struct": pa.array([{"x": "a"}, {"x": NEEDLE}, None, {"x": NEEDLE}]),
    "list": pa.array([["a"], [NEEDLE, "b"], None, [NEEDLE]]),
    "map": pa.array(
        [[("k", "a")], [(NEEDLE, "v")], None, [("k", NEEDLE)]], pa.map_(pa.string(), pa.string())
    ),
    "nested": pa.array([[{"x": 1}], [{"x": BITS}], None, [{"x": BITS}]]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("part", [(0, 4), (1, 3)], ids=["whole", "slice"])
def test_null_slots_hold_nothing_of_the_values(name: str, part: tuple[int, int]) -> None:
    """The frame of the batch has neither the bytes nor the values; other rows stay."""
    start, end = part
    batch = pa.record_batch({"c": COLUMNS[name], "n": pa.array([1, 2, 3, 4])})
    batch = batch.slice(start, end - start)
    matched = np.array([False, True, False, True])[start:end]
    done = with_nulls(batch, ("c",), matched)
    done.validate(full=True)
    frame = encode_frame(done, compression="none", compression_level=None, stats_columns=())
    assert done["c"].is_valid().to_pylist() == [
        batch["c"][row].is_valid and not matched[row] for row in range(end - start)
    ]
    for row in range(end - start):
        if not matched[row]:
            assert done["c"][row].as_py() == batch["c"][row].as_py() or name == "double"
    if name != "date":
        before = encode_frame(batch, compression="none", compression_level=None, stats_columns=())
        assert NEEDLE.encode() in before.data.to_pybytes()
    assert NEEDLE.encode() not in frame.data.to_pybytes()
    assert done["n"].equals(batch["n"])
