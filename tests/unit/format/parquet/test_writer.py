"""Parquet segments give back whatever was added, or some columns of it for what these take."""

import base64
import zlib
from collections.abc import Iterator
from itertools import combinations
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.bounds import compute, merge
from segstore_ds.format.parquet import encodings, segment
from segstore_ds.format.parquet import writer as parquet_writer
from segstore_ds.format.parquet.window import Window
from segstore_ds.format.parquet.writer import INDEX_KEY, ParquetEncoder
from segstore_ds.format.segment import PARQUET, find_format

ROWS = 100
EMPTY = [[]] * 20
SHAPES = {
    "lists of empty lists": ([EMPTY] * ROWS, pa.list_(pa.list_(pa.int64()))),
    "one of twenty has a value": ([[[1.0], *EMPTY]] * ROWS, pa.list_(pa.list_(pa.float64()))),
    "lists of nulls": ([[None] * 20] * ROWS, pa.list_(pa.list_(pa.int64()))),
    "maps of empty lists": (
        [[("k", [])] * 20] * ROWS,
        pa.map_(pa.string(), pa.list_(pa.int64())),
    ),
    "lists of structs of empty lists": (
        [[{"at": []}] * 20] * ROWS,
        pa.list_(pa.struct([("at", pa.list_(pa.timestamp("us", "UTC")))])),
    ),
    "lists of empty maps": ([EMPTY] * ROWS, pa.list_(pa.map_(pa.string(), pa.int32()))),
    "three levels": ([[[[]] * 9, []]] * ROWS, pa.list_(pa.list_(pa.list_(pa.int64())))),
    "forty leaves below empty lists": (
        [EMPTY] * ROWS,
        pa.list_(pa.list_(pa.struct([(f"f{n}", pa.int64()) for n in range(40)]))),
    ),
    "booleans": ([[[True], *EMPTY]] * ROWS, pa.list_(pa.list_(pa.bool_()))),
    "small decimals": ([[None, None]] * ROWS, pa.list_(pa.decimal128(2, 0))),
}


def write(*batches: pa.RecordBatch) -> tuple[bytes, int]:
    """Return a segment of these frames, and how long its footer is."""
    writer = ParquetEncoder(
        batches[0].schema, compression="zstd", compression_level=None, stats_columns=[]
    )
    pieces = [writer.start(), *(b"".join(writer.add(batch)[0]) for batch in batches)]
    end, summary = writer.finish()
    return b"".join([*pieces, end]), summary.footer_bytes


