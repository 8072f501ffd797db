"""Choose which text columns of a Parquet frame decode faster as dictionaries."""

from collections.abc import Iterable

import pyarrow.parquet as pq

MANY_VALUES = 4096  # from this many on, decoding as a dictionary is faster
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})


def find_dictionaries(group: pq.RowGroupMetaData, leaves: Iterable[int]) -> tuple[int, ...]:
    """Return those of some leaves of a row group that decode faster as dictionaries."""
    return tuple(leaf for leaf in leaves if _has_many_words(group.column(leaf)))


def _has_many_words(column: pq.ColumnChunkMetaData) -> bool:
    return (
        column.physical_type == "BYTE_ARRAY"
        and column.num_values >= MANY_VALUES
        and not _DICTIONARY_ENCODINGS.isdisjoint(column.encodings)
    )
