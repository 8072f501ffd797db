"""Filters of a read: conditions joined by AND and OR, exact, with SQL's null semantics.

A filter is used twice: `may_match` skips frames and segments by their statistics, then `apply`
removes rows exactly. Skipping must never lose a row that `apply` would keep. Values compare as in
Spark: NaN equals NaN and is above every other number, the two zeros are equal, strings compare by
their UTF-8 bytes, and a comparison with null is never true.
"""

import difflib
import json
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial, reduce
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.statistics import ColumnStats, Stats, in_type
from segstore_ds.read.expressions import bind
from segstore_ds.read.filter_literals import NAN, Literal, parse_literal, typed_array
from segstore_ds.read.filter_text import Join, parse_text


class ArrowExpression(Protocol):
    """What a `pyarrow.compute.Expression` is to a type checker, which may know no Arrow."""

    def is_valid(self) -> Any:
        """Return the expression of whether it is not null."""


class PolarsExpression(Protocol):
    """What a `polars.Expr` is to a type checker, where there may be no Polars."""

    @property
    def meta(self) -> Any:
        """What the expression consists of."""


FilterLike: TypeAlias = (
    str
    | Sequence[Sequence[Any] | ArrowExpression | PolarsExpression]
    | ArrowExpression
    | PolarsExpression
    | None
)

Operand = Literal | tuple[Literal | None, ...] | None


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on one column.

    Attributes:
        column: The column's name.
        op: One of ``== != < <= > >= in``, ``not in``, ``is null``, ``is not null``,
            ``starts with``.
        literal: The value to compare with, in the form of bounds in statistics; NaN is the text
            "NaN". A tuple for ``in`` and ``not in``, None for the null tests.
        type: The column's type in normal form.
    """

    column: str
    op: str
    literal: Operand
    type: pa.DataType

    def may_match(self, stats: ColumnStats, rows: int) -> bool:
        """Return False only if no row satisfies the condition.

        `stats` are the column's statistics over `rows` rows.
        """
        if self.op == "is null":
            return stats.nulls > 0
        if stats.nulls >= rows:
            return False
        stats = in_type(stats, self.type)
        if self.op == "is not null" or (stats.min is None and stats.max is None):
            return True
        if self.op == "in":
            return self._may_be_in(stats)
        if self.op == "not in":
            return all(self._may_compare("!=", literal, stats) for literal in _many(self.literal))
        return self._may_compare(self.op, self.literal, stats)

    def _may_be_in(self, stats: ColumnStats) -> bool:
        literals = _many(self.literal)
        ordered = _ordered(literals)
        if not ordered or not type(stats.min) is type(stats.max) is type(ordered[0]):
            return any(self._may_compare("==", literal, stats) for literal in literals)
        # A thousand segments and a thousand literals would be a million comparisons.
        place = bisect_left(ordered, stats.min)
        return place < len(ordered) and bool(ordered[place] <= stats.max)

    def _may_compare(self, op: str, literal: Any, stats: ColumnStats) -> bool:
        if literal is None:
            return False
        low, high = stats.min, stats.max
        if literal == NAN and t.is_floating(self.type):
            # Bounds exist only for values without NaN, and NaN is above all of them.
            return op in {"!=", "<", "<="}
        if any(bound is not None and type(bound) is not type(literal) for bound in (low, high)):
            return True
        return _PRUNING[op](literal, low, high)

    def mask(self, array: pa.Array) -> pa.Array:
        """Return one boolean per value of the column; null where SQL's result is unknown."""
        if self.op == "is null":
            return array.is_null()
        if self.op == "is not null":
            return array.is_valid()
        if self.op == "in":
            return _is_in(array, _many(self.literal))
        if self.op == "not in":
            return pc.invert(_is_in(array, _many(self.literal)))
        if self.op == "starts with":
            return pc.starts_with(array, pattern=self.literal)
        return _compare(array, self.op, self.literal)


def _many(literal: Any) -> tuple[Any, ...]:
    return tuple(literal)


@lru_cache(maxsize=16)
def _ordered(literals: tuple[Any, ...]) -> list[Any]:
    """Return literals in order, without nulls; none if they are of several types."""
    known = [literal for literal in literals if literal is not None]
    return sorted(known) if len({*map(type, known)}) == 1 else []


