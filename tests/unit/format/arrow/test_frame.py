"""Frames: one batch, one checksum, only the columns asked for, nothing trusted."""

import random
import re
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.arrow.frame import ALIGNMENT, Frame, check_frame, decode_frame, encode_frame
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.schema.codec import fingerprint

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
CODECS = ["zstd", "lz4", "none"]

# One column per type that Spark can hand over.
SPARK_COLUMNS = {
    "boolean": (pa.bool_(), [True, None, False]),
    "byte": (pa.int8(), [-128, None, 127]),
    "short": (pa.int16(), [-(2**15), None, 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), None, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "float": (pa.float32(), [-0.0, None, float("inf")]),
    "double": (pa.float64(), [5e-324, None, -float("inf")]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-1.5"), None, Decimal("9" * 28)]),
    "string": (pa.string(), ["", None, "é\U0010ffff"]),
    "binary": (pa.binary(), [b"", None, b"\x00\xff"]),
    "date": (pa.date32(), [-(2**31), None, 2**31 - 1]),
    "timestamp": (pa.timestamp("us", "UTC"), [-(2**63), None, 2**63 - 1]),
    "timestamp_ntz": (pa.timestamp("us"), [-(2**63), None, 2**63 - 1]),
    "time": (pa.time64("ns"), [0, None, 86_399_999_999_000]),
    "interval": (pa.duration("us"), [-(2**63), None, 2**63 - 1]),
    "void": (pa.null(), [None, None, None]),
    "struct": (pa.struct([("x", pa.int32()), ("y", pa.string())]),
               [{"x": 1, "y": None}, None, {"x": None, "y": "b"}]),
    "empty_struct": (pa.struct([]), [{}, None, {}]),
    "list": (pa.list_(pa.field("element", pa.string())), [["a", None], None, []]),
    "lists": (pa.list_(pa.list_(pa.int8())), [[[1], None, []], None, []]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], None, []]),
    "void_list": (pa.list_(pa.null()), [[None, None], None, []]),
    "variant": (VARIANT, [{"value": b"\x01", "metadata": b"\x02"}, None,
                          {"value": b"", "metadata": b""}]),
    "deep": (pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.float64())))])),
             [[{"m": [("k", [1.5, None])]}, None], None, [{"m": None}]]),
}  # fmt: skip


def spark_batch():
    fields = [pa.field(name, data_type) for name, (data_type, _) in SPARK_COLUMNS.items()]
    fields[13] = fields[13].with_metadata({"SPARK::time::precision": "6"})
    arrays = [pa.array(values, data_type) for data_type, values in SPARK_COLUMNS.values()]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def encode(batch, compression="zstd", columns=()) -> Frame:
    return encode_frame(
        batch, compression=compression, compression_level=None, stats_columns=columns
    )


def decode(frame, schema, columns=None, **changes):
    facts = {"rows": frame.rows, **changes}
    check_frame(frame.data, crc=frame.crc, where="seg[0]")
    return decode_frame(frame.data, schema=schema, columns=columns, where="seg[0]", **facts)


@pytest.mark.parametrize("compression", CODECS)
def test_every_type_of_spark_comes_back_exactly(compression):
    batch = spark_batch()
    frame = encode(batch, compression)
    result = decode(frame, batch.schema)
    assert result.equals(batch, check_metadata=True)
    assert result.schema.equals(batch.schema, check_metadata=True)
    assert frame.data.size % ALIGNMENT == 0
    assert frame.fingerprint == fingerprint(batch.schema)


@pytest.mark.parametrize(("start", "end"), [(0, 3), (1, 3), (1, 2), (2, 2)])
def test_every_type_comes_back_from_slices_and_projections(start, end):
    batch = spark_batch()
    part = batch.slice(start, end - start)
    frame = encode(part, columns=list(SPARK_COLUMNS))
    for name in SPARK_COLUMNS:
        assert decode(frame, batch.schema, [name]).equals(part.select([name])), name


