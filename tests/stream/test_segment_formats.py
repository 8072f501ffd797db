"""Streams whose segments are Parquet, Arrow, or both: nobody who reads can tell."""

import itertools
import uuid
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stream_kit import objects, values

from segstore_ds.errors import CorruptionError, InvalidInputError, UnsupportedVersionError
from segstore_ds.format.parquet import segment as segment_parquet
from segstore_ds.read import segments
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import salvage
from segstore_ds.stream.stream import Stream
from segstore_ds.write import task_writer
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("x", pa.list_(pa.int32()))])
PARQUET = Layout(inline_bytes=0, frame_rows=10, segment_format="parquet")
ARROW = replace(PARQUET, segment_format="arrow")
AUTO = replace(PARQUET, segment_format="auto")


def table(start: int, end: int) -> pa.Table:
    places = range(start, end)
    lists = [[n, n + 1] if n % 3 else None for n in places]
    return pa.table({"n": list(places), "s": [f"s{n % 7}" for n in places], "x": lists}, SCHEMA)


def make(*layouts: Layout, schema: pa.Schema = SCHEMA, rows: int = 50) -> Stream:
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), schema)
    for number, layout in enumerate(layouts):
        stream.append(
            table(number * rows, number * rows + rows).select(schema.names), layout=layout
        )
    return stream


def formats(stream: Stream) -> list[str]:
    found = [entry.format for entry in stream._log.root.entries]
    for entry in stream._log.root.entries:
        assert entry.path.endswith(f".{entry.format}")
    return found


@pytest.fixture(params=["arrow", "parquet", "mixed"])
def stream(request) -> Stream:
    ways = {"arrow": [ARROW], "parquet": [PARQUET], "mixed": [ARROW, PARQUET]}[request.param]
    made = make(*itertools.islice(itertools.cycle(ways), 4))
    assert set(formats(made)) == {layout.segment_format for layout in ways}
    return made


def parquet_path(stream: Stream) -> str:
    return next(f"segments/{e.path}" for e in stream._log.root.entries if e.format == "parquet")


# --- the same events, whatever the format ---------------------------------------------------------


def test_every_range_and_column_comes_back(stream):
    whole = table(0, 200)
    assert stream.read().read_all() == whole
    for start, end in ((0, 1), (9, 11), (45, 155), (199, 200), (77, 77)):
        assert stream.read(start, end).read_all() == table(start, end)
        for names in (["x"], ["s", "n"], ["x", "n"]):
            assert stream.read(start, end, columns=names).read_all() == table(start, end).select(
                names
            )
    assert values(stream, 40, 60, offset=True) == [(n, n) for n in range(40, 60)]


def test_filters_prune_frames_and_give_the_right_rows(stream, monkeypatch):
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    monkeypatch.setattr(segments, "GAP_BYTES", 0)
    stream._log.storage.stats.reset()
    assert values(stream, filters=[["n", "==", 133]]) == [133]
    assert stream._log.storage.stats.requests["get_range"] == 2  # one footer, one frame's column
    assert values(stream, filters=[["s", "==", "s3"], ["n", ">", 190]]) == [192, 199]


def test_everything_that_reads_segments_reads_them(stream):
    assert stream.verify().check().rows == 200
    assert sum(batch.num_rows for batch in stream.metadata("frames")) == 20
    target = f"memory://{uuid.uuid4().hex}"
    stream.copy_to(target, copy_id="c", start=5, end=155)
    copy = open_on(open_storage(target))
    assert values(copy) == list(range(5, 155))
    assert copy.verify().ok
    kept = {e.segment_id: e.format for e in stream._log.root.entries}
    whole = [e for e in copy._log.root.entries if e.segment_id in kept]
    assert whole
    assert all(e.format == kept[e.segment_id] and e.path.endswith(e.format) for e in whole)
    rescued = f"memory://{uuid.uuid4().hex}"
    assert salvage(stream._log.storage.url, rescued).rows == 200
    assert values(open_on(open_storage(rescued))) == list(range(200))


@pytest.mark.parametrize("layout", [ARROW, PARQUET, AUTO])
def test_any_mix_merges_to_any_format(stream, layout):
    before = objects(stream._log.storage, "segments")
    done = stream.compact(layout=layout)
    assert done.segments_after == 1
    assert formats(stream) == ["arrow" if layout is ARROW else "parquet"]
    assert stream.read().read_all() == table(0, 200)
    assert stream.verify().ok
    assert len(objects(stream._log.storage, "segments") - before) == 1


def test_stitch_joins_frames_of_arrow_and_leaves_parquet_alone():
    stream = make(ARROW, ARROW, PARQUET, ARROW, ARROW)
    stream.compact(mode="stitch")
    assert formats(stream) == ["arrow", "parquet", "arrow"]
    assert stream.read().read_all() == table(0, 250)


def test_restore_truncate_and_vacuum_take_them_as_they_are(stream):
    version = stream.version
    stream.overwrite(table(0, 3), layout=PARQUET)
    stream.restore(version)
    assert stream.read().read_all() == table(0, 200)
    stream.truncate(stream.head + 60)
    assert stream.read().read_all() == table(60, 200)
    stream.maintain(grace=86_400)
    assert stream.verify().ok


