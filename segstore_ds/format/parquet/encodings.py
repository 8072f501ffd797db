"""How each column of a Parquet segment is written: its encoding, by trying, and bounds. Pure.

Dictionaries are what makes settled history small, and a waste of time and bytes for ids, measured
values and times. Two small trial files, one with dictionaries and one with what suits the type
otherwise, tell which column is which. Only encodings that every engine reads are used: plain,
dictionary and, for whole numbers and times, delta (byte-stream split is smaller for no type that
Spark's reader takes it for). Floats get no bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t

SAMPLE_ROWS = 16_384
# What a dictionary costs in a frame of this size, from what it costs in the sample: some grow with
# the rows, some are whole already. Halfway between the two.
_FRAME_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Encodings:
    """What a writer is told of leaf columns.

    Attributes:
        dictionary: Those with a dictionary.
        others: Encodings of others.
        bounded: Those whose least and greatest value other engines may go by; None for all.
    """

    dictionary: tuple[str, ...]
    others: dict[str, str]
    bounded: tuple[str, ...] | None = None

    def options(self) -> dict[str, Any]:
        """Return them as `pyarrow.parquet.ParquetWriter` takes them."""
        found: dict[str, Any] = {"use_dictionary": list(self.dictionary) or False}
        if self.others:
            found["column_encoding"] = self.others
        if self.bounded is not None:
            found["write_statistics"] = list(self.bounded) or False
        return found


def choose_encodings(batch: pa.RecordBatch, options: dict[str, Any]) -> Encodings:
    """Choose by writing the first rows twice.

    Args:
        batch: Rows that the segment begins with; one at least.
        options: What else the writer is told.
    """
    sample = pa.Table.from_batches([batch.slice(0, SAMPLE_ROWS)])
    leaves = list(leaf_types(batch.schema))
    with_dictionary = _trial(sample, {**options, "use_dictionary": True})
    paths = [with_dictionary.column(place).path_in_schema for place in range(len(leaves))]
    # Bounds leave NaN out, which Spark and DuckDB hold above every number: they would pass over it.
    floats = {path for path, leaf in zip(paths, leaves, strict=True) if t.is_floating(leaf)}
    bounded = tuple(path for path in dict.fromkeys(paths) if path not in floats)
    twice = len(set(paths)) != len(paths)  # a name with a dot may look like a field of a struct
    if twice:
        return Encodings(tuple(dict.fromkeys(paths)), {}, bounded)
    deltas = {
        path: "DELTA_BINARY_PACKED"
        for path, leaf in zip(paths, leaves, strict=True)
        if suits_delta(leaf)
    }
    without = _trial(sample, {**options, **Encodings((), deltas).options()})
    factor = max(_FRAME_ROWS / sample.num_rows, 1.0)
    chosen = []
    for place, path in enumerate(paths):
        mine, other = with_dictionary.column(place), without.column(place)
        size = mine.total_compressed_size
        words = 0
        if mine.dictionary_page_offset is not None:
            words = mine.data_page_offset - mine.dictionary_page_offset
        expected = words * (1 + factor) / 2 + (size - words) * factor
        if expected < other.total_compressed_size * factor:
            chosen.append(path)
    others = {path: name for path, name in deltas.items() if path not in chosen}
    return Encodings(tuple(chosen), others, bounded)


def _trial(sample: pa.Table, options: dict[str, Any]) -> pq.RowGroupMetaData:
    sink = pa.BufferOutputStream()
    pq.write_table(sample, sink, row_group_size=sample.num_rows, **options)
    return pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)


def leaf_types(schema: pa.Schema) -> Iterator[pa.DataType]:
    """Yield the types of the leaf columns that a schema has in Parquet, in their order."""
    for field in schema:
        yield from _leaves(field.type)


def _leaves(data_type: pa.DataType) -> Iterator[pa.DataType]:
    if t.is_struct(data_type) or t.is_map(data_type) or t.is_list(data_type):
        children = (
            [data_type.key_type, data_type.item_type]
            if t.is_map(data_type)
            else [data_type.field(place).type for place in range(data_type.num_fields)]
        )
        for child in children:
            yield from _leaves(child)
    else:
        yield data_type


def suits_delta(data_type: pa.DataType) -> bool:
    """Tell whether a leaf is stored as a whole number whose steps may be smaller than itself."""
    return t.is_integer(data_type) or (t.is_temporal(data_type) and not t.is_time32(data_type))
