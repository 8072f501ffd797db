"""Find decimals with more digits than their type, which Arrow accepts and Parquet changes.

A decimal takes sixteen bytes, which hold 38 digits, and Arrow checks values only on request.
Parquet stores a decimal type of few digits in fewer bytes, so a value that does not fit is read
back as another number. Pure.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
from pyarrow import types as t


@lru_cache(maxsize=64)
def decimal_columns(schema: pa.Schema) -> tuple[int, ...]:
    """Return the indexes of the columns that are or contain decimals.

    >>> decimal_columns(pa.schema([("n", pa.int64()), ("d", pa.list_(pa.decimal128(9, 2)))]))
    (1,)
    """
    return tuple(place for place, field in enumerate(schema) if _holds_decimals(field.type))


def find_overlong(batch: pa.RecordBatch, places: Sequence[int]) -> str | None:
    """Return the path of the first decimal column with a value of too many digits.

    `places` is what `decimal_columns` returns for the batch's schema. Nulls and values below a null
    are ignored.
    """
    for place in places:
        for path, leaf in _leaves(batch.column(place), batch.schema.field(place).name):
            try:
                leaf.validate(full=True)
            except pa.ArrowInvalid:
                return path
    return None


def _holds_decimals(data_type: pa.DataType) -> bool:
    if t.is_map(data_type):
        return _holds_decimals(data_type.key_type) or _holds_decimals(data_type.item_type)
    if t.is_struct(data_type) or t.is_list(data_type):
        children = range(data_type.num_fields)
        return any(_holds_decimals(data_type.field(child).type) for child in children)
    return bool(t.is_decimal(data_type))


def _leaves(array: pa.Array, path: str) -> Iterator[tuple[str, pa.Array]]:
    """Yield the decimal leaves of a column, without values below nulls."""
    if t.is_map(array.type):
        # Arrow can't flatten a map, but it can flatten the same buffers as a list of entries.
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        validity, offsets = array.buffers()[:2]
        array = pa.Array.from_buffers(
            pa.list_(entries.type),
            len(array),
            [validity, offsets],
            offset=array.offset,
            children=[entries],
        )
        yield from _leaves(array.flatten(), path)
    elif t.is_list(array.type):
        if _holds_decimals(array.type):
            yield from _leaves(array.flatten(), f"{path}.element")
    elif t.is_struct(array.type):
        if _holds_decimals(array.type):
            for field, child in zip(array.type, array.flatten(), strict=True):
                yield from _leaves(child, f"{path}.{field.name}")
    elif t.is_decimal(array.type):
        yield path, array