def read(data: bytes, footer: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield its frames."""
    tail = data[-footer:]
    index = find_format(PARQUET, where="x").parse_index(
        tail, object_bytes=len(data), where="x", footer_crc=zlib.crc32(tail)
    )
    for number in range(len(index.frames)):
        spans = [pa.py_buffer(data[start:end]) for start, end in index.spans(number, None)]
        yield index.decode(number, spans, schema=schema, columns=None, where="x")


@pytest.mark.parametrize("shape", SHAPES)
def test_nested_events_of_which_most_is_empty_come_back(shape: str) -> None:
    """A list without any within a list takes one offset in Arrow, and no value."""
    values, data_type = SHAPES[shape]
    batch = pa.record_batch({"x": pa.array(values, data_type)})
    assert list(read(*write(batch, batch), batch.schema)) == [batch, batch]


def test_very_many_rows_that_are_alike_come_back() -> None:
    """A million rows in a few pages, of seventy columns."""
    rows = 1_000_000
    column = pa.array([True]).take(pa.repeat(pa.scalar(0), rows))
    batch = pa.record_batch({f"c{n}": column for n in range(70)})
    (found,) = read(*write(batch), batch.schema)
    assert found == batch


def test_frame_that_would_be_two_row_groups_is_refused() -> None:
    """A task then writes it as Arrow; readers would refuse such a segment."""
    batch = pa.record_batch([pa.nulls((64 << 20) + 1)], ["x"])
    writer = ParquetEncoder(
        batch.schema, compression="zstd", compression_level=None, stats_columns=[]
    )
    writer.start()
    with pytest.raises(InvalidInputError, match="more rows than a row group"):
        writer.add(batch)
    assert not writer.is_broken


def test_index_that_readers_would_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statistics go first; then it is an error, as a frame is that is too much by itself."""
    batch = pa.record_batch({f"c{n}": range(ROWS) for n in range(10)})

    most = parquet_writer.MAX_INDEX_BYTES

    def finish(frames: int, limit: int, before: int = most) -> int:
        monkeypatch.setattr(parquet_writer, "MAX_INDEX_BYTES", before)
        writer = ParquetEncoder(
            batch.schema,
            compression="zstd",
            compression_level=None,
            stats_columns=batch.schema.names,
        )
        for _ in range(frames):
            writer.add(batch)
        monkeypatch.setattr(parquet_writer, "MAX_INDEX_BYTES", limit)
        end, _ = writer.finish()
        metadata = pq.read_metadata(pa.BufferReader(end)).metadata or {}
        return zstandard.frame_content_size(base64.b64decode(metadata[INDEX_KEY]))

    whole = finish(50, most)
    assert finish(50, whole) == whole
    assert finish(50, whole - 1) < whole - 3_000
    with pytest.raises(InvalidInputError, match="too many frames and columns"):
        finish(50, 12_000)
    with pytest.raises(InvalidInputError, match="too many columns"):
        finish(1, 400, before=400)


def test_bounds_of_texts_are_those_of_their_frames() -> None:
    """Parquet's writers have them, but for long texts: in order, beside those of other columns."""
    odd = [f"{n * n:x}" for n in range(300)]
    texts = ["b", "", "é" * 40, None, "z" * 4097] * 60, ["c"] * 300, [None] * 300, odd, ["a" * 90]
    columns = ["bytes", "id", "text"]
    batches = [
        pa.record_batch(
            {
                "n": pa.array([{"t": "zz"}] * len(column)),
                "text": pa.array(column, pa.string()),
                "id": range(len(column)),
                "bytes": pa.array(column, pa.binary()),
            }
        )
        for column in texts
    ]
    for some in (batches[start:] for start in range(5)):
        writer = ParquetEncoder(
            batches[0].schema, compression="zstd", compression_level=None, stats_columns=columns
        )
        writer.start()
        for batch in some:
            writer.add(batch)
        writer.finish()
        found = merge((batch.num_rows, compute(batch, columns)) for batch in some)
        assert list(writer.stats.items()) == list(found.items())


def test_texts_that_come_again_are_stored_once() -> None:
    """A dictionary may be larger than a page: what follows is not written out once it is."""
    random = Random(1)
    texts = [random.randbytes(45).hex() for _ in range(12_000)]
    batch = pa.record_batch({"x": texts * 5})
    data, footer = write(batch)
    column = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(0)
    words, numbers = sum(map(len, texts)) + 4 * len(texts), 4 * batch.num_rows
    assert words < column.total_uncompressed_size < words + numbers
    assert list(read(data, footer, batch.schema)) == [batch]


def test_texts_read_as_words_of_a_dictionary_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested, null and no UTF-8: what is read as numbers of words is what it was."""
    monkeypatch.setattr(encodings, "MANY_VALUES", 0)
    texts = ["x" * (n % 3) if n % 5 else None for n in range(1000)]
    texts[7] = "x" * 50_000
    odd = pa.array([b"\xff\xfe", None] * 500).cast(pa.binary())
    odd = pa.Array.from_buffers(pa.string(), 1000, odd.buffers(), odd.null_count)
    batch = pa.record_batch(
        {
            "text": texts,
            "odd": odd,
            "bytes": pa.array(texts).cast(pa.binary()),
            "list": [[text, "y"] if text else None for text in texts],
            "map": pa.array(
                [[(text, text)] if text else [] for text in texts], pa.map_("string", "string")
            ),
            "deep": [{"a": [{"b": text}]} for text in texts],
            "n": range(1000),
        }
    )
    data, footer = write(batch)
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    assert len(encodings.find_dictionaries(group, range(group.num_columns))) >= 6
    assert list(read(data, footer, batch.schema)) == [batch]


def test_a_window_shows_what_was_fetched_and_nothing_else() -> None:
    """What reaches over the border of two ranges was not fetched as one."""
    spans, data = [(4, 10), (10, 12), (20, 30)], bytes(range(40))
    window = Window(len(data))
    window.show(spans, [pa.py_buffer(data[start:end]) for start, end in spans])
    for start, end in combinations(range(41), 2):
        window.seek(start)
        if any(first <= start and end <= last for first, last in spans):
            assert window.read(end - start).to_pybytes() == data[start:end]
            assert window.tell() == end
        else:
            with pytest.raises(OSError, match=str(start)):
                window.read(end - start)
            assert window.tell() == start


def test_every_second_column_reads_half_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one range to fetch, to check and to find again: never all of them for each."""
    names = [f"c{number}" for number in range(3000)]
    values = pa.array(range(20))
    batch = pa.RecordBatch.from_arrays([values] * len(names), names)
    writer = ParquetEncoder(
        batch.schema, compression="none", compression_level=None, stats_columns=[]
    )
    whole = b"".join([writer.start(), b"".join(writer.add(batch)[0])])
    end, summary = writer.finish()
    whole += end
    index = find_format(PARQUET, where="w").parse_index(
        end, object_bytes=len(whole), where="w", footer_crc=summary.footer_crc
    )
    reads: list[int] = []

    class CountedWindow(Window):
        def read(self, count: int = -1) -> pa.Buffer:
            reads.append(count)
            return super().read(count)

    monkeypatch.setattr(segment, "Window", CountedWindow)

    def decode(columns: list[str] | None) -> tuple[int, int]:
        spans = index.spans(0, columns)
        assert len(spans) == (1500 if columns else 1)
        data = [pa.py_buffer(whole[first:last]) for first, last in spans]
        reads.clear()
        found = index.decode(0, data, schema=batch.schema, columns=columns, where="w")
        assert found.equals(batch.select(columns or names))
        return len(reads), sum(reads)

    decode(None)  # the first one of a segment may read more
    (every, every_bytes), (some, some_bytes) = decode(None), decode(names[::2])
    assert some <= every
    assert some_bytes <= 0.51 * every_bytes
