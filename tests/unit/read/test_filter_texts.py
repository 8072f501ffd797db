"""The grammar of filters as a text: exactly what is written, or a refusal that helps."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.filters.given import parse_filters

SCHEMA = pa.schema(
    [
        *[("n", pa.int64()), ("x", pa.float64()), ("user", pa.string()), ("ok", pa.bool_())],
        *[("a b", pa.int64()), ("user.name", pa.string()), ("µs", pa.int64())],
        *[("between", pa.int64()), ("col", pa.int64()), ("price", pa.decimal128(9, 2))],
    ]
)


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("user = 'O''Brien'", [["user", "==", "O'Brien"]]),
        ('user == "O\'Brien ""x"""', [["user", "==", "O'Brien \"x\""]]),
        ("user == 'Main St\n# Rome'", [["user", "==", "Main St\n# Rome"]]),
        (r"user == 'C:\temp\'", [["user", "==", "C:\\temp\\"]]),
        ("µs > 3", [["µs", ">", 3]]),
        ("n <> -3", [["n", "!=", -3]]),
        ("n Between 1 AND 3 and\n\tok", [["n", ">=", 1], ["n", "<=", 3], ["ok", "==", True]]),
        ("n not between 1 and 3", [[["n", "<", 1]], [["n", ">", 3]]]),
        ("not n between 1 and 3", [[["n", "<", 1]], [["n", ">", 3]]]),
        ("between between 1 and 2", [["between", ">=", 1], ["between", "<=", 2]]),
        ("user LIKE 'ad%'", [["user", "starts with", "ad"]]),
        ("user not like 'ad'", [["user", "!=", "ad"]]),
        ("col('user.name') == 'a' and `a b` = 1", [["user.name", "==", "a"], ["a b", "==", 1]]),
        ("col = 3 and 9 >= n", [["col", "==", 3], ["n", "<=", 9]]),
        ("price == 0.10 and n == 9007199254740993.0", [["price", "==", "0.10"],
                                                       ["n", "==", 2**53 + 1]]),
        ("not (n == 1 or user is null)", [["n", "!=", 1], ["user", "is not null"]]),
        ("n in [1, 2,] and n not in ((3), 4)", [["n", "in", [1, 2]], ["n", "not in", [3, 4]]]),
        ("not " * 1001 + "ok", [["ok", "==", False]]),
        ("x == 'NaN' and x < 1e3", [["x", "==", "NaN"], ["x", "<", 1000]]),
    ],
)  # fmt: skip
def test_a_text_says_what_lists_say(text, lists):
    assert parse_filters(text, SCHEMA) == parse_filters(lists, SCHEMA)


@given(value=st.text(st.characters(exclude_categories=["Cs"])), quote=st.sampled_from("'\""))
def test_between_quotes_every_character_is_itself(value, quote):
    text = f"user == {quote}{value.replace(quote, quote * 2)}{quote} and n > 0"
    assert parse_filters(text, SCHEMA) == parse_filters(
        [["user", "==", value], ["n", ">", 0]], SCHEMA
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n > 0  # all\nand n < 2", "no comments.*found='# all"),
        ("n > 0 -- all", "found='-- all"),
        ("user == 'ada", "quote is not closed"),
        (r"user == 'it\'s'", "found=\"s'"),
        ("user == 'a' 'b'", "found=\"'b'"),
        ("user.name == 'a'", r"col\('user.name'\)"),
        ("user like '%a'", "only prefixes"),
        ("user like 'a_%'", "only prefixes"),
        ("user not like 'a%'", "can't be negated"),
        ("lower(user) == 'a'", "no function lower"),
        ("n & 1", "write and, or, not"),
        ("n == m", "a column and a literal"),
        ("n == 0x10", "found='0x10"),
        ("n == 1_000", "found='1_000"),
        ("n == --1", "a sign needs a number"),
        ("n == null", "is null"),
        ("ok is true", "only with null"),
        ("N > 1", "did you mean 'n'"),
        ("(" * 1200 + "n > 1" + ")" * 1200, "more than 50"),
        ("n == 1e999999999", "a whole number"),
        ("n == " + "9" * 5000, "a whole number"),
        ("x < 1e400", "use a number"),
    ],
    ids=lambda value: value[:30],
)
def test_what_the_grammar_lacks_is_refused(text, told):
    with pytest.raises(InvalidInputError, match=told):
        parse_filters(text, SCHEMA)
