"""Filters as expressions of Arrow and as alternatives: bound early, pruned safely, exact."""

import functools
import math
import operator
import pickle

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.bounds import Bounds, compute
from segstore_ds.read.filters.given import parse_filters

SCHEMA = pa.schema(
    [("n", pa.int32()), ("x", pa.float64()), ("user", pa.string()), ("at", pa.timestamp("us"))]
)
N, X, USER = pc.field("n"), pc.field("x"), pc.field("user")


def by_name(piece):
    """Return bounds by the names of their columns."""
    return {label.partition(":")[2]: bounds for label, bounds in piece.items()}


def batch_of(rows):
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def test_an_expression_knows_its_columns():
    """pyarrow does not tell them; the schema may be wide."""
    wide = pa.schema([(f"c{place}", pa.int64()) for place in range(300)])
    expression = (pc.field("c7") == 1) | (pc.field("c100") + pc.field("c299") > 5)
    assert parse_filters(expression, wide).columns == ("c7", "c100", "c299")
    nested = pa.schema([("who", pa.struct([("n", pa.int64())])), ("n", pa.int64())])
    assert parse_filters(pc.field("who", "n") == 1, nested).columns == ("who",)
    assert parse_filters(pc.scalar(value=True), SCHEMA).columns == ()


@pytest.mark.parametrize(
    "expression",
    [pc.field("no") == 1, N == "ada", N + 1, pc.field(0) == 1, pc.field("n", "m") == 1],
)
def test_an_expression_that_does_not_fit_is_refused_at_once(expression):
    with pytest.raises(InvalidInputError, match="an expression"):
        parse_filters(expression, SCHEMA)


def test_an_expression_is_sent_to_tasks():
    filters = pickle.loads(pickle.dumps(parse_filters(N > 1, SCHEMA)))  # noqa: S301 - our own
    rows = batch_of([{"n": 1}, {"n": 2}, {"n": None}, {"n": 3}])
    assert filters.apply(rows).column("n").to_pylist() == [2, 3]


@pytest.mark.parametrize(
    ("expression", "may"),
    [
        (N == 5, True),
        (N == 50, False),
        ((N == 50) | (N < 1), False),
        ((N == 50) | (USER == "m"), True),
        (~(N < 20), False),
        (N.isin([0, 99]), False),
        (N == 5.5, True),
        (N == 50.5, False),
        (N.is_null(), False),
        (USER == "zz", False),
        ((X > 100) & (N == 5), True),
        (X.is_null(), True),
        (X.is_null(nan_is_null=True), True),
        (pc.field("at").is_valid(), False),
    ],
)
def test_statistics_rule_expressions_out(expression, may):
    stats = {
        "n": Bounds(3, 10, 0),
        "x": Bounds(None, None, 2),
        "user": Bounds("b", "p", 4),
        "at": Bounds(None, None, 9),
    }
    assert parse_filters(expression, SCHEMA).may_match(stats, 9) is may


VALUES = {
    "n": st.none() | st.integers(-3, 3),
    "x": st.none() | st.sampled_from([-1.5, -0.0, 0.0, 2.0, math.nan, math.inf]),
    "user": st.none() | st.sampled_from(["", "a", "b", "bb"]),
}
ROWS = st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=6)
LEAVES = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.builds(
        lambda op, value: _leaf(name, op, value),
        st.sampled_from(["==", "!=", "<", ">=", "in", "null", "valid", "nan"]),
        VALUES[name].filter(lambda value: value is not None),
    )
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda a, b: a & b, inner, inner)
        | st.builds(lambda a, b: a | b, inner, inner)
        | inner.map(lambda a: ~a)
    ),
    max_leaves=4,
)


def _leaf(name, op, value):
    column = pc.field(name)
    if op == "in":
        return column.isin([value, None])
    if op in {"null", "nan"}:
        return column.is_null(nan_is_null=op == "nan" and name == "x")
    return {
        "==": column == value,
        "!=": column != value,
        "<": column < value,
        ">=": column >= value,
        "valid": column.is_valid(),
    }[op]


