"""What decoding a Parquet frame may cost, asked before Parquet's reader is.

A checksum proves who wrote the bytes, not that they mean well, and Parquet states how much comes
out in four places that need not agree: runs, page headers, column chunks, row groups. Its reader
believes the innermost. So every page header is read here first: what it says is held against the
rows and the size that the index gives, and those against the bytes that were stored. Strings are
the exception, since one word of a dictionary may stand for gigabytes: where that is possible they
are decoded to numbers of words, the words are counted, and only then written out. Pure.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parquet_pages import DATA, read_header
from segstore_ds.format.segment_index import FrameEntry

# Below these nobody asks how little was stored; above, so many times the stored bytes.
FREE_BYTES = 256 << 20
FREE_BYTES_OF_BITS = 20 << 20  # where lists hold what is smaller than its levels in Parquet
FREE_VALUES = 1 << 26
MOST_EXPANSION = 1000
# Words that may be written out unseen: less than what reading them as numbers is worth.
FREE_WORD_BYTES = 64 << 20
_SLACK = 64 << 10
_MOST_FIXED_BYTES = 16  # a decimal's: the only type that Parquet stores as such bytes
_BITS = {"BOOLEAN": 1, "INT32": 32, "INT64": 64, "FLOAT": 32, "DOUBLE": 64, "BYTE_ARRAY": 32}
_ZSTD = b"\x28\xb5\x2f\xfd"  # On disk, by zstd: how its frames begin.
_MOST_WALKED = 8192  # words; more are counted faster when they are read as words
_LENGTH = struct.Struct("<I")  # On disk, by Parquet: before each word.


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
    bits: int
    width: int
    repeated: bool


def find_leaves(
    metadata: pq.FileMetaData, types: Sequence[pa.DataType], *, where: str
) -> tuple[Leaf, ...]:
    """Return what bounds the columns of a file, whose types in Arrow are these.

    Raises:
        CorruptionError: One is of a type that no segment has.
    """
    leaves = []
    for place in range(len(types)):
        column = metadata.schema.column(place)
        kind, width = column.physical_type, 8
        if kind == "FIXED_LEN_BYTE_ARRAY":
            width = column.length
        repeated = column.max_repetition_level > 0
        void = t.is_null(types[place])
        bits = 8 * repeated if void else _BITS.get(kind, 8 * width)
        if kind == "INT32" and not void:
            bits = types[place].bit_width
        if kind == "INT96" or not 0 < width <= _MOST_FIXED_BYTES:
            raise CorruptionError("a segment has a column of another type", where=where, type=kind)
        width = 0 if kind == "BYTE_ARRAY" else width
        leaves.append(Leaf(place, bits, width, repeated))
    return tuple(leaves)


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
class Chunk:
    """The pages of one leaf in one frame, and what the footer says of them."""

    leaf: Leaf
    values: int
    data: memoryview


def check_pages(chunks: Iterable[Chunk], frame: FrameEntry, *, where: str) -> tuple[int, ...]:
    """Check that pages say no more than the index does, before anything is decoded.

    Args:
        chunks: Column chunks of a frame.
        frame: What the index says of it.
        where: The frame, for errors.

    Returns:
        The leaves whose words have to be counted: `write_out` has to be given them as words.

    Raises:
        CorruptionError: They say more, or contradict the footer.
    """
    bits = unpacked = 0
    limit = 2 * frame.raw_bytes
    most_words = max(FREE_WORD_BYTES, 2 * frame.raw_bytes)
    doubtful = []
    for chunk in chunks:
        leaf = chunk.leaf
        values, size, words = _measure(chunk, where)
        if values != chunk.values or not (leaf.repeated or values == frame.rows):
            raise CorruptionError(
                "pages hold another number of values",
                where=where,
                expected=chunk.values,
                actual=values,
            )
        bits += leaf.bits * (values - frame.rows if leaf.repeated else values)
        unpacked += size
        # Twice: once in a dictionary. Then the numbers of words, and levels.
        limit += 2 * (leaf.width or 4) * values + 8 * values + _SLACK
        if not leaf.width and words * values > most_words:
            doubtful.append(chunk)
    if bits > 8 * frame.raw_bytes or unpacked > limit:
        raise CorruptionError(
            "pages unpack to more than the index says",
            where=where,
            raw_bytes=frame.raw_bytes,
            values_bytes=bits // 8,
            page_bytes=unpacked,
        )
    counted = (one for one in doubtful if _longest_word(one, where) * one.values > most_words)
    return tuple(one.leaf.place for one in counted)


def _measure(chunk: Chunk, where: str) -> tuple[int, int, int]:
    """Add up what the page headers of a chunk say: values, bytes, bytes of the dictionary."""
    values = size = words = place = 0
    while place < len(chunk.data):
        first = not place
        kind, unpacked, stored, count, place = read_header(chunk.data, place, where)
        place += stored
        size += unpacked
        if kind == DATA:
            values += count
        elif first and count <= unpacked:
            words = unpacked
        else:
            raise CorruptionError("a dictionary is damaged", where=where, words=count)
    if place != len(chunk.data):
        raise CorruptionError("a page is cut", where=where)
    return values, size, words


def _longest_word(chunk: Chunk, where: str) -> int:
    """Return how long the longest word of a dictionary is, or more where that costs too much."""
    _, size, stored, count, place = read_header(chunk.data, 0, where)
    packed = chunk.data[place : place + stored]
    # The codec in the footer can't be asked for: an unknown one ends the process.
    if packed[:4] != _ZSTD or not count:
        return size
    page = memoryview(pa.decompress(packed, decompressed_size=size, codec="zstd")).cast("B")
    longest = _longest_at_a_glance(np.frombuffer(page, np.uint8), count)
    if longest is not None:
        return longest
    return size if count > _MOST_WALKED else _walk(page, count, where)


def _longest_at_a_glance(page: np.ndarray, count: int) -> int | None:
    """Return the length of the longest word, where words are all as long or short plain text."""
    size = len(page)
    width = size // count
    if width * count == size > 4 * count:
        lengths = page.reshape(count, width)[:, :4]
        if (lengths == np.frombuffer(_LENGTH.pack(width - 4), np.uint8)).all():
            return width - 4
    # A length below 256 is a byte and three zeros, which plain text has nowhere else. These may be
    # other things; they are the words if each begins where the one before ends.
    zeros = page == 0
    places = np.flatnonzero(zeros[1:-2] & zeros[2:-1] & zeros[3:])
    ends = places + 4 + page[places]
    if len(places) != count or places[0] or ends[-1] != size or (places[1:] != ends[:-1]).any():
        return None
    return int(page[places].max())


def _walk(page: memoryview, count: int, where: str) -> int:
    longest = place = 0
    for _ in range(count):
        if place + 4 > len(page):
            raise CorruptionError("a dictionary is damaged", where=where, words=count)
        (length,) = _LENGTH.unpack_from(page, place)
        longest = max(longest, length)
        place += 4 + length
    return longest


def write_out(column: pa.ChunkedArray, data_type: pa.DataType, limit: int) -> pa.ChunkedArray:
    """Return a column that was read as words of a dictionary as what it is.

    Args:
        column: With dictionaries, wherever strings are.
        data_type: What it is.
        limit: The most bytes its strings may take.

    Raises:
        ValueError: They take more.
    """
    total = 0
    for chunk in column.chunks:
        for words in _dictionaries(chunk):
            sizes = pc.take(pc.binary_length(words.dictionary), words.indices)
            total += pc.sum(pc.cast(sizes, pa.int64())).as_py() or 0
            if total > limit:
                raise ValueError(total)
    return column.cast(data_type)


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
