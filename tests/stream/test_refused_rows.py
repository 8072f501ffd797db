"""Rows that a frame of Parquet may not hold are cut, or stored in Arrow: never refused."""

import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stream_kit import objects

from segstore_ds.format.parquet import limits as parquet_limits
from segstore_ds.format.parquet.limits import FrameLimits
from segstore_ds.storage import open_storage
from segstore_ds.stream import Stream, create_on
from segstore_ds.write.task_writer import Layout

FLAGS = pa.schema([("flags", pa.list_(pa.bool_()))])
TEXTS = pa.schema([("s", pa.string())])
VARIANT = [
    pa.field("value", pa.binary(), nullable=False),
    pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
]
PARQUET = Layout(inline_bytes=0, frame_rows=100, segment_format="parquet")
ARROW = replace(PARQUET, segment_format="arrow")
both_ways = pytest.mark.parametrize("wanted", ["parquet", "auto"])


def make(schema: pa.Schema) -> Stream:
    return create_on(open_storage(f"memory://{uuid.uuid4().hex}"), schema)


def formats(stream: Stream) -> list[str]:
    return [entry.format for entry in stream.root.entries]


def flags(*lengths: int) -> pa.Table:
    return pa.table({"flags": [[False] * length for length in lengths]}, FLAGS)


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make readers and writers believe no more than a thousand values or 100 KB per frame."""
    monkeypatch.setattr(parquet_limits, "FREE_VALUES", 1000)
    monkeypatch.setattr(parquet_limits, "FREE_BYTES", 100_000)
    monkeypatch.setattr(parquet_limits, "MOST_EXPANSION", 1)


def test_very_many_values_that_take_no_bytes_are_cut() -> None:
    """More false flags than readers believe a few bytes to stand for, in one frame."""
    rows, each = 33_000, 2048
    ends = np.arange(rows + 1, dtype=np.int32) * each
    values = pa.Array.from_buffers(
        pa.bool_(), rows * each, [None, pa.py_buffer(bytes(rows * each // 8))]
    )
    column = pa.ListArray.from_arrays(pa.array(ends), values)
    stream = make(FLAGS)
    layout = Layout(inline_bytes=0, segment_format="parquet")
    stream.append(pa.table([column], names=["flags"]), layout=layout)
    assert formats(stream) == ["parquet"]
    frames = stream.metadata("frames").read_all()
    assert frames["rows"].to_pylist() == [rows // 2] * 2
    assert len(stream.read(rows - 1, rows).read_all()["flags"][0]) == each


@pytest.mark.usefixtures("low_limits")
@both_ways
def test_rows_are_cut_until_each_frame_is_believed(wanted: str) -> None:
    """Lists of few bits, and texts that are large and alike."""
    layout = replace(PARQUET, segment_format=wanted)
    cases = [
        (FLAGS, flags(*[30] * 150, 900, 1, 700, 0, *[3] * 50)),
        (TEXTS, pa.table({"s": ["x" * 2000] * 250}, TEXTS)),
    ]
    for schema, rows in cases:
        stream = make(schema)
        stream.append(rows, layout=layout)
        assert set(formats(stream)) == {"parquet"}
        assert stream.read().read_all() == rows
        stream.append(rows, layout=ARROW)
        assert stream.compact(layout=layout).segments_after == 1
        assert formats(stream) == ["parquet"]
        assert stream.read().read_all() == pa.concat_tables([rows, rows])
        stream.verify().check()


@pytest.mark.usefixtures("low_limits")
@both_ways
def test_a_single_row_that_is_too_much_is_stored_in_arrow(wanted: str) -> None:
    """In an object of its own, in its place between the others."""
    layout = replace(PARQUET, segment_format=wanted)
    cases = [
        (FLAGS, flags(*[3] * 150, 1001, 2000, *[3] * 150, 1001, *[3] * 50)),
        (TEXTS, pa.table({"s": [*"ab" * 75, *["x" * 100_001] * 2, *"ab", "y" * 100_001, "c"]})),
    ]
    for schema, rows in cases:
        stream = make(schema)
        stream.append(rows.cast(schema), layout=layout)
        assert formats(stream) == ["parquet", "arrow", "parquet", "arrow", "parquet"]
        assert [entry.rows for entry in stream.root.entries][1::2] == [2, 1]
        assert stream.read().read_all() == rows
        stream.verify().check()


@pytest.mark.usefixtures("low_limits")
@both_ways
def test_what_is_merged_with_such_a_row_is_arrow_as_a_whole(wanted: str) -> None:
    """One segment: of both formats, the neighbours would be merged by every compaction."""
    layout = replace(PARQUET, segment_format=wanted)
    rows = flags(*[3] * 150, 1001, *[3] * 150)
    for appended in (ARROW, layout):
        stream = make(FLAGS)
        for _ in range(2):
            stream.append(rows, layout=appended)
        before = objects(stream.storage, "segments")
        assert stream.compact(layout=layout).commits == 1
        assert formats(stream) == ["arrow"]
        assert len(objects(stream.storage, "segments") - before) == 1
        again = stream.compact(layout=layout)
        assert (again.commits, again.bytes_written) == (0, 0)
        for _ in range(4):
            stream.append(rows.slice(0, 10), layout=layout, compact="auto")
        stream.compact(layout=layout)
        assert len(stream.root.entries) == 1
        assert stream.read(0, 602).read_all() == pa.concat_tables([rows, rows])
        stream.verify().check()


@both_ways
def test_values_that_pyarrow_refuses_are_stored_in_arrow(wanted: str) -> None:
    """Spark's variant, whose children may not be null, of which one is."""
    variant = pa.struct(VARIANT)
    schema = pa.schema([("n", pa.int64()), ("v", variant)])

    def rows(*values: bytes | None) -> pa.Table:
        children = [pa.array(values, pa.binary()), pa.array([b"m"] * len(values), pa.binary())]
        column = pa.StructArray.from_arrays(children, fields=VARIANT)
        return pa.table([pa.array(range(len(values))), column], schema=schema)

    stream = make(schema)
    layout = replace(PARQUET, frame_rows=2, segment_format=wanted)
    stream.append(rows(None, b"a", b"b", b"c", b"d"), layout=layout)
    assert formats(stream) == ["arrow", "parquet"]
    stream.compact(layout=layout)
    assert formats(stream) == ["arrow"]
    assert stream.compact(layout=layout).commits == 0
    assert stream.read().read_all().column("v").to_pylist()[1]["value"] == b"a"


