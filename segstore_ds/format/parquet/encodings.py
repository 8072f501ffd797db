"""Chooses how each leaf column of a row group is encoded, by its cost. Pure.

A column is plain, has a dictionary or, if it holds integers or times, stores their differences
(delta); each of these compressed or not. A small sample of the rows shows how many bytes each way
takes; the weights below add the CPU time of writing and reading. Only encodings that every engine
reads are used. (Byte-stream split is smaller for no type for which Spark's reader accepts it.)
Floats get no bounds. Numbers and times in lists and in values of maps get no dictionary: Spark's
`transform`, `filter`, `distinct` and others also look up the value of a null, by an id of an
earlier row group, and fail.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pyarrow import types as t

from segstore_ds.format.schema.codec import children_of

# The weights, in nanoseconds of a core; `benchmarks column_encodings` shows their effect. They
# assume that each byte is written once and read three times, each time at 100 MB/s.
READS = 3
BYTE_NS = (1 + READS) * 10.0
_ARCHIVE_LEVEL, _ARCHIVED = 9, 4  # from this level on, bytes count this many times as much
_CODEC_NS = 1.6 + READS * 1.1  # per byte before compression, so a codec has to save 12 %
_VALUE_NS = {"PLAIN": 0.0, "DICTIONARY": 3.0 + READS, "DELTA_BINARY_PACKED": 1.0 * READS}
_WORD_NS, _WORD_BYTE_NS = 70.0, 2.2  # per distinct value, and per byte of it
_ALIKE = 0.2  # columns are alike if their compression ratios differ by at most about this share
_STEADY = 1.2  # a column changes its way only if the cheapest one is cheaper by this factor

_PLACES = 16  # a sample has equally many rows from each of this many places of a batch
_LEAST_ROWS, _MOST_ROWS = 256, 2048
_COLUMN_BYTES = 32 << 10  # bytes per column of a sample: it has fewer rows if they are wide
_CODEC_BYTES = 8 << 10  # most bytes of a sample's column that are compressed
_FEW = 1 / 16  # share of a value's bytes: if delta takes no more, dictionaries are not tried
_UNEVEN = 3.0  # factor above the number of values at three places if all were equally frequent
_PLAIN, _DICTIONARY, _DELTA = _VALUE_NS

Way = tuple[str, bool]  # an encoding, and whether it is compressed
_Codec = Callable[[Any], Sized]
Numbers = np.ndarray[Any, Any]
_Size = tuple[float, float]  # bytes per value, and their compressed share
MANY_VALUES = 4096  # from this many values on, decoding as a dictionary is faster
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})


@dataclass(frozen=True, slots=True)
class Encodings:
    """Settings of a Parquet writer: the way of each leaf column, by its path.

    `bounded` names the columns that get Parquet's bounds; None means all. `row_bytes` is the
    approximate size of a row in the file, and `lefts` are the compressed shares of each leaf's
    plain values.
    """

    ways: Mapping[str, Way]
    bounded: tuple[str, ...] | None = None
    row_bytes: float = 0.0
    lefts: Sequence[float] = ()

    def options(self, compression: str, level: int | None) -> dict[str, Any]:
        """Return the settings as arguments of `pyarrow.parquet.ParquetWriter`."""
        coded = [path for path, (_, coded) in self.ways.items() if coded]
        found: dict[str, Any] = {
            "use_dictionary": self.columns(_DICTIONARY) or False,
            "column_encoding": dict.fromkeys(self.columns(_DELTA), _DELTA) or None,
            "compression": dict.fromkeys(coded, compression),
            "compression_level": None if level is None else dict.fromkeys(coded, level),
        }
        if self.bounded is not None:
            found["write_statistics"] = list(self.bounded) or False
        return found

    def columns(self, encoding: str) -> list[str]:
        """Return the paths of the columns that have an encoding."""
        return [path for path, (own, _) in self.ways.items() if own == encoding]

    def suits(self, batch: pa.RecordBatch, compression: str) -> bool:
        """Tell whether each column is like the one chosen for, at a tenth of a choice's cost."""
        if batch.num_rows < _LEAST_ROWS:
            return True
        codec = _codec(compression)
        return all(
            abs(_share_left(_stored(leaf)[0], codec) - left) <= _ALIKE * (left + _ALIKE)
            for leaf, left in zip(_leaves_of(take_sample(batch)), self.lefts, strict=True)
        )

    def expect_bytes(self, rows: int) -> int:
        """Estimate the size of rows in the file."""
        return int(self.row_bytes * rows)