@pytest.mark.parametrize(("start", "end"), [(0, 3), (1, 3), (1, 1)])
def test_uncompressed_frames_are_streams_as_arrow_writes_them(start, end):
    """They are put together from messages, byte for byte, of every type and of slices."""
    batch = spark_batch().slice(start, end - start)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(pa.concat_batches([batch]))
    stream = sink.getvalue().to_pybytes()
    data = encode(batch, "none").data.to_pybytes()
    assert data == stream + bytes(-len(stream) % ALIGNMENT)


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("rows", [7, 3_000])
def test_a_frame_of_a_slice_has_no_bytes_of_other_rows(rows, compression):
    """Arrow writes what is behind a slice as padding: a redaction would not find it there."""
    texts = [f"value{n:05d}" for n in range(3 * rows)]
    column = pa.array(texts)
    batch = pa.record_batch(
        {
            "text": column,
            "again": column,
            "bytes": [text.encode() for text in texts],
            "fixed": pa.array([int.from_bytes(text[-8:].encode(), "little") for text in texts]),
            "list": [[text] for text in texts],
            "struct": [{"text": text} for text in texts],
        }
    )
    for start in (0, 1, rows, 2 * rows):
        data = encode(batch.slice(start, rows), compression).data
        (read,) = pa.ipc.open_stream(data)
        held = b"".join(b for c in read.columns for b in map(bytes, filter(None, c.buffers())))
        found = {int(digits) for digits in re.findall(rb"ue(\d{5})", held)}
        found |= {int(digits) for digits in re.findall(rb"value(\d{5})", data.to_pybytes())}
        assert found == {*range(start, start + rows)}


def test_columns_come_in_the_order_asked():
    batch = spark_batch()
    frame = encode(batch)
    wanted = ["string", "boolean", "map"]
    assert decode(frame, batch.schema, wanted).equals(batch.select(wanted))
    assert decode(frame, batch.schema, wanted[::-1]).equals(batch.select(wanted[::-1]))
    empty = decode(frame, batch.schema, [])
    assert (empty.num_columns, empty.num_rows) == (0, 3)


@pytest.mark.parametrize("columns", [["nope"], ["string", "string"]])
def test_unknown_and_repeated_columns_are_refused(columns):
    batch = spark_batch()
    with pytest.raises(InvalidInputError):
        decode(encode(batch), batch.schema, columns)


def test_uncompressed_frames_are_read_without_a_copy():
    batch = pa.record_batch({"a": pa.array(range(1000), pa.int64())})
    frame = encode(batch, "none")
    address = decode(frame, batch.schema).column(0).buffers()[1].address
    assert frame.data.address <= address < frame.data.address + frame.data.size


def test_another_number_of_rows_or_another_schema_is_corrupt():
    batch = spark_batch()
    frame = encode(batch)
    with pytest.raises(CorruptionError, match="expected=4, actual=3"):
        decode(frame, batch.schema, rows=4)
    other = batch.schema.set(0, pa.field("boolean", pa.int8()))
    with pytest.raises(CorruptionError):
        decode(frame, other)


def stream_of(*batches, schema=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def test_a_frame_of_no_or_several_batches_is_corrupt():
    batch = pa.record_batch({"a": [1]})
    for data in (stream_of(schema=batch.schema), stream_of(batch, batch)):
        with pytest.raises(CorruptionError):
            decode_frame(data, rows=1, schema=batch.schema, columns=None, where="w")


def test_dictionaries_and_views_that_are_smuggled_in_are_corrupt():
    schema = pa.schema([("a", pa.string())])
    for array in (pa.array(["x"]).dictionary_encode(), pa.array(["x"], pa.string_view())):
        data = stream_of(pa.record_batch({"a": array}))
        with pytest.raises(CorruptionError):
            decode_frame(data, rows=1, schema=schema, columns=None, where="w")


@pytest.mark.parametrize("data_type", [pa.string(), pa.binary(), pa.list_(pa.int8())], ids=str)
@pytest.mark.parametrize("nesting", [None, "struct", "list", "map"])
@pytest.mark.parametrize("ends", [(0, 900, 3), (0, 2, 900), (-9, 2, 3), (2, 1, 3), (0, 2, -1)])
def test_offsets_that_point_elsewhere_are_corrupt(data_type, nesting, ends):
    """They would be read as memory that is not ours."""
    values = {"string": ["ab", "c"], "binary": [b"ab", b"c"]}.get(str(data_type), [[1, 2], [3]])
    array = pa.array(values, data_type)
    if nesting == "struct":
        array = pa.StructArray.from_arrays([array], names=["x"])
    elif nesting == "list":
        array = pa.ListArray.from_arrays([0, 1, 2], array)
    elif nesting == "map":
        array = pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "j"]), array)
    batch = pa.record_batch({"c": array})
    data = bytes(encode(batch, "none").data)
    good = struct.pack("<iii", 0, 2, 3)
    assert data.count(good) == 1
    crafted = data.replace(good, struct.pack("<iii", *ends))
    with pytest.raises(CorruptionError):
        decode_frame(crafted, rows=2, schema=batch.schema, columns=None, where="w")


