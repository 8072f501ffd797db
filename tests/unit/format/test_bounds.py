"""Bounds that never lie: NaN, zeros, long strings, bytes that are no text."""

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.bounds import Bounds, columns_with_stats, compute, merge

TOP = "\U0010ffff"
DOUBLES = [-math.inf, -1e300, -1.5, -5e-324, -0.0, 0.0, 5e-324, 2.0, 1e300, math.inf]


def stats_of(values, data_type):
    array = values if isinstance(values, pa.Array) else pa.array(values, data_type)
    (found,) = compute(pa.record_batch({"c": array}), ["c"]).values()
    return found


@pytest.mark.parametrize(
    ("values", "data_type", "low", "high"),
    [
        ([3, None, -7], pa.int8(), -7, 3),
        ([2**63 - 1, -(2**63)], pa.int64(), -(2**63), 2**63 - 1),
        ([True, False], pa.bool_(), False, True),
        ([Decimal("1.5"), Decimal("-2.2")], pa.decimal128(38, 1), Decimal("-2.2"), Decimal("1.5")),
        ([5, -1], pa.date32(), -1, 5),
        ([2**62, -(2**62)], pa.timestamp("us", "UTC"), -(2**62), 2**62),
        ([1, 2], pa.timestamp("us"), 1, 2),
        ([1000, 2000], pa.time64("ns"), 1000, 2000),
        ([-5, 5], pa.duration("us"), -5, 5),
        ([2**63 - 1, -(2**63)], pa.timestamp("ns", "UTC"), -(2**63), 2**63 - 1),
        ([-5, 5], pa.duration("ns"), -5, 5),
        (["b", "", "a"], pa.string(), "", "b"),
        ([b"\xff", b"", None], pa.binary(), b"", b"\xff"),
    ],
    ids=str,
)  # fmt: skip
def test_bounds_are_the_extremes(values, data_type, low, high):
    column = stats_of(values, data_type)
    assert column == Bounds(low, high, values.count(None))
    assert stats_of(pa.array([*values, *values], data_type)[len(values) :], None) == column


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()], ids=str)
def test_float_bounds_are_right_for_every_pair_of_extremes(data_type):
    values = [v.as_py() for v in pa.array(DOUBLES, pa.float64()).cast(data_type, safe=False)]
    for one in values:
        for other in values:
            column = stats_of([one, None, other], data_type)
            assert (column.min, column.max) == (min(one, other), max(one, other))


def test_both_zeros_are_covered_by_the_bounds():
    for values in ([0.0], [-0.0], [-0.0, 0.0]):
        column = stats_of(values, pa.float64())
        assert math.copysign(1, column.min) == -1
        assert math.copysign(1, column.max) == 1


@pytest.mark.parametrize("nan", [math.nan, -math.nan])
@pytest.mark.parametrize("others", [[], [1.0], [-1.0], [-1.0, 1.0], [math.inf, -math.inf]])
@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()], ids=str)
def test_nan_gives_no_bounds(nan, others, data_type):
    assert stats_of([nan, *others, None], data_type) == Bounds(None, None, 1)


@pytest.mark.parametrize("data_type", [pa.int8(), pa.float64(), pa.string()], ids=str)
def test_a_column_without_values_has_only_nulls(data_type):
    assert stats_of([None, None], data_type) == Bounds(None, None, 2)
    assert stats_of([], data_type) == Bounds(None, None, 0)


def test_nested_columns_are_passed_over_and_unknown_ones_refused():
    batch = pa.record_batch({"l": pa.array([[1]]), "a": pa.array([1]), "v": pa.nulls(1)})
    assert list(compute(batch, ["l", "a", "v"])) == ["int:a"]
    assert columns_with_stats(batch.schema) == ["a"]
    with pytest.raises(InvalidInputError, match="'z'"):
        compute(batch, ["z"])


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("a" * 32, "a" * 32, "a" * 32),
        ("a" * 33, "a" * 32, "a" * 31 + "b"),
        ("é" * 40, "é" * 32, "é" * 31 + "ê"),
        ("a" * 31 + TOP + "x", "a" * 31 + TOP, "a" * 30 + "b"),
        (TOP * 33, TOP * 32, None),
        (TOP * 32, TOP * 32, TOP * 32),
        ("a" * 31 + "\ud7ff" + "x", "a" * 31 + "\ud7ff", "a" * 31 + "\ue000"),
        ("a" + TOP * 40, "a" + TOP * 31, "b"),
        (b"a" * 33, b"a" * 32, b"a" * 31 + b"b"),
        (b"\xff" * 33, b"\xff" * 32, None),
        (b"\xff" * 32, b"\xff" * 32, b"\xff" * 32),
        (b"a\xfe" + b"\xff" * 40, b"a\xfe" + b"\xff" * 30, b"a\xff"),
    ],
)
def test_long_strings_and_binaries_round_outwards(value, low, high):
    column = stats_of([value], pa.string() if isinstance(value, str) else pa.binary())
    assert (column.min, column.max) == (low, high)
    assert low <= value
    assert high is None or high >= value


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([b"\xed\xa0\x80", b"a"], "a", None),
        ([b"\xff", b"a"], "a", None),
        ([b"\x80", b"a", b"\xc3\xa9"], "a", "é"),
        ([b"\x80"], None, None),
        ([b"a" * 40 + b"\xff", b"b"], None, "b"),
        ([b"a" * 127 + b"\xf0\x9f"], "a" * 32, "a" * 31 + "b"),
        ([b"\xf0\x9f"], None, None),
    ],
)
def test_invalid_utf8_extremes_give_no_bounds(values, low, high):
    array = pa.array(values, pa.binary()).view(pa.string())
    assert stats_of(array, None) == Bounds(low, high, 0)


def test_merging_keeps_the_widest_bounds_and_adds_nulls():
    parts = [
        (2, {"a": Bounds(1, 5, 0), "b": Bounds("x", None, 0)}),
        (2, {"a": Bounds(None, None, 2), "b": Bounds("a", "b", 1)}),
        (0, {}),
        (2, {"a": Bounds(-1, 2, 1), "b": Bounds("m", "n", 0), "c": Bounds(1, 1, 0)}),
    ]
    assert merge(parts) == {"a": Bounds(-1, 5, 3), "b": Bounds("a", None, 1)}
    assert merge([]) == {}


def test_merging_loses_bounds_with_nan_but_not_with_nulls():
    nan = (2, {"a": Bounds(None, None, 0)})
    null = (2, {"a": Bounds(None, None, 2)})
    some = (2, {"a": Bounds(1.0, 2.0, 0)})
    assert merge([nan, some])["a"] == Bounds(None, None, 0)
    assert merge([null, some])["a"] == Bounds(1.0, 2.0, 2)
    assert merge([null, null])["a"] == Bounds(None, None, 4)
