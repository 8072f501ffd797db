"""The conditions that an expression of Arrow or Polars implies, so that segments can be skipped.

The expression's own library applies it exactly. So these filters only have to keep every row for
which it is true: what is not understood keeps all rows. A node is a tuple of an operator and its
operands, which are nodes as well. A comparison of a column with a literal becomes a condition if
the column's type holds the literal exactly.
"""

import math
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.bounds import EXACT_FLOAT
from segstore_ds.read.filters.conditions import (
    OPPOSITE,
    SWAPPED,
    Condition,
    Filters,
    all_of,
    some_of,
)
from segstore_ds.read.filters.literals import NAN, Literal, parse_literal, typed_array

# ("column", name), ("value", array), ("not", node), ("in", node, value, whether null equals null),
# ("is nan", node), or an operator of `Condition`, "and" or "or" with two nodes.
Node = tuple[Any, ...]
UNKNOWN = "?"  # the operator of anything else


def implied_filters(node: Node, schema: pa.Schema) -> Filters:
    """Return filters that keep every row for which a node is true."""
    try:
        return _implied(node, schema, truth=True)
    except RecursionError:  # libraries nest deeper than Python recurses
        return Filters()


def _implied(node: Node, schema: pa.Schema, *, truth: bool) -> Filters:
    match node:
        case ("and" | "or" as word, left, right):
            sides = [_implied(each, schema, truth=truth) for each in (left, right)]
            return all_of(sides) if (word == "and") == truth else some_of(sides)
        case ("not", inner):
            return _implied(inner, schema, truth=not truth)
        case (op, ("value", _) as value, ("column", _) as column) if op in SWAPPED:
            return _implied((SWAPPED[op], column, value), schema, truth=truth)
        case (op, ("column", name), ("value", value)) if op in SWAPPED:
            return _compare(schema, name, op if truth else OPPOSITE[op], value)
        case ("column", name):
            return _condition(schema, name, "==", pa.array([truth]))
    return _implied_by_test(node, schema, truth=truth)


def _implied_by_test(node: Node, schema: pa.Schema, *, truth: bool) -> Filters:
    match node:
        case ("is null" as op, ("column", name)):
            return _test(schema, name, op if truth else OPPOSITE[op])
        case ("is nan", ("column", name)):
            return _test(schema, name, "==" if truth else "!=", NAN)
        case ("starts with" as op, ("column", name), ("value", prefix)) if truth:
            return _condition(schema, name, op, prefix)
        case ("in", ("column", name), ("value", values), nulls_equal):
            found = _condition(schema, name, "in" if truth else "not in", values.drop_null())
            if not nulls_equal or (truth and not values.null_count):
                return found
            return some_of([found, _test(schema, name, "is null")])
    return Filters()


def columns_of(node: Node) -> set[str]:
    """Return the columns that a node names."""
    if node[0] == "column":
        return {node[1]}
    return {name for each in node if isinstance(each, tuple) for name in columns_of(each)}


def _compare(schema: pa.Schema, name: str, op: str, value: pa.Array) -> Filters:
    whole = t.is_integer(schema.field(name).type)
    number = value[0].as_py() if len(value) == 1 and whole and t.is_float64(value.type) else None
    if number is None:
        return _condition(schema, name, op, value)
    # The library compares whole numbers with a float as floats.
    if not abs(number) < EXACT_FLOAT:
        return Filters()
    if number.is_integer():
        return _condition(schema, name, op, pa.array([int(number)]))
    above = _condition(schema, name, ">", pa.array([math.floor(number)]))
    below = _condition(schema, name, "<", pa.array([math.ceil(number)]))
    sides = {">": [above], ">=": [above], "<": [below], "<=": [below], "==": [above, below]}
    return all_of(sides.get(op, []))


def _condition(schema: pa.Schema, name: str, op: str, values: pa.Array) -> Filters:
    """Return a condition; none if the column's type does not hold a literal."""
    data_type = schema.field(name).type
    literals = tuple(dict.fromkeys(_literal(value, data_type) for value in values))
    many = op in {"in", "not in"}
    if not literals or None in literals or (len(values) > 1 and not many):
        return Filters()
    if op == "starts with" and not (t.is_string(data_type) or t.is_binary(data_type)):
        return Filters()
    return _test(schema, name, op, literals if many else literals[0])


def _test(schema: pa.Schema, name: str, op: str, operand: Any = None) -> Filters:
    return Filters((Condition(name, op, operand, schema.field(name).type),))


def _literal(value: pa.Scalar, data_type: pa.DataType) -> Literal | None:
    """Return a literal in the column's type; None if that is not exactly the same value."""
    if t.is_floating(value.type) and not t.is_floating(data_type):
        return None  # the column would be rounded to be compared
    try:
        of_time = t.is_timestamp(value.type) or t.is_duration(value.type)
        literal = parse_literal(value if of_time else value.as_py(), data_type)
        same = typed_array([literal], data_type)[0].cast(value.type).equals(value)
    except (ValueError, TypeError, NotImplementedError):
        return None
    return literal if same else None