def test_messages_that_declare_nothing_are_not_decompressed():
    """Arrow reads a stream of its first versions too, whose sizes nothing would add up."""
    batch = pa.record_batch({"a": pa.array([7] * 10_000, pa.int64())})
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_legacy_format=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    with pytest.raises(CorruptionError):
        decode_frame(sink.getvalue(), rows=10_000, schema=batch.schema, columns=None, where="w")


@pytest.mark.parametrize("compression", CODECS)
def test_crafted_bytes_with_a_right_checksum_never_crash(compression):
    """Whatever is changed, decoding refuses it or gives columns that can be walked safely."""
    refused = 0
    names = ["string", "lists", "map", "struct", "decimal", "void_list"]
    batch = spark_batch().select(names)
    base = bytes(encode(batch, compression).data)
    chosen = random.Random(7)
    for place in range(0, len(base), 2):
        data = bytearray(base)
        data[place] = chosen.choice((data[place] ^ 1, data[place] ^ 0x80, 0xFF, 0))
        try:
            result = decode_frame(
                bytes(data),
                rows=3,
                schema=batch.schema,
                columns=None,
                where="w",
                limit_bytes=1 << 20,
            )
        except CorruptionError:
            refused += 1
            continue
        assert result.schema.equals(batch.schema)
        assert result.num_rows == encode(result, "none").rows == 3
    assert refused > len(base) / 20


def test_a_frame_takes_no_more_memory_than_its_bytes():
    """The write cache counts frames by their size, and promises that memory is bounded by it."""
    batch = pa.record_batch([pa.array(range(110_000), pa.int64())], names=["n"])
    before = pa.total_allocated_bytes()
    frame = encode_frame(batch, compression="none", compression_level=None, stats_columns=[])
    assert pa.total_allocated_bytes() - before <= frame.data.size + 64


def test_batches_beyond_the_index_limits_are_refused():
    """Before anything is written: a reader would refuse the frame."""
    column = pa.nulls(1 << 20, pa.int64())
    names = [f"c{number}" for number in range(257)]  # 2.2 GB, of one buffer
    batch = pa.record_batch([column] * len(names), names)
    with pytest.raises(InvalidInputError, match="too large"):
        encode_frame(batch, compression="none", compression_level=None, stats_columns=[])
    writer = ParquetEncoder(
        batch.schema, compression="none", compression_level=None, stats_columns=[]
    )
    with pytest.raises(InvalidInputError, match="too large"):
        writer.add(batch)
    assert writer.encoded_bytes == 0


@pytest.mark.parametrize(
    ("compression", "level", "message"),
    [("zstd", 1000, "out of range"), ("zstd", 23, "out of range"), ("gzip", None, "unknown")],
)
def test_both_formats_refuse_the_same_compressions(compression, level, message):
    """Parquet's own writer takes any level, and another one for it."""
    batch = pa.record_batch({"n": [1]})
    options = {"compression": compression, "compression_level": level, "stats_columns": []}
    with pytest.raises(InvalidInputError, match=message):
        encode_frame(batch, **options)
    with pytest.raises(InvalidInputError, match=message):
        ParquetEncoder(batch.schema, **options)
