"""Parquet segments that somebody crafted, with right checksums: typed errors, little memory.

What they say of themselves lies in many places: the index, row groups, column chunks, page headers,
dictionaries, runs of levels. Each of them lies here. The ceiling over memory proves that nothing
was asked for: an allocation that fails is a MemoryError, which none of them expects.
"""

import itertools
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crash_kit import fresh_storage
from limits import memory_limit

from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError, SegstoreError
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.parquet import limits as parquet_limits
from segstore_ds.format.parquet import pages as parquet_pages
from segstore_ds.format.parquet import segment as segment_parquet
from segstore_ds.format.parquet.window import Pieces
from segstore_ds.format.parquet.writer import INDEX_KEY, ParquetWriter, _build, can_store
from segstore_ds.format.root_codec import encode_root
from segstore_ds.format.schema.codec import fingerprint
from segstore_ds.format.segment import PARQUET, find_format
from segstore_ds.stream import create_on, open_on
from segstore_ds.write.layout import Layout

MEMORY = 512 << 20
ROWS = 1000


@dataclass(frozen=True, slots=True)
class Crafted:
    """A segment of one frame, and what an entry has to say of it."""

    data: bytes
    footer_bytes: int
    schema: pa.Schema

    def read(self, columns: list[str] | None = None) -> pa.RecordBatch:
        """Read the frame as whatever reads segments does."""
        tail = self.data[-self.footer_bytes :]
        index = find_format(PARQUET, where="seg").parse_index(
            tail, object_bytes=len(self.data), where="seg", footer_crc=zlib.crc32(tail)
        )
        spans = index.spans(0, columns)
        data = [pa.py_buffer(self.data[start:end]) for start, end in spans]
        return index.decode(0, data, schema=self.schema, columns=columns, where="seg")


def craft(
    table: pa.Table,
    *,
    change: Callable[[bytearray], None] = lambda _: None,
    raw_bytes: int | None = None,
    rows: int | None = None,
    **options: Any,
) -> Crafted:
    """Write a segment whose row group is changed and whose index lies, all checksums right.

    Args:
        table: What it holds in truth.
        change: Changes the bytes of the row group.
        raw_bytes: What the index says it unpacks to; None for the truth.
        rows: What it says of the number of rows.
        options: For Parquet's writer.
    """
    settings = {"compression": "zstd", "store_decimal_as_integer": True, **options}
    pieces = Pieces()
    writer = pq.ParquetWriter(pieces, table.schema, **settings)
    writer.write_table(table, row_group_size=max(table.num_rows, 1))
    group = bytearray(b"".join(pieces.take())[4:])
    change(group)
    entry = FrameEntry(
        start=4,
        bytes=len(group),
        rows=table.num_rows if rows is None else rows,
        crc=zlib.crc32(group),
        fingerprint=fingerprint(table.schema),
        stats={},
        raw_bytes=table.nbytes if raw_bytes is None else raw_bytes,
    )
    sizes = chunk_sizes(table, settings)
    ends = list(accumulate(sizes, initial=0))
    crcs = [zlib.crc32(group[start:end]) for start, end in pairwise(ends)]
    writer.add_key_value_metadata({INDEX_KEY: _build([entry], [sizes], [crcs])})
    writer.close()
    end = b"".join(pieces.take())
    return Crafted(b"PAR1" + bytes(group) + end, len(end), table.schema)


def chunk_sizes(table: pa.Table, settings: dict[str, Any]) -> list[int]:
    """Return how long the column chunks are."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=max(table.num_rows, 1), **settings)
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    return [group.column(n).total_compressed_size for n in range(group.num_columns)]


def refused(crafted: Crafted, match: str | None = None) -> None:
    """Check that a segment is refused before anything large is allocated."""
    assert len(crafted.data) < 20_000
    with memory_limit(MEMORY), pytest.raises(CorruptionError, match=match):
        crafted.read()


def lists(values: pa.Array, kind: str) -> pa.Table:
    """Return one row that holds all the values in a list, a struct's list, or a map."""
    places = pa.array([0, len(values)], pa.int32())
    if kind == "map":
        keys = pa.array(["k"]).take(pa.repeat(pa.scalar(0), len(values)))
        return pa.table({"x": pa.MapArray.from_arrays(places, keys, values)})
    column = pa.ListArray.from_arrays(places, values)
    if kind == "struct":
        column = pa.StructArray.from_arrays([column], ["deep"])
    return pa.table({"x": column})


def words(longest: int, count: int) -> pa.Array:
    """Return numbers of words, one word being long, so that few bytes stand for very many."""
    indices = pa.repeat(pa.scalar(0, pa.int32()), count)
    return pa.DictionaryArray.from_arrays(indices, pa.array(["x" * longest]))


