"""Split-block Bloom filters of key columns: they show which values a frame does not hold.

The algorithm is Parquet's: xxHash64 of the value's bytes in Parquet's plain encoding; the upper
half of the hash selects a block of 256 bits, and the lower half one bit in each of its eight words.
Values are hashed in the type in which they are stored. All steps are vectorised: hashing one value
at a time would take longer than encoding the frame.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import CorruptionError
from segstore_ds.format import compute as pc

BLOCK_BYTES = 32  # On disk, by Parquet.
_BLOCK_BITS = 8 * BLOCK_BYTES
# On disk, by Parquet: one odd factor for each word of a block.
_SALTS = np.array(
    [
        0x47B6137B,
        0x44974D91,
        0x8824AD5B,
        0xA2B7289D,
        0x705495C7,
        0x2DF1424B,
        0x9EFC4947,
        0x5C6BFB31,
    ],
    np.uint32,
)
VALUE_BITS = 16  # bits per distinct value: one in 700 absent values is a false positive
LEAST_VALUE_BITS = 4  # with fewer bits one in three is: such a filter is not worth its bytes
SHARE = 0.025  # share of a frame's bytes for all of its filters
MOST_VALUE_BYTES = 1024  # columns with a longer value have no filter
MOST_SET = 0.5  # most set bits in joined filters: one in 250 absent values is a false positive

Filters = Mapping[str, bytes]  # the filter of each column that has one
Hashes = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]

_PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_P1, _P2, _P3, _P4, _P5 = (np.uint64(prime) for prime in _PRIMES)


def has_filter(data_type: pa.DataType) -> bool:
    """Tell whether a type in normal form may be a key: neither float, nested nor null."""
    return not (t.is_nested(data_type) or t.is_floating(data_type) or t.is_null(data_type))


def distinct_values(batch: pa.RecordBatch, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Return the `distinct` values of the named columns that may be keys."""
    return {name: distinct(batch.column(name)) for name in keys_of(batch.schema, columns)}


