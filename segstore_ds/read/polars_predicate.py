"""Filters as expressions of Polars: pushed down as far as they are understood, applied by Polars.

A predicate's tree is read from its JSON, which another Polars may write otherwise: what is not
understood is left out, and more is read. The filters that are found need not be exact. They keep
every row for which the predicate is true, and Polars applies the whole predicate afterwards. So an
expression means what it means in Polars, from a lazy frame and from a caller.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.statistics import EXACT_FLOAT, Stats
from segstore_ds.read.expressions import no_rows
from segstore_ds.read.filter_text import OPPOSITE, TURNED
from segstore_ds.read.filters import Filters, all_of, parse_filters
from segstore_ds.read.frames import check_texts, load

_OPS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_BETWEEN = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_EVERYTHING = Filters()


@dataclass(frozen=True, slots=True, eq=False)
class Predicate:
    """A predicate as Polars would hand it to a scan; picklable.

    Attributes:
        expression: The expression, its literals typed by Polars.
        schema: The columns that it needs, in normal form.
    """

    expression: Any = field(repr=False)
    schema: pa.Schema

    def may_match(self, stats: Stats, rows: int) -> bool:  # noqa: ARG002 - as an Expression
        """Return True: what statistics can rule out, the implied filters do."""
        return True

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which it is true, in order; `batch` itself if it is for all."""
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
            "an expression of Polars does not look at one event alone, or may fail",
            remedy="give it to scan(...).to_polars().filter(...), which reads all events",
            filters=str(expression)[:200],
        )
    needed = predicate.meta.root_names() or schema.names[:1]
    own = pa.schema([schema.field(name) for name in dict.fromkeys(needed)])
    bound = Predicate(predicate, own)
    bound.apply(no_rows(own))  # some types are compared only now
    return replace(implied_filters(predicate, schema), expressions=(bound,))


def _as_pushed(expression: Any, empty: Any) -> Any:
    """Return a predicate as Polars pushes it down to a scan; None if it does not."""
    found: list[Any] = []

    def source(_columns: Any, predicate: Any, _rows: Any, _size: Any) -> Iterator[Any]:
        found.append(predicate)
        yield empty

    plugins = load("polars.io.plugins")
    query = plugins.register_io_source(source, schema=empty.schema).filter(expression)
    if not query.explain().startswith("PYTHON SCAN"):
        return None  # all of it, or a part, is left to a step behind the scan
    query.collect()
    return found[0] if found else None


def _not_valid(expression: Any, error: Exception) -> InvalidInputError:
    return InvalidInputError(
        "an expression of Polars does not fit the stream",
        remedy="use columns of the stream and literals of their types",
        filters=str(expression)[:200],
        reason=str(error).partition("\n")[0],
    )


def implied_filters(predicate: Any, schema: pa.Schema) -> Filters:
    """Return filters that every row passes for which a predicate of Polars is true."""
    return _Reader(schema).implied(json.loads(predicate.meta.serialize(format="json")), truth=True)


