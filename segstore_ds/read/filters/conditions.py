"""Filters of a read: conditions joined by AND and OR, exact, with SQL's null semantics.

A filter is used twice: `may_match` skips rows by their bounds, then `apply` removes rows exactly.
Skipping must never lose a row that `apply` would keep. Values compare as in Spark: NaN equals NaN
and is above every other number, the two zeros are equal, strings compare by their UTF-8 bytes, and
a comparison with null is never true.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format import compute as pc
from segstore_ds.format.bounds import Bounds
from segstore_ds.format.schema.column_names import with_names
from segstore_ds.read.filters.literals import NAN, Literal, typed_array

Operand = Literal | tuple[Literal | None, ...] | None


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on one column."""

    column: str
    # One of ``== != < <= > >= in``, ``not in``, ``is null``, ``is not null``, ``starts with``.
    op: str
    # The value to compare with, in the form of bounds in statistics; NaN is the text "NaN". A tuple
    # for ``in`` and ``not in``, None for the null tests.
    literal: Operand
    type: pa.DataType  # the column's type in normal form

    def may_match(self, bounds: Bounds, rows: int) -> bool:
        """Return False only if no row satisfies the condition."""
        low, high, nulls = bounds
        if self.op == "is null":
            return nulls > 0
        if nulls >= rows:
            return False
        if self.op == "is not null" or (low is None and high is None):
            return True
        if self.op == "in":
            return self._may_be_in(low, high)
        if self.op == "not in":
            return all(self._may_compare("!=", each, low, high) for each in _many(self.literal))
        return self._may_compare(self.op, self.literal, low, high)

    def _may_be_in(self, low: Any, high: Any) -> bool:
        literals = _many(self.literal)
        ordered = _ordered(literals)
        if not ordered or not type(low) is type(high) is type(ordered[0]):
            return any(self._may_compare("==", literal, low, high) for literal in literals)
        # A thousand segments and a thousand literals would be a million comparisons.
        place = bisect_left(ordered, low)
        return place < len(ordered) and bool(ordered[place] <= high)

    def _may_compare(self, op: str, literal: Any, low: Any, high: Any) -> bool:
        if literal is None:
            return False
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
    """An expression that was bound to a schema: it names its columns, and drops rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that it needs."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that satisfy it, in order."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What every row must satisfy; without conditions, every row is kept. Picklable."""

    conditions: tuple[Condition, ...] = ()  # each on one column
    # Groups of alternatives; at least one of each group must hold.
    any_of: tuple[tuple["Filters", ...], ...] = ()
    # Expressions of Arrow and of Polars. The other two fields have the conditions that they imply.
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

    def renamed(self, names: Mapping[str, str]) -> "Filters":
        """Return the filters with other names of some columns."""
        if not names:
            return self
        return Filters(
            tuple([replace(c, column=names.get(c.column, c.column)) for c in self.conditions]),
            tuple([tuple([each.renamed(names) for each in group]) for group in self.any_of]),
            tuple([_RenamedTest(each, names) for each in self.expressions]),
        )

    def where(self, column: str, value: pa.Array) -> "Filters | None":
        """Return what remains if a column has one value everywhere; None if no row passes."""
        left, groups = [], []
        for condition in self.conditions:
            if condition.column != column:
                left.append(condition)
            elif not condition.mask(value)[0].as_py():
                return None
        for group in self.any_of:
            found = [one for each in group if (one := each.where(column, value)) is not None]
            if not found:
                return None
            if all(found):  # an empty one keeps every row
                groups.append(tuple(found))
        return Filters(tuple(left), tuple(groups), self.expressions)

    def may_match(self, bounds: Mapping[str, Bounds], rows: int) -> bool:
        """Return False only if no row passes, by the bounds of some columns in so many rows."""
        return (
            rows > 0
            and all(
                one.column not in bounds or one.may_match(bounds[one.column], rows)
                for one in self.conditions
            )
            and all(any(each.may_match(bounds, rows) for each in group) for group in self.any_of)
        )

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass, in order; `batch` itself if all pass."""
        if not self or not batch.num_rows:
            return batch
        mask = self.mask(batch)
        kept = batch.num_rows if mask is None else mask.true_count
        if kept < batch.num_rows:
            batch = batch.filter(mask) if kept else batch.slice(0, 0)
        # Expressions are slower, so they come last, on fewer rows.
        for expression in self.expressions if kept else ():
            batch = expression.apply(batch)
        return batch

    def mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return whether conditions and alternatives hold for each row; None if there are none."""
        masks = [condition.mask(batch.column(condition.column)) for condition in self.conditions]
        groups = ([each.mask(batch) for each in group] for group in self.any_of)
        masks.extend(reduce(pc.or_kleene, alternatives) for alternatives in groups)
        return reduce(pc.and_kleene, masks) if masks else None


@dataclass(frozen=True, slots=True)
class _RenamedTest:
    """An expression for batches in which some of its columns have other names."""

    test: RowTest
    names: Mapping[str, str]

    @property
    def schema(self) -> pa.Schema:
        """The columns that it needs."""
        known = self.test.schema
        return with_names(known, [self.names.get(name, name) for name in known.names])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that satisfy it, in order."""
        called = dict(zip(self.schema.names, self.test.schema.names, strict=True))
        names = batch.schema.names
        given = [called.get(name, f"\0{place}") for place, name in enumerate(names)]
        return self.test.apply(batch.rename_columns(given)).rename_columns(names)


def _may_start(prefix: Any, low: Any, high: Any) -> bool:
    if high is not None and high < prefix:
        return False
    return low is None or low <= prefix or low.startswith(prefix)


def _compare(array: pa.Array, op: str, literal: Any) -> pa.Array:
    if literal == NAN and t.is_floating(array.type):
        return _compare_with_nan(array, op)
    compared = getattr(pc, _KERNELS[op])(array, _scalar(literal, array.type))
    if op in {">", ">="} and t.is_floating(array.type):
        return pc.or_(compared, pc.is_nan(array))
    return compared


def _compare_with_nan(array: pa.Array, op: str) -> pa.Array:
    is_nan = pc.is_nan(array)
    if op in {"==", ">="}:
        return is_nan
    if op in {"!=", "<"}:
        return pc.invert(is_nan)
    # Every value is <= NaN and none is above it; the result for null is null.
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


_KERNELS = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
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

OPS = frozenset((*_PRUNING, "in", "not in", "is null", "is not null"))
OPPOSITE = {"==": "!=", "<": ">=", "<=": ">", "in": "not in", "is null": "is not null"}
OPPOSITE |= {other: op for op, other in OPPOSITE.items()}
SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}  # its operands


def all_of(filters: Sequence[Filters]) -> Filters:
    """Return one filter that holds where all of these hold."""
    return Filters(
        tuple(condition for each in filters for condition in each.conditions),
        tuple(group for each in filters for group in each.any_of),
        tuple(expression for each in filters for expression in each.expressions),
    )


def some_of(filters: Sequence[Filters]) -> Filters:
    """Return one filter that holds where at least one of these holds."""
    if not all(filters):
        return Filters()  # one of them keeps every row
    if len(filters) == 1:
        return filters[0]
    # Alternatives of alternatives are one group, however deeply an expression nests them.
    groups = [
        each.any_of[0]
        if len(each.any_of) == 1 and not (each.conditions or each.expressions)
        else (each,)
        for each in filters
    ]
    return Filters(any_of=(tuple(each for group in groups for each in group),))
