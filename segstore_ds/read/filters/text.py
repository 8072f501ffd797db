"""Filters as a short text: ``n > 3 and user == 'ada'``, in the spelling of Python or of SQL.

The text is parsed as an expression of Python, once words and operators of SQL have become Python's.
Nothing is evaluated: only comparisons of a column with literals, joined by `and`, `or`, `not`.
"""

import ast
import io
import tokenize
from collections.abc import Callable
from typing import Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.filters.conditions import OPPOSITE, TURNED, Filters, all_of, some_of

EXAMPLE = """n > 3 and user in ('ada', 'bob') and ts is not null"""

_SPELLED = {word: word for word in ("and", "or", "not", "in", "is")}
_SPELLED |= {"null": "None", "true": "True", "false": "False", "=": "=="}
_OPS: dict[type, str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is null",
    ast.IsNot: "is not null",
}


def parse_text(text: str, condition: Callable[[list[Any]], Filters]) -> Filters:
    """Return the filters that a text says; an InvalidInputError says what is not understood.

    `condition` makes a filter of ``[column, op, literal]``.
    """
    try:
        tree = ast.parse(python := _as_python(text), mode="eval")
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise _refused(text, "it is no expression") from error
    return _Reader(text, python.encode(), condition).read(tree.body, truth=True)


def _as_python(text: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(" ".join(text.split("\n"))).readline)
    return tokenize.untokenize(
        (kind, _SPELLED.get(word.lower(), word)) for kind, word, *_ in tokens
    )


class _Reader:
    def __init__(self, text: str, python: bytes, condition: Callable[[list[Any]], Filters]) -> None:
        self._text, self._python, self._condition = text, python, condition

    def read(self, node: ast.expr, *, truth: bool) -> Filters:
        """Return the filter that a node, or its negation, is."""
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self.read(value, truth=truth) for value in values]
                every = isinstance(op, ast.And) == truth
                return all_of(parts) if every else some_of(parts)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self.read(inner, truth=not truth)
            case ast.Compare():
                return self._compare(node, truth=truth)
            case ast.Call(func=ast.Attribute(value=column, attr="startswith"), args=[prefix]):
                if truth:
                    return self._leaf(column, "starts with", self._literal(prefix))
        if self._column(node) is not None:  # a column of booleans
            return self._leaf(node, "==", truth)
        raise self._not_understood(node)

    def _compare(self, node: ast.Compare, *, truth: bool) -> Filters:
        found, left = [], node.left
        for sign, right in zip(node.ops, node.comparators, strict=True):
            op, column, other = _OPS[type(sign)], left, right
            if self._column(column) is None and op in TURNED:
                op, column, other = TURNED[op], right, left
            op = op if truth else OPPOSITE[op]
            if op.startswith("is"):
                if not (isinstance(other, ast.Constant) and other.value is None):
                    raise self._not_understood(node)
                found.append(self._leaf(column, op))
            else:
                literal = self._literal(other)
                if op in {"in", "not in"} and not isinstance(literal, list | tuple):
                    literal = self._only_literal(literal, other)
                found.append(self._leaf(column, op, literal))
            left = right
        return all_of(found) if truth else some_of(found)

    def _leaf(self, column: ast.expr, op: str, *literals: Any) -> Filters:
        name = self._column(column)
        if name is None:
            raise self._not_understood(column)
        return self._condition([name, op, *literals])

    def _column(self, node: ast.expr) -> str | None:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))]):
                return name
        return None

    def _literal(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError) as error:
            raise self._not_understood(node) from error

    def _only_literal(self, literal: Any, node: ast.expr) -> Any:
        """Return a literal in parentheses as the list that it is in SQL, though not in Python."""
        enclosed = self._python[: node.col_offset].rstrip().endswith(b"(")
        return [literal] if enclosed else literal

    def _not_understood(self, node: ast.expr) -> InvalidInputError:
        part = ast.unparse(node)
        return _refused(self._text, f"{part[:100]} is no comparison of a column with a literal")


def _refused(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        "a filter can't be parsed",
        remedy=f"write {EXAMPLE}; for a name that is not a plain word, write col('a name')",
        filters=text[:200],
        why=why,
    )