def build_filters(
    schema: pa.Schema, columns: Mapping[str, pa.Array], *, frame_bytes: int
) -> Filters:
    """Return filters of the `distinct_values` of a frame, within `SHARE` of its bytes."""
    found = {}
    left = int(frame_bytes * SHARE)
    for place, (name, values) in enumerate(columns.items()):
        blocks = -(-max(len(values), 1) * VALUE_BITS // _BLOCK_BITS)
        blocks = max(min(blocks, left // (len(columns) - place) // BLOCK_BYTES), 1)
        if blocks * _BLOCK_BITS < len(values) * LEAST_VALUE_BITS:
            continue
        hashes = hash_distinct(values, schema.field(name).type)
        if hashes is not None:
            found[name] = insert(hashes, blocks)
            left -= blocks * BLOCK_BYTES
    return found


def keys_of(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return the columns that a schema in normal form has and that may be keys."""
    places = ((name, schema.get_field_index(name)) for name in columns)
    return [name for name, place in places if place >= 0 and has_filter(schema.field(place).type)]


def insert(hashes: Hashes, blocks: int) -> bytes:
    """Return a filter of `blocks` blocks that has the hashes."""
    bits = np.zeros(blocks * _BLOCK_BITS, np.bool_)
    word = _block_of(hashes, blocks) * _BLOCK_BITS
    low = hashes.astype(np.uint32)
    for salt in _SALTS:  # word by word: all eight at once would not fit in the CPU's cache
        bits[word + ((low * salt) >> np.uint32(27))] = True
        word += 32
    return np.packbits(bits, bitorder="little").tobytes()


def _block_of(hashes: Hashes, blocks: int) -> _Places:
    return (((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)


def _bits_of(hashes: Hashes, blocks: int) -> _Places:
    """Return the eight bits of each hash, as places in the whole filter."""
    bit = (hashes.astype(np.uint32)[:, None] * _SALTS) >> np.uint32(27)
    words = np.arange(8, dtype=np.int64) * 32
    places: _Places = _block_of(hashes, blocks)[:, None] * _BLOCK_BITS + words + bit
    return places


def may_hold(data: bytes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Tell for each hash whether a filter may hold its value."""
    places = _bits_of(hashes, len(data) // BLOCK_BYTES)
    held = np.frombuffer(data, np.uint8)[places >> 3] >> (places & 7).astype(np.uint8)
    found: npt.NDArray[np.bool_] = (held & 1).all(axis=1)
    return found


def hold_any(filters: Sequence[bytes], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Tell for each filter whether it may hold a value with one of the hashes."""
    words = np.frombuffer(b"".join(filters), "<u4").reshape(-1, 8)
    blocks = np.array([len(data) // BLOCK_BYTES for data in filters], np.uint64)
    first = np.cumsum(blocks) - blocks
    found = np.zeros(len(filters), np.bool_)
    for value in hashes:
        rows = first + (((value >> np.uint64(32)) * blocks) >> np.uint64(32))
        low = np.uint32(value & np.uint64(0xFFFFFFFF))
        bits = np.uint32(1) << ((low * _SALTS) >> np.uint32(27))
        found |= ((words[rows.astype(np.int64)] & bits) == bits).all(axis=1)
    return found


def join_filters(filters: Sequence[bytes]) -> tuple[bytes, ...]:
    """Join neighbouring filters of one size; the result holds all values of the given filters.

    Filters that would be too full together are not joined.
    """
    found: list[npt.NDArray[np.uint8]] = []
    for data in filters:
        bits = np.frombuffer(data, np.uint8)
        if found and len(found[-1]) == len(bits):
            both = found[-1] | bits
            if int(np.unpackbits(both).sum()) <= MOST_SET * 8 * len(both):
                found[-1] = both
                continue
        found.append(bits)
    return tuple(bits.tobytes() for bits in found)


def lacks_value(filters: Sequence[bytes], column: pa.Array) -> bool:
    """Tell whether some value of a column is in none of its filters, so that reads would lose rows.

    Values that are too long to hash are ignored: reads do not look them up in filters.
    """
    if not has_filter(column.type):
        return True
    hashes = hash_distinct(_short_enough(distinct(column)), column.type)
    if hashes is None:
        return True
    held = np.zeros(len(hashes), np.bool_)
    for data in filters:
        held |= may_hold(data, hashes)
    return not bool(held.all())


def _short_enough(values: pa.Array) -> pa.Array:
    if not (t.is_string(values.type) or t.is_binary(values.type)):
        return values
    return values.filter(pc.less_equal(pc.binary_length(values), MOST_VALUE_BYTES))


def encode_filters(filters: Filters) -> dict[str, str]:
    """Return the filters of a frame as JSON for a footer."""
    return {name: base64.b64encode(data).decode() for name, data in filters.items()}


def decode_filters(value: Any, *, where: str) -> dict[str, bytes]:
    """Parse what `encode_filters` returned; the value is untrusted."""
    try:
        found = {name: base64.b64decode(text, validate=True) for name, text in value.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptionError("filters of a segment cannot be read", where=where) from error
    return {name: check_filter(data, where=where) for name, data in found.items()}


def check_filter(data: bytes, *, where: str) -> bytes:
    """Return the bytes of a filter; CorruptionError if they can't be one."""
    if not data or len(data) % BLOCK_BYTES:
        raise CorruptionError("a filter of a segment cannot be read", where=where)
    return data


def hash_values(array: pa.Array) -> Hashes | None:
    """Return the hash of each distinct value except null; None if one is too long to hash."""
    return hash_distinct(distinct(array), array.type)


def distinct(array: pa.Array) -> pa.Array:
    """Return the distinct values of a column except null, and times as integers."""
    data_type = array.type
    if t.is_temporal(data_type):
        array = array.view(pa.int32() if data_type.bit_width == 32 else pa.int64())
    elif t.is_boolean(data_type):
        array = array.cast(pa.uint8())
    return array.drop_null().unique()


def hash_distinct(values: pa.Array, data_type: pa.DataType) -> Hashes | None:
    """Return the hash of each of the `distinct` values of a column; None if one is too long."""
    if not len(values):
        return np.zeros(0, np.uint64)
    if t.is_string(values.type) or t.is_binary(values.type):
        return _hash_texts(values)
    data = _fixed_bytes(values, data_type)
    count, width = data.shape
    flat = np.concatenate([data.ravel(), np.zeros(8, np.uint8)])
    starts = np.arange(count, dtype=np.int64) * width
    return _xxh64(flat, starts, np.full(count, width, np.int64))


def _fixed_bytes(values: pa.Array, data_type: pa.DataType) -> npt.NDArray[np.uint8]:
    if not t.is_decimal(data_type):
        if t.is_integer(data_type) and data_type.bit_width < 32:
            values = values.cast(pa.int32())  # as Parquet stores them
        plain = values.to_numpy(zero_copy_only=False)
        plain = np.ascontiguousarray(plain, plain.dtype.newbyteorder("<"))
        return plain.view(np.uint8).reshape(len(values), -1)
    width = _decimal_bytes(data_type.precision)
    stored = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, 16)
    stored = stored[values.offset : values.offset + len(values), :width]
    # Parquet stores wide decimals as big-endian bytes, and the others as integers.
    return stored[:, ::-1] if width > 8 else stored


def _decimal_bytes(precision: int) -> int:
    if precision <= 9:
        return 4
    return 8 if precision <= 18 else -(-(int(10**precision).bit_length() + 1) // 8)


def _hash_texts(values: pa.Array) -> Hashes | None:
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(ends).astype(np.int64)
    if int(lengths.max()) > MOST_VALUE_BYTES:
        return None
    found = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    padded = np.concatenate([found[: int(ends[-1])], np.zeros(8, np.uint8)])
    return _xxh64(padded, ends[:-1].astype(np.int64), lengths)


def _rotl(value: Hashes, bits: int) -> Hashes:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


def _round(value: Hashes) -> Hashes:
    return _rotl(value * _P2, 31) * _P1


def _xxh64(data: npt.NDArray[np.uint8], starts: _Places, lengths: _Places) -> Hashes:
    """Return xxHash64 with seed 0 of byte ranges; `data` has 8 more bytes after the last one."""
    words = np.ndarray(len(data) - 7, "<u8", buffer=data, strides=(1,))
    at, left = starts.copy(), lengths.copy()
    found = np.full(len(starts), _P5, np.uint64)
    _add_stripes(found, words, at, left)
    found += lengths.astype(np.uint64)
    for size in (8, 4, 1):
        while (some := _those(left >= size)) is not None:
            read = words[at[some]] if size > 1 else data[at[some]].astype(np.uint64)
            found[some] = _TAILS[size](found[some], read)
            at[some] += size
            left[some] -= size
    found = (found ^ (found >> np.uint64(33))) * _P2
    found = (found ^ (found >> np.uint64(29))) * _P3
    return found ^ (found >> np.uint64(32))


_TAILS: Mapping[int, Callable[[Hashes, Hashes], Hashes]] = {
    8: lambda found, read: _rotl(found ^ _round(read), 27) * _P1 + _P4,
    4: lambda found, read: _rotl(found ^ ((read & np.uint64(0xFFFFFFFF)) * _P1), 23) * _P2 + _P3,
    1: lambda found, read: _rotl(found ^ (read * _P5), 11) * _P1,
}


def _those(mask: npt.NDArray[np.bool_]) -> Any:
    """Return an index of the selected items, a slice if these are all; None for none."""
    count = int(np.count_nonzero(mask))
    if count == len(mask):
        return slice(None)
    return np.flatnonzero(mask) if count else None


def _add_stripes(found: Hashes, words: npt.NDArray[Any], at: _Places, left: _Places) -> None:
    """Hash the whole blocks of 32 bytes of each range, and move `at` and `left` after them."""
    long = np.flatnonzero(left >= 32)
    if not len(long):
        return
    seeds = (_PRIMES[0] + _PRIMES[1], _PRIMES[1], 0, -_PRIMES[0])
    lanes = np.tile(np.array([seed % (1 << 64) for seed in seeds], np.uint64), (len(long), 1))
    steps = np.arange(4, dtype=np.int64) * 8
    while len(some := np.flatnonzero(left[long] >= 32)):
        rows = long[some]
        read = words[at[rows][:, None] + steps]
        lanes[some] = _rotl(lanes[some] + read * _P2, 31) * _P1
        at[rows] += 32
        left[rows] -= 32
    turned = [_rotl(lanes[:, lane], bits) for lane, bits in enumerate((1, 7, 12, 18))]
    merged = turned[0] + turned[1] + turned[2] + turned[3]
    for lane in range(4):
        merged = (merged ^ _round(lanes[:, lane])) * _P1 + _P4
    found[long] = merged
