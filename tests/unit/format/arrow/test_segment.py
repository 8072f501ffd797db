"""Segments: laid out once, every byte covered, every cut noticed."""

import json
import struct
import zlib

import pyarrow as pa
import pytest
import zstandard

from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    FormatError,
    InvalidInputError,
    TruncatedObjectError,
    UnsupportedVersionError,
)
from segstore_ds.format.arrow.frame import check_frame, decode_frame, encode_frame
from segstore_ds.format.arrow.segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    ArrowEncoder,
    ArrowSegments,
)
from segstore_ds.format.bounds import Bounds
from segstore_ds.format.statistics import parse_piece

FORM = ArrowSegments()
SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


def batch_of(start, end):
    rows = [{"a": n, "s": f"user-{n}" if n % 3 else None} for n in range(start, end)]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


BATCHES = [batch_of(0, 5), batch_of(5, 6), batch_of(6, 16)]


def frame_of(batch):
    return encode_frame(
        batch, compression="zstd", compression_level=1, stats_columns=batch.schema.names
    )


def build(batches=BATCHES):
    writer = ArrowEncoder()
    parts = [writer.start()]
    for batch in batches:
        parts += writer.add(frame_of(batch))
    end, summary = writer.finish()
    return b"".join(map(bytes, [*parts, end])), summary


def frames_of(data, *, footer_crc=None, tail_bytes=None):
    """Return the index of a segment; without a checksum its end is taken as it is."""
    tail = data if tail_bytes is None else data[-tail_bytes:]
    end = tail[-FORM.measure_end(tail, object_bytes=len(data)) :]
    crc = zlib.crc32(end) if footer_crc is None else footer_crc
    index = FORM.parse_index(tail, object_bytes=len(data), where="seg", footer_crc=crc)
    index.stats.pieces()  # which are parsed when they are asked for
    return index.frames


def read(data, **known):
    entries = frames_of(data, **known)
    return [_decode(data[entry.start : entry.end], entry) for entry in entries]


def _decode(part, entry, where="seg"):
    check_frame(part, crc=entry.crc, where=where)
    return decode_frame(part, rows=entry.rows, schema=SCHEMA, columns=None, where=where)


def rebuild(change, *, raw_bytes=None, version=1):
    """Write a segment whose footer is changed but whose checksums are right."""
    data, summary = build()
    end = len(data) - summary.footer_bytes
    footer = data[end:-TRAILER_BYTES]
    content = json.loads(zstandard.decompress(footer))
    change(content)
    raw = content.get("raw_text", json.dumps(content)).encode()
    footer = zstandard.compress(raw)
    facts = struct.pack(
        "<QIIIII", end, len(footer), raw_bytes or len(raw), zlib.crc32(footer), version, 0
    )
    return data[:end] + footer + facts + struct.pack("<I8s", zlib.crc32(facts), b"SEGATAIL")


def test_a_segment_comes_back():
    data, summary = build()
    assert read(data) == BATCHES
    assert read(data, footer_crc=summary.footer_crc, tail_bytes=summary.footer_bytes) == BATCHES
    FORM.check_head(data, where="seg")


def test_summary_describes_the_written_segment():
    data, summary = build()
    assert summary.bytes == len(data)
    assert summary.rows == 16
    assert summary.footer_crc == zlib.crc32(data[-summary.footer_bytes :])
    stats = {"int:a": Bounds(0, 15, 0), "string:s": Bounds("user-1", "user-8", 6)}
    assert parse_piece(summary.stats, where="summary") == stats
    parsed = frames_of(data)
    assert summary.frames == len(parsed)
    assert [entry.rows for entry in parsed] == [5, 1, 10]


def test_frames_are_aligned_and_fill_the_object():
    data, summary = build()
    starts = [entry.start for entry in frames_of(data)]
    ends = [entry.end for entry in frames_of(data)]
    assert starts == [HEADER_BYTES, *ends[:-1]]
    assert all(start % 64 == 0 for start in starts)
    assert ends[-1] == len(data) - summary.footer_bytes


def test_an_empty_batch_comes_back():
    data, summary = build([batch_of(0, 0)])
    assert summary.rows == 0
    assert read(data) == [batch_of(0, 0)]


def test_frames_of_several_schemas_keep_their_fingerprints():
    other = pa.record_batch({"z": pa.array([1.5])})
    data, summary = build([BATCHES[0], other, BATCHES[1]])
    prints = [entry.fingerprint for entry in frames_of(data)]
    assert prints[0] == prints[2] != prints[1]
    assert summary.stats is None


def test_many_frames_cost_few_bytes_each():
    frame = frame_of(batch_of(0, 1))
    writer = ArrowEncoder()
    writer.start()
    for _ in range(1000):
        writer.add(frame)
    _, summary = writer.finish()
    assert summary.footer_bytes < 1000


@pytest.mark.parametrize("steps", ["add", "finish", "start start", "start finish",
                                   "start add finish add", "start add finish finish",
                                   "start add start"])  # fmt: skip
