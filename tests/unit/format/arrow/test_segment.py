"""Segments: laid out once, every byte covered, every cut noticed."""

import json
import struct
import zlib

import pyarrow as pa
import pytest
import zstandard

from segstore_ds.errors import CorruptionError, FormatError, UnsupportedVersionError
from segstore_ds.format.arrow.frame import check_frame, decode_frame, encode_frame
from segstore_ds.format.arrow.segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    ArrowEncoder,
    ArrowSegments,
)

FORM = ArrowSegments()
SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


def batch_of(start, end):
    rows = [{"a": n, "s": f"user-{n}" if n % 3 else None} for n in range(start, end)]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


BATCHES = [batch_of(0, 5), batch_of(5, 6), batch_of(6, 16)]


def build():
    writer = ArrowEncoder()
    parts = [writer.start()]
    for batch in BATCHES:
        frame = encode_frame(
            batch, compression="zstd", compression_level=1, stats_columns=SCHEMA.names
        )
        parts += writer.add(frame)
    end, summary = writer.finish()
    return b"".join(map(bytes, [*parts, end])), summary


def read(data, *, footer_crc=None, tail_bytes=None):
    """Return the batches of a segment; without a checksum its end is taken as it is."""
    tail = data if tail_bytes is None else data[-tail_bytes:]
    end = tail[-FORM.measure_end(tail, object_bytes=len(data)) :]
    crc = zlib.crc32(end) if footer_crc is None else footer_crc
    index = FORM.parse_index(tail, object_bytes=len(data), where="seg", footer_crc=crc)
    index.stats.pieces()  # which are parsed when they are asked for
    batches = []
    for entry in index.frames:
        part = data[entry.start : entry.end]
        check_frame(part, crc=entry.crc, where="seg")
        batches.append(
            decode_frame(part, rows=entry.rows, schema=SCHEMA, columns=None, where="seg")
        )
    return batches


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


def test_every_cut_is_noticed():
    data, _ = build()
    for size in range(1, len(data)):
        with pytest.raises(FormatError):
            read(data[:size])


def test_bytes_after_the_end_are_noticed():
    data, _ = build()
    for garbage in (b"\0", b"x" * 64, data[-TRAILER_BYTES:], data):
        with pytest.raises(FormatError):
            read(data + garbage)


@pytest.mark.parametrize("known", [True, False])
def test_flipped_byte_gives_a_typed_error_or_right_answer(known):
    data, summary = build()
    crc = summary.footer_crc if known else None
    unnoticed = []
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        try:
            assert read(bytes(flipped), footer_crc=crc) == BATCHES
            unnoticed.append(place)
        except FormatError:
            pass
    # Readers do not need the header; all else is covered.
    assert set(unnoticed) == set(range(HEADER_BYTES))


def test_a_newer_version_is_refused_as_such():
    with pytest.raises(UnsupportedVersionError, match="version=2"):
        read(rebuild(lambda _: None, version=2))


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
