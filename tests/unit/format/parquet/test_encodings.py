"""Which way each leaf column of a row group is encoded."""

import decimal
import io
import random
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segstore_ds.format.parquet.encodings import Encodings, choose_encodings
from segstore_ds.format.parquet.writer import ParquetEncoder

ROWS = 8192
REPEATED = [(1 << 60) + place % 7 * 12_345_678_901 for place in range(1000)]
TEXTS = [f"text {number}" for number in REPEATED]
DRAW = np.random.default_rng(7)


def choose(batch: pa.RecordBatch, **options) -> Encodings:
    """Choose among all ways, with zstd."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    schema = pq.ParquetFile(sink).schema
    paths = [schema.column(place).path for place in range(len(schema.names))]
    return choose_encodings(batch, paths, **{"compression": "zstd"} | options)


def encode(*batches: pa.RecordBatch) -> tuple[bytes, pq.FileMetaData]:
    """Return a whole segment of frames, as a reader of Parquet finds it."""
    options = {"compression": "zstd", "compression_level": 2, "stats_columns": ()}
    encoder = ParquetEncoder(batches[0].schema, **options)
    pieces = [encoder.start()]
    for batch in batches:
        pieces += encoder.add(batch)[0]
    data = b"".join([*pieces, encoder.finish()[0]])
    return data, pq.read_metadata(io.BytesIO(data))


def test_numbers_within_lists_and_maps_get_no_dictionary():
    """Spark's reader fails on nulls beside them; keys of maps are never null."""
    offsets = pa.array(range(1001), pa.int32())
    numbers, texts = pa.array(REPEATED), pa.array(TEXTS)
    batch = pa.record_batch(
        {
            "plain": numbers,
            "within": pa.StructArray.from_arrays([numbers], ["n"]),
            "words": pa.ListArray.from_arrays(offsets, texts),
            "numbers": pa.ListArray.from_arrays(offsets, numbers),
            "times": pa.ListArray.from_arrays(offsets, numbers.cast(pa.timestamp("us"))),
            "map": pa.MapArray.from_arrays(
                offsets, numbers, numbers.cast(pa.float64(), safe=False)
            ),
        }
    )
    found = choose(batch).columns("DICTIONARY")
    assert {path.partition(".")[0] for path in found} == {"plain", "within", "words", "map"}
    assert not any(path.endswith("value") for path in found)


def test_names_with_dots_keep_the_rule():
    """A column `a.list.element` may look like the element of the list `a`."""
    numbers = pa.array(REPEATED)
    lists = pa.ListArray.from_arrays(pa.array(range(1001), pa.int32()), numbers)
    batch = pa.record_batch({"a": lists, "a.list.element": numbers, "b": numbers})
    assert choose(batch).columns("DICTIONARY") == ["b"]


