"""Segments and their statistics as columns: lossless, small, and closed to forgeries."""

import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import CorruptionError
from segstore_ds.format.bounds import Bounds, label_of
from segstore_ds.format.envelope import decode_envelope, split_envelope
from segstore_ds.format.parts.columns import concat, from_entries
from segstore_ds.format.parts.kinds import SEGMENTS, encode_object
from segstore_ds.format.parts.rows import encode_rows
from segstore_ds.format.parts.segments import Part, build_part, decode_part, read_stats
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.statistics import Stats, build_text, decode_stats, encode_stats
from segstore_ds.format.statistics import concat as concat_stats

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
FOLDER = "00000000000000000041-0123456789ab"
PATHS = st.sampled_from(
    [
        f"{FOLDER}/0-0-0.arrow",
        f"{FOLDER}/7-123-4.arrow",
        f"{FOLDER}/07-0-0.arrow",
        f"{FOLDER}/0-0-0.parquet",
        f"{FOLDER}/0-0-0.ARROW",
        f"{FOLDER}/driver-01ab23cd-0.arrow",
        f"{FOLDER}/12-0p-0.parquet",
        f"{FOLDER}/12-redact-3.arrow",
        f"{FOLDER}/12-01-0.arrow",
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
SCHEMAS = [
    pa.schema([("n", pa.int64()), ("t", pa.string()), ("d", pa.decimal128(9, 2))]),
    pa.schema([("n", pa.float64()), ("t", pa.timestamp("us")), ("b", pa.binary())]),
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
PAIRS = {
    "int64": st.tuples(INT64, INT64).map(sorted),
    "string": st.tuples(TEXTS, TEXTS).map(sorted),
    "decimal128(9, 2)": st.just([Decimal("-1.25"), Decimal("0.00")]),
    "double": st.tuples(FLOATS, FLOATS).map(sorted),
    "timestamp[us]": st.tuples(INT64, INT64).map(sorted),
    "binary": st.just([b"", b"\xff"]),
}


@st.composite
def stats_of_epoch(draw: Any, epoch: int) -> str | None:
    """Return the statistics of a segment of an epoch, as its entry has them."""
    found = {}
    for field in SCHEMAS[epoch]:
        bounds = draw(st.none() | PAIRS[str(field.type)] | st.just([None, None]))
        if bounds is not None:
            found[label_of(field) or ""] = Bounds(*bounds, draw(st.integers(0, 2**62)))
    return build_text(found)


def columns_of(texts: list[str | None]) -> Stats:
    return Stats.of_texts(texts).as_columns()


def encoded(entries: list[SegmentEntry], texts: list[str | None] | None = None) -> bytes:
    """Return a part as one object."""
    part, behind = build_part(from_entries(entries), columns_of(texts or [None] * len(entries)))
    return encode_object(SEGMENTS, part) + behind


def decoded(data: bytes) -> tuple[Part, Stats]:
    front, behind = split_envelope(data)
    part = decode_part(decode_envelope(front, where="x"), where="x")
    return part, read_stats(part, behind, where="x")


@given(st.lists(ENTRIES, min_size=1, max_size=12), st.data())
def test_parts_come_back_and_slices_of_them_too(bare, data):
    epochs = [data.draw(st.integers(0, 1)) for _ in bare]
    texts = [data.draw(stats_of_epoch(epoch)) for epoch in epochs]
    entries = [replace(entry, stats=text) for entry, text in zip(bare, texts, strict=True)]
    stored = columns_of(texts)
    part, behind = build_part(from_entries(entries), stored)
    part, stats = decoded(encode_object(SEGMENTS, part) + behind)
    assert list(part.columns.entries(stats.texts())) == entries
    start = data.draw(st.integers(0, len(entries)))
    end = data.draw(st.integers(start, len(entries)))
    cut = part.columns.slice(start, end)
    assert list(cut.entries(stats.slice(start, end).texts())) == entries[start:end]
    joined = concat([cut, part.columns]) if start < end else part.columns
    assert list(joined.entries()) == bare[start:end] + bare
    both = concat_stats([stats.slice(start, end), stats])
    assert both.texts() == texts[start:end] + texts


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


def test_segment_entry_takes_at_most_sixteen_bytes():
    assert len(encoded(typical(20_000))) <= 16 * 20_000


def test_statistics_of_a_part_are_bounded(monkeypatch):
    """Readers refuse large bodies; the columns that fewest segments have go first."""
    texts = ['{"int:n":[1,2,0]}'] * 40 + ['{"string:t":["a","b",0]}'] * 60
    data = encoded(typical(100), texts)
    monkeypatch.setattr("segstore_ds.format.parts.segments.STATS_BYTES", 3500)
    found = decoded(encoded(typical(100), texts))[1].texts()
    assert decoded(data)[1].texts() == texts
    assert found == [None] * 40 + texts[40:]


@pytest.mark.parametrize(
    "columns",
    [
        {"int:n": pa.array([1, 2])},
        {"int:n": pa.array([{"min": 1, "max": 2, "nulls": 0}])},
        {"int:n": pa.array([{"min": 1, "max": 2, "nulls": -1}] * 2)},
        {"int:n": pa.array([{"min": "a", "max": "b", "nulls": 0}] * 2)},
        {"float:n": pa.array([{"min": float("nan"), "max": 2.0, "nulls": 0}] * 2)},
        {"decimal:n": pa.array([{"min": "x", "max": "2", "nulls": 0}] * 2)},
        {"decimal:n": pa.array([{"min": "NaN", "max": "2", "nulls": 0}] * 2)},
    ],
)
def test_forged_statistics_are_corruption(columns):
    forged = encode_rows(pa.RecordBatch.from_pydict(columns))
    with pytest.raises(CorruptionError):
        decode_stats(forged, rows=2, where="x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{place}.arrow", b"{place}/arrow"),
        (b"{place}.arrow", b"{plaze}.arrow"),
        (b"{place}.arrow", b"{place!r}.aro"),
        (b"arrow {ver", b" rrow {ver"),
        (b'"statistics":[', b'"statistics":{'),
        (b'"statistics":[', b'"statistics":7'),
    ],
)
def test_forged_parts_are_corruption(old, new):
    front = split_envelope(encoded(typical(2), ['{"int:n":[1,2,0]}', None]))[0]
    body = decode_envelope(front, where="x")
    forged = body.replace(old, new)
    assert forged != body
    with pytest.raises(CorruptionError):
        decode_part(forged, where="x")


@pytest.mark.parametrize(
    "column", ["epochs", "numbers", "rows", "bytes", "footer_bytes", "crcs", "versions", "frames"]
)
def test_numbers_out_of_range_are_corruption(column):
    batch = from_entries(typical(2)).batch
    place = batch.schema.get_field_index(column)
    forged = batch.set_column(place, batch.schema.field(place), pa.array([-1, 1]))
    with pytest.raises(CorruptionError, match="out of range"):
        decode_part(encode_rows(forged), where="x")


def test_templates_can_not_leave_the_stream():
    body = decode_envelope(encoded([replace(typical(1)[0], path="copy-x/a")]), where="x")
    with pytest.raises(CorruptionError, match="not a segment of this stream"):
        decode_part(body.replace(b"copy-x/a", b"../../ab"), where="x")


def test_merged_statistics_have_the_bytes_of_new_ones():
    """So repair can prove a part that was merged, whatever columns its segments have."""
    both = '{"int:n":[7,8,1],"string:t":["c","d",0]}'
    parts = [['{"int:n":[1,2,0]}', None], ['{"string:t":["a","b",0]}'], [None], [both]]
    merged = concat_stats([columns_of(texts) for texts in parts])
    assert encode_stats(merged) == encode_stats(
        columns_of([text for part in parts for text in part])
    )


def test_names_of_forged_statistics_are_corruption():
    cells = pa.array([{"min": 1, "max": 2, "nulls": 0}] * 2)
    twice = encode_rows(pa.RecordBatch.from_arrays([cells, cells], ["int:n", "int:n"]))
    no_text = encode_rows(pa.RecordBatch.from_pydict({"int:n": cells})).replace(b":n", b":\xff")
    for forged in (twice, no_text):
        with pytest.raises(CorruptionError):
            decode_stats(forged, rows=2, where="x")