def choose_encodings(
    batch: pa.RecordBatch,
    paths: Sequence[str],
    *,
    compression: str,
    level: int | None = None,
    used: Encodings | None = None,
) -> Encodings:
    """Choose the cheapest way for each leaf; keep the `used` one unless that is much cheaper."""
    codec, coded = _codec(compression), compression != "none"
    byte_ns = BYTE_NS * (_ARCHIVED if (level or 0) >= _ARCHIVE_LEVEL else 1)
    sample, leaves = take_sample(batch), leaves_of(batch.schema)
    times = batch.num_rows / sample.num_rows
    ways: dict[str, Way] = {}
    lefts: list[float] = []
    row_bytes = 0.0
    for path, (kind, repeated), leaf in zip(paths, leaves, _leaves_of(sample), strict=True):
        costs: dict[Way, tuple[float, float]] = {}
        for encoding, width, left, words_ns in _weigh(leaf, kind, times, codec, repeated=repeated):
            size, ns = width * len(leaf), (_VALUE_NS[encoding] + words_ns) * len(leaf)
            costs[encoding, False] = ns + byte_ns * size, size
            if coded:
                costs[encoding, True] = ns + (byte_ns * left + _CODEC_NS) * size, size * left
            if encoding == _PLAIN:
                lefts.append(left)
        if path in ways:  # a name with a dot may look like a field of a struct
            ways[path] = _PLAIN, coded
            continue
        best = min(costs, key=lambda way: costs[way][0])
        kept = best if used is None else used.ways[path]
        ways[path] = kept if kept in costs and costs[kept][0] <= _STEADY * costs[best][0] else best
        row_bytes += costs[ways[path]][1] / sample.num_rows
    # Parquet's bounds ignore NaN. Spark and DuckDB order NaN last, so they would skip such rows.
    floats = {path for path, (kind, _) in zip(paths, leaves, strict=True) if t.is_floating(kind)}
    bounded = tuple(path for path in ways if path not in floats)
    return Encodings(ways, bounded, row_bytes, lefts)


def saves_enough(batch: pa.RecordBatch) -> bool:
    """Tell whether compression of a batch's buffers pays off, by a sample."""
    data = np.frombuffer(take_sample(batch).serialize(), "u1")
    return _share_left(data, _codec("zstd"), data.size) < 1 - _CODEC_NS / BYTE_NS


def _codec(compression: str) -> _Codec:
    """Return a function that compresses; not pyarrow's zstd, which makes a context per call."""
    zstd = compression in ("zstd", "none")  # for "none" it only compares columns
    return zstandard.ZstdCompressor(level=1).compress if zstd else pa.Codec(compression).compress


