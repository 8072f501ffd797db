"""The newest event of each key: the current state that a stream of changes describes."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format import compute as pc

FOLD_ROWS = 1 << 18  # at least so many events are gathered before older ones of a key are dropped
_PLACE = "place"


def check_key(schema: pa.Schema, key: Sequence[str], tombstone: str | None) -> None:
    """Raise InvalidInputError unless a key and a tombstone are columns that can serve as such."""
    if not key:
        raise InvalidInputError("no key", remedy="name at least one column")
    for name in (*key, *([] if tombstone is None else [tombstone])):
        if name not in schema.names:
            raise InvalidInputError("no such column", column=name, columns=schema.names)
    for name in key:
        if t.is_nested(schema.field(name).type):
            raise InvalidInputError(
                "a list, map or struct can't be a key",
                remedy="choose columns of plain values",
                column=name,
            )
    if tombstone is not None and not t.is_boolean(schema.field(tombstone).type):
        raise InvalidInputError(
            "a tombstone must be a column of booleans",
            column=tombstone,
            type=str(schema.field(tombstone).type),
        )


def newest_by_key(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    key: Sequence[str],
    tombstone: str | None = None,
) -> pa.Table:
    """Return the last event of each key, in stream order.

    Null, NaN and zero are each one key. A key whose last event's tombstone is true is left out.
    Memory holds the last events, and about as many rows again.
    """
    kept = schema.empty_table()
    new, rows = list[pa.RecordBatch](), 0
    for batch in batches:
        new.append(batch)
        rows += batch.num_rows
        # Only after as many rows as there are keys: so each event is copied only a few times.
        if rows >= max(FOLD_ROWS, kept.num_rows):
            kept, new, rows = _last_rows(kept, new, key), [], 0
    kept = _last_rows(kept, new, key)
    if tombstone is not None:
        kept = kept.filter(pc.fill_null(pc.invert(kept[tombstone]), True))
    return kept


def _last_rows(kept: pa.Table, new: Sequence[pa.RecordBatch], key: Sequence[str]) -> pa.Table:
    table = pa.concat_tables([kept, pa.Table.from_batches(new, kept.schema)])
    places = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), len(table)))
    # Numbers, since a column of the key may be named like `_PLACE`.
    names = [*map(str, range(len(key)))]
    numbered = pa.table([*(_one_form(table[name]) for name in key), places], [*names, _PLACE])
    last = numbered.group_by(names).aggregate([(_PLACE, "max")])[f"{_PLACE}_max"]
    return table.take(pc.subtract(last.take(pc.sort_indices(last)), 1)).combine_chunks()


def _one_form(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of a key in which all NaNs have the same bits, and both zeros."""
    if not t.is_floating(column.type):
        return column
    nan, zero = (pa.scalar(value, column.type) for value in (float("nan"), 0.0))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))  # -0.0 + 0.0 is 0.0
