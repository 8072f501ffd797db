"""Lookups by key: which segments and frames surely hold none of the values that filters ask for.

A Bloom filter holds hashes of values in the type in which they are stored, so a value is
looked up in the type of the segment's own epoch. What that type can't hold is in none of its
frames. What has no filter may hold everything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.bloom import Filters as FrameFilters
from segstore_ds.format.bloom import Hashes, has_filter, hash_values, hold_any, may_hold
from segstore_ds.format.parts.key_filters import SegmentFilters
from segstore_ds.read.filter_literals import Literal, parse_literal, typed_array
from segstore_ds.read.filters import Condition, Filters
from segstore_ds.status.table_status import Run

LOOKUPS = frozenset(("==", "in"))


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """Values of one column, of which a row must have one to pass."""

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


def may_match(keys: Sequence[Key], filters: FrameFilters) -> bool:
    """Return False only if no row of a frame with these filters passes."""
    return all(
        key.column not in filters or bool(may_hold(filters[key.column], key.hashes).any())
        for key in keys
    )


def segments_to_open(
    keys: Sequence[Key], segments: Sequence[SegmentFilters]
) -> npt.NDArray[np.bool_]:
    """Tell of each segment whether a row of it may pass, by the filters that it has."""
    kept = np.ones(len(segments), np.bool_)
    for key in keys:
        found = [
            (row, each[key.column])
            for row, each in enumerate(segments)
            if each and key.column in each
        ]
        owners = np.array([row for row, filters in found for _ in filters], np.int64)
        held = hold_any([data for _, filters in found for data in filters], key.hashes)
        may = np.ones(len(segments), np.bool_)
        may[owners] = False
        may[owners[held]] = True
        kept &= may
    return kept


def segments_holding(run: Run, keys: Mapping[int, Sequence[Key]]) -> npt.NDArray[np.bool_]:
    """Tell of each segment of a run whether its filters allow the keys of its epoch."""
    found = np.ones(len(run.columns), np.bool_)
    filters = run.load_filters()
    for epoch, asked in keys.items() if filters else ():
        own = np.flatnonzero(run.columns.epochs == epoch)
        found[own] = segments_to_open(asked, [filters[row] for row in own.tolist()])
    return found


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
