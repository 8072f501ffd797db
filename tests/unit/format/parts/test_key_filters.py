"""Filters of whole segments: as bytes and back, within their shares, and never without a value."""

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format import bloom
from segstore_ds.format.parts import segments
from segstore_ds.format.parts.key_filters import (
    LEAST_BYTES,
    MOST_BYTES,
    SegmentFilters,
    decode_filters,
    encode_filters,
    join_frames,
)

RANDOM = random.Random(3)
SEGMENTS: list[SegmentFilters] = [
    None,
    {},
    {"user": (bytes(range(32)),)},
    {"a": (bytes(64), bytes(32)), "größe": (bytes(range(32, 64)),)},
]


def hashes(count: int) -> bloom.Hashes:
    values = [RANDOM.randbytes(8) for _ in range(count)]
    found = bloom.hash_values(pa.array(values, pa.binary()))
    assert found is not None
    return found


def joined(*frames: bloom.Hashes, segment_bytes: int = 1 << 20) -> Any:
    filters = [{"key": bloom.insert(frame, 4)} for frame in frames]
    return join_frames(filters, segment_bytes=segment_bytes)


def test_chunks_come_back() -> None:
    body = encode_filters(SEGMENTS)
    assert decode_filters(body, rows=4, where="x") == SEGMENTS
    chunks, data = segments.encode_filter_chunks(SEGMENTS)
    assert [(chunk.rows, chunk.looked) for chunk in chunks] == [(4, 3)]
    assert segments.decode_filter_chunk(chunks[0], data, where="x") == SEGMENTS
    assert segments.encode_filter_chunks([None] * 3) == ((), b"")


@pytest.mark.parametrize(
    "counts",
    ['{"user":1}', "[1]", '[[["user"]]]', '[[["user",0]]]', '[[["user",true]]]', "[[[1,1]]]",
     '[[["user",2]]]', "[null]", "[[],[]]", "[", '[[["user",9007199254740993]]]'],
)  # fmt: skip
def test_malformed_chunks_are_refused(counts: str) -> None:
    text = counts.encode()
    for body in (struct.pack("<I", len(text)) + text + bytes(32), struct.pack("<I", 99) + text):
        with pytest.raises(CorruptionError):
            decode_filters(body, rows=1, where="x")
    with pytest.raises(CorruptionError):
        decode_filters(b"", rows=1, where="x")


def test_no_value_of_a_frame_is_lost() -> None:
    for sizes in ((8, 8), (30, 30, 2), (60, 60, 60), (0, 5), (1,)):
        frames = [hashes(size) for size in sizes]
        found = joined(*frames)["key"]
        assert len(found) <= len(frames)
        for frame in frames:
            held = np.array([bloom.may_hold(data, frame) for data in found])
            assert held.any(axis=0).all()
            for value in frame:
                assert bloom.hold_any(found, np.array([value])).any()


def test_filters_are_united_while_they_tell_values_apart() -> None:
    same = hashes(20)
    assert len(joined(same, same, same)["key"]) == 1
    assert len(joined(*(hashes(60) for _ in range(4)))["key"]) == 4
    sizes = [bloom.insert(hashes(5), blocks) for blocks in (2, 2, 3)]
    assert [len(data) for data in bloom.unite(sizes)] == [64, 96]


def test_filters_answer_together_as_each_alone() -> None:
    filters = [bloom.insert(hashes(9), blocks) for blocks in (1, 2, 5, 1)]
    for asked in (hashes(1), hashes(40)):
        alone = [bool(bloom.may_hold(data, asked).any()) for data in filters]
        assert bloom.hold_any(filters, asked).tolist() == alone
    assert bloom.hold_any([], hashes(2)).tolist() == []


def test_columns_beyond_the_share_or_without_a_filter_are_left_out() -> None:
    frames = [{"a": bytes(LEAST_BYTES), "b": bytes(32)}, {"a": bytes(LEAST_BYTES)}]
    assert set(join_frames(frames, segment_bytes=1)) == {"a"}
    assert join_frames([{"a": bytes(LEAST_BYTES + 32)}], segment_bytes=1) == {}
    assert join_frames([{"a": bytes(MOST_BYTES + 32)}], segment_bytes=1 << 40) == {}
    assert join_frames([], segment_bytes=1) == {}


def test_parts_hold_a_bounded_size_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FILTER_BYTES", 32 * 5)
    monkeypatch.setattr(segments, "CHUNK_BYTES", 32 * 2)
    filled: list[SegmentFilters] = [{"a": (RANDOM.randbytes(32),)} for _ in range(8)]
    chunks, data = segments.encode_filter_chunks(filled)
    found: list[SegmentFilters] = []
    for chunk in chunks:
        piece, data = data[: chunk.bytes], data[chunk.bytes :]
        found += segments.decode_filter_chunk(chunk, piece, where="x")
    assert found == [*filled[:5], {}, {}, {}]
    assert sum(chunk.looked for chunk in chunks) == 8
