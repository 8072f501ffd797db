"""Filters as a short text: ``n > 3 and user == 'ada'``, in a grammar of their own.

Names, operators and keywords may be spelled as in Python or in SQL. Anything else is refused, so
that a text never selects other rows than it says. Between quotes every character stands for itself;
only a doubled quote is one quote.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.filters.conditions import OPPOSITE, SWAPPED, Filters, all_of, some_of

EXAMPLE = """n > 3 and user in ('ada', 'bob') and ts is not null"""
MOST_PARENTHESES = 50  # nested

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?!\w))
    | (?P<word>[^\W\d]\w*)
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<name>`(?:[^`]|``)+`)
    | (?P<sign><>|[=!<>]=|[-+=<>().,\[\]])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_LITERALS = {"true": True, "false": False, "null": None, "none": None}
_RESERVED = {"and", "or", "not", "in", "is"}
_COMPARISONS = {"=": "==", "<>": "!="} | {op: op for op in SWAPPED}
_HELP = {
    **dict.fromkeys(("&", "|", "!", "~"), "write and, or, not"),
    **dict.fromkeys(("#", "/"), "there are no comments and no calculations"),
    **dict.fromkeys(("'", '"', "`"), "a quote is not closed; double it to mean the character"),
}


class _Token(NamedTuple):
    kind: str
    value: str
    start: int


class _Column(str):
    """The name of a column; every other operand is a literal."""

    __slots__ = ()


def parse_text(text: str, condition: Callable[[list[Any]], Filters]) -> Filters:
    """Return the filters of a text; `condition` makes one of ``[column, op, literal]``."""
    return _Parser(text, condition).parse()


class _Parser:
    def __init__(self, text: str, condition: Callable[[list[Any]], Filters]) -> None:
        self._text, self._condition = text, condition
        self._place = self._depth = 0
        self._next = self._scan()

    def parse(self) -> Filters:
        """Return what the whole text says."""
        found = self._disjunction(truth=True)
        if self._next.kind != "end":
            self._refuse()
        return found

    # Each method returns the filter that it parses or, if `truth` is false, its negation.
    def _disjunction(self, *, truth: bool) -> Filters:
        parts = [self._conjunction(truth=truth)]
        while self._take("or"):
            parts.append(self._conjunction(truth=truth))
        return some_of(parts) if truth else all_of(parts)

    def _conjunction(self, *, truth: bool) -> Filters:
        parts = [self._test(truth=truth)]
        while self._take("and"):
            parts.append(self._test(truth=truth))
        return all_of(parts) if truth else some_of(parts)

    def _test(self, *, truth: bool) -> Filters:
        while self._take("not"):
            truth = not truth
        if self._take("("):
            self._depth += 1
            if self._depth > MOST_PARENTHESES:
                self._refuse(f"more than {MOST_PARENTHESES} parentheses are nested")
            found = self._disjunction(truth=truth)
            self._depth -= 1
            self._expect(")")
            return found
        column = self._operand()
        test = self._column_test(column, truth=truth) if isinstance(column, _Column) else None
        return self._compare(column, truth=truth) if test is None else test

    def _column_test(self, column: _Column, *, truth: bool) -> Filters | None:
        """Return a test of a column that is no comparison; None if no such test follows."""
        if self._take("."):
            return self._method(column, truth=truth)
        if self._take("is"):
            op = "is not null" if self._take("not") is truth else "is null"
            if not self._take("null", "none"):
                self._refuse("is compares only with null")
            return self._condition([column, op])
        negated = self._take("not")
        truth = truth is not negated
        if self._take("in"):
            return self._condition([column, "in" if truth else "not in", self._list()])
        if self._take("between"):
            low = self._literal()
            self._expect("and")
            sides = [(">=", low), ("<=", self._literal())]
            return self._joined(column, sides, truth=truth)
        if self._take("like"):
            return self._like(column, truth=truth)
        if negated:
            self._refuse()
        return None

    def _method(self, column: _Column, *, truth: bool) -> Filters:
        if not self._is("startswith"):
            self._refuse(
                f"write a name with a dot as col('{column}.{self._next.value[:50]}'); a field of a "
                "struct needs an expression of pyarrow or Polars"
            )
        self._step()
        return self._starts(column, self._one_in_parentheses(), truth=truth)

    def _like(self, column: _Column, *, truth: bool) -> Filters:
        pattern = self._literal()
        prefix = str(pattern).removesuffix("%")
        if not isinstance(pattern, str) or any(sign in prefix for sign in "%_\\"):
            self._refuse("like supports only prefixes, as in like 'ad%'")
        if prefix == pattern:
            return self._condition([column, "==" if truth else "!=", pattern])
        return self._starts(column, prefix, truth=truth)

    def _starts(self, column: _Column, prefix: Any, *, truth: bool) -> Filters:
        if not truth:
            self._refuse("a test of a prefix can't be negated")
        return self._condition([column, "starts with", prefix])

    def _compare(self, left: Any, *, truth: bool) -> Filters:
        """Return the comparisons of a chain, of columns with literals; or a boolean column."""
        found = []
        while op := self._comparison():
            right = self._operand()
            column, literal = left, right
            if isinstance(right, _Column):
                op, column, literal = SWAPPED[op], right, left
            if not isinstance(column, _Column) or isinstance(literal, _Column):
                self._refuse("a comparison needs a column and a literal")
            found.append(self._joined(column, [(op, literal)], truth=truth))
            left = right
        if not found and isinstance(left, _Column):
            return self._condition([left, "==", truth])
        if not found:
            self._refuse("a literal alone is no comparison")
        return all_of(found) if truth else some_of(found)

    def _joined(self, column: _Column, sides: list[tuple[str, Any]], *, truth: bool) -> Filters:
        found = [
            self._condition([column, op if truth else OPPOSITE[op], literal])
            for op, literal in sides
        ]
        return all_of(found) if truth else some_of(found)

    def _comparison(self) -> str | None:
        op = _COMPARISONS.get(self._next.value) if self._next.kind == "sign" else None
        if op:
            self._step()
        return op

    def _operand(self) -> Any:
        """Return a column or a literal."""
        kind, value, _ = self._next
        word = value.lower()
        if kind == "name":
            return _Column(_unquoted(self._step()))
        if kind != "word" or word in _LITERALS:
            return self._literal()
        if word in _RESERVED:
            self._refuse()
        self._step()
        if not self._is("("):
            return _Column(value)
        if value != "col":
            self._refuse(f"there is no function {value[:50]}")
        name = self._one_in_parentheses()
        if not isinstance(name, str):
            self._refuse("col takes a name in quotes")
        return _Column(name)

    def _one_in_parentheses(self) -> Any:
        if not self._is("("):
            self._refuse()
        return self._literal()

    def _literal(self) -> Any:
        """Return a literal, which may be in parentheses."""
        opened = 0
        while self._take("("):
            opened += 1
        sign = self._step() if self._is("-", "+") else ""
        kind, value, _ = self._next
        found: Any = None
        if kind == "number":
            number = Decimal(sign + value)
            found = int(number) if value.isdecimal() and len(value) < 40 else number
        elif sign:
            self._refuse("a sign needs a number")
        elif kind == "text":
            found = _unquoted(value)
        elif kind == "word" and value.lower() in _LITERALS:
            found = _LITERALS[value.lower()]
        else:
            self._refuse("a literal is a number, a text in quotes, true, false or null")
        self._step()
        for _ in range(opened):
            self._expect(")")
        return found

    def _list(self) -> list[Any]:
        if not self._is("(", "["):
            self._refuse("in needs a list in parentheses")
        end = {"(": ")", "[": "]"}[self._step()]
        found: list[Any] = []
        while not self._is(end):
            found.append(self._literal())
            if not self._take(","):
                break
        self._expect(end)
        return found

    def _scan(self) -> _Token:
        """Return the next token of the text."""
        match = _TOKEN.match(self._text, self._place)
        if match is None or match.lastgroup is None:
            rest = self._text[self._place :].lstrip()
            self._next = _Token("?", rest, len(self._text) - len(rest))
            self._refuse(_HELP.get(rest[0], ""))
        self._place = match.end()
        return _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))

    def _step(self) -> str:
        """Go on to the next token, and return this one's text."""
        value = self._next.value
        self._next = self._scan()
        return value

    def _is(self, *words: str) -> bool:
        return self._next.kind in {"word", "sign"} and self._next.value.lower() in words

    def _take(self, *words: str) -> bool:
        found = self._is(*words)
        if found:
            self._step()
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._refuse(f"{word} is missing")

    def _refuse(self, why: str = "") -> NoReturn:
        found = self._text[self._next.start :][:30] or "the end"
        raise InvalidInputError(
            "a filter can't be parsed",
            remedy=f"write {EXAMPLE}; for a name that is not a plain word, write col('a name')",
            filters=self._text[:200],
            why=why or "something else was expected here",
            at=self._next.start,
            found=found,
        )


def _unquoted(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)
