"""Expressions of Polars as filters: Polars itself applies them, so they mean the same as there.

The conditions that a predicate implies are read from its JSON, whose form depends on the version of
Polars: what is not understood is left out, and more segments are read.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.filters.expressions import no_rows
from segstore_ds.read.filters.implied import UNKNOWN, Node, implied_filters
from segstore_ds.read.frames import check_texts, load

_OPERATORS = {
    "Eq": "==",
    "NotEq": "!=",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "And": "and",
    "LogicalAnd": "and",
    "Or": "or",
    "LogicalOr": "or",
}
_BETWEEN = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}


@dataclass(frozen=True, slots=True, eq=False)
class Predicate:
    """A predicate as Polars would pass it to a scan; picklable."""

    expression: Any = field(repr=False)  # the expression, its literals typed by Polars
    schema: pa.Schema  # the columns that it needs, in normal form

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which it is true, in order; `batch` itself if it is true for all."""
        polars, own = load("polars"), batch.select(self.schema.names)
        check_texts(own)
        try:
            # A constant has one value, which a new column repeats.
            frame = polars.from_arrow(own).with_columns(self.expression.alias(""))
            mask = frame.get_column("").to_arrow()
        except polars.exceptions.PolarsError as error:
            raise _not_valid(self.expression, error) from error
        return batch if mask.true_count == batch.num_rows else batch.filter(mask)


def parse_predicate(expression: Any, schema: pa.Schema) -> Filters:
    """Return an expression of Polars as filters; an InvalidInputError if it is no predicate."""
    polars = load("polars")
    try:
        predicate = _as_pushed(expression, polars.from_arrow(schema.empty_table()))
    except polars.exceptions.PolarsError as error:
        raise _not_valid(expression, error) from error
    if predicate is None:
        raise InvalidInputError(
            "an expression of Polars needs more than one event, or can fail",
            remedy="give it to scan(...).to_polars().filter(...), which reads all events",
            filters=str(expression)[:200],
        )
    needed = predicate.meta.root_names() or schema.names[:1]
    own = pa.schema([schema.field(name) for name in dict.fromkeys(needed)])
    bound = Predicate(predicate, own)
    bound.apply(no_rows(own))  # Polars checks some types only when it compares
    return replace(implied_by(predicate, schema), expressions=(bound,))


def _as_pushed(expression: Any, empty: Any) -> Any:
    """Return a predicate as Polars pushes it down to a scan; None if Polars does not."""
    found: list[Any] = []

    def source(_columns: Any, predicate: Any, _rows: Any, _size: Any) -> Iterator[Any]:
        found.append(predicate)
        yield empty

    plugins = load("polars.io.plugins")
    query = plugins.register_io_source(source, schema=empty.schema).filter(expression)
    if not query.explain().startswith("PYTHON SCAN"):
        return None  # Polars applies all of it, or a part, after the scan
    query.collect()
    return found[0] if found else None


def _not_valid(expression: Any, error: Exception) -> InvalidInputError:
    return InvalidInputError(
        "an expression of Polars does not fit the stream",
        remedy="use columns of the stream and literals of their types",
        filters=str(expression)[:200],
        reason=str(error).partition("\n")[0],
    )


def implied_by(predicate: Any, schema: pa.Schema) -> Filters:
    """Return filters that keep every row for which a predicate of Polars is true."""
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        return implied_filters(_read(tree, schema), schema)
    except RecursionError:  # Polars nests deeper than Python recurses
        return Filters()


def _read(tree: Any, schema: pa.Schema) -> Node:
    match tree:
        case {"Column": str(name)} if name in schema.names:
            return ("column", name)
        case {"Cast": {"expr": {"Column": str(name)}, "dtype": {"Literal": "Int64" | "Float64"}}}:
            place = schema.get_field_index(name)
            whole = place >= 0 and t.is_integer(schema.field(place).type)
            return ("column", name) if whole else (UNKNOWN,)  # the cast changes no value
        case {"BinaryExpr": {"op": str(op), "left": left, "right": right}}:
            return _binary(op, _read(left, schema), _read(right, schema))
        case {"Function": {"input": [column, *operands], "function": {"Boolean": test}}}:
            return _test(test, _read(column, schema), [_read(each, schema) for each in operands])
        case {
            "Function": {
                "input": [column, prefix],
                "function": {"StringExpr": "StartsWith"} | {"BinaryExpr": "StartsWith"},
            }
        }:
            return ("starts with", _read(column, schema), _read(prefix, schema))
    values = _values(tree)
    return (UNKNOWN,) if values is None else ("value", values)


def _binary(op: str, left: Node, right: Node) -> Node:
    match op, left, right:
        case "EqValidity" | "NotEqValidity", ("column", _), ("value", value):
            if len(value) != 1 or value.null_count:
                return (UNKNOWN,)
            # Here null is a value that differs from every literal.
            equal = ("and", ("==", left, right), ("not", ("is null", left)))
            return equal if op == "EqValidity" else ("not", equal)
    return (_OPERATORS.get(op, UNKNOWN), left, right)


def _test(test: Any, column: Node, operands: list[Node]) -> Node:
    match test, operands:
        case str(), [] if test in _TESTS:
            return _TESTS[test](column)
        case {"IsBetween": {"closed": str(closed)}}, [low, high] if closed in _BETWEEN:
            above, below = _BETWEEN[closed]
            return ("and", (above, column, low), (below, column, high))
        case {"IsIn": {"nulls_equal": bool(nulls_equal)}}, [values]:
            return ("in", column, values, nulls_equal)
    return (UNKNOWN,)


_TESTS: dict[str, Callable[[Node], Node]] = {
    "Not": lambda node: ("not", node),
    "IsNull": lambda node: ("is null", node),
    "IsNotNull": lambda node: ("not", ("is null", node)),
    "IsNan": lambda node: ("is nan", node),
    "IsNotNan": lambda node: ("not", ("is nan", node)),
}


def _values(tree: Any) -> pa.Array | None:
    """Return the value of a literal, or the values of a list; None if it is something else."""
    match tree:
        case {"Literal": {"Scalar": {"Float64": float(number)}}}:
            return pa.array([number])
    inner = tree
    while True:
        match inner:
            case {"Cast": {"expr": inner}} | {"Alias": [inner, *_]}:
                continue
            case {"Literal": _}:
                break
        return None
    polars = load("polars")
    try:
        expression = polars.Expr.deserialize(json.dumps(tree).encode(), format="json")
        if json.loads(expression.meta.serialize(format="json")) != tree:
            return None  # Polars parses some numbers inexactly
        series = polars.select(expression).to_series()
    except polars.exceptions.PolarsError:
        return None  # JSON has neither NaN nor infinity
    return (series.explode() if series.dtype.is_nested() else series).to_arrow()
