"""Expressions that compare with NaN: Arrow's pruning takes `x < NaN` to be true."""

import math
from collections.abc import Callable

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


@pytest.mark.parametrize("name", _EXPRESSIONS)
def test_comparisons_with_nan_lose_no_rows(tmp_path, name):
    """Segments are skipped only if none of their rows satisfies the expression."""
    expression = _EXPRESSIONS[name]()
    stream = segstore.create(
        tmp_path / "s", pa.schema([("n", pa.int64()), ("d", pa.float64())]), upkeep=None
    )
    for low in (0.0, 10.0):
        stream.append(pa.table({"n": [1, 2, None], "d": [low, low + 1, None]}))
    stream.append(pa.table({"n": [3], "d": [math.nan]}))
    events = stream.read().read_all()
    expected = events.filter(expression)
    found = stream.read(filters=expression).read_all()
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    found = stream.scan().to_dataset().to_table(filter=expression)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
