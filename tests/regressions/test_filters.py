"""Filters that lost events: comparisons with NaN, and doubles that Polars reads inexactly."""

import math
import random
import struct
from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import segstore_ds as segstore

d, n = pc.field("d"), pc.field("n")
nan = pc.scalar(math.nan)
_EXPRESSIONS: dict[str, Callable[[], pc.Expression]] = {
    "not less": lambda: ~(d < nan),
    "not less or equal": lambda: ~(d <= nan),
    "not turned": lambda: ~(nan > d),
    "a float32": lambda: ~(d < pa.scalar(math.nan, pa.float32())),
    "within another": lambda: (d > 100) | ~(d < nan),
    "equal to false": lambda: (d < nan) == pc.scalar(value=False),
    "a computed NaN": lambda: ~(d < pc.divide(pc.scalar(0.0), pc.scalar(0.0))),
    "a NaN of a cast": lambda: ~(d < pc.scalar("nan").cast("float64")),
    "whole numbers": lambda: ~(n < nan),
    "in": lambda: ~d.isin([math.nan]),
    "not equal": lambda: ~(d == nan),
    "less": lambda: d < nan,
    "greater": lambda: ~(d >= nan),
    "a NaN is not greater": lambda: ~(d > 5.0),
    "a NaN is not greater or equal": lambda: ~((d >= 5.0) & (n > 0)),
    "null or NaN": lambda: d.is_null(nan_is_null=True),
    "neither null nor NaN": lambda: ~d.is_null(nan_is_null=True),
    "nor turned": lambda: ~(pc.scalar(5.0) <= d),
}


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Return a stream of three segments, the last one of NaN, that tests read alone."""
    schema = pa.schema([("n", pa.int64()), ("d", pa.float64())])
    stream = segstore.create(tmp_path_factory.mktemp("filters") / "s", schema, upkeep=None)
    for low in (0.0, 10.0):
        stream.append(pa.table({"n": [1, 2, None], "d": [low, low + 1, None]}))
    stream.append(pa.table({"n": [3], "d": [math.nan]}))
    return stream


@pytest.mark.parametrize("name", _EXPRESSIONS)
def test_comparisons_with_nan_lose_no_rows(stream, name):
    """Arrow's pruning takes `x < NaN` to be true."""
    expression = _EXPRESSIONS[name]()
    expected = repr(stream.read().read_all().filter(expression).to_pylist())
    assert repr(stream.read(filters=expression).read_all().to_pylist()) == expected
    found = stream.scan().to_dataset().to_table(filter=expression)
    assert repr(found.to_pylist()) == expected


def test_a_filter_finds_each_double_by_its_bits(tmp_path):
    """One event a frame, so that each bound is a literal of a filter, which is Polars' own JSON."""
    chance = random.Random(1)
    drawn = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(25)]
    drawn += [chance.uniform(-5, 5) for _ in range(25)]
    values = [-2.9278616905212402, *(each for each in drawn if not math.isnan(each))]
    layout = segstore.Layout(segment_format="arrow", inline_bytes=0, frame_rows=1)
    columns = pa.schema([("x", pa.float64()), ("email", pa.string())])
    stream = segstore.create(tmp_path / "s", columns, upkeep=None)
    stream.append(pa.table({"x": values, "email": ["a"] * len(values)}), layout=layout)
    x, lazy = pl.col("x"), stream.scan().to_polars()
    for value in values:
        some = (x == value) | ((x >= value) & (x <= value)) | x.is_between(value, value)
        assert lazy.filter(some).collect()["x"].to_list() == [value]
        assert lazy.filter(x.is_in([value])).select(pl.len()).collect().item() == 1
        nested = x == -pl.lit(-value)  # a literal within an expression
        assert lazy.filter(nested).select(pl.len()).collect().item() == 1
    for value in values[:8]:
        assert stream.scan(filters=x == value).count() == 1
    assert stream.redact(x == values[0], columns=["email"]).rows == 1