class _Reader:
    """Reads nodes of a predicate over columns of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def implied(self, node: Any, *, truth: bool) -> Filters:
        """Return filters that every row passes for which a node is true, or is false."""
        kind, value = _only_item(node)
        if kind == "Column":
            return self._condition(value, "==", truth)
        if kind == "BinaryExpr" and isinstance(value, dict):
            return self._binary(value.get("op"), value.get("left"), value.get("right"), truth)
        if kind == "Function" and isinstance(value, dict) and isinstance(value.get("input"), list):
            return self._function(value.get("function"), value["input"], truth)
        return _EVERYTHING

    def _binary(self, op: Any, left: Any, right: Any, truth: bool) -> Filters:
        if op in {"And", "LogicalAnd", "Or", "LogicalOr"}:
            sides = [self.implied(side, truth=truth) for side in (left, right)]
            return all_of(sides) if op.endswith("And") == truth else _any(sides)
        if op in {"EqValidity", "NotEqValidity"}:
            # Null is another value than any literal; what is compared with null is left out.
            equal = (op == "EqValidity") == truth
            found = self._compare("==" if equal else "!=", left, right)
            return found if equal else _any([found, self._null_test(left, is_null=True)])
        if op not in _OPS:
            return _EVERYTHING
        return self._compare(_OPS[op] if truth else OPPOSITE[_OPS[op]], left, right)

    def _function(self, function: Any, inputs: list[Any], truth: bool) -> Filters:
        kind, value = _only_item(function)
        if kind in {"StringExpr", "BinaryExpr"} and value == "StartsWith" and len(inputs) == 2:
            return self._starts_with(inputs[0], inputs[1], truth)
        if kind != "Boolean":
            return _EVERYTHING
        name, options = (value, None) if isinstance(value, str) else _only_item(value)
        options = options if isinstance(options, dict) else {}
        tests: dict[tuple[Any, int], Callable[[], Filters]] = {
            ("Not", 1): lambda: self.implied(inputs[0], truth=not truth),
            ("IsNull", 1): lambda: self._null_test(inputs[0], is_null=truth),
            ("IsNotNull", 1): lambda: self._null_test(inputs[0], is_null=not truth),
            ("IsNan", 1): lambda: self._nan_test(inputs[0], is_nan=truth),
            ("IsNotNan", 1): lambda: self._nan_test(inputs[0], is_nan=not truth),
            ("IsBetween", 3): lambda: self._between(options.get("closed"), inputs, truth),
            ("IsIn", 2): lambda: self._is_in(options.get("nulls_equal"), inputs, truth),
        }
        test = tests.get((name, len(inputs)))
        return test() if test else _EVERYTHING

    def _starts_with(self, node: Any, prefix: Any, truth: bool) -> Filters:
        if not truth or self._column(node) is None:
            return self._null_test(node, is_null=False)
        return self._compare("starts with", node, prefix)

    def _null_test(self, node: Any, *, is_null: bool) -> Filters:
        return self._condition(self._column(node), "is null" if is_null else "is not null", None)

    def _nan_test(self, node: Any, *, is_nan: bool) -> Filters:
        return self._condition(self._column(node), "==" if is_nan else "!=", math.nan)

    def _between(self, closed: Any, inputs: list[Any], truth: bool) -> Filters:
        if closed not in _BETWEEN:
            return _EVERYTHING
        column, *bounds = inputs
        ops = _BETWEEN[closed] if truth else [OPPOSITE[op] for op in _BETWEEN[closed]]
        found = [self._compare(op, column, bound) for op, bound in zip(ops, bounds, strict=True)]
        return all_of(found) if truth else _any(found)

    def _is_in(self, nulls_equal: Any, inputs: list[Any], truth: bool) -> Filters:
        node, literals = inputs
        values = _values(literals)
        known = [value for value in values if value is not None]
        if not known or self._column(node) is None:
            return _EVERYTHING
        # A null in the list is equal to nulls alone, if to anything: of the others it rules out
        # none, and whether it lets nulls pass need not be known.
        found = self._condition(self._column(node), "in" if truth else "not in", known)
        return found if nulls_equal is False else _any([found, self._null_test(node, is_null=True)])

    def _compare(self, op: str, left: Any, right: Any) -> Filters:
        if not _values(right):
            left, right, op = right, left, TURNED.get(op, op)
        values = _values(right)
        if len(values) != 1 or values[0] is None:
            return _EVERYTHING
        column = self._column(left)
        if column is None:
            return self._compare_as_float(left, op, values[0])
        return self._condition(column, op, values[0])

    def _compare_as_float(self, node: Any, op: str, value: Any) -> Filters:
        """Return how whole numbers compare that Polars compares as floats."""
        column = self._whole_number(node, "Float64")
        if column is None or not isinstance(value, float) or not abs(value) < EXACT_FLOAT:
            return _EVERYTHING
        if value.is_integer():
            return self._condition(column, op, int(value))
        if op in {">", ">="}:
            return self._condition(column, ">", math.floor(value))
        return self._condition(column, "<", math.ceil(value)) if op in {"<", "<="} else _EVERYTHING

    def _column(self, node: Any) -> Any:
        """Return a column's name, also if it is cast without a change; None for anything else."""
        kind, value = _only_item(node)
        return value if kind == "Column" else self._whole_number(node, "Int64")

    def _whole_number(self, node: Any, wider: str) -> Any:
        """Return the name of a column of whole numbers that is cast to a type; or None."""
        kind, value = _only_item(node)
        if (
            kind != "Cast"
            or not isinstance(value, dict)
            or value.get("dtype") != {"Literal": wider}
        ):
            return None
        kind, name = _only_item(value.get("expr"))
        index = self._schema.get_field_index(name) if kind == "Column" else -1
        return name if index >= 0 and t.is_integer(self._schema.field(index).type) else None

    def _condition(self, column: Any, op: str, operand: Any) -> Filters:
        """Return one condition; none if its column or its literal is not one of ours."""
        try:
            found = parse_filters([[column, op, operand]], self._schema)
        except InvalidInputError:
            return _EVERYTHING
        # We take texts for binaries and times as well, Polars does not.
        values = operand if isinstance(operand, list) else [operand]
        texts = any(isinstance(value, str) for value in values)
        return _EVERYTHING if texts and not t.is_string(found.conditions[0].type) else found


def _any(found: list[Filters]) -> Filters:
    return Filters(any_of=(tuple(found),)) if all(found) else _EVERYTHING


def _only_item(node: Any) -> tuple[Any, Any]:
    """Return the kind and the value of a node; no kind if it is not one."""
    return next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else (None, None)


def _values(node: Any) -> list[Any]:
    """Return the value of a literal, or those that it lists; none if a node is something else."""
    kind, value = _only_item(node)
    while (kind == "Cast" and isinstance(value, dict)) or (kind == "Alias" and value):
        kind, value = _only_item(value.get("expr") if kind == "Cast" else value[0])
    if kind != "Literal":
        return []
    polars = load("polars")
    try:
        expression = polars.Expr.deserialize(json.dumps(node).encode(), format="json")
        series = polars.select(expression).to_series()
    except polars.exceptions.PolarsError:
        return []  # JSON has neither NaN nor infinity
    series = series.explode() if series.dtype.is_nested() else series
    values: list[Any] = series.to_list()
    # Python's times have no nanoseconds.
    return values if polars.Series(values, dtype=series.dtype).equals(series) else []
