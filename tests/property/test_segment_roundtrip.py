"""Whatever Spark may hand over comes back from a segment, exactly."""

import string
import struct
from decimal import Context, Decimal
from itertools import chain
from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.parquet.writer import ParquetEncoder, can_store
from segstore_ds.format.schema.codec import normalise_schema
from segstore_ds.format.schema.conversion import conform
from segstore_ds.format.segment import ARROW, PARQUET, find_format

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)


def integers(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def floats(bits):
    """Draw floats, NaN with any payload among them: Python keeps it."""
    code, infinite, payload = {32: ("<f", 0xFF << 23, 23), 64: ("<d", 0x7FF << 52, 52)}[bits]

    def nan(payload, negative):
        pattern = infinite | payload | negative << (bits - 1)
        return struct.unpack(code, pattern.to_bytes(bits // 8, "little"))[0]

    payloads = st.integers(1, 2**payload - 1)
    return st.floats(width=bits) | st.builds(nan, payloads, st.booleans())


# Spark's strings are any bytes.
TEXTS = st.text(max_size=50).map(str.encode) | st.binary(max_size=8)


def decimals(precision, scale):
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale, _WIDE))


_WIDE = Context(prec=38)


# Times are drawn as integers: Arrow's range is wider than that of Python's own types.
LEAVES = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.float32(), floats(32)),
    (pa.float64(), floats(64)),
    (pa.decimal128(38, 18), decimals(38, 18)),
    (pa.decimal128(5, 0), decimals(5, 0)),
    (pa.decimal128(10, 2), decimals(10, 2)),
    (pa.decimal128(18, 18), decimals(18, 18)),
    (pa.string(), TEXTS),
    (VARIANT, st.fixed_dictionaries({"value": st.binary(), "metadata": st.binary(max_size=5)})),
    (pa.binary(), st.binary(max_size=50)),
    (pa.date32(), integers(32)),
    (pa.timestamp("us", "UTC"), integers(64)),
    (pa.timestamp("us"), integers(64)),
    (pa.time64("ns"), st.integers(0, 86_399_999_999).map(lambda us: us * 1000)),
    (pa.duration("us"), integers(64)),
    (pa.timestamp("ns", "UTC"), integers(64)),
    (pa.timestamp("ns"), integers(64)),
    (pa.duration("ns"), integers(64)),
]


@st.composite
def typed_values(draw, depth=2):
    """Draw a type and the strategy of its values."""
    kind = draw(st.sampled_from(["leaf", "leaf", "list", "struct", "map"] if depth else ["leaf"]))
    if kind == "leaf":
        data_type, values = draw(st.sampled_from(LEAVES))
        return data_type, values
    if kind == "list":
        data_type, values = draw(typed_values(depth=depth - 1))
        element = pa.field("element", data_type)
        return pa.list_(element), st.lists(st.none() | values, max_size=3)
    if kind == "map":
        key_type, keys = draw(typed_values(depth=0).filter(lambda one: one[0] != pa.null()))
        if draw(st.booleans()):  # of Spark's types only maps are no keys
            key_type, keys = pa.struct([("", key_type)]), st.fixed_dictionaries({"": keys})
        data_type, values = draw(typed_values(depth=depth - 1))
        pairs = st.tuples(keys, st.none() | values)
        return pa.map_(key_type, data_type), st.lists(pairs, max_size=3)
    names = draw(st.lists(st.sampled_from(["", *string.ascii_letters]), unique=True, max_size=3))
    parts = {name: draw(typed_values(depth=depth - 1)) for name in names}
    fields = {name: st.none() | values for name, (_, values) in parts.items()}
    return pa.struct([(n, d) for n, (d, _) in parts.items()]), st.fixed_dictionaries(fields)


@st.composite
def batches(draw):
    names = draw(st.lists(st.text(max_size=3), unique_by=str.casefold, max_size=4,
                          min_size=1))  # fmt: skip
    rows = draw(st.integers(0, 8))
    arrays, fields = [], []
    for name in names:
        data_type, values = draw(typed_values())
        column = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        arrays.append(with_strings(pa.array(column, of_bytes(data_type)), data_type))
        fields.append(pa.field(name, data_type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def of_bytes(data_type):
    """Return a type with binary in place of strings: those Arrow takes from Python unchecked."""
    if data_type == pa.string():
        return pa.binary()
    if pa.types.is_map(data_type):
        return pa.map_(of_bytes(data_type.key_type), of_bytes(data_type.item_type))
    if pa.types.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(of_bytes(data_type.value_type)))
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(of_bytes(field.type)) for field in data_type])
    return data_type


def with_strings(array, data_type):
    """Undo `of_bytes` for an array, whose bytes stay (pyarrow's casts and views make nulls up)."""
    if array.type == data_type:
        return array
    children, buffers = [], 3
    if pa.types.is_map(data_type):
        pairs = [with_strings(array.keys, data_type.key_type),
                 with_strings(array.items, data_type.item_type)]  # fmt: skip
        entries = pa.struct([data_type.key_field, data_type.item_field])
        length = len(array.keys)
        children, buffers = [pa.Array.from_buffers(entries, length, [None], 0, children=pairs)], 2
    elif pa.types.is_list(data_type):
        children, buffers = [with_strings(array.values, data_type.value_type)], 2
    elif pa.types.is_struct(data_type):
        places = range(data_type.num_fields)
        children = [with_strings(array.field(n), data_type.field(n).type) for n in places]
        buffers = 1
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers()[:buffers], array.null_count, children=children
    )