def test_what_is_crafted_here_is_read_where_it_does_not_lie() -> None:
    """The other tests fail for what they change, not for how they write."""
    rows = pa.table({"n": range(ROWS), "s": ["ada", None] * (ROWS // 2)})
    assert craft(rows).read() == rows.to_batches()[0]
    assert craft(rows).read(["s"]).num_columns == 1
    for kind in ("list", "struct", "map"):
        table = lists(pa.array([1, None, 3]), kind)
        assert craft(table).read().to_pylist() == table.to_pylist()


@pytest.mark.parametrize(("kind", "raw_bytes"), [("list", 1 << 20), ("struct", (1 << 31) - 1)])
def test_lists_of_very_many_nulls_are_refused(kind: str, raw_bytes: int) -> None:
    """A few bytes of runs that say a row holds 60 million values."""
    table = lists(pa.nulls(60_000_000, pa.int64()), kind)
    crafted = craft(table, raw_bytes=raw_bytes)
    del table
    refused(crafted, "unpack")


@pytest.mark.parametrize("values", [pa.bool_(), pa.null()])
def test_lists_of_what_takes_no_memory_are_refused(values: pa.DataType) -> None:
    """Levels take memory where the values hardly do."""
    for raw_bytes in (1 << 20, 40 << 20):
        refused(craft(lists(pa.nulls(60_000_000, values), "list"), raw_bytes=raw_bytes), "unpack")


@pytest.mark.parametrize("data_type", [pa.int64(), pa.string(), pa.decimal128(38, 2)])
def test_very_many_rows_are_refused(data_type: pa.DataType) -> None:
    """Rows that a few bytes of runs stand for, whatever their type."""
    table = pa.table({"x": pa.nulls(5_000_000, data_type)})
    for raw_bytes in (0, 1 << 20, (1 << 31) - 1):
        refused(craft(table, raw_bytes=raw_bytes), "unpack")


def test_rows_of_no_size_are_bounded_too() -> None:
    """Nulls without a type take no memory in Arrow, and some in Parquet's reader."""
    table = pa.table({f"x{n}": pa.nulls(4_000_000, pa.null()) for n in range(20)})
    crafted = craft(table, data_page_size=1 << 30, max_rows_per_page=1 << 30)
    refused(crafted, "unpacks to too much")


@pytest.mark.parametrize("kind", ["flat", "list", "struct", "map"])
@pytest.mark.parametrize("raw_bytes", [1 << 20, 200 << 20])
def test_a_long_word_that_is_said_often_is_refused(kind: str, raw_bytes: int) -> None:
    """A dictionary of one word of a megabyte, and a run of its number: a hundred gigabytes."""
    said = words(1 << 20, 100_000)
    table = pa.table({"x": said}) if kind == "flat" else lists(said, kind)
    plain = pa.string() if kind == "flat" else _plain(table.schema.field("x").type)
    crafted = craft(table, raw_bytes=raw_bytes, rows=table.num_rows, store_schema=False)
    crafted = replace(crafted, schema=pa.schema([("x", plain)]))
    refused(crafted, "decoded")


def _plain(data_type: pa.DataType) -> pa.DataType:
    """Return a type with strings for dictionaries."""
    if pa.types.is_dictionary(data_type) or pa.types.is_string(data_type):
        return pa.string()
    if pa.types.is_struct(data_type):
        return pa.struct([(f.name, _plain(f.type)) for f in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(_plain(data_type.key_type), _plain(data_type.item_type))
    return pa.list_(_plain(data_type.value_type))


@pytest.mark.parametrize(("limit", "columns"), [("FREE_WORD_BYTES", 5), ("MANY_VALUES", 6)])
def test_words_that_are_true_come_back(
    monkeypatch: pytest.MonkeyPatch, limit: str, columns: int
) -> None:
    """What might be too much, or is much, is counted, and is what it was: nested, no UTF-8."""
    monkeypatch.setattr(parquet_limits, limit, 0)
    counted: list[str] = []

    def spy(
        column: pa.ChunkedArray, data_type: pa.DataType, limit: int
    ) -> tuple[pa.ChunkedArray, int]:
        counted.append(str(data_type))
        return parquet_limits.write_out(column, data_type, limit)

    monkeypatch.setattr(segment_parquet, "write_out", spy)
    texts = ["x" * (n % 3) if n % 5 else None for n in range(ROWS)]
    texts[7] = "x" * 50_000
    odd = pa.array([b"\xff\xfe", None] * (ROWS // 2)).cast(pa.binary())
    odd = pa.Array.from_buffers(pa.string(), ROWS, odd.buffers(), odd.null_count)
    table = pa.table(
        {
            "text": texts,
            "odd": odd,
            "bytes": pa.array(texts).cast(pa.binary()),
            "list": [[text, "y"] if text else None for text in texts],
            "map": pa.array(
                [[(text, text)] if text else [] for text in texts], pa.map_("string", "string")
            ),
            "deep": [{"a": [{"b": text}]} for text in texts],
            "n": range(ROWS),
        }
    )
    found = craft(table, use_dictionary=True).read()
    assert found.equals(table.to_batches()[0])
    assert len(counted) == columns


def header_at(group: bytearray, number: int) -> tuple[dict[int, Any], int]:
    """Return what the n-th page header of a group says, and where it begins."""
    place = 0
    for _ in range(number):
        fields, end = parquet_pages._struct(memoryview(group), place, 0)
        place = end + fields[3]
    return parquet_pages._struct(memoryview(group), place, 0)[0], place


def thrift(value: int) -> bytes:
    """Return a number as page headers have it."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes(out) + bytes([rest])


SIZED = pa.table({"n": pa.array(range(ROWS), pa.int64())})
WIDE = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}


@pytest.mark.parametrize("number", [2, 3, 5])
@pytest.mark.parametrize("lie", [-1, 0, 1, 8191, -8192])
def test_page_headers_that_lie_are_refused(number: int, lie: int) -> None:
    """Size unpacked, size stored, number of values: others, of as many bytes."""

    def change(group: bytearray) -> None:
        fields, place = header_at(group, 0)
        true = fields[5][1] if number == 5 else fields[number]
        assert group[place : place + 3] == b"\x15\x00\x15"
        old = thrift(true)
        start = group.index(old, place) if number != 3 else group.index(old, place + 3 + len(old))
        new = thrift(lie)
        new = bytes([*(b | 128 for b in new), *[128] * len(old)])[: len(old)]
        group[start : start + len(old)] = new[:-1] + bytes([new[-1] & 127])
        fields[number] = fields[5] | {1: lie} if number == 5 else lie
        assert header_at(group, 0)[0] == fields  # this field lies, and no other

    crafted = craft(SIZED, change=change, **WIDE)
    refused(crafted)


def test_words_of_many_columns_count_together() -> None:
    """Each column's words would pass; twelve of them would not, nor those of a thousand."""
    table = pa.table({f"c{n}": words(60_000, 300) for n in range(12)})
    crafted = craft(table, raw_bytes=15_168, store_schema=False)
    schema = pa.schema([(name, pa.string()) for name in table.schema.names])
    refused(replace(crafted, schema=schema), "cannot be decoded")


def test_texts_that_are_told_by_their_differences_are_refused() -> None:
    """An encoding that no segment has: each text is as long as the one before, and no byte more."""
    table = pa.table({"x": ["x" * 5000] * 4000})
    encodings = {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}}
    refused(craft(table, raw_bytes=116_000, **encodings), "page header")


def test_a_field_whose_number_wraps_is_refused() -> None:
    """Parquet's reader counts fields in 16 bits: 65,538 is another size unpacked."""

    def change(group: bytearray) -> None:
        fields, place = header_at(group, 0)
        *_, end = parquet_pages._struct(memoryview(group), place, 0)
        more = b"\x05" + thrift(65_538) + thrift(130_000_000)
        # What the longer header takes is taken from the page: only sizes are to be seen to lie.
        group[end - 1 : end - 1] = more
        del group[-len(more) :]
        assert fields[2] < 10_000

    refused(craft(SIZED, change=change, **WIDE), "page header")


def test_a_list_without_values_lends_nothing_to_others() -> None:
    """Every row has at least one value in each list, be there nothing in it."""
    frame = FrameEntry(4, 1 << 20, 32 << 20, 0, "", {}, raw_bytes=1 << 20)
    leaf = parquet_limits.Leaf(0, 32, 8, repeated=True)
    page = parquet_pages.PageHeader(parquet_pages.DATA, 10, 10, 62 << 20, 20)
    none = parquet_limits.Chunk(leaf, 0, [])
    with pytest.raises(CorruptionError, match="another number of values"):
        parquet_limits.check_pages(
            [none, parquet_limits.Chunk(leaf, 62 << 20, [page])], frame, where="x"
        )


def test_decimals_are_as_wide_as_arrow_makes_them() -> None:
    """One byte each in Parquet, sixteen in Arrow."""
    table = lists(pa.nulls(4_000_000, pa.decimal128(2, 0)), "list")
    crafted = craft(table, raw_bytes=4_001_000, store_decimal_as_integer=False)
    del table
    refused(crafted, "unpack")


@pytest.mark.parametrize(
    "stride",
    [pytest.param(3, id="every-third"), pytest.param(1, id="every", marks=pytest.mark.sweep)],
)
@pytest.mark.parametrize("free", [0, parquet_limits.FREE_WORD_BYTES])
def test_every_byte_of_pages_may_be_anything(
    monkeypatch: pytest.MonkeyPatch, free: int, stride: int
) -> None:
    """Each byte of headers, levels, dictionaries and values: an error, or as many rows."""
    monkeypatch.setattr(parquet_limits, "FREE_WORD_BYTES", free)
    table = pa.table(
        {
            "n": range(20),
            "s": ["ada", "bob", None, "ada"] * 5,
            "l": [[1, None], [], None, [7]] * 5,
            "m": pa.array([[("k", True)], []] * 10, pa.map_(pa.string(), pa.bool_())),
        }
    )
    encodings = {"use_dictionary": ["s"], "column_encoding": {"n": "DELTA_BINARY_PACKED"}}
    size = sum(chunk_sizes(table, {"compression": "none", **encodings}))
    outcomes = {"read": 0, "refused": 0}
    for place, value in itertools.product(range(0, size, stride), (0x00, 0xFF, 0x7F)):

        def change(group: bytearray, place: int = place, value: int = value) -> None:
            group[place] = value

        crafted = craft(table, change=change, compression="none", **encodings)
        with memory_limit(MEMORY):
            try:
                found = crafted.read()
            except CorruptionError:
                outcomes["refused"] += 1
            else:
                assert found.num_rows == 20
                outcomes["read"] += 1
    assert min(outcomes.values()) > 20


def test_every_byte_of_a_footer_may_be_anything() -> None:
    """Row groups, chunks, schema, key-value pairs: a typed error, or as many rows."""
    table = pa.table({"n": range(20), "s": ["ada", "bob", None, "ada"] * 5})
    whole = craft(table)
    start = len(whole.data) - whole.footer_bytes
    outcomes = {"read": 0, "refused": 0}
    with memory_limit(MEMORY):
        for place in range(start, len(whole.data)):
            for value in (0x00, 0xFF, 0x19, 0x7C):
                data = bytearray(whole.data)
                data[place] = value
                try:
                    found = replace(whole, data=bytes(data)).read()
                except FormatError:
                    outcomes["refused"] += 1
                else:
                    assert found.num_rows == 20
                    outcomes["read"] += 1
    assert min(outcomes.values()) > 20


def test_the_schema_of_the_file_decides_nothing() -> None:
    """A file that says its lists are of a fixed size, or its texts large, is refused undecoded."""
    table = lists(pa.array([1, 2]), "list")
    for other in (pa.large_list(pa.int64()), pa.list_(pa.int32()), pa.list_(pa.int64(), 2)):
        crafted = craft(pa.table({"x": table["x"].cast(other)}))
        refused(replace(crafted, schema=table.schema), "another (schema|type)")


def test_a_frame_that_nobody_would_read_is_not_written() -> None:
    """The writer refuses what the reader does, and such lists go to Arrow."""
    assert not can_store(pa.schema([("x", pa.list_(pa.null()))]))
    assert can_store(pa.schema([("x", pa.null()), ("y", pa.list_(pa.bool_()))]))
    batch = pa.record_batch({"x": pa.nulls(40_000_000, pa.int64())})
    writer = ParquetWriter(
        batch.schema, compression="zstd", compression_level=None, stats_columns=[]
    )
    writer.start()
    with pytest.raises(InvalidInputError, match="frame_bytes"):
        writer.add(batch)


def test_a_stream_with_such_a_segment_answers_with_errors(tmp_path: Path) -> None:
    """Reading, verifying and compacting refuse it; the other segments are read."""
    said = pa.table({"x": words(1 << 20, 100_000)})
    crafted = craft(said, raw_bytes=1 << 20, store_schema=False)
    schema = pa.schema([("x", pa.string())])
    storage = fresh_storage("local", tmp_path)
    stream = create_on(storage, schema)
    layout = Layout(inline_bytes=0, frame_rows=2, segment_format="parquet")
    for _ in range(2):
        stream.append(pa.table({"x": ["a", "b", "c"]}, schema), layout=layout)
    root = stream.root
    *before, old = root.entries
    entry = replace(
        old,
        rows=said.num_rows,
        bytes=len(crafted.data),
        footer_bytes=crafted.footer_bytes,
        footer_crc=zlib.crc32(crafted.data[-crafted.footer_bytes :]),
    )
    storage.put(f"segments/{old.path}", crafted.data)
    changed = replace(root, entries=(*before, entry), tail=root.tail - old.rows + said.num_rows)
    storage.put(f"log/{root.version:020d}", encode_envelope(encode_root(changed)))
    with memory_limit(MEMORY):
        stream = open_on(storage)
        assert stream.read(0, 3).read_all()["x"].to_pylist() == ["a", "b", "c"]
        with pytest.raises(CorruptionError):
            stream.read().read_all()
        assert stream.verify().problems
        with suppress(SegstoreError):
            stream.compact(start=0)
        assert open_on(storage).tail == changed.tail
