"""Filters: read strictly, pruned safely, applied with the nulls of SQL and the NaN of Spark."""

import datetime as dt
import json
import math
import operator
import pickle
import sys
from decimal import Decimal
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.bounds import Bounds, compute, merge
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.filters.given import parse_filters

SCHEMA = pa.schema(
    [
        ("bool", pa.bool_()),
        ("byte", pa.int8()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(6, 2)),
        ("user", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("time", pa.time64("ns")),
        ("took", pa.duration("us")),
        ("void", pa.null()),
        ("tags", pa.list_(pa.string())),
    ]
)
NAN = math.nan
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]


def by_name(piece):
    """Return bounds by the names of their columns."""
    return {label.partition(":")[2]: bounds for label, bounds in piece.items()}


def rows_kept(values, data_type, *filters):
    batch = pa.record_batch({"place": list(range(len(values))), "c": pa.array(values, data_type)})
    parsed = parse_filters([("c", *rest) for rest in filters], batch.schema)
    return parsed.apply(batch).column("place").to_pylist()


@pytest.mark.parametrize(
    ("column", "literal", "parsed"),
    [
        ("bool", True, True),
        ("byte", 127, 127),
        ("byte", -128, -128),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", 5.0, 5),
        ("float", 0.1, 0.10000000149011612),
        ("double", 1, 1.0),
        ("double", "NaN", "NaN"),
        ("double", NAN, "NaN"),
        ("double", "-Infinity", -math.inf),
        ("price", "12.3", Decimal("12.30")),
        ("price", 9999, Decimal("9999.00")),
        ("price", 0.1, Decimal("0.10")),
        ("price", "-0.00", Decimal("0.00")),
        ("user", "NaN", "NaN"),
        ("user", "", ""),
        ("raw", "/w==", b"\xff"),
        ("raw", b"\xff", b"\xff"),
        ("day", "1970-01-02", 1),
        ("day", dt.date(1969, 12, 31), -1),
        ("ts", "1970-01-01T01:00:00.000001+01:00", 1),
        ("ts", "0001-01-01T00:00:00Z", -62135596800000000),
        ("ts", dt.datetime(1970, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-1))), 3600_000_000),
        ("ntz", "1970-01-01 00:00:01", 1_000_000),
        ("ntz", dt.datetime(9999, 12, 31, 23, 59, 59, 999999), 253402300799999999),  # noqa: DTZ001
        ("time", "23:59:59.999999", 86_399_999_999_000),
        ("time", dt.time(0, 0, 1), 1_000_000_000),
        ("took", dt.timedelta(seconds=-1), -1_000_000),
        ("took", 7, 7),
    ],
)
def test_literals_are_typed_by_their_column(column, literal, parsed):
    (condition,) = parse_filters([(column, "==", literal)], SCHEMA).conditions
    assert condition.literal == parsed
    assert type(condition.literal) is type(parsed)


