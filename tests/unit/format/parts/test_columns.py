"""Segments as columns and parts of packed columns: lossless, small, and closed to forgeries."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format.envelope import decode_envelope, split_envelope
from segstore_ds.format.parts.columns import concat, decode_columns, from_entries
from segstore_ds.format.parts.kinds import SEGMENTS, encode_object
from segstore_ds.format.parts.segments import (
    Chunk,
    Part,
    decode_chunks,
    decode_part,
    encode_chunks,
)
from segstore_ds.format.root import SegmentEntry

FOLDER = "00000000000000000041-0123456789ab"
PATHS = st.sampled_from(
    [
        f"{FOLDER}/0-0-0.arrow",
        f"{FOLDER}/7-123-4.arrow",
        f"{FOLDER}/07-0-0.arrow",
        f"{FOLDER}/0-0-0.parquet",
        f"{FOLDER}/0-0-0.ARROW",
        f"{FOLDER}/driver-01ab23cd-0.arrow",
        "00000000000000000041-0123456789AB/0-0-0.arrow",
        "99999999999999999999-0123456789ab/0-0-0.arrow",
        f"{FOLDER}/{'9' * 18}-0-0.arrow",
        f"{FOLDER}/{'9' * 19}-0-0.arrow",
        "copy-x/a",
        "copy-x/000000000000002a-0123456789ab.arrow",
    ]
)
SIZES = st.integers(1, 2**62)
ENTRIES = st.builds(
    SegmentEntry,
    segment_id=st.integers(0, (1 << 62) - 1),
    path=PATHS,
    rows=SIZES,
    bytes=SIZES,
    footer_bytes=SIZES,
    footer_crc=st.integers(0, 2**32 - 1),
    format=st.sampled_from(["arrow", "parquet", "x"]),
)
STATS = st.none() | st.sampled_from(['{"n":[1,2,0]}', "", "ä"])


def encoded(entries: list[SegmentEntry], chunks: tuple[Chunk, ...]) -> bytes:
    return encode_object(SEGMENTS, Part(from_entries(entries), chunks))


def decoded(front: bytes) -> Part:
    return decode_part(decode_envelope(front, where="x"), where="x")


@given(st.lists(st.tuples(ENTRIES, STATS), min_size=1, max_size=12), st.data())
def test_parts_come_back_and_slices_of_them_too(rows, data):
    entries = [replace(entry, stats=stats) for entry, stats in rows]
    chunks, behind = encode_chunks([entry.stats for entry in entries])
    front, rest = split_envelope(encoded(entries, chunks) + behind)
    assert rest == behind
    part = decoded(front)
    stats = decode_chunks(part, behind, where="x")
    assert list(part.columns.entries(stats)) == entries
    start = data.draw(st.integers(0, len(entries)))
    end = data.draw(st.integers(start, len(entries)))
    cut = part.columns.slice(start, end)
    assert list(cut.entries(stats[start:end])) == entries[start:end]
    bare = [replace(entry, stats=None) for entry in entries]
    joined = concat([cut, part.columns]) if start < end else part.columns
    assert list(joined.entries()) == bare[start:end] + bare


def typical(count: int) -> list[SegmentEntry]:
    chance = random.Random(7)
    entries = []
    for number in range(count):
        token = f"{number + number // 64:020d}-{chance.getrandbits(48):012x}"
        rows = chance.randrange(900, 1100)
        size = 40 * rows + chance.randrange(800)
        crc = chance.getrandbits(32)
        entries.append(
            SegmentEntry(
                number, f"{token}/0-0-0.arrow", rows, size, chance.randrange(160, 260), crc
            )
        )
    return entries


def test_segment_entry_takes_at_most_fourteen_bytes():
    entries = typical(20_000)
    chunks, _ = encode_chunks([None] * len(entries))
    assert len(encoded(entries, chunks)) <= 14 * len(entries)


def test_names_of_copies_take_no_more_than_those_of_writers():
    copied = [
        replace(entry, path=f"copy-x/{entry.segment_id:016x}-{entry.path[21:33]}.arrow")
        for entry in typical(20_000)
    ]
    chunks, _ = encode_chunks([None] * len(copied))
    assert len(encoded(copied, chunks)) <= 14 * len(copied)


def test_statistics_are_not_among_the_columns():
    entries = typical(100)
    stats = [f'{{"n":[{n},{n},0]}}' for n in range(100)]
    chunks, behind = encode_chunks(stats)
    front = encoded(entries, chunks)
    bare = encoded(entries, encode_chunks([None] * 100)[0])
    assert len(front) - len(bare) < 60
    assert decode_chunks(decoded(front), behind, where="x") == stats


def test_statistics_of_wide_tables_stay_readable():
    """Readers refuse large bodies, so 66 MiB of texts must not be one."""
    stats = ["x" * (1 << 20)] * 66
    chunks, behind = encode_chunks(stats)
    part = decoded(encoded(typical(66), chunks))
    assert decode_chunks(part, behind, where="x") == stats


@pytest.mark.parametrize("cut", [1, 10, -1])
def test_statistics_that_are_cut_or_longer_are_damage(cut):
    chunks, behind = encode_chunks(["a", None])
    part = decoded(encoded(typical(2), chunks))
    wrong = behind + b"x" if cut < 0 else behind[:-cut]
    with pytest.raises(FormatError):
        decode_chunks(part, wrong, where="x")


def test_statistics_of_another_part_are_damage():
    chunks, _ = encode_chunks(["a", None])
    part = decoded(encoded(typical(2), chunks))
    with pytest.raises(CorruptionError, match="wrong digest"):
        decode_chunks(part, encode_chunks(["b", None])[1], where="x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{place}.arrow"', b'{place}/arrow"'),
        (b'{place}.arrow"', b'{plaze}.arrow"'),
        (b'{place}.arrow"', b'{place!r}.arrow"'),
        (b'[["arrow"', b'[[null]+["'),
        (b'"rows":2', b'"rows":3'),
        (b'"nonces","raw",2,6', b'"nonces","raw",2,5'),
        (b'"stats":[[2,', b'"stats":[[3,'),
        (b'"stats":[[2,', b'"stats":[[-2,'),
    ],
)
def test_forged_parts_are_corruption(old, new):
    front = encoded(typical(2), encode_chunks([None] * 2)[0])
    body = decode_envelope(front, where="x")
    forged = body.replace(old, new)
    assert forged != body
    length = int.from_bytes(body[:4], "little") + len(new) - len(old)
    forged = length.to_bytes(4, "little") + forged[4:]
    with pytest.raises(CorruptionError):
        decode_part(forged, where="x")


def test_templates_can_not_leave_the_stream():
    entry = replace(typical(1)[0], path="copy-x/a")
    body = decode_envelope(encoded([entry], encode_chunks([None])[0]), where="x")
    with pytest.raises(CorruptionError, match="not a segment of this stream"):
        decode_columns(body.replace(b"copy-x/a", b"../../ab"), where="x")
