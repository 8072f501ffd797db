"""Events one by one: what fits is kept exactly, what does not is refused at once."""

import datetime as dt
import decimal
import math
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.write.event_rows import BATCH_BYTES, BATCH_ROWS, EventRows, few_rows

UTC = dt.UTC
NOW = dt.datetime(2026, 11, 20, 10, 0, 0, 5, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2026, 11, 20, 12)  # noqa: DTZ001
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

FLOATS = pa.list_(pa.struct([("a", pa.float32())]))
# What is given, and the value of Python that has to come back.
UNWRAPPED = [
    (pa.timestamp("us"), np.datetime64(NOON, "ns"), NOON),
    (pa.timestamp("us"), np.datetime64(NOON, "h"), NOON),
    (pa.timestamp("us"), pd.Timestamp(NOON), NOON),
    (pa.timestamp("us"), pa.scalar(NOON, pa.timestamp("ns")), NOON),
    (pa.timestamp("us", "UTC"), pa.scalar(NOW.astimezone(BERLIN)), NOW),
    (pa.date32(), np.datetime64(NOON.date()), NOON.date()),
    (pa.duration("us"), np.timedelta64(5000, "ns"), dt.timedelta(microseconds=5)),
    (pa.duration("us"), np.timedelta64(5, "h"), dt.timedelta(hours=5)),
    (pa.list_(pa.timestamp("us")), np.array([NOON], "datetime64[ns]"), [NOON]),
    (pa.list_(pa.timestamp("us")), [np.datetime64(NOON, "ns"), None], [NOON, None]),
    (pa.list_(pa.bool_()), list(np.array([True, False])), [True, False]),
    (pa.list_(pa.float32()), list(np.array([1.5], np.float32)), [1.5]),
    (pa.list_(pa.list_(pa.int64())), [np.array([1]), [np.int8(2)]], [[1], [2]]),
    (pa.list_(pa.int64()), np.array([1, None], object), [1, None]),
    (pa.list_(pa.int64()), pa.array([1, None]), [1, None]),
    (
        FLOATS,
        [{"a": np.float32(1.25)}, {"a": pa.scalar(0.5, pa.float32())}],
        [{"a": 1.25}, {"a": 0.5}],
    ),
    (NESTED, {"a": np.int64(1), "b": np.array([2], np.int8)}, {"a": 1, "b": [2]}),
    (NESTED, pa.scalar({"a": 1, "b": [2]}, NESTED), {"a": 1, "b": [2]}),
    (pa.map_(pa.string(), pa.bool_()), {np.str_("a"): np.bool_(True)}, [("a", True)]),
    (pa.binary(), memoryview(b"abcd")[::2], b"ac"),
    (pa.list_(pa.binary()), [memoryview(b"ab")], [b"ab"]),
    (pa.bool_(), np.bool_(True), True),
    (pa.int64(), np.int8(4), 4),
    (pa.int64(), np.array(4), 4),
    (pa.int64(), pa.scalar(3, pa.int8()), 3),
    (pa.int8(), pa.scalar(3), 3),
    (pa.int64(), pa.scalar(None, pa.int64()), None),
    (pa.string(), pa.scalar("x").cast(pa.large_string()), "x"),
    (pa.string(), pa.DictionaryArray.from_arrays([0], ["x"])[0], "x"),
]
UNWRAPPED_DO_NOT_FIT = [
    (
        pa.timestamp("us"),
        [np.datetime64(1, "ns"), np.datetime64(1 << 62, "s"), np.datetime64("NaT")],
    ),
    (pa.timestamp("us"), [pd.Timestamp(1), pd.NaT, np.timedelta64(1, "us"), pa.scalar(NOW)]),
    (pa.timestamp("us"), [pa.scalar(1, pa.timestamp("ns"))]),
    (pa.timestamp("us", "UTC"), [np.datetime64(NOON), pa.scalar(NOON), pd.Timestamp(NOON)]),
    (pa.date32(), [np.datetime64(NOON), pa.scalar(NOON), np.datetime64(NOON.date(), "ns")]),
    (pa.duration("us"), [np.timedelta64(5, "ns"), np.timedelta64(5, "M"), np.timedelta64(5)]),
    (pa.list_(pa.timestamp("us")), [np.array([1], "datetime64[ns]"), [np.datetime64(1, "ns")]]),
    (pa.list_(pa.int8()), [np.array([300]), np.array([1.5]), [np.bool_(True)], iter([1])]),
    (pa.int64(), [np.float64(1.5), np.bool_(True), np.array([1]), pa.scalar(1.5), pa.scalar(True)]),
    (pa.int8(), [pa.scalar(300), np.int64(300)]),
    (pa.time64("ns"), [pa.scalar(1, pa.time64("ns"))]),
    (pa.list_(pa.time64("ns")), [[pa.scalar(1, pa.time64("ns"))], pa.array([1], pa.time64("ns"))]),
    (pa.string(), [memoryview(b"ab"), pa.scalar(b"ab"), np.bytes_(b"ab"), np.datetime64(NOON)]),
    (pa.map_(pa.string(), pa.int8()), [{"a": np.int64(300)}, {pa.scalar(1): 1}]),
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
    events = [{"v": value}, {}] * 9
    few = few_rows(events, rows.schema)
    for event in events[1:]:
        rows.add(event)
    assert few is None or few.equals(rows.peek())


@pytest.mark.parametrize(("kind", "value", "expected"), UNWRAPPED)
def test_values_of_numpy_and_arrow_are_taken_at_every_level(kind, value, expected):
    rows = EventRows(pa.schema([("v", kind)]))
    rows.add({"v": value})
    assert rows.peek().to_pylist() == [{"v": expected}]


@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Australia/Lord_Howe"), UTC])
def test_every_instant_of_a_repeated_or_skipped_hour_is_taken(zone):
    """Python never finds such times of two zones equal (PEP 495)."""
    rows = EventRows(pa.schema([("v", pa.timestamp("us", "UTC"))]))
    instants = [
        NOW.replace(month=month, hour=0) + dt.timedelta(minutes=20 * step)
        for month in (3, 4, 10)
        for step in range(-72 * 20, 72 * 15)
    ]
    for instant in instants:
        rows.add({"v": instant.astimezone(zone)})
    rows.add({"v": dt.datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)})  # no clock showed it
    *back, skipped = rows.peek()["v"].to_pylist()
    assert back == instants
    assert skipped == dt.datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(("kind", "value"), flat([*DOES_NOT_FIT, *UNWRAPPED_DO_NOT_FIT]))
def test_value_that_would_change_is_refused(kind, value):
    rows = EventRows(pa.schema([("v", kind)]))
    with pytest.raises(SchemaMismatchError, match="column='v'"):
        rows.add({"v": value})
    assert (len(rows), rows.bytes) == (0, 0)
    assert rows.peek().num_rows == 0
    assert few_rows([{"v": value}], rows.schema) is None


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
