"""Texts of a Parquet frame are read as words of their dictionary, where that is the faster way."""

from collections.abc import Iterable

import pyarrow.parquet as pq

MANY_VALUES = 4096  # from here on, reading numbers of words and then the words is faster
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})


def find_dictionaries(group: pq.RowGroupMetaData, leaves: Iterable[int]) -> tuple[int, ...]:
    """Return those of some leaves of a row group to read as words of a dictionary."""
    return tuple(leaf for leaf in leaves if _has_many_words(group.column(leaf)))


def _has_many_words(column: pq.ColumnChunkMetaData) -> bool:
    return (
        column.physical_type == "BYTE_ARRAY"
        and column.num_values >= MANY_VALUES
        and not _DICTIONARY_ENCODINGS.isdisjoint(column.encodings)
    )
