"""Inline segments: what lies behind the body of a commit file, and how it is read."""

from dataclasses import replace

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame, encode_frame
from segstore_ds.format.arrow.segment import ArrowIndex
from segstore_ds.format.inline import (
    attach_to,
    encoded_entry,
    index_of,
    join_frames,
)
from segstore_ds.format.record import build_json, from_json, parse_json
from segstore_ds.format.root import Epoch, Root, SegmentEntry, decode_root, encode_root
from segstore_ds.format.schema.codec import encode_schema
from segstore_ds.format.segment import ARROW

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
OBJECT = SegmentEntry(1, "0-1/a.arrow", 3, 100, 50, 7)


def _frame(start: int, rows: int = 2) -> Frame:
    batch = pa.record_batch(
        {"n": list(range(start, start + rows)), "s": ["x"] * rows}, schema=SCHEMA
    )
    return encode_frame(batch, compression="zstd", compression_level=None, stats_columns=["n"])


def _root() -> Root:
    entries = (encoded_entry(0, _frame(0)), OBJECT, encoded_entry(2, _frame(2, 4)))
    return Root(
        stream_id="s",
        version=3,
        transaction="t",
        parent="p",
        time_us=0,
        operation="append",
        epochs=(Epoch(0, 0, encode_schema(SCHEMA), None),),
        tail=9,
        next_segment=3,
        entries=entries,
    )


def _decoded(body: bytes, frames: bytes) -> Root:
    root = decode_root(body, where="log/3")
    attach_to(root.entries, frames, where="log/3")
    return root


def test_root_comes_back_with_its_frames() -> None:
    """Body and frames together give the same root; the frames are in no other place."""
    root = _root()
    body, frames = encode_root(root), join_frames(root.entries)
    assert _decoded(body, frames) == root
    assert len(frames) == root.inline_bytes
    rows = parse_json(body, where="x")["entries"]
    assert [names.is_inline(row[1]) for row in rows] == [True, False, True]
    assert [row[8] is None for row in rows] == [False, True, False]
    assert sum(row[8][0] for row in rows if row[8]) == len(frames)


def test_every_cut_and_every_extra_byte_is_told() -> None:
    """Fewer bytes than declared are truncated, more are corrupt."""
    root = _root()
    body, frames = encode_root(root), join_frames(root.entries)
    for size in range(0, len(frames), 7):
        with pytest.raises(TruncatedObjectError, match="within its frames"):
            _decoded(body, frames[:size])
    with pytest.raises(CorruptionError, match="extra bytes"):
        _decoded(body, frames + b"\0")
    bare = replace(root, entries=(OBJECT,), tail=3)
    with pytest.raises(CorruptionError, match="extra bytes"):
        _decoded(encode_root(bare), b"\0")


def test_inline_segment_has_the_index_of_its_frame() -> None:
    """It says what the frame does, and gives the rows that are held, or decodes those sent."""
    frame = _frame(5)
    entry = encoded_entry(7 << 32 | 9, frame)
    assert entry.frame is not None
    assert names.is_inline(entry.path)
    assert (entry.format, entry.bytes, entry.epoch) == (ARROW, frame.data.size, 7)
    index = index_of(entry, entry.frame)
    (found,) = index.frames
    assert (found.start, found.bytes) == (0, len(entry.frame.data))
    assert (found.crc, found.rows, found.raw_bytes) == (frame.crc, 2, frame.raw_bytes)
    assert found.fingerprint == frame.fingerprint

    def decoded(index: ArrowIndex, schema: pa.Schema, *columns: str) -> pa.RecordBatch:
        data = [pa.py_buffer(entry.frame.data)]
        return index.decode(0, data, schema=schema, columns=columns or None, where="x")

    sent = index_of(entry, replace(entry.frame, batch=None))
    assert decoded(index, SCHEMA) == decoded(sent, SCHEMA) == frame.batch
    assert decoded(index, SCHEMA, "s") == decoded(sent, SCHEMA, "s") == frame.batch.select(["s"])
    for each in (index, sent):
        with pytest.raises(CorruptionError):
            decoded(each, pa.schema([("n", pa.int32()), ("s", pa.string())]))
    again = entry.numbered(11)
    assert (again.path, again.segment_id) == (names.build_inline_path(11), 11)
    assert OBJECT.numbered(11) == replace(OBJECT, segment_id=11)


def test_damaged_frame_hides_no_other() -> None:
    """Whatever byte of a frame is damaged, the root is read, and carries the frame as it is."""
    root = _root()
    body, frames = encode_root(root), bytearray(join_frames(root.entries))
    for place in range(0, len(frames), 13):
        frames[place] ^= 0xFF
        damaged = _decoded(body, bytes(frames))
        assert damaged.entries[1] == OBJECT
        assert (encode_root(damaged), join_frames(damaged.entries)) == (body, bytes(frames))
        frames[place] ^= 0xFF


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *[(1, "0-1/a.arrow"), (1, names.build_inline_path(9)), (2, 0), (3, 0), (3, 65), (5, 1)],
        *[
            (6, "parquet"),
            (9, 1),
            (8, None),
            (8, [64, 1, 2]),
            (8, [65, 1, 2, ""]),
            (8, [64, -1, 2, ""]),
        ],
    ],
)
def test_malformed_row_is_refused(place: int, value: object) -> None:
    """A row without its frame's facts, or with impossible ones, is corrupt."""
    body = parse_json(encode_root(_root()), where="x")
    body["entries"][0][place] = value
    with pytest.raises(CorruptionError):
        decode_root(build_json(body), where="log/3")


def test_only_an_inline_segment_has_an_inline_path() -> None:
    """An object's entry can't give the name by which readers know a frame."""
    row = [0, names.build_inline_path(0), 1, 1, 1, 1, "arrow", None, None, 0, 0]
    with pytest.raises(CorruptionError, match="path"):
        from_json(SegmentEntry, row, where="x")
