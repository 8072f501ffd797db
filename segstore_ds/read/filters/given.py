"""Filters as users give them: a text, lists, or an expression of pyarrow or of Polars."""

import json
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.filters.conditions import OPS, Condition, Filters, Operand, all_of, some_of
from segstore_ds.read.filters.literals import Literal, parse_literal
from segstore_ds.read.filters.text import EXAMPLE, parse_text


class ArrowExpression(Protocol):
    """A `pyarrow.compute.Expression` for a type checker, which may not know Arrow."""

    def is_valid(self) -> Any:
        """Return the expression of whether it is not null."""


class PolarsExpression(Protocol):
    """A `polars.Expr` for a type checker, which may not know Polars."""

    @property
    def meta(self) -> Any:
        """The structure of the expression."""


FilterLike: TypeAlias = (
    str
    | Sequence[Sequence[Any] | ArrowExpression | PolarsExpression]
    | ArrowExpression
    | PolarsExpression
    | None
)


def parse_filters(filters: FilterLike | Filters, schema: pa.Schema) -> Filters:
    """Parse filters: a text, lists of ``[column, op, literal]``, or an expression.

    Expressions are those of Arrow and of Polars, also among the conditions of a list.

    A text is an expression such as ``n > 3 and user == 'ada'``, or JSON of such lists. Parsed
    filters are returned as they are. In a list of lists of conditions, one of the lists must hold.
    The null tests take no literal; ``in`` and ``not in`` take a list. None or an empty list keeps
    every row. Literals are typed by `schema`, the stream's schema in normal form. An
    InvalidInputError names what would be valid.
    """
    if isinstance(filters, Filters):
        return filters
    bound = _bind_expression(filters, schema)
    if bound is not None:
        return bound
    conditions: Any = filters
    if isinstance(filters, str):
        text = filters.strip()
        try:
            if text not in ("", "null") and text[0] not in "[{":
                return parse_text(filters, partial(_parse_condition, schema))
            conditions = _load(filters)
        except InvalidInputError as error:
            if _PRINTED.match(text):
                raise _printed(text) from error
            raise
    if conditions is None:
        return Filters()
    if not isinstance(conditions, list | tuple):
        raise InvalidInputError("filters are not a list", remedy=_EXAMPLE, filters=conditions)
    if _are_alternatives(conditions):
        return some_of([parse_filters(each, schema) for each in conditions])
    return all_of(
        [_bind_expression(each, schema) or _parse_condition(schema, each) for each in conditions]
    )


# How Polars prints expressions, and how pyarrow prints those that can't be parsed as a text.
_PRINTED = re.compile(
    r"""\[\(|.*\bcol\("[^"]*"\)[.)\]]|.*\b\w+\([^'"]*\{|.*\binvert\(""", re.DOTALL
)


def _printed(text: str) -> InvalidInputError:
    return InvalidInputError(
        "an expression of Polars or pyarrow was passed as text",
        remedy=f"options of Spark are texts: write {EXAMPLE}",
        filters=text[:200],
    )


def _bind_expression(filters: Any, schema: pa.Schema) -> Filters | None:
    # An expression exists only if its library is loaded; another thread may be loading one.
    arrow, polars = map(sys.modules.get, ("pyarrow.compute", "polars"))
    if isinstance(filters, getattr(arrow, "Expression", ())):
        return _parse_with("expressions.bind", filters, schema)
    if isinstance(filters, getattr(polars, "Expr", ())):
        return _parse_with("polars_predicate.parse_predicate", filters, schema)
    return None


def _parse_with(name: str, filters: Any, schema: pa.Schema) -> Filters:
    module, _, function = name.partition(".")
    parse = getattr(import_module(f"segstore_ds.read.filters.{module}"), function)
    found: Filters = parse(filters, schema)
    return found


def _are_alternatives(conditions: Sequence[Any]) -> bool:
    """Tell whether these are lists of conditions, of which one must hold, not conditions."""
    return bool(conditions) and all(
        isinstance(each, list | tuple)
        and each
        and all(isinstance(condition, list | tuple) for condition in each)
        for each in conditions
    )


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            "filters are not JSON", remedy=_EXAMPLE, filters=text[:200]
        ) from error


_EXAMPLE = """write [["user", "==", "ada"], ["ts", ">=", "2013-01-05T00:00:00Z"]]"""
_SYNONYMS = {"=": "==", "startswith": "starts with"}


def _parse_condition(schema: pa.Schema, condition: Any) -> Filters:
    """Return the filter of one list; an InvalidInputError names what would be valid."""
    parts = list(condition) if isinstance(condition, list | tuple) else []
    if len(parts) not in {2, 3} or not isinstance(parts[0], str) or not isinstance(parts[1], str):
        raise InvalidInputError(
            "a filter is not [column, op, literal]", remedy=_EXAMPLE, filter=condition
        )
    field = _find_field(parts[0], schema)
    op = " ".join(parts[1].lower().replace("-", " ").replace("_", " ").split())
    op = _SYNONYMS.get(op, op)
    if op not in OPS:
        raise InvalidInputError(
            "unknown operator in a filter",
            remedy=f"use one of {', '.join(sorted(OPS))}",
            op=parts[1],
            column=field.name,
        )
    literal = _parse_operand(parts[2:], op, field)
    return Filters((Condition(field.name, op, literal, field.type),))


def _find_field(name: str, schema: pa.Schema) -> pa.Field:
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index)
    import difflib  # noqa: PLC0415 - only for an error

    folded = {known.casefold(): known for known in schema.names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.0)
    raise InvalidInputError(
        "no such column in a filter",
        remedy=f"did you mean {folded[near[0]]!r}?" if near else "the stream has no columns",
        column=name,
    )


def _parse_operand(operands: Sequence[Any], op: str, field: pa.Field) -> Operand:
    if op in {"is null", "is not null"}:
        if any(operand is not None for operand in operands):
            raise _wrong_literal(field, op, operands[0], "no literal")
        return None
    if t.is_nested(field.type) or t.is_null(field.type):
        raise InvalidInputError(
            "a column's type allows only null tests",
            remedy="use is null or is not null",
            column=field.name,
            op=op,
            type=str(field.type),
        )
    if not operands:
        raise _wrong_literal(field, op, None, "a literal")
    if op == "starts with" and not (t.is_string(field.type) or t.is_binary(field.type)):
        raise _wrong_literal(field, op, operands[0], "a column of strings or binaries")
    if op not in {"in", "not in"}:
        return _literal(operands[0], op, field)
    if not isinstance(operands[0], list | tuple) or not operands[0]:
        raise _wrong_literal(field, op, operands[0], "a list of at least one literal")
    values = (None if value is None else _literal(value, op, field) for value in operands[0])
    return tuple(dict.fromkeys(values))


def _literal(value: Any, op: str, field: pa.Field) -> Literal:
    if value is None:
        raise _wrong_literal(field, op, value, "is null or is not null to test for nulls")
    try:
        return parse_literal(value, field.type)
    except ValueError as error:
        raise _wrong_literal(field, op, value, str(error)) from error


def _wrong_literal(field: pa.Field, op: str, value: Any, expected: str) -> InvalidInputError:
    return InvalidInputError(
        "a literal of a filter does not fit its column",
        remedy=f"use {expected}",
        column=field.name,
        type=str(field.type),
        op=op,
        literal=value,
    )