@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(rows=ROWS, expression=EXPRESSIONS)
def test_statistics_never_hide_a_row(rows, expression):
    batch = batch_of(rows)
    filters = parse_filters(expression, SCHEMA)
    kept = filters.apply(batch)
    assert repr(kept.to_pylist()) == repr(batch.filter(expression).to_pylist())
    stats = by_name(compute(batch, batch.schema.names))
    assert filters.may_match(stats, batch.num_rows) or not kept.num_rows


CONDITIONS = st.builds(
    lambda column, op, value: [column, op, value],
    st.just("n"),
    st.sampled_from(["==", "!=", "<", ">="]),
    st.integers(-3, 3),
) | st.builds(lambda column, op: [column, op], st.sampled_from(["n", "user"]), st.just("is null"))
ALTERNATIVES = st.lists(st.lists(CONDITIONS, min_size=1, max_size=2), min_size=1, max_size=3)


@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(rows=ROWS, alternatives=ALTERNATIVES)
def test_one_alternative_must_hold(rows, alternatives):
    batch = batch_of(rows)
    filters = parse_filters(alternatives, SCHEMA)
    each = [parse_filters(group, SCHEMA).apply(batch).to_pylist() for group in alternatives]
    wanted = [row for row in batch.to_pylist() if any(_holds(row, kept) for kept in each)]
    kept = filters.apply(batch)
    assert repr(kept.to_pylist()) == repr(wanted)
    assert (
        filters.may_match(by_name(compute(batch, batch.schema.names)), len(rows))
        or not kept.num_rows
    )


def _holds(row, kept):
    return repr(row) in map(repr, kept)


@pytest.mark.parametrize("filters", [[[]], [[["n", "==", 1]], []], [[["n", "==", 1]], ["n"]]])
def test_half_an_alternative_is_an_error(filters):
    with pytest.raises(InvalidInputError, match=r"not \[column"):
        parse_filters(filters, SCHEMA)


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("n") > 3,
        pl.col("n").is_in([1, 2]),
        (pl.col("n") > 3) & ~pl.col("n").is_null(),
        ~(pl.col("n") > 3),
        pc.field("n").isin([1, 2]),
        pc.field("n").is_null(),
        ~(pc.field("n") > 3),
        (pc.field("n") > 3) & pc.field("n").isin([1]),
    ],
    ids=str,
)
def test_an_expression_that_became_a_text_is_answered_with_a_text_that_works(expression):
    """Spark makes texts of all options."""
    with pytest.raises(InvalidInputError, match=r"was passed as text.*write n > 3 and"):
        parse_filters(str(expression), SCHEMA)


@pytest.mark.parametrize("column", [pc.field("n"), pl.col("n")], ids=["arrow", "polars"])
@pytest.mark.parametrize("many", [150, 800])
def test_many_alternatives_are_no_deep_recursion(column, many):
    """Libraries join them two by two, deeper than Python's stack."""
    filters = parse_filters(
        functools.reduce(operator.or_, [column == n for n in range(many)]), SCHEMA
    )
    assert filters.may_match({"n": Bounds(-5, -1, 0)}, 9) is (many == 800)  # reads them all
    rows = batch_of([{"n": 0}, {"n": -1}, {"n": many}, {"n": many - 1}])
    assert filters.apply(rows).column("n").to_pylist() == [0, many - 1]


@pytest.mark.parametrize("text", ["[n > 3", "n >", 'col("n") >', "lower(user) == 'a{'"])
def test_a_wrong_text_is_no_printed_expression(text):
    """It is answered with what is wrong with it."""
    with pytest.raises(InvalidInputError, match=r"can't be parsed|not JSON"):
        parse_filters(text, SCHEMA)
