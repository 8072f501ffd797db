"""Events one by one: what fits is kept exactly, what does not is refused at once."""

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest

from segstore_ds.engine.event_rows import BATCH_BYTES, BATCH_ROWS, EventRows
from segstore_ds.errors import SchemaMismatchError

UTC = dt.UTC
NOW = dt.datetime(2026, 11, 20, 10, 0, 0, 5, tzinfo=UTC)
NESTED = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int8()))])

FITS = [
    (pa.int8(), [0, 127, -128, None]),
    (pa.int64(), [(1 << 63) - 1, -(1 << 63)]),
    (pa.float64(), [1.5, 3, math.inf, -0.0]),
    (pa.float32(), [1.5, math.inf, 7]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "ada", "grüße", "\U0001f600"]),
    (pa.binary(), [b"", b"\0\xff", bytearray(b"abc")]),
    (pa.date32(), [dt.date(2026, 11, 20)]),
    (pa.timestamp("us", "UTC"), [NOW]),
    (pa.timestamp("us"), [dt.datetime(2026, 11, 20, 1, 2, 3)]),  # noqa: DTZ001
    (pa.decimal128(10, 2), [decimal.Decimal("1.25"), 7]),
    (pa.list_(pa.int8()), [[], [1, None, -3], (4,)]),
    (pa.map_(pa.string(), pa.int64()), [{"a": 1}, [("b", None)]]),
    (NESTED, [{"a": 1, "b": [2]}, {"a": None, "b": None}]),
]
DOES_NOT_FIT = [
    (pa.int8(), [128, -129, 1.5, "1", True, b"1", decimal.Decimal("1.5")]),
    (pa.int64(), [1 << 63, 2.0**70, "x"]),
    (pa.float64(), [(1 << 53) + 1, "1.5", True]),
    (pa.float32(), [1e300, "x"]),
    (pa.bool_(), [1, 0.0, "true"]),
    (pa.string(), [1, b"bytes", "\ud800"]),
    (pa.binary(), ["text", 5]),
    (pa.date32(), [NOW, 5, "2026-11-20"]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2026, 11, 20), 5, 1.5]),  # noqa: DTZ001
    (pa.timestamp("us"), [NOW, 5]),
    (pa.decimal128(10, 2), [decimal.Decimal("1.255"), decimal.Decimal(10**9), 1.5]),
    (pa.list_(pa.int8()), [[1.5], [300], "abc", 5, {"a": 1}]),
    (pa.map_(pa.string(), pa.int64()), [{"a": 1.5}, {1: 1}, [1, 2]]),
    (NESTED, [{"a": 1.5}, {"c": 1}, {"a": 1, "b": [999]}, [1]]),
]


def flat(cases):
    """One case per value."""
    return [
        pytest.param(kind, value, id=f"{kind}-{place}")
        for kind, values in cases
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize(("kind", "value"), flat(FITS))
def test_a_value_that_fits_comes_back(kind, value):
    rows = EventRows(pa.schema([("v", kind)]))
    rows.add({"v": value})
    [back] = rows.peek().to_pylist(maps_as_pydicts="strict")
    given = dict(value) if pa.types.is_map(kind) else value
    assert back["v"] == (list(given) if isinstance(given, tuple) else given)
    assert rows.peek().schema == rows.schema


@pytest.mark.parametrize(("kind", "value"), flat(DOES_NOT_FIT))
def test_a_value_that_would_be_changed_is_refused_and_nothing_is_taken(kind, value):
    rows = EventRows(pa.schema([("v", kind)]))
    with pytest.raises(SchemaMismatchError, match="column='v'"):
        rows.add({"v": value})
    assert (len(rows), rows.bytes) == (0, 0)
    assert rows.peek().num_rows == 0


def test_not_a_number_is_a_number():
    for kind in (pa.float64(), pa.float32()):
        rows = EventRows(pa.schema([("v", kind)]))
        rows.add({"v": math.nan})
        assert math.isnan(rows.peek()["v"][0].as_py())


def test_a_missing_column_is_null_and_an_unknown_one_is_refused():
    rows = EventRows(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    rows.add({})
    rows.add({"b": "x"})
    for event in ({"c": 1}, {"a": 1, "B": "x"}, {1: 1}):
        with pytest.raises(SchemaMismatchError, match="unknown columns"):
            rows.add(event)
    assert rows.peek().to_pylist() == [{"a": None, "b": None}, {"a": None, "b": "x"}]


def test_values_may_change_afterwards():
    rows = EventRows(pa.schema([("v", pa.list_(pa.int64())), ("w", pa.binary())]))
    event = {"v": [1, 2], "w": bytearray(b"ab")}
    rows.add(event)
    event["v"].append(3)
    event["w"][0] = 0
    event["v"] = None
    assert rows.peek().to_pylist() == [{"v": [1, 2], "w": b"ab"}]


def test_plain_and_checked_values_mix_in_a_column():
    rows = EventRows(pa.schema([("v", pa.string()), ("w", pa.float64())]))
    for event in ({"v": "plain", "w": 1.5}, {"v": "grüße", "w": 2}, {"v": None}):
        rows.add(event)
    assert rows.peek()["v"].to_pylist() == ["plain", "grüße", None]
    assert rows.peek()["w"].to_pylist() == [1.5, 2.0, None]


def test_is_full_by_rows_and_by_bytes():
    rows = EventRows(pa.schema([("v", pa.string())]))
    for _ in range(BATCH_ROWS - 1):
        rows.add({})
    assert not rows.full
    rows.add({})
    assert rows.full
    rows.clear()
    assert (len(rows), rows.full) == (0, False)
    rows.add({"v": "x" * BATCH_BYTES})
    assert rows.full