@pytest.mark.parametrize(
    ("column", "literal"),
    [
        ("bool", 1), ("bool", "true"), ("byte", 128), ("byte", True), ("byte", "5"), ("byte", 1.5),
        ("long", 2**63), ("long", NAN), ("long", math.inf), ("float", 1e300), ("double", "abc"),
        ("double", 10**400), ("double", True), ("price", "1.234"), ("price", "10000"),
        ("price", "abc"), ("price", "NaN"), ("price", math.inf), ("price", "1e999999"),
        ("user", 5), ("user", b"a"), ("user", "\ud800"), ("raw", "?"), ("raw", 5), ("raw", "\xe9"),
        ("day", "yesterday"), ("day", 5), ("day", dt.datetime(2020, 1, 1)),  # noqa: DTZ001
        ("ts", "2020-01-01"), ("ts", "2020-01-01T00:00:00"), ("ts", 5), ("ts", "now"),
        ("ts", dt.datetime(2020, 1, 1)), ("ts", "2020-01-01T00:00:00.1234567Z"),  # noqa: DTZ001
        ("ts", dt.date(2020, 1, 1)),
        ("ntz", "2020-01-01T00:00:00Z"), ("ntz", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        ("time", "25:00:00"), ("time", "10:00:00Z"), ("time", 5), ("took", "1s"), ("took", 2**63),
        ("took", True), ("user", ["a"]), ("user", {}),
    ],
    ids=str,
)  # fmt: skip
def test_a_literal_that_does_not_fit_is_refused_with_what_does(column, literal):
    with pytest.raises(InvalidInputError, match=f"column='{column}'.*use "):
        parse_filters([(column, "==", literal)], SCHEMA)


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        ([["usr", "==", "a"]], "did you mean 'user'"),
        ([["USER", "==", "a"]], "did you mean 'user'"),
        ([["user", "~", "a"]], "starts with"),
        ([["user", "==", None]], "is null or is not null"),
        ([["user", "=="]], "a literal"),
        ([["user", "is null", 5]], "no literal"),
        ([["user", "in", "ada"]], "a list"),
        ([["user", "in", []]], "a list"),
        ([["long", "starts with", 1]], "strings"),
        ([["tags", "==", "a"]], "is not null"),
        ([["void", "==", 1]], "is not null"),
        ([["user"]], "column, op, literal"),
        ([["user", "==", "a", "b"]], "column, op, literal"),
        (["user == 'a'"], "column, op, literal"),
        ([[1, "==", 1]], "column, op, literal"),
        ("[[", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "not a list"),
        (5, "not a list"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_filter_errors_name_the_expected_form(filters, told):
    with pytest.raises(InvalidInputError, match=told):
        parse_filters(filters, SCHEMA)


@pytest.mark.parametrize("nothing", [None, "", " ", [], (), "[]", "null"])
def test_no_filter_keeps_every_row(nothing):
    filters = parse_filters(nothing, SCHEMA)
    batch = pa.record_batch({"user": ["a"]})
    assert not filters
    assert filters.apply(batch) is batch
    assert filters.may_match({}, 1)


def test_json_and_lists_say_the_same():
    lists = [("user", "=", "ada"), ("price", ">=", Decimal("1.1")), ("ts", "IS NOT NULL"),
             ("double", "in", [1, NAN, None]), ("user", "Starts-With", "a")]  # fmt: skip
    text = json.dumps(
        [["user", "==", "ada"], ["price", ">=", 1.1], ["ts", "is not null", None],
         ["double", "in", [1.0, "NaN", None]], ["user", "starts with", "a"]]
    )  # fmt: skip
    one, other = parse_filters(lists, SCHEMA), parse_filters(text, SCHEMA)
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert one.columns == ("user", "price", "ts", "double")


def test_a_null_is_never_equal_nor_unequal():
    values = [1, None, 2]
    assert rows_kept(values, pa.int8(), ("==", 1)) == [0]
    assert rows_kept(values, pa.int8(), ("!=", 1)) == [2]
    assert rows_kept(values, pa.int8(), ("in", [1, None])) == [0]
    assert rows_kept(values, pa.int8(), ("not in", [1])) == [2]
    assert rows_kept(values, pa.int8(), ("not in", [1, None])) == []
    assert rows_kept(values, pa.int8(), ("in", [None])) == []
    assert rows_kept(values, pa.int8(), ("is null",)) == [1]
    assert rows_kept(values, pa.int8(), ("is not null",)) == [0, 2]


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()], ids=str)
def test_nan_equals_itself_and_is_above_every_number(data_type):
    values = [NAN, math.inf, 0.0, -0.0, None]
    kept = {op: rows_kept(values, data_type, (op, "NaN")) for op in COMPARISONS}
    assert kept == {"==": [0], "!=": [1, 2, 3], "<": [1, 2, 3], "<=": [0, 1, 2, 3], ">": [],
                    ">=": [0]}  # fmt: skip
    kept = {op: rows_kept(values, data_type, (op, 0)) for op in COMPARISONS}
    assert kept == {"==": [2, 3], "!=": [0, 1], "<": [], "<=": [2, 3], ">": [0, 1],
                    ">=": [0, 1, 2, 3]}  # fmt: skip
    assert rows_kept(values, data_type, ("in", ["NaN", -0.0])) == [0, 2, 3]
    assert rows_kept(values, data_type, ("not in", ["NaN", 0])) == [1]