def test_steps_in_another_order_are_refused(steps):
    writer = ArrowEncoder()
    frame = frame_of(BATCHES[0])
    calls = {"start": writer.start, "add": lambda: writer.add(frame), "finish": writer.finish}
    *first, last = steps.split()
    for step in first:
        calls[step]()
    with pytest.raises(InvalidInputError):
        calls[last]()


def test_an_empty_object_is_its_own_error():
    with pytest.raises(EmptyObjectError):
        frames_of(b"")


def test_every_cut_is_noticed():
    data, _ = build()
    for size in range(1, len(data)):
        with pytest.raises(FormatError):
            read(data[:size])


def test_a_cut_object_is_truncated_not_corrupt():
    data, _ = build()
    for size in (1, 50, 200, len(data) - 1):
        with pytest.raises(TruncatedObjectError):
            read(data[:size])


def test_bytes_after_the_end_are_noticed():
    data, _ = build()
    for garbage in (b"\0", b"x" * 64, data[-TRAILER_BYTES:], data):
        with pytest.raises(FormatError):
            read(data + garbage)


def test_a_byte_before_the_start_is_noticed():
    data, _ = build()
    with pytest.raises(CorruptionError):
        read(b"\0" + data)


@pytest.mark.parametrize("known", [True, False])
def test_flipped_byte_gives_a_typed_error_or_right_answer(known):
    data, summary = build()
    crc = summary.footer_crc if known else None
    unnoticed = []
    for place in range(len(data)):
        for mask in (1, 0x80, 0xFF):
            flipped = bytearray(data)
            flipped[place] ^= mask
            try:
                assert read(bytes(flipped), footer_crc=crc) == BATCHES
                unnoticed.append(place)
            except FormatError:
                pass
    # Readers do not need the header; all else is covered.
    assert set(unnoticed) == set(range(HEADER_BYTES))


def test_every_flipped_byte_of_the_header_is_found_by_its_check():
    data, _ = build()
    for place in range(HEADER_BYTES):
        flipped = bytearray(data[:HEADER_BYTES])
        flipped[place] ^= 0x10
        with pytest.raises(CorruptionError):
            FORM.check_head(bytes(flipped), where="seg")
    with pytest.raises(TruncatedObjectError):
        FORM.check_head(data[:63], where="seg")


def test_a_damaged_frame_does_not_hide_its_neighbours():
    data, _ = build()
    damaged = bytearray(data)
    damaged[frames_of(data)[1].start + 5] ^= 4
    entries = frames_of(bytes(damaged))
    for place, entry in enumerate(entries):
        part = bytes(damaged[entry.start : entry.end])
        if place == 1:
            with pytest.raises(CorruptionError, match="'seg#1'"):
                _decode(part, entry, "seg#1")
        else:
            assert _decode(part, entry) == BATCHES[place]


def test_a_newer_version_is_refused_as_such():
    with pytest.raises(UnsupportedVersionError, match="version=2"):
        read(rebuild(lambda _: None, version=2))


def test_short_tail_error_names_the_needed_bytes():
    data, summary = build()
    with pytest.raises(TruncatedObjectError, match=f"needed={summary.footer_bytes}"):
        read(data, tail_bytes=summary.footer_bytes - 1)


def test_the_footer_of_another_segment_is_not_taken_for_this_one():
    data, summary = build()
    with pytest.raises(CorruptionError, match="not the one that was committed"):
        read(data, footer_crc=summary.footer_crc ^ 1)


def test_unknown_fields_of_the_index_are_left_alone():
    assert read(rebuild(lambda content: content.update(later=[1, 2]))) == BATCHES


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": [64, 64]},
        {"bytes": []},
        {"bytes": [2**62, 2**62, 2**62]},
        {"bytes": ["64", 64, 64]},
        {"rows": [5, 1]},
        {"rows": [5, 1, -1]},
        {"rows": [5, 1, True]},
        {"rows": [5, 1, 2**40]},
        {"crc": [0, 0, 2**32]},
        {"raw": [0, 0, 2**40]},
        {"schema": [0, 0, 9]},
        {"schemas": [7]},
        {"schemas": []},
        {"stats": [{}]},
        {"stats": {}},
        {"stats": [{"int:a": [1, 2, 0]}, 5, {}]},
        {"stats": [{"int:a": [1, 2, 0]}, {"int:a": ["1", 2, 0]}, {}]},
        {"raw_text": "[" * 100_000},
        {"raw_text": "[1, 2]"},
        {"raw_text": "{}"},
        {"raw_text": "\u0000"},
    ],
    ids=str,
)
def test_a_crafted_index_is_corrupt(change):
    data = rebuild(lambda content: content.update(change))
    with pytest.raises(CorruptionError):
        read(data)


def test_a_footer_that_decompresses_to_another_size_is_corrupt():
    with pytest.raises(CorruptionError):
        read(rebuild(lambda _: None, raw_bytes=2**31))
    with pytest.raises(CorruptionError):
        read(rebuild(lambda content: content.update(x="y" * (65 << 20))))
