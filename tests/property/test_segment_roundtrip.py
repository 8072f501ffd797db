"""Whatever Spark may hand over comes back from a segment, exactly."""

import math
import string
from decimal import Decimal

import pyarrow as pa
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from segstore_ds.format.frame import decode_frame, encode_frame
from segstore_ds.format.parquet_writer import ParquetWriter, can_store
from segstore_ds.format.schema import conform, normalise_schema
from segstore_ds.format.segment import FORMATS, PARQUET
from segstore_ds.format.segment_arrow import SegmentWriter, parse_footer
from segstore_ds.format.statistics import check_types, from_json, to_json


def integers(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# Times are drawn as integers: Arrow's range is wider than that of Python's own types.
LEAVES = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18).map(Decimal)),
    (pa.decimal128(5, 0), st.integers(-99999, 99999).map(Decimal)),
    (pa.string(), st.text(max_size=50)),
    (pa.binary(), st.binary(max_size=50)),
    (pa.date32(), integers(32)),
    (pa.timestamp("us", "UTC"), integers(64)),
    (pa.timestamp("us"), integers(64)),
    (pa.time64("ns"), st.integers(0, 86_399_999_999).map(lambda us: us * 1000)),
    (pa.duration("us"), integers(64)),
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
        data_type, values = draw(typed_values(depth=depth - 1))
        pairs = st.tuples(st.text(max_size=3), st.none() | values)
        return pa.map_(pa.string(), data_type), st.lists(pairs, max_size=3)
    names = draw(st.lists(st.sampled_from(string.ascii_letters), unique=True, max_size=3))
    parts = {name: draw(typed_values(depth=depth - 1)) for name in names}
    fields = {name: st.none() | values for name, (_, values) in parts.items()}
    return pa.struct([(n, d) for n, (d, _) in parts.items()]), st.fixed_dictionaries(fields)


@st.composite
def batches(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=3), unique_by=str.casefold, max_size=4,
                          min_size=1))  # fmt: skip
    rows = draw(st.integers(0, 8))
    arrays, fields = [], []
    for name in names:
        data_type, values = draw(typed_values())
        column = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        arrays.append(pa.array(column, data_type))
        fields.append(pa.field(name, data_type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


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
    if pa.types.is_floating(array_type):
        return [None if v is None else (repr(v), math.copysign(1, v)) for v in array.to_pylist()]
    if pa.types.is_temporal(array_type):
        array = array.view(pa.int32() if array_type.bit_width == 32 else pa.int64())
    return array.to_pylist()


def sliced(array, values):
    ends = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [values[ends[n] : ends[n + 1]] if valid[n] else None for n in range(len(array))]


EXAMPLES = settings.default.max_examples * 3 // 2


def images(batch):
    return [image(column) for column in batch.columns]


@given(
    batch=batches(),
    cut=st.integers(0, 8),
    compression=st.sampled_from(["zstd", "lz4", "none"]),
    data=st.data(),
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_segment_of_any_batches_comes_back(batch, cut, compression, data):
    schema = normalise_schema(batch.schema)
    stored = conform(batch, schema)
    assert images(stored) == images(batch)
    parts = [stored.slice(0, cut), stored.slice(cut)]
    writer = SegmentWriter()
    pieces = [writer.start()]
    for part in parts:
        frame = encode_frame(part, compression=compression, compression_level=None,
                             stats_columns=schema.names)  # fmt: skip
        pieces += writer.add(frame)
    end, summary = writer.finish()
    whole = b"".join(map(bytes, [*pieces, end]))

    wanted = data.draw(st.lists(st.sampled_from(schema.names), unique=True))
    entries = parse_footer(whole, object_bytes=len(whole), where="seg")
    assert entries == summary.frames
    for part, entry in zip(parts, entries, strict=True):
        bytes_of = whole[entry.start : entry.end]
        for columns in (None, wanted):
            result = decode_frame(bytes_of, crc=entry.crc, rows=entry.rows, schema=schema,
                                  columns=columns, where="seg")  # fmt: skip
            expected = part if columns is None else part.select(columns)
            assert images(result) == images(expected)
            assert result.schema.equals(expected.schema, check_metadata=True)
            assert result.num_rows == part.num_rows
        check_types(entry.stats, schema, where="seg")
        assert from_json(to_json(entry.stats), where="seg", schema=schema) == entry.stats


@given(
    batch=batches(),
    cut=st.integers(1, 8),
    compression=st.sampled_from(["zstd", "lz4", "none"]),
    data=st.data(),
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_parquet_segment_of_any_batches_comes_back(batch, cut, compression, data):
    schema = normalise_schema(batch.schema)
    stored = conform(batch, schema)
    parts = [part for part in (stored.slice(0, cut), stored.slice(cut)) if part.num_rows]
    assume(parts and can_store(schema))
    writer = ParquetWriter(
        schema, compression=compression, compression_level=None, stats_columns=schema.names
    )
    pieces = [writer.start(), *(writer.add(part)[0] for part in parts)]
    assert sum(map(len, pieces)) == writer.encoded_bytes
    end, summary = writer.finish()
    whole = b"".join([*pieces, end])
    assert len(whole) == summary.bytes

    wanted = data.draw(st.lists(st.sampled_from(schema.names), unique=True))
    index = FORMATS[PARQUET].parse_index(
        end, object_bytes=len(whole), where="seg", footer_crc=summary.footer_crc
    )
    assert index.frames == summary.frames
    for number, part in enumerate(parts):
        for columns in (None, wanted):
            spans = index.spans(number, columns)
            read = [pa.py_buffer(whole[start:end]) for start, end in spans]
            result = index.decode(number, read, schema=schema, columns=columns, where="seg")
            expected = part if columns is None else part.select(columns)
            assert images(result) == images(expected)
            assert result.schema.equals(expected.schema, check_metadata=True)
            assert result.num_rows == part.num_rows