def image(array):
    """Give the exact content: bits of floats, integers of times, bytes of strings."""
    array_type = array.type
    if pa.types.is_struct(array_type):
        children = [image(array.field(n)) for n in range(array_type.num_fields)]
        return [
            [c[row] for c in children] if valid else None
            for row, valid in enumerate(array.is_valid().to_pylist())
        ]
    if pa.types.is_map(array_type):
        entries = list(zip(image(array.keys), image(array.items), strict=True))
        return sliced(array, entries)
    if pa.types.is_list(array_type):
        return sliced(array, image(array.values))
    if pa.types.is_string(array_type):
        array = array.cast(pa.binary())
    if pa.types.is_temporal(array_type) or pa.types.is_floating(array_type):
        array = array.view(pa.int32() if array_type.bit_width == 32 else pa.int64())
    return array.to_pylist()


def sliced(array, values):
    ends = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [values[ends[n] : ends[n + 1]] if valid[n] else None for n in range(len(array))]


EXAMPLES = settings.default.max_examples * 3 // 2


def images(batch):
    return [image(column) for column in batch.columns]


class Segment:
    """A segment with a frame for each batch, as its readers get it."""

    def __init__(self, form, parts, compression="zstd") -> None:
        self.schema = parts[0].schema
        options = {"compression": compression, "compression_level": None}
        options["stats_columns"] = self.schema.names
        self.writer = ArrowEncoder() if form == ARROW else ParquetEncoder(self.schema, **options)
        head = self.writer.start()
        if form == ARROW:
            added = [self.writer.add(encode_frame(part, **options)) for part in parts]
        else:
            added = [self.writer.add(part)[0] for part in parts]
        end, summary = self.writer.finish()
        self.whole = b"".join(map(bytes, [head, *chain.from_iterable(added), end]))
        assert len(self.whole) == summary.bytes
        self.index = find_format(form, where="seg").parse_index(
            end, object_bytes=summary.bytes, where="seg", footer_crc=summary.footer_crc
        )

    def read(self, number, columns=None):
        """Read a frame."""
        spans = self.index.spans(number, columns)
        data = [pa.py_buffer(self.whole[start:end]) for start, end in spans]
        for span, piece in zip(spans, data, strict=True):
            self.index.check(number, span, piece, where="seg")
        return self.index.decode(number, data, schema=self.schema, columns=columns, where="seg")


FORMS = pytest.mark.parametrize("form", [ARROW, PARQUET])


@FORMS
@given(
    batch=batches(),
    cut=st.integers(0, 8),
    compression=st.sampled_from(["zstd", "lz4", "none"]),
    data=st.data(),
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_segment_of_any_batches_comes_back(form, batch, cut, compression, data):
    schema = normalise_schema(batch.schema)
    stored = conform(batch, schema)
    assert images(stored) == images(batch)
    parts = [stored.slice(0, cut), stored.slice(cut)]
    if form == PARQUET:
        parts = [part for part in parts if part.num_rows]
        assume(parts and can_store(schema))
    segment = Segment(form, parts, compression)
    assert segment.index.frames == tuple(segment.writer._frames)
    assert segment.index.stats.pieces() == segment.writer._stats
    wanted = data.draw(st.lists(st.sampled_from(schema.names), unique=True))
    for number, part in enumerate(parts):
        for columns in (None, wanted):
            result = segment.read(number, columns)
            expected = part if columns is None else part.select(columns)
            assert images(result) == images(expected)
            assert result.schema.equals(expected.schema, check_metadata=True)
            assert result.num_rows == part.num_rows


@FORMS
def test_names_with_nul_come_back_beside_nested_columns(form):
    batch = pa.record_batch(
        {"a\0b": [1], "a": [2], "l": pa.array([[3]], pa.list_(pa.field("own", pa.int64())))}
    )
    found = Segment(form, [conform(batch, normalise_schema(batch.schema))]).read(0)
    assert found.to_pydict() == {"a\0b": [1], "a": [2], "l": [[3]]}


NANS = {
    pa.float64(): (pa.int64(), [0x7FF8 << 48, 0x7FF8 << 48 | 7, 0x7FF << 52 | 1, -1, -8 << 48]),
    pa.float32(): (pa.int32(), [0x7FC0 << 16, 0x7FC0 << 16 | 7, 0x7F8 << 20 | 1, -1, -64 << 16]),
}


@FORMS
@pytest.mark.parametrize("data_type", [pa.float64(), pa.float32()])
@pytest.mark.parametrize("times", [1, 1000])  # at last they are words of a dictionary
def test_nan_comes_back_with_its_payload(form, data_type, times):
    """Quiet or signalling, of either sign, and the zeros beside it."""
    bits, patterns = NANS[data_type]
    lowest = -(2 ** (bits.bit_width - 1))  # -0.0
    order = Random(5).sample([*patterns, 0, lowest] * times, k=7 * times)
    values = pa.array(order, bits).view(data_type)
    segment = Segment(form, [pa.record_batch([values], names=["x"])])
    assert images(segment.read(0)) == [order]
    if form == PARQUET:
        encodings = segment.index.metadata.row_group(0).column(0).encodings
        assert ("RLE_DICTIONARY" in encodings) == (times > 1)