class RowTest(Protocol):
    """An expression that was bound to a schema: it names its columns, and drops rows and ranges."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that it needs."""

    def may_match(self, stats: Stats, rows: int) -> bool:
        """Return False only if no row satisfies it."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that satisfy it, in order."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What rows must satisfy, all of it; nothing keeps every row. Picklable.

    Attributes:
        conditions: Conditions on one column each.
        any_of: Groups of alternatives; of each group one must hold.
        expressions: Expressions of Arrow and of Polars.
    """

    conditions: tuple[Condition, ...] = ()
    any_of: tuple[tuple["Filters", ...], ...] = ()
    expressions: tuple["RowTest", ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `apply` reads, each once."""
        found = [condition.column for condition in self.conditions]
        found += [name for group in self.any_of for each in group for name in each.columns]
        found += [name for each in self.expressions for name in each.schema.names]
        return tuple(dict.fromkeys(found))

    def __bool__(self) -> bool:
        return bool(self.conditions or self.any_of or self.expressions)

    def may_match(self, stats: Stats, rows: int) -> bool:
        """Return False only if no row passes the filter.

        `stats` are statistics of some of the columns, over `rows` rows.
        """
        return (
            rows > 0
            and all(
                condition.column not in stats or condition.may_match(stats[condition.column], rows)
                for condition in self.conditions
            )
            and all(any(each.may_match(stats, rows) for each in group) for group in self.any_of)
            and all(each.may_match(stats, rows) for each in self.expressions)
        )

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass, in order; `batch` itself if all pass.

        `batch` must have at least `columns`, in normal form.
        """
        if not self or not batch.num_rows:
            return batch
        mask = self.mask(batch)
        kept = batch.num_rows if mask is None else mask.true_count
        if kept < batch.num_rows:
            batch = batch.filter(mask) if kept else batch.slice(0, 0)
        # Last, on fewer rows: Polars converts what it is given.
        for expression in self.expressions if kept else ():
            batch = expression.apply(batch)
        return batch

    def mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return whether conditions and alternatives hold for each row; None if there are none."""
        masks = [condition.mask(batch.column(condition.column)) for condition in self.conditions]
        groups = ([each.mask(batch) for each in group] for group in self.any_of)
        masks.extend(reduce(pc.or_kleene, alternatives) for alternatives in groups)
        return reduce(pc.and_kleene, masks) if masks else None


def _may_start(prefix: Any, low: Any, high: Any) -> bool:
    if high is not None and high < prefix:
        return False
    return low is None or low <= prefix or low.startswith(prefix)


def _compare(array: pa.Array, op: str, literal: Any) -> pa.Array:
    if literal == NAN and t.is_floating(array.type):
        return _compare_with_nan(array, op)
    compared = _KERNELS[op](array, _scalar(literal, array.type))
    if op in {">", ">="} and t.is_floating(array.type):
        return pc.or_(compared, pc.is_nan(array))
    return compared


def _compare_with_nan(array: pa.Array, op: str) -> pa.Array:
    is_nan = pc.is_nan(array)
    if op in {"==", ">="}:
        return is_nan
    if op in {"!=", "<"}:
        return pc.invert(is_nan)
    # Every value is <= NaN and none is above it; nulls stay unknown.
    return pc.or_(is_nan, pc.invert(is_nan)) if op == "<=" else pc.and_not(is_nan, is_nan)


def _is_in(array: pa.Array, literals: Sequence[Any]) -> pa.Array:
    data_type = array.type
    values = [literal for literal in literals if literal is not None]
    masks = []
    if t.is_floating(data_type):
        if NAN in values:
            masks.append(pc.is_nan(array))
            values.remove(NAN)
        if 0.0 in values:
            values += [0.0, -0.0]
    # `is_in` compares floats by their bits, so the set contains both zeros.
    found = pc.is_in(array, value_set=typed_array(values, data_type))
    masks.append(found)
    if None in literals:
        known: Any = reduce(pc.or_kleene, masks)
    else:
        known = array.is_valid()
    unknown = pa.scalar(None, pa.bool_())
    return pc.if_else(known, reduce(pc.or_kleene, masks), unknown)


def _scalar(literal: Any, data_type: pa.DataType) -> pa.Scalar:
    return typed_array([literal], data_type)[0]


_KERNELS: dict[str, Any] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

# A bound of None is unknown, so it excludes nothing.
_PRUNING: dict[str, Callable[[Any, Any, Any], bool]] = {
    "==": lambda v, low, high: (low is None or low <= v) and (high is None or high >= v),
    "!=": lambda v, low, high: not low == high == v,
    "<": lambda v, low, _: low is None or low < v,
    "<=": lambda v, low, _: low is None or low <= v,
    ">": lambda v, _, high: high is None or high > v,
    ">=": lambda v, _, high: high is None or high >= v,
    "starts with": _may_start,
}

_OPS = frozenset((*_PRUNING, "in", "not in", "is null", "is not null"))


def parse_filters(filters: FilterLike | Filters, schema: pa.Schema) -> Filters:
    """Parse filters: a text, lists of ``[column, op, literal]``, or an expression.

    Expressions are those of Arrow and of Polars, also among the conditions of a list.

    A text is an expression such as ``n > 3 and user == 'ada'``, or JSON of such lists. Filters that
    were parsed before stay. Of lists of such lists one must hold. The null tests take no
    literal; ``in`` and ``not in`` take a list. None or an empty list keeps every row. Literals are
    typed by `schema`, the stream's schema in normal form. An InvalidInputError names what would be
    valid.
    """
    if isinstance(filters, Filters):
        return filters
    bound = _bind_expression(filters, schema)
    if bound is not None:
        return bound
    if isinstance(filters, str) and filters.strip() not in ("", "null") and not _is_json(filters):
        joined: Filters = parse_text(filters, Join(partial(_leaf, schema), all_of, some_of))
        return joined
    conditions: Any = _load(filters) if isinstance(filters, str) else filters
    if conditions is None:
        return Filters()
    if not isinstance(conditions, list | tuple):
        raise InvalidInputError("filters are not a list", remedy=_EXAMPLE, filters=conditions)
    if not _are_alternatives(conditions):
        return all_of(
            [_bind_expression(each, schema) or _leaf(schema, each) for each in conditions]
        )
    found = [parse_filters(conditions, schema) for conditions in conditions]
    return some_of(found)


def _bind_expression(filters: Any, schema: pa.Schema) -> Filters | None:
    if isinstance(filters, pc.Expression):
        return Filters(expressions=(bind(filters, schema),))
    polars = sys.modules.get("polars")  # who has an expression of it has loaded it
    if polars is None or not isinstance(filters, polars.Expr):
        return None
    module: Any = import_module("segstore_ds.read.polars_predicate")
    found: Filters = module.parse_predicate(filters, schema)
    return found


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("[", "{")


def _leaf(schema: pa.Schema, condition: Sequence[Any]) -> Filters:
    return Filters((_parse_condition(condition, schema),))


def all_of(filters: Sequence[Filters]) -> Filters:
    """Return the filters that must all hold as one."""
    return Filters(
        tuple(condition for each in filters for condition in each.conditions),
        tuple(group for each in filters for group in each.any_of),
        tuple(expression for each in filters for expression in each.expressions),
    )


def some_of(filters: Sequence[Filters]) -> Filters:
    """Return the filters of which one must hold."""
    return filters[0] if len(filters) == 1 else Filters(any_of=(tuple(filters),))


def _are_alternatives(conditions: Sequence[Any]) -> bool:
    """Tell lists of conditions, of which one must hold, from a list of conditions."""
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


def _parse_condition(condition: Any, schema: pa.Schema) -> Condition:
    parts = list(condition) if isinstance(condition, list | tuple) else []
    if len(parts) not in {2, 3} or not isinstance(parts[0], str) or not isinstance(parts[1], str):
        raise InvalidInputError(
            "a filter is not [column, op, literal]", remedy=_EXAMPLE, filter=condition
        )
    field = _find_field(parts[0], schema)
    op = " ".join(parts[1].lower().replace("-", " ").replace("_", " ").split())
    op = _SYNONYMS.get(op, op)
    if op not in _OPS:
        raise InvalidInputError(
            "unknown operator in a filter",
            remedy=f"use one of {', '.join(sorted(_OPS))}",
            op=parts[1],
            column=field.name,
        )
    literal = _parse_operand(parts[2:], op, field)
    return Condition(field.name, op, literal, field.type)


def _find_field(name: str, schema: pa.Schema) -> pa.Field:
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index)
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