def test_strings_that_are_not_utf8_are_compared_by_their_bytes():
    array = pa.array([b"\xff", b"a", b"\xed\xa0\x80"], pa.binary()).view(pa.string())
    batch = pa.record_batch({"c": array})
    filters = parse_filters([("c", ">", "a")], batch.schema)
    assert filters.may_match(by_name(compute(batch, ["c"])), 3)
    assert filters.apply(batch).num_rows == 2


def test_unknown_statistics_prune_nothing():
    filters = parse_filters([("long", "==", 5)], SCHEMA)
    assert filters.may_match({}, 10)
    assert filters.may_match({"long": Bounds(None, None, 0)}, 10)
    assert filters.may_match({"long": Bounds("a", "b", 0)}, 10)
    assert filters.may_match({"long": Bounds(None, 5, 0)}, 10)


@pytest.mark.parametrize(
    ("condition", "stats", "rows"),
    [
        (("long", "==", 5), Bounds(6, 9, 0), 10),
        (("long", "==", 5), Bounds(None, None, 10), 10),
        (("long", "!=", 5), Bounds(5, 5, 3), 10),
        (("long", "<", 5), Bounds(5, 9, 0), 10),
        (("long", "<=", 5), Bounds(6, None, 0), 10),
        (("long", ">", 5), Bounds(0, 5, 0), 10),
        (("long", ">=", 5), Bounds(None, 4, 0), 10),
        (("long", "in", [1, 9, None]), Bounds(2, 8, 0), 10),
        (("long", "in", [None]), Bounds(2, 8, 0), 10),
        (("long", "not in", [5, 7]), Bounds(5, 5, 0), 10),
        (("long", "not in", [7, None]), Bounds(1, 5, 0), 10),
        (("long", "is null"), Bounds(1, 5, 0), 10),
        (("long", "is not null"), Bounds(None, None, 10), 10),
        (("double", "==", "NaN"), Bounds(0.0, 1.0, 0), 10),
        (("double", ">", "NaN"), Bounds(0.0, 1.0, 0), 10),
        (("double", "==", 2), Bounds(0.0, 1.0, 0), 10),
        (("user", "starts with", "b"), Bounds("ca", "d", 0), 10),
        (("user", "starts with", "b"), Bounds("a", "az", 0), 10),
        (("user", "is null"), Bounds(None, None, 0), 0),
    ],
    ids=str,
)
def test_rows_that_cannot_match_are_skipped(condition, stats, rows):
    assert not parse_filters([condition], SCHEMA).may_match({condition[0]: stats}, rows)


def spark_key(value):
    """Order as Spark does: NaN above all, the two zeros equal, strings by their bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def naive(value, op, literal):
    """Evaluate one condition in SQL's three-valued logic, with None for unknown."""
    if op in {"is null", "is not null"}:
        return (value is None) == (op == "is null")
    if op in {"in", "not in"}:
        if value is None:
            found = None
        elif any(x is not None and spark_key(x) == spark_key(value) for x in literal):
            found = True
        else:
            found = None if None in literal else False
        return found if op == "in" or found is None else not found
    if value is None:
        return None
    if op == "starts with":
        return value.startswith(literal)
    compare = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
               ">": operator.gt, ">=": operator.ge}[op]  # fmt: skip
    return compare(spark_key(value), spark_key(literal))


