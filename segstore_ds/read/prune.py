"""Pruning: which parts, segments and frames may hold a row that passes a filter.

`may_match` decides by statistics, which all three have. Conditions on numbers and times are tested
on whole columns of bounds, if there are such; others on each piece that is left. Skipping must
never lose a row.

A Bloom filter holds hashes of values in their stored type, so a key is looked up in the type of the
segment's own epoch. A value that this type can't hold is in none of its frames. A frame without a
filter may hold any value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.bloom import Filters as FrameFilters
from segstore_ds.format.bloom import Hashes, has_filter, hash_values, hold_any, may_hold
from segstore_ds.format.parts.rows import Ints
from segstore_ds.format.root import PartRef
from segstore_ds.format.statistics import Flags, Stats, absent_in
from segstore_ds.read.filters.conditions import Condition, Filters
from segstore_ds.read.filters.literals import Literal, parse_literal, typed_array
from segstore_ds.status.parts import WHOLE_SEGMENTS
from segstore_ds.status.table_status import Run

_EDGES: Mapping[str, Callable[[Any, Any, Any], Flags]] = {
    "==": lambda value, low, high: (low <= value) & (high >= value),
    "<": lambda value, low, _: low < value,
    "<=": lambda value, low, _: low <= value,
    ">": lambda value, _, high: high > value,
    ">=": lambda value, _, high: high >= value,
}


def may_match(
    filters: Filters,
    schema: pa.Schema,
    load_stats: Callable[[], Stats],
    counts: Ints,
    wanted: Flags | None = None,
) -> Flags:
    """Tell for each piece whether one of its rows may pass; pieces that are not `wanted` are out.

    `schema` has the filtered columns as they are read, and `counts` the rows of each piece.
    Statistics are loaded only if they can decide.
    """
    kept: Flags = counts > 0 if wanted is None else wanted
    if not (filters.conditions or filters.any_of) or not kept.any():
        return kept
    stats = load_stats()
    fields = {name: schema.field(name) for name in filters.columns}
    one_by_one = bool(filters.any_of)
    for condition in filters.conditions:
        if stats.columns is None or not _is_number(condition):
            one_by_one = True
            continue
        low, high, nulls, sure = stats.numbers(fields[condition.column], counts)
        # NaN is above infinity; a piece with NaN has no bounds.
        may = ~sure | _EDGES[condition.op](condition.literal, low, high)
        kept = kept & may & (nulls < counts)
    if one_by_one:
        kept = kept.copy()
        rows = np.flatnonzero(kept).tolist()
        known = [stats.bounds(field, rows) for field in fields.values()]
        for row, count, *each in zip(rows, counts[rows].tolist(), *known, strict=True):
            found = {name: own for name, own in zip(fields, each, strict=True) if own is not None}
            kept[row] = filters.may_match(found, count)
    return kept


def part_test(filters: Filters, schema: pa.Schema) -> Callable[[PartRef], bool]:
    """Return a function that tells whether a row of a status part may pass. Pure."""

    def test(part: PartRef) -> bool:
        load = partial(Stats.of_texts, [part.stats], where=part.path)
        return bool(may_match(filters, schema, load, np.array([part.end - part.start]))[0])

    return test if filters else lambda _part: True


def segments_to_read(
    run: Run,
    filters: Filters,
    schema: pa.Schema,
    schemas: Mapping[int, pa.Schema],
    *,
    looks_up: bool,
) -> Ints:
    """Return which segments of a run, by place, may hold a row that passes.

    `schema` is that of the read, `schemas` are those of the epochs. `looks_up` says that a filter
    asks for values of a key column.
    """
    columns = run.columns
    kept = np.ones(len(columns), np.bool_)
    for condition in filters.conditions:
        if condition.op != "is null":  # a column that was added later is null
            kept &= ~absent_in(columns.epochs, schemas, condition.column)

    def by_bounds(kept: Flags) -> Flags:
        return may_match(filters, schema, run.load_stats, columns.rows, kept)

    def by_keys(kept: Flags) -> Flags:
        if not (looks_up and kept.any()):
            return kept
        epochs = np.unique(columns.epochs).tolist()
        return kept & segments_holding(run, {n: find_keys(filters, schemas[n]) for n in epochs})

    # Bloom filters of a small part came in the same request; testing them is faster than bounds.
    small = len(columns) <= WHOLE_SEGMENTS
    kept = by_bounds(by_keys(kept)) if small else by_keys(by_bounds(kept))
    return np.flatnonzero(kept)


def _is_number(condition: Condition) -> bool:
    return condition.op in _EDGES and type(condition.literal) in (int, float)


LOOKUPS = frozenset(("==", "in"))


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """The values of one column, one of which a row must have to pass."""

    column: str
    hashes: Hashes


def looks_up(filters: Filters, key_columns: Sequence[str]) -> bool:
    """Tell whether filters ask for values of a key column."""
    return any(
        condition.op in LOOKUPS and condition.column in key_columns
        for condition in filters.conditions
    )


def find_keys(filters: Filters, stored: pa.Schema) -> tuple[Key, ...]:
    """Return what filters look up in segments whose columns have the types of `stored`."""
    found = []
    for condition in filters.conditions:
        index = stored.get_field_index(condition.column)
        if condition.op in LOOKUPS and index >= 0:
            hashes = _hashes_of(condition, stored.field(index).type)
            if hashes is not None:
                found.append(Key(condition.column, hashes))
    return tuple(found)


def may_hold_keys(keys: Sequence[Key], filters: FrameFilters) -> bool:
    """Return False only if no row of a frame with these filters passes."""
    return all(
        key.column not in filters or bool(may_hold(filters[key.column], key.hashes).any())
        for key in keys
    )


def segments_holding(run: Run, keys: Mapping[int, Sequence[Key]]) -> Flags:
    """Tell for each segment of a run whether its Bloom filters may hold the keys of its epoch."""
    kept = np.ones(len(run.columns), np.bool_)
    filters = run.load_filters()
    for epoch, asked in keys.items() if filters else ():
        rows = np.flatnonzero(run.columns.epochs == epoch).tolist()
        for key in asked:
            found = [
                (row, each[key.column])
                for row in rows
                if (each := filters[row]) and key.column in each
            ]
            owners = np.array([row for row, own in found for _ in own], np.int64)
            held = hold_any([data for _, own in found for data in own], key.hashes)
            may = np.ones(len(kept), np.bool_)
            may[owners] = False
            may[owners[held]] = True
            kept &= may
    return kept


def _hashes_of(condition: Condition, stored: pa.DataType) -> Hashes | None:
    """Return the hashes of a condition's values; None if they can't be looked up in this type."""
    widened = any(kind(stored) and kind(condition.type) for kind in (t.is_integer, t.is_decimal))
    if not has_filter(stored) or not (widened or stored.equals(condition.type)):
        return None
    operand = condition.literal
    literals = operand if isinstance(operand, tuple) else (operand,)
    if not stored.equals(condition.type):
        literals = tuple(_narrow(literal, stored) for literal in literals)
    return hash_values(typed_array(literals, stored))


def _narrow(literal: Literal | None, stored: pa.DataType) -> Literal | None:
    """Return a value in the stored type; None if that type can't hold it."""
    if literal is None or not (t.is_integer(stored) or t.is_decimal(stored)):
        return literal
    try:
        return parse_literal(literal, stored)
    except ValueError:
        return None