def test_merges_after_commits_make_parquet_of_what_is_large():
    """Of small batches, too; but not of large events, and not if Arrow is asked for."""
    texts = [uuid.uuid4().hex * 2 for _ in range(2_000)]
    for wanted, width, last in (
        ("auto", 1, "parquet"),
        ("auto", 9, "arrow"),
        ("arrow", 1, "arrow"),
    ):
        stream = create_on(
            open_storage(f"memory://{uuid.uuid4().hex}"),
            pa.schema([("s", pa.string())]),
            upkeep=None,
        )
        rows = pa.table({"s": [text * width for text in texts]})
        layout = Layout(segment_format=wanted, compression="none")
        for _ in range(20 // width + 2):
            stream.append(rows, layout=layout, compact="auto")
        assert formats(stream)[0] == last
        assert len(formats(stream)) < 10
        assert stream.read().read_all() == pa.concat_tables([rows] * (20 // width + 2))


# --- which format ---------------------------------------------------------------------------------


def test_segments_end_at_the_rows_and_bytes_that_were_asked_for():
    stream = make(replace(PARQUET, segment_rows=20), rows=50)
    assert [entry.rows for entry in stream._log.root.entries] == [20, 20, 10]
    size = make(PARQUET, rows=2000)._log.root.entries[0].bytes
    stream = make(replace(PARQUET, segment_bytes=size // 4), rows=2000)
    assert len(stream._log.root.entries) > 1
    assert all(e.bytes - e.footer_bytes <= size // 4 + 60 for e in stream._log.root.entries)
    assert stream.read().read_all() == table(0, 2000)


VARIANT = [  # Spark's: what is null may not be, and Arrow does not look
    pa.field("value", pa.binary(), nullable=False),
    pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
]


def variant(value: bytes | None) -> pa.RecordBatch:
    children = [pa.array([value], pa.binary()), pa.array([b"m"], pa.binary())]
    array = pa.StructArray.from_arrays(children, fields=VARIANT)
    return pa.record_batch({"n": pa.array([1]), "v": array})


def test_rows_that_parquet_refuses_are_arrow_and_logged(caplog):
    batch = variant(None)
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), batch.schema)
    stream.append(batch, layout=PARQUET)
    assert formats(stream) == ["arrow"]
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "column='v'" in record.getMessage()


@pytest.mark.parametrize(("layout", "rows"), [(ARROW, 40), (PARQUET, 20)])
def test_segments_end_at_the_limit_of_pieces(monkeypatch, layout, rows):
    # Four frames of Arrow have a checksum each; of Parquet's three columns each page has two.
    most = 4 if layout is ARROW else 2 * pieces_of_a_frame()
    monkeypatch.setattr(task_writer, "MOST_PIECES", most)
    stream = make(layout, rows=50)
    expected = [rows] * (50 // rows) + [50 % rows]
    assert [entry.rows for entry in stream._log.root.entries] == expected
    assert stream.read().read_all() == table(0, 50)
    monkeypatch.setattr(task_writer, "MOST_PIECES", 1)
    assert [entry.rows for entry in make(layout, rows=50)._log.root.entries] == [10] * 5


def pieces_of_a_frame() -> int:
    writer = PARQUET.parquet_encoder(SCHEMA, [])
    writer.add(table(0, 10).to_batches()[0])
    return writer.pieces


def test_nested_columns_have_the_types_of_the_schema():
    """Parquet's readers add the ids of its fields to the types, which then differ."""
    nested = pa.schema([("a", pa.struct([("b", pa.list_(pa.int32()))]))])
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), nested)
    stream.append(pa.table({"a": [{"b": [1, 2]}, None]}, schema=nested), layout=PARQUET)
    for batch in stream.read():
        kind = batch.schema.field(0).type
        assert batch.column(0).type.equals(kind, check_metadata=True)


# --- damage ---------------------------------------------------------------------------------------


def test_only_the_columns_asked_for_are_read_and_checked(monkeypatch):
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    monkeypatch.setattr(segments, "GAP_BYTES", 0)
    stream = make(PARQUET)
    path = parquet_path(stream)
    data = stream._log.storage.get(path)
    group = pq.read_metadata(pa.BufferReader(data)).row_group(2)
    chunk = group.column(1)
    place = chunk.dictionary_page_offset or chunk.data_page_offset
    for byte in range(place, place + chunk.total_compressed_size, 3):
        damaged = data[:byte] + bytes([data[byte] ^ 4]) + data[byte + 1 :]
        stream._log.storage.put(path, damaged)
        assert values(stream) == list(range(50))
        with pytest.raises(CorruptionError, match=path):
            stream.read(columns=["s"]).read_all()
        assert stream.read(0, 20).read_all() == table(0, 20)


def test_what_parquet_does_not_bring_back_is_arrow():
    schema = pa.schema([("n", pa.int64()), ("nothing", pa.struct([]))])
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), schema)
    rows = pa.table({"n": [1, 2], "nothing": [{}, None]}, schema)
    stream.append(rows, layout=PARQUET)
    assert formats(stream) == ["arrow"]
    assert stream.read().read_all() == rows


def test_what_would_not_be_read_again_is_not_committed(monkeypatch):
    stream = make(ARROW)
    version, before = stream.version, objects(stream._log.storage, "segments")
    monkeypatch.setattr(segment_parquet, "MAX_INDEX_BYTES", 100)
    with pytest.raises(InvalidInputError, match="could not be read back"):
        stream.append(table(50, 100), layout=PARQUET)
    assert stream.refresh().version == version
    assert objects(stream._log.storage, "segments") == before


def test_unknown_segment_format_is_unsupported(stream):
    entry = replace(stream._log.root.entries[0], format="lance")
    with pytest.raises(UnsupportedVersionError, match="lance"):
        segments.open_segment(stream._log.storage, entry)