def columns() -> dict[str, tuple[pa.Array, int, bool]]:
    """Return columns with their bytes in Parquet without encoding, and whether values repeat."""
    chance = random.Random(7)
    words = [f"word {n}" for n in range(50)]
    ids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(ROWS)]
    cents = [decimal.Decimal(n).scaleb(-2) for n in DRAW.integers(0, 10**6, ROWS).tolist()]
    some = [None if n % 3 else n * 7919 % 1000 for n in range(ROWS)]
    return {
        "doubles": (pa.array(DRAW.random(ROWS)), 8 * ROWS, False),
        "walk": (pa.array(DRAW.normal(0, 1, ROWS).cumsum()), 8 * ROWS, False),
        "floats": (pa.array(DRAW.random(ROWS), pa.float32()), 4 * ROWS, False),
        "longs": (pa.array(DRAW.integers(-(2**62), 2**62, ROWS)), 8 * ROWS, False),
        "shorts": (pa.array(DRAW.integers(-(2**15), 2**15, ROWS), pa.int16()), 4 * ROWS, True),
        "ids": (pa.array(range(ROWS)), 8 * ROWS, False),
        "uuids": (pa.array(ids), 40 * ROWS, False),
        "hashes": (pa.array([uuid.UUID(i).bytes for i in ids], pa.binary()), 20 * ROWS, False),
        "words": (pa.array(chance.choices(words, k=ROWS)), 10 * ROWS, True),
        "lists": (pa.array([[n] for n in DRAW.random(ROWS)]), 8 * ROWS, False),
        "cents": (pa.array(cents, pa.decimal128(9, 2)), 4 * ROWS, True),
        "wide": (pa.array(cents, pa.decimal128(30, 2)), 13 * ROWS, True),
        "bools": (pa.array(DRAW.random(ROWS) < 0.5), ROWS // 8, True),
        "nulls": (pa.nulls(ROWS, pa.int64()), 0, True),
        "some": (pa.array(some), 8 * ROWS // 3, True),
    }


def test_no_column_takes_more_than_its_values():
    """Nor do values that are all different get a dictionary."""
    made = columns()
    batch = pa.record_batch({name: column for name, (column, _, _) in made.items()})
    data, metadata = encode(batch)
    assert pq.read_table(io.BytesIO(data)).equals(pa.Table.from_batches([batch]))
    group = metadata.row_group(0)
    for place, (name, (_, raw, repeats)) in enumerate(made.items()):
        column = group.column(place)
        levels = ROWS // 4 if name in {"lists", "some"} else 0  # of lists and nulls
        assert column.total_compressed_size <= raw * 1.02 + levels + 100, name
        assert repeats or column.dictionary_page_offset is None, name


KINDS = {
    "few": lambda draw, rows: draw.integers(0, 1 << 40, 7)[draw.integers(0, 7, rows)],
    "pool": lambda draw, rows: draw.integers(0, 1 << 40, 900)[draw.integers(0, 900, rows)],
    "random": lambda draw, rows: draw.integers(-(1 << 62), 1 << 62, rows),
    "small": lambda draw, rows: draw.integers(0, 70_000, rows),
    "sorted": lambda draw, rows: np.sort(draw.integers(0, 1 << 40, rows)),
    "steps": lambda draw, rows: np.arange(rows) * 70_001 + draw.integers(0, 1000, rows),
    "frequent": lambda draw, rows: draw.zipf(1.2, rows) % 100_000 * 7919,
}
TYPES = [pa.int64(), pa.int32(), pa.timestamp("us"), pa.float64(), pa.float32(), pa.string()]


@example(0, "random", pa.int64(), 77, 2)  # a block of two values has no step above its least
@given(
    st.integers(0, 1 << 32),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(TYPES),
    st.integers(1, 5000),
    st.sampled_from([1, 2, 5]),
)
def test_no_choice_takes_more_than_plain_values(seed, kind, data_type, rows, valued):
    """Of columns that are alike throughout; who mixes kinds in one row group may pay a little."""
    numbers = KINDS[kind](np.random.default_rng(seed), rows)
    width = data_type.bit_width if pa.types.is_primitive(data_type) else 64
    numbers = numbers if width == 64 else numbers.astype("i4")
    numbers = [n if place % 5 < valued else None for place, n in enumerate(numbers.tolist())]
    if pa.types.is_string(data_type):
        numbers = [None if n is None else f"{n:x}" for n in numbers]
    batch = pa.record_batch({"c": pa.array(numbers).cast(data_type, safe=False)})
    column = encode(batch)[1].row_group(0).column(0)
    plain = Encodings({"c": ("PLAIN", False)}).options("none", None)
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), sink, **plain)
    raw = pq.read_metadata(sink).row_group(0).column(0).total_compressed_size
    assert column.total_compressed_size <= raw * 1.02 + 200


@pytest.mark.parametrize("rows", [10_000, 100_000, 200_000])
def test_steps_between_the_places_of_a_sample_do_not_count(rows):
    """They are longer than those of the values, whatever part of a block a place is."""
    times = np.arange(rows) * 1000 + DRAW.integers(0, 1000, rows)
    found = choose(pa.record_batch({"t": times}))
    assert found.ways["t"] == ("DELTA_BINARY_PACKED", False)
    assert 1.2 < found.row_bytes < 1.5


def test_row_groups_of_another_nature_are_encoded_otherwise():
    """One file, its groups in order, each as suits it: a narrow column among wide ones counts."""
    rows = 1 << 16
    data = DRAW.bytes(60 * rows)
    wide = pa.array([data[start : start + 60] for start in range(0, len(data), 60)])
    odd = pa.record_batch({"n": DRAW.random(rows), "wide": wide})
    usual = pa.record_batch({"n": np.arange(rows) % 10 * 1.5, "wide": wide})
    data, metadata = encode(odd, usual, usual, odd)
    assert pq.read_table(io.BytesIO(data), page_checksum_verification=True).equals(
        pa.Table.from_batches([odd, usual, usual, odd])
    )
    groups = [metadata.row_group(place) for place in range(4)]
    coded = [group.column(0).dictionary_page_offset is not None for group in groups]
    assert coded == [False, True, True, False]
    assert groups[1].column(0).total_compressed_size < 8 * rows / 20


def test_one_value_at_three_places_does_not_make_the_others_rare():
    """60,000 different values of 200,000, as measured ones are: a dictionary halves them."""
    for seed in (6, 10, 17, 23):
        draw = np.random.default_rng(seed)
        batch = pa.record_batch({"value": draw.normal(100, 15, 200_000).round(3)})
        assert choose(batch).ways == {"value": ("DICTIONARY", True)}