TEXTS = st.text("ab\U0010ffff\ud7ff\ue000", max_size=3) | st.builds(
    lambda char, size: char * size, st.sampled_from("ab\U0010ffff"), st.integers(30, 36)
)
CANDIDATES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-3, 3),
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
    pa.float32(): st.sampled_from([NAN, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf]),
    pa.float64(): st.sampled_from([NAN, -math.inf, -1.5, -0.0, 0.0, 5e-324, 0.1, math.inf]),
    pa.decimal128(4, 1): st.integers(-3, 3).map(lambda n: Decimal(n) / 2),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=2) | st.sampled_from([b"\xff" * n for n in (31, 32, 33)]),
    pa.date32(): st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 2)),
    pa.timestamp("us", "UTC"): st.integers(-2, 2).map(
        lambda n: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=n)
    ),
    pa.time64("ns"): st.integers(0, 2).map(lambda n: dt.time(0, 0, 0, n)),
    pa.duration("us"): st.integers(-2, 2).map(lambda n: dt.timedelta(microseconds=n)),
}


@st.composite
def cases(draw):
    data_type = draw(st.sampled_from(list(CANDIDATES)))
    values = CANDIDATES[data_type]
    column = draw(st.lists(st.none() | values, max_size=6))
    conditions = []
    for _ in range(draw(st.integers(1, 2))):
        ops = [*COMPARISONS, "in", "not in", "is null", "is not null"]
        if data_type in (pa.string(), pa.binary()):
            ops.append("starts with")
        op = draw(st.sampled_from(ops))
        if op in {"in", "not in"}:
            literal = draw(st.lists(st.none() | values, min_size=1, max_size=3))
        else:
            literal = None if op.startswith("is") else draw(values)
        conditions.append((op, literal))
    return data_type, column, conditions


@given(case=cases(), cut=st.integers(0, 6))
@settings(max_examples=6 * settings.default.max_examples, deadline=None)
def test_pruned_and_applied_equals_spark_evaluated_naively(case, cut):
    data_type, column, conditions = case
    batch = pa.record_batch({"place": list(range(len(column))), "c": pa.array(column, data_type)})
    filters = parse_filters([("c", op, literal) for op, literal in conditions], batch.schema)
    expected = [
        place
        for place, value in enumerate(batch.column("c").to_pylist())
        if all(naive(value, op, literal) for op, literal in conditions)
    ]
    assert filters.apply(batch).column("place").to_pylist() == expected
    parts = [batch.slice(0, cut), batch.slice(cut)]
    kept, facts = [], []
    for part in parts:
        stats = compute(part, ["c"])
        facts.append((part.num_rows, stats))
        if filters.may_match(by_name(stats), part.num_rows):
            kept += filters.apply(part).column("place").to_pylist()
    assert kept == expected
    assert not expected or filters.may_match(by_name(merge(facts)), batch.num_rows)


@pytest.mark.parametrize("library", ["polars", "pyarrow.compute"])
def test_a_library_that_another_thread_is_loading_disturbs_no_filter(library, monkeypatch):
    schema = pa.schema([("n", pa.int64())])
    expected = parse_filters("n > 3", schema)
    monkeypatch.setitem(sys.modules, library, ModuleType(library))
    assert parse_filters([["n", ">", 3]], schema) == expected
    assert parse_filters(None, schema) == Filters()


@pytest.mark.parametrize(
    ("literals", "low", "high", "may"),
    [
        ([5, 1, 9], 2, 4, False),
        ([5, 1, 9], 5, 5, True),
        ([5, 1, 9], 10, 12, False),
        ([5, None, 1], 6, 9, False),
        ([5, None, 1], 0, 1, True),
    ],
)
def test_lists_of_literals_skip_what_lies_between_them(literals, low, high, may):
    filters = parse_filters([["n", "in", literals]], pa.schema([("n", pa.int64())]))
    assert filters.may_match({"n": Bounds(low, high, 0)}, 3) is may
