"""What decoding a Parquet frame may cost, asked before Parquet's reader is.

A checksum proves who wrote the bytes, not that they mean well, and Parquet states how much comes
out in four places that need not agree: runs, page headers, column chunks, row groups. Its reader
believes the innermost. So every page header is read here first: what it says is held against the
rows and the size that the index gives, and those against the bytes that were stored. Strings are
the exception, since one word of a dictionary may stand for gigabytes: where that is possible they
are decoded to numbers of words, the words are counted, and only then written out. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

from segstore_ds.errors import CorruptionError
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.parquet.encodings import leaf_types
from segstore_ds.format.parquet.pages import DATA, DICTIONARY, PageHeader

# Below these nobody asks how little was stored; above, so many times the stored bytes.
FREE_BYTES = 256 << 20
FREE_BYTES_OF_BITS = 20 << 20  # where lists hold what is smaller than its levels in Parquet
FREE_VALUES = 1 << 26
MOST_EXPANSION = 1000
FREE_WORD_BYTES = 64 << 20  # that words may come to where nobody counts them
MANY_VALUES = 4096  # from here on, reading numbers of words and then the words is faster
_SLACK = 64 << 10
_MOST_FIXED_BYTES = 16  # a decimal's: the only type that Parquet stores as such bytes


@dataclass(frozen=True, slots=True)
class Leaf:
    """What bounds a column of a file.

    Attributes:
        place: Its number.
        bits: What a value takes in Arrow at least, be it null.
        width: What it takes in Parquet at most, unpacked; 0 for strings.
        repeated: Whether a row may have more than one.
    """

    place: int
    bits: float
    width: int
    repeated: bool


def find_leaves(metadata: pq.FileMetaData, schema: pa.Schema, *, where: str) -> tuple[Leaf, ...]:
    """Return what bounds the columns of a file.

    Args:
        metadata: What its footer says; of as many columns as the schema has leaves.
        schema: Its columns.
        where: The segment, for errors.

    Raises:
        CorruptionError: One is of a type that no segment has.
    """
    leaves: list[Leaf] = []
    for one in schema:
        types = list(leaf_types(pa.schema([one])))
        for data_type in types:
            column = metadata.schema.column(len(leaves))
            leaf = _find_leaf(len(leaves), column, data_type, where)
            if column.max_repetition_level > 1:
                # A value may also be a list without any within a list: in Arrow that is one offset,
                # whatever is below it.
                leaf = replace(leaf, bits=min(leaf.bits, 32 / len(types)))
            leaves.append(leaf)
    return tuple(leaves)


def _find_leaf(place: int, column: pq.ColumnSchema, data_type: pa.DataType, where: str) -> Leaf:
    kind, width = column.physical_type, 8
    repeated = column.max_repetition_level > 0
    if kind == "FIXED_LEN_BYTE_ARRAY":
        width = column.length
    if t.is_null(data_type):
        bits = 8 * repeated
    elif kind == "BYTE_ARRAY":
        bits = 32
    else:
        known = t.is_primitive(data_type) or t.is_decimal(data_type)
        bits = data_type.bit_width if known or t.is_fixed_size_binary(data_type) else 0
    strange = not (bits or t.is_null(data_type)) or not 0 < width <= _MOST_FIXED_BYTES
    if kind == "INT96" or strange:
        raise CorruptionError("a segment has a column of another type", where=where, type=kind)
    return Leaf(place, bits, 0 if kind == "BYTE_ARRAY" else width, repeated)


def has_lists_of(schema: pa.Schema, found: Callable[[pa.DataType], bool]) -> bool:
    """Tell whether a type stands somewhere within a list or a map.

    Args:
        schema: Where to look.
        found: Tells whether it is a type that is looked for.
    """
    return any(_is_in_list(field.type, found, repeated=False) for field in schema)


def _is_in_list(
    data_type: pa.DataType, found: Callable[[pa.DataType], bool], *, repeated: bool
) -> bool:
    if t.is_map(data_type):
        children = [data_type.key_type, data_type.item_type]
    else:
        children = [data_type.field(place).type for place in range(data_type.num_fields)]
    if not children:
        return repeated and found(data_type)
    inside = repeated or not t.is_struct(data_type)
    return any(_is_in_list(child, found, repeated=inside) for child in children)


def is_small(data_type: pa.DataType) -> bool:
    """Tell whether a value takes less than what Parquet's reader needs beside it."""
    return bool(t.is_boolean(data_type) or (t.is_integer(data_type) and data_type.bit_width < 32))


