"""Choose the encoding and the bounds of each column of a Parquet segment by trial. Pure.

Dictionaries make compacted history small, but waste time and bytes on ids, measured values and
times. Two small trial files, one with dictionaries and one with the encoding that otherwise suits
the type, show which columns gain from a dictionary. Only encodings that every engine reads are
used: plain, dictionary and, for integers and times, delta. (Byte-stream split is smaller for no
type for which Spark's reader accepts it.) Floats get no bounds. Numbers and times in lists and
values of maps get no dictionary: Spark's code of `transform`, `filter`, `distinct` and others looks
up a null's value, too, by an id of an earlier row group, and fails.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t

from segstore_ds.format.schema.normal_form import children_of

SAMPLE_ROWS = 16_384
# The cost of a dictionary is extrapolated from the sample to a frame of this size, or to the first
# frame if that is larger. Some grow with the rows and some are complete in the sample, so the
# estimate is halfway between.
_FRAME_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Encodings:
    """Settings of a Parquet writer for leaf columns.

    `dictionary` names the columns with a dictionary and `others` gives the encodings of others.
    `bounded` names the columns whose bounds other engines may rely on; None means all.
    `row_bytes` is about what a row of the trial takes in the file.
    """

    dictionary: tuple[str, ...]
    others: dict[str, str]
    bounded: tuple[str, ...] | None = None
    row_bytes: float = 0.0

    def options(self) -> dict[str, Any]:
        """Return the settings as arguments of `pyarrow.parquet.ParquetWriter`."""
        found: dict[str, Any] = {"use_dictionary": list(self.dictionary) or False}
        if self.others:
            found["column_encoding"] = self.others
        if self.bounded is not None:
            found["write_statistics"] = list(self.bounded) or False
        return found

    def expect_bytes(self, rows: int) -> int:
        """Estimate what so many rows take in the file."""
        return int(self.row_bytes * rows)


def choose_encodings(batch: pa.RecordBatch, options: dict[str, Any]) -> Encodings:
    """Choose encodings by writing the first rows of a segment twice.

    `batch` has at least one row; `options` are the writer's other arguments.
    """
    sample = pa.Table.from_batches([batch.slice(0, SAMPLE_ROWS)])
    leaves = leaves_of(batch.schema)
    with_dictionary = _trial(sample, {**options, "use_dictionary": True})
    paths = [with_dictionary.column(place).path_in_schema for place in range(len(leaves))]
    found = [(path, *leaf) for path, leaf in zip(paths, leaves, strict=True)]
    # Parquet's bounds leave out NaN, which Spark and DuckDB order last: they would skip its rows.
    floats = {path for path, leaf, _ in found if t.is_floating(leaf)}
    bounded = tuple(path for path in dict.fromkeys(paths) if path not in floats)
    barred = {
        path
        for path, leaf, repeated in found
        if repeated and (t.is_floating(leaf) or _is_integer(leaf))
    }
    twice = len(set(paths)) != len(paths)  # a name with a dot may look like a field of a struct
    if twice:
        row_bytes = with_dictionary.total_byte_size / sample.num_rows
        coded = tuple(path for path in dict.fromkeys(paths) if path not in barred)
        return Encodings(coded, {}, bounded, row_bytes)
    deltas = {path: "DELTA_BINARY_PACKED" for path, leaf, _ in found if _is_integer(leaf)}
    without = _trial(sample, {**options, **Encodings((), deltas).options()})
    factor = max(_FRAME_ROWS, batch.num_rows) / sample.num_rows
    chosen = []
    least = 0
    for place, path in enumerate(paths):
        coded, plain = with_dictionary.column(place), without.column(place)
        size = coded.total_compressed_size
        least += min(size, plain.total_compressed_size)
        words = 0
        if coded.dictionary_page_offset is not None:
            words = coded.data_page_offset - coded.dictionary_page_offset
        expected = words * (1 + factor) / 2 + (size - words) * factor
        if expected < plain.total_compressed_size * factor and path not in barred:
            chosen.append(path)
            deltas.pop(path, None)
    return Encodings(tuple(chosen), deltas, bounded, least / sample.num_rows)


def _trial(sample: pa.Table, options: dict[str, Any]) -> pq.RowGroupMetaData:
    sink = pa.BufferOutputStream()
    pq.write_table(sample, sink, row_group_size=sample.num_rows, **options)
    return pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)


def leaves_of(schema: pa.Schema) -> list[tuple[pa.DataType, bool]]:
    """Return the types of the leaf columns that a schema has in Parquet, in order.

    With each comes whether it lies within lists or values of maps.
    """
    return [leaf for field in schema for leaf in _leaves(field.type, repeated=False)]


def _leaves(data_type: pa.DataType, *, repeated: bool) -> Iterator[tuple[pa.DataType, bool]]:
    children = children_of(data_type)
    if not (children or t.is_struct(data_type)):
        yield data_type, repeated
    for place, child in enumerate(children):
        within = t.is_list(data_type) or (t.is_map(data_type) and place == 1)
        yield from _leaves(child.type, repeated=repeated or within)


def _is_integer(data_type: pa.DataType) -> bool:
    """Tell whether a leaf is stored as an integer, whose steps may be smaller than itself."""
    return bool(t.is_integer(data_type) or t.is_temporal(data_type))


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
