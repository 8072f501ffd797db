"""Predicates of Polars on a stream: pushed down as far as they are understood, always exact."""

import datetime as dt
import math
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segstore_ds as segstore
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.filters.polars_predicate import implied_by
from segstore_ds.write.layout import Layout

AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
LONG = "p" * 70  # longer than a bound in statistics
SCHEMA = pa.schema(
    [
        *[("n", pa.int32()), ("x", pa.float64()), ("f", pa.float32()), ("b", pa.bool_())],
        *[("word", pa.string()), ("raw", pa.binary()), ("price", pa.decimal128(6, 2))],
        *[("at", pa.timestamp("us", "UTC")), ("here", pa.timestamp("us"))],
        *[("day", pa.date32()), ("clock", pa.time64("ns")), ("took", pa.duration("us"))],
    ]
)
VALUES = {
    "n": [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1],
    "x": [-math.inf, -1.5, -0.0, 0.0, 2.0, math.inf, math.nan],
    "f": [-1.0, 0.1, 0.5, 3.0, math.nan],
    "b": [True, False],
    "word": ["", "a", "ab", "b", "z\U0010ffff", "\ue000", LONG, LONG + "q", LONG + "\U0010ffff"],
    "raw": [b"", b"a", b"ab", b"\xff", b"YQ=="],
    "price": [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50"), Decimal("2.25")],
    "at": [AT, AT + dt.timedelta(hours=1), AT - dt.timedelta(days=200)],
    "here": [dt.datetime(2026, 1, 2), dt.datetime(2026, 1, 3, 4)],  # noqa: DTZ001 - of no zone
    "day": [dt.date(2026, 1, 2), dt.date(1969, 12, 31)],
    "clock": [dt.time(0), dt.time(23, 59, 59, 999999)],
    "took": [dt.timedelta(0), dt.timedelta(hours=-1), dt.timedelta(microseconds=1)],
}

TYPES = pl.from_arrow(SCHEMA.empty_table()).schema


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Of rows that take turns, so that some frames have one value, and some only nulls."""
    made = segstore.create(tmp_path_factory.mktemp("p") / "s", SCHEMA, upkeep=None)
    rows = [
        {name: values[n // each % len(values)] for name, values in VALUES.items() if (n + each) % 5}
        for each in (1, 4)
        for n in range(36)
    ]
    layouts = [Layout(inline_bytes=0, segment_format="arrow", frame_rows=4), Layout()]
    for number, layout in enumerate(layouts):
        table = pa.Table.from_pylist(rows[number * 36 :][:36], SCHEMA)
        made.append(table, layout=layout)
    made.append(pa.Table.from_pylist([{}] * 3, SCHEMA))
    return made


def leaves():
    def of(name):
        column, literal = pl.col(name), st.sampled_from(VALUES[name])
        many = st.lists(st.sampled_from([*VALUES[name], None]), max_size=3).map(
            lambda values: pl.lit(pl.Series(values, dtype=TYPES[name])).implode()
        )
        kinds = [
            st.tuples(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), literal).map(
                lambda pair: getattr(column, pair[0])(pair[1])
            ),
            literal.map(column.eq_missing),
            literal.map(column.ne_missing),
            st.just(column.is_null()),
            st.just(column.is_not_null()),
            st.builds(
                lambda values, nulls: column.is_in(values, nulls_equal=nulls), many, st.booleans()
            ),
            st.builds(
                lambda low, high, closed: column.is_between(
                    pl.lit(low), pl.lit(high), closed=closed
                ),
                literal,
                literal,
                st.sampled_from(["both", "left", "right", "none"]),
            ),
            literal.map(lambda value: pl.lit(value) > column),
        ]
        return st.one_of(kinds)

    comparable = [name for name in VALUES if name != "b"]
    others = [
        *[pl.col("b"), pl.col("x").is_nan(), pl.col("f").is_not_nan(), pl.col("n") > 1.5],
        *[pl.col("n") <= 2.0, pl.col("n").cast(pl.Int64) == 1, pl.col("f") > 0.1],
        *[pl.col("x").cast(pl.Int64, strict=False) == 2, pl.col("word").str.ends_with("q")],
        *[pl.col("word").str.starts_with(prefix) for prefix in ("", "a", LONG, LONG + "q")],
        *[pl.lit("ab").str.starts_with(pl.col("word")), pl.col("raw").bin.starts_with(b"a")],
        *[pl.col("n").xor(1) == 3, pl.col("x") * 2 > 1, pl.col("word") == pl.col("word")],
        *[pl.col("word").cast(pl.Categorical) == "a", pl.col("price") > 1.0],
        *[pl.col("clock") < pl.lit(1, dtype=pl.Time), pl.col("day") < dt.datetime(2026, 1, 2)],  # noqa: DTZ001
        *[pl.col("x") == pl.lit(math.nan), pl.col("x") < math.inf, pl.col("n") > 3_000_000_000],
    ]
    return st.one_of(st.sampled_from(comparable).flatmap(of), st.sampled_from(others))


def trees():
    def joined(inner):
        return st.one_of(
            st.builds(lambda left, right: left & right, inner, inner),
            st.builds(lambda left, right: left | right, inner, inner),
            inner.map(lambda each: ~each),
            st.builds(lambda left, right: left.xor(right), inner, inner),
        )

    return st.recursive(leaves(), joined, max_leaves=5)


@settings(max_examples=settings.default.max_examples * 2 // 5, deadline=None)
@given(predicate=trees(), limit=st.sampled_from([None, None, 0, 7, 50]))
def test_a_scan_is_filtered_exactly(stream, whole, predicate, limit):
    scan, frame = stream.scan().to_polars(), whole.lazy()
    if limit is not None:
        scan, frame = scan.head(limit), frame.head(limit)
    assert scan.filter(predicate).collect().equals(frame.filter(predicate).collect())


@settings(max_examples=settings.default.max_examples * 2 // 5, deadline=None)
@given(predicate=trees(), limit=st.sampled_from([None, None, 0, 7, 50]))
def test_filters_of_polars_are_exact(stream, whole, predicate, limit):
    expected = whole.filter(predicate)
    found = stream.scan(filters=predicate, limit=limit)
    assert pl.from_arrow(found.to_arrow()).equals(
        expected if limit is None else expected.head(limit)
    )
    assert found.count() == len(pl.from_arrow(found.to_arrow()))
    assert stream.scan(filters=predicate, columns=["word"]).to_polars().select(
        pl.len()
    ).collect().item() == len(expected)


@pytest.fixture(scope="module")
def whole(stream):
    return pl.from_arrow(stream.read().read_all())


def asked(predicate):
    """Return what a scan asks of the stream, once Polars has typed the literals."""
    found = []

    def source(columns, predicate, n_rows, batch_size):  # noqa: ARG001 - as Polars calls it
        found.append(predicate)
        yield whole.select(columns or whole.columns).filter(predicate)

    whole = pl.from_arrow(SCHEMA.empty_table())
    plugins = pytest.importorskip("polars.io.plugins")
    plugins.register_io_source(source, schema=whole.schema).filter(predicate).collect()
    return implied_by(found[0], SCHEMA)


def text(filters):
    """Return filters in few words."""
    parts = [f"{each.column} {each.op} {each.literal}" for each in filters.conditions]
    parts += [f"({' or '.join(map(text, group))})" for group in filters.any_of]
    return " and ".join(parts)


N, WORD = pl.col("n"), pl.col("word")
PUSHED = (
    ((N >= 3) & (pl.lit(9) > N) & (WORD == "a"), "n >= 3 and n < 9 and word == a"),
    ((N == 4) | (N.is_null() & (WORD > "b")), "(n == 4 or n is null None and word > b)"),
    (~((N == 4) & (WORD <= "b")), "(n != 4 or word > b)"),
    (
        ((N == 1) | (N == 2)) & ((WORD == "a") | (N > 7)),
        "(n == 1 or n == 2) and (word == a or n > 7)",
    ),
    (N.is_in([1, 2]) & WORD.str.starts_with("ab"), "n in (1, 2) and word starts with ab"),
    (~N.is_in([1, None]), "n not in (1,)"),
    (
        N.eq_missing(3) | N.ne_missing(4),
        "(n == 3 and n is not null None or n != 4 or n is null None)",
    ),
    (N.is_between(1, 5, closed="left"), "n >= 1 and n < 5"),
    (~N.is_between(1, 5), "(n < 1 or n > 5)"),
    (pl.col("b") & ~pl.col("x").is_nan(), "b == True and x != NaN"),
    ((N > 4.5) & (N <= 7.0), "n > 4 and n <= 7"),
    (pl.col("price") == Decimal("1.25"), "price == 1.25"),
    (
        pl.col("at") > AT.astimezone(dt.timezone(dt.timedelta(hours=2))),
        f"at > {int(AT.timestamp()) * 10**6}",
    ),
    ((N * 2 == 8) & (N > 1), "n > 1"),
    ((N * 2 == 8) | (N > 1), ""),
    (pl.col("x").cast(pl.Int64) == 3, ""),
    (pl.col("clock") < pl.lit(1, dtype=pl.Time), ""),
)


@pytest.mark.parametrize(("predicate", "expected"), PUSHED)
def test_a_predicate_becomes_filters(predicate, expected):
    try:
        found = asked(predicate)
    except pl.exceptions.PolarsError as error:
        assert not expected, error  # noqa: PT017 - this Polars refuses what an older one takes
        return
    assert text(found) == expected


class Strange:
    """A predicate of a Polars to come."""

    def __init__(self, tree) -> None:
        self.meta, self._tree = self, tree

    def serialize(self, format):  # noqa: A002, ARG002 - as Polars names it
        return self._tree


TREES = (
    *['"n"', "{}", "[]", '{"Column": 3}', '{"Function": {"input": 3}}'],
    '{"BinaryExpr": {"op": "Eq"}}',
    '{"BinaryExpr": {"op": "Eq", "left": {"Column": ["n"]}, "right": {"Literal": {"Int": 3}}}}',
    '{"Function": {"input": [1], "function": {"Boolean": {"IsIn": 3}}}}',
)


@pytest.mark.parametrize("tree", TREES)
def test_what_is_not_understood_is_left_out(tree):
    assert implied_by(Strange(tree), SCHEMA) == Filters()