SHAPES = {
    "list": ([[1, 2], [], None, [3]], pa.list_(pa.int64())),
    "lists of lists": ([[[1], []], [], None, [[], None, [2, 3]]], pa.list_(pa.list_(pa.int8()))),
    "map": ([[("a", [1]), ("b", [])], [], None, []], pa.map_(pa.string(), pa.list_(pa.int8()))),
    "structs": (
        [{"x": [1, 2], "y": 1}, None, {"x": None, "y": 2}, {"x": [], "y": 3}],
        pa.struct([("x", pa.list_(pa.int8())), ("y", pa.int64())]),
    ),
    "structs in lists": (
        [[{"x": [1, 2], "y": 1}, None], [], None, [{"x": None, "y": 2}]],
        pa.list_(pa.struct([("x", pa.list_(pa.int8())), ("y", pa.int64())])),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_counted_without_writing_them(shape: str) -> None:
    """At least as many as Parquet has, and no more than a few too many; of slices, too."""
    values, data_type = SHAPES[shape]
    column = pa.array(values * 5, data_type)
    for start, length in ((0, 20), (3, 1), (7, 9), (19, 1), (5, 0)):
        part = pa.record_batch([column.slice(start, length)], names=["c"])
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([part]), sink)
        metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
        expected = sum(
            metadata.row_group(group).column(place).num_values
            for group in range(metadata.num_row_groups)
            for place in range(metadata.num_columns)
            if metadata.schema.column(place).max_repetition_level
        )
        found = parquet_limits._most_values(part.column(0), length, repeated=False)
        assert expected <= found <= 2 * expected + length


def test_ordinary_frames_pass_at_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are only counted where their bytes could hold too many values."""
    schema = pa.schema([("x", pa.list_(pa.int64())), ("n", pa.int64())])
    batch = pa.record_batch({"x": [[1, 2]] * 100, "n": range(100)}, schema)
    monkeypatch.delattr(parquet_limits, "_most_values")
    assert FrameLimits.of(schema).passes(batch)
    assert FrameLimits.of(schema) == FrameLimits(2, bits=False, lists=True)
    assert FrameLimits.of(FLAGS) == FrameLimits(1, bits=True, lists=True)
    assert FrameLimits.of(TEXTS) == FrameLimits(1, bits=False, lists=False)