def expands_too_far(frame: FrameEntry, leaves: int, *, bits: bool) -> bool:
    """Tell whether a frame says that it unpacks to more than so few bytes may hold.

    Args:
        frame: The frame.
        leaves: How many columns Parquet has for it.
        bits: Whether `is_small` is true of a type within its lists.
    """
    stored = MOST_EXPANSION * frame.bytes
    free = FREE_BYTES_OF_BITS if bits else FREE_BYTES
    return frame.raw_bytes > max(free, stored) or frame.rows * leaves > max(FREE_VALUES, stored)


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a frame may hold that is read however few bytes it takes.

    Attributes:
        leaves: How many columns Parquet has for it.
        bits: Whether `is_small` is true of a type within its lists.
        lists: Whether it has lists or maps.
    """

    leaves: int
    bits: bool
    lists: bool

    @classmethod
    def of(cls, schema: pa.Schema) -> "FrameLimits":
        """Return the limits of the frames of a schema."""
        return cls(
            len(list(leaf_types(schema))),
            has_lists_of(schema, is_small),
            has_lists_of(schema, lambda _: True),
        )

    def passes(self, batch: pa.RecordBatch) -> bool:
        """Tell whether a frame of these rows is surely read again; decided without encoding it."""
        rows, size = batch.num_rows, batch.nbytes
        free = FREE_BYTES_OF_BITS if self.bits else FREE_BYTES
        if size > free or rows * self.leaves > FREE_VALUES:
            return False
        # A value within lists takes a bit at least, or is an offset that leaves share.
        if not self.lists or self.leaves * (rows + 8 * size) <= FREE_VALUES:
            return True
        values = (_most_values(column, rows, repeated=False) for column in batch.columns)
        return sum(values) <= FREE_VALUES


def _most_values(array: pa.Array, values: int, *, repeated: bool) -> int:
    """Return how many values the leaves of a column that repeat have in Parquet, at most.

    Args:
        array: The column, or what is below it.
        values: How many Parquet has of it: more than there are, where lists above it are empty.
        repeated: Whether it is within a list.
    """
    if t.is_struct(array.type):
        children = [array.field(place) for place in range(array.type.num_fields)]
    elif t.is_list(array.type) or t.is_map(array.type):
        start, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        inner = [array.keys, array.items] if t.is_map(array.type) else [array.values]
        children = [child.slice(start, end - start) for child in inner]
        values += end - start
        repeated = True
    else:
        return values * repeated
    return sum(_most_values(child, values, repeated=repeated) for child in children)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of one leaf in one frame, and what the footer says of them."""

    leaf: Leaf
    values: int
    pages: Sequence[PageHeader]


def find_chunk(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk begins and ends in its file."""
    start = column.data_page_offset
    words = column.dictionary_page_offset
    if words is not None and 0 < words < start:
        start = words
    return start, start + column.total_compressed_size


def check_pages(chunks: Iterable[Chunk], frame: FrameEntry, *, where: str) -> None:
    """Check that pages say no more than the index does, before anything is decoded.

    Args:
        chunks: Column chunks of a frame.
        frame: What the index says of it.
        where: The frame, for errors.

    Raises:
        CorruptionError: They say more, or contradict the footer.
    """
    bits = 0.0
    unpacked = repeated = 0
    limit = 2 * frame.raw_bytes
    for chunk in chunks:
        leaf = chunk.leaf
        values = _count_values(chunk, where)
        right = values >= frame.rows if leaf.repeated else values == frame.rows
        if values != chunk.values or not right:
            raise CorruptionError(
                "pages hold another number of values",
                where=where,
                expected=chunk.values,
                actual=values,
                rows=frame.rows,
            )
        bits += leaf.bits * (values - frame.rows if leaf.repeated else values)
        repeated += values * leaf.repeated
        unpacked += sum(page.unpacked for page in chunk.pages)
        # Twice: once in a dictionary. Then the numbers of words, and levels.
        limit += 2 * (leaf.width or 4) * values + 8 * values + _SLACK
    most = max(FREE_VALUES, MOST_EXPANSION * frame.bytes)
    if bits > 8 * frame.raw_bytes or unpacked > limit or repeated > most:
        raise CorruptionError(
            "pages unpack to more than the index says",
            where=where,
            raw_bytes=frame.raw_bytes,
            values=repeated,
            values_bytes=int(bits // 8),
            page_bytes=unpacked,
        )


def _count_values(chunk: Chunk, where: str) -> int:
    values = 0
    for number, page in enumerate(chunk.pages):
        if page.kind == DATA:
            values += page.values
        elif number or page.values > page.unpacked:
            raise CorruptionError("a dictionary is damaged", where=where, words=page.values)
    return values


def find_words(chunks: Iterable[Chunk], frame: FrameEntry) -> tuple[int, ...]:
    """Return the leaves to read as words of a dictionary: `write_out` makes of them what they are.

    Those of many values, since that is the faster way; and those whose words have to be counted
    first. What the others come to, all together, is small or what the index says.

    Args:
        chunks: Column chunks of a frame that were checked.
        frame: What the index says of it.
    """
    free = max(FREE_WORD_BYTES, 2 * frame.raw_bytes)
    texts = []
    for chunk in chunks:
        first = chunk.pages[0] if chunk.pages else None
        if not chunk.leaf.width and first is not None and first.kind == DICTIONARY:
            texts.append((first.unpacked * chunk.values, chunk))
    words = []
    for most, chunk in sorted(texts, key=itemgetter(0)):
        if chunk.values >= MANY_VALUES or most > free:
            words.append(chunk.leaf.place)
        else:
            free -= most
    return tuple(sorted(words))


def write_out(
    column: pa.ChunkedArray, data_type: pa.DataType, limit: int
) -> tuple[pa.ChunkedArray, int]:
    """Return a column that was read as words of a dictionary as what it is.

    Args:
        column: With dictionaries, wherever strings are.
        data_type: What it is.
        limit: The most bytes its strings may take.

    Returns:
        The column, and how many bytes its strings take.

    Raises:
        ValueError: They take more.
    """
    total = 0
    for chunk in column.chunks:
        for words in _dictionaries(chunk):
            sizes = pc.take(pc.binary_length(words.dictionary), words.indices)
            total += pc.sum(sizes).as_py() or 0  # in 64 bits
            if total > limit:
                raise ValueError(total)
    return column.cast(data_type), total


def _dictionaries(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    data_type = array.type
    if t.is_dictionary(data_type):
        yield array
    elif t.is_struct(data_type):
        for child in array.flatten():
            yield from _dictionaries(child)
    elif t.is_map(data_type):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif t.is_list(data_type):
        yield from _dictionaries(array.flatten())