def take_sample(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return some rows of a batch, from evenly spread places."""
    rows = batch.num_rows
    wide = _COLUMN_BYTES * batch.num_columns * rows // max(batch.nbytes, 1)
    some = max(_LEAST_ROWS, min(rows // 16, _MOST_ROWS // 2), rows // 128)
    each = max(min(some, _MOST_ROWS, wide) // _PLACES, 1)
    if rows <= each * _PLACES:
        return batch
    starts = ((rows - each) * place // (_PLACES - 1) for place in range(_PLACES))
    return pa.concat_batches([batch.slice(start, each) for start in starts])


def _weigh(
    values: pa.Array, kind: pa.DataType, times: float, codec: _Codec, *, repeated: bool
) -> Iterator[tuple[str, float, float, float]]:
    """Yield each encoding with bytes per value, compressed share, and nanoseconds of its words.

    The batch has `times` as many values as the sample.
    """
    plain, width = _stored(values)
    left = _share_left(plain, codec)
    yield _PLAIN, width, left, 0.0
    whole = bool(t.is_integer(kind) or t.is_temporal(kind))
    if whole and len(plain) > 2:
        steps, steps_left = _measure_steps(plain, len(plain) * times, codec)
        yield _DELTA, steps, steps_left, 0.0
        if steps <= _FEW * width or (plain[1:] > plain[:-1]).all():
            return  # delta is small, or all values differ because they ascend
    if not len(values) or t.is_boolean(kind) or (repeated and (whole or t.is_floating(kind))):
        return
    encoded = values.dictionary_encode()
    if len(encoded.dictionary) == len(values) > 1:
        return
    ids = encoded.indices.to_numpy()
    words = expect_words(ids, len(ids) * times)
    if words > 0.999 * len(ids) * times > 1:
        return
    new, word_bytes = words / (len(ids) * times), _stored(encoded.dictionary)[1]
    ids_bytes, ids_left = _measure_ids(ids, words, codec)
    size = new * word_bytes + ids_bytes
    left = (new * word_bytes * left + ids_bytes * ids_left) / size
    yield _DICTIONARY, size, left, new * (_WORD_NS + _WORD_BYTE_NS * word_bytes)


def _measure_steps(numbers: Numbers, total: float, codec: _Codec) -> _Size:
    alike = 8 * numbers.itemsize  # blocks of this many steps have one bit width; the last is padded
    each = len(numbers) // _PLACES if len(numbers) >= _LEAST_ROWS else len(numbers)
    block = min(alike, each)  # within one place of the sample, as steps between places are large
    places = numbers[: len(numbers) // each * each].reshape(-1, each)
    blocks = places[:, : each // block * block].reshape(-1, block)
    steps = blocks[:, 1:] - blocks[:, :-1]  # they wrap around, as Parquet's do
    above = (steps - steps.min(axis=1, keepdims=True)).view(f"u{steps.itemsize}")
    most = above.max(axis=1)
    filled = -(-total // alike) * alike / total
    bits = float(np.ceil(np.log2(most + 1.0)).sum()) / len(most)
    size = bits / 8 * filled + 5 / (4 * alike)
    return size, min(_narrow_left(above, int(most.max()), codec) / size, 1.0)


def _measure_ids(ids: Numbers, words: float, codec: _Codec) -> _Size:
    bits, most = max(int(words - 1).bit_length(), 1), int(ids.max())
    runs = (np.count_nonzero(ids[1:] != ids[:-1]) + 1) / len(ids)
    size = min(bits / 8, runs * (1 + -(-bits // 8)))
    coded = _narrow_left(ids, most, codec) * bits / max(most.bit_length(), 1)
    return size, min(coded / size, 1.0)


def _narrow_left(numbers: Numbers, most: int, codec: _Codec) -> float:
    """Return the compressed bytes per number, stored in as few bytes as `most` needs."""
    width = 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4 if most < 1 << 32 else 8
    return width * _share_left(numbers.astype(f"u{width}"), codec)


def _share_left(data: Numbers, codec: _Codec, most: int = _CODEC_BYTES) -> float:
    """Return the compressed share of some bytes."""
    some = np.ascontiguousarray(data).tobytes()[:most]
    return min(len(codec(some)) / len(some), 1.0) if some else 1.0


def _stored(values: pa.Array) -> tuple[Numbers, float]:
    """Return values in Parquet's plain encoding, and the mean bytes per value."""
    if not len(values):
        return np.zeros(0, "u1"), 0.0
    kind, start, end = values.type, values.offset, values.offset + len(values)
    if t.is_boolean(kind):
        return np.packbits(values.to_numpy(zero_copy_only=False)), 1 / 8
    data = values.buffers()[-1] or b""
    if t.is_string(kind) or t.is_binary(kind):
        ends = np.frombuffer(values.buffers()[1], "i4")[start : end + 1]
        texts = np.frombuffer(data, "u1")[ends[0] : ends[-1]]
        found = np.concatenate((texts, np.diff(ends).view("u1")))
        return found, found.size / len(values)
    if not t.is_decimal(kind):
        width = kind.bit_width // 8
        numbers = np.frombuffer(data, f"i{width}")[start:end]
        return (numbers.astype("i4"), 4) if width < 4 else (numbers, width)
    digits = int(kind.precision)
    width = 4 if digits <= 9 else 8 if digits <= 18 else int(digits * 3.33 + 9) // 8
    return np.frombuffer(data, "u1").reshape(-1, kind.bit_width // 8)[start:end, :width], width


def expect_words(ids: Numbers, total: float) -> float:
    """Estimate how many distinct values `total` values have, by those of a sample.

    The numbers of values seen at one place and at two tell how many were not seen (Chao's estimate
    by incidence). If many others are seen at more places, a few values are frequent and most are
    rare: then their number grows as it does within the sample (Heaps' law).
    """
    words, count = int(ids.max()) + 1, len(ids)
    seen = np.zeros((_PLACES, words), np.uint8)
    seen[np.arange(count) * _PLACES // count, ids] = 1
    places = np.bincount(np.add.reduce(seen, axis=0, dtype=np.uint8), minlength=3)
    once, twice = int(places[1]), int(places[2])
    if not twice:  # sorted, or all different; the first value of each place may not be new
        growth = max(once - _PLACES, 0) / max(count - _PLACES, 1)
        return float(min(words + growth * (total - count), total))
    more = words - once - twice  # at three places or more; one or two may be chance
    if more > 2 and more * once > _UNEVEN * twice * twice:
        half = int(ids[: (count + 1) // 2].max()) + 1
        return float(words * (total / count) ** np.log2(words / half))
    unseen = once**2 / (2 * twice) * (1 - 1 / _PLACES)
    missed = (1 - once / max(_PLACES * unseen + once, 1)) ** (_PLACES * (total / count - 1))
    return float(words + unseen * (1 - missed))


def _leaves_of(sample: pa.RecordBatch) -> Iterator[pa.Array]:
    """Yield the values of each leaf, without nulls."""
    columns = sample.columns
    while columns:
        array = columns.pop(0)
        kind = array.type
        if t.is_map(kind):
            columns[:0] = array.keys, array.items
        elif t.is_struct(kind):
            columns[:0] = array.flatten()
        elif t.is_list(kind):
            columns.insert(0, array.flatten())
        else:
            yield array.drop_null()


def leaves_of(schema: pa.Schema) -> list[tuple[pa.DataType, bool]]:
    """Return the leaf types of a schema in Parquet, each with whether it is in a list or map."""
    return [leaf for field in schema for leaf in _leaves(field.type, repeated=False)]


def _leaves(data_type: pa.DataType, *, repeated: bool) -> Iterator[tuple[pa.DataType, bool]]:
    children = children_of(data_type)
    if not (children or t.is_struct(data_type)):
        yield data_type, repeated
    for place, child in enumerate(children):
        within = t.is_list(data_type) or (t.is_map(data_type) and place == 1)
        yield from _leaves(child.type, repeated=repeated or within)


def find_dictionaries(group: pq.RowGroupMetaData, leaves: Iterable[int]) -> tuple[int, ...]:
    """Return the leaves of a row group that decode faster as dictionaries."""
    return tuple(leaf for leaf in leaves if _has_many_words(group.column(leaf)))


def _has_many_words(column: pq.ColumnChunkMetaData) -> bool:
    return (
        column.physical_type == "BYTE_ARRAY"
        and column.num_values >= MANY_VALUES
        and not _DICTIONARY_ENCODINGS.isdisjoint(column.encodings)
    )
