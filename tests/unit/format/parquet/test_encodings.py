"""Which leaf columns of a Parquet segment get a dictionary."""

import random

import pyarrow as pa

from segstore_ds.format.parquet.encodings import choose_encodings

REPEATED = [(1 << 60) + place % 7 * 12_345_678_901 for place in range(1000)]
TEXTS = [f"text {number}" for number in REPEATED]


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
    chosen = {path.partition(".")[0] for path in choose_encodings(batch, {}).dictionary}
    assert chosen == {"plain", "within", "words", "map"}
    assert not any(path.endswith("value") for path in choose_encodings(batch, {}).dictionary)


def test_names_with_dots_keep_the_rule():
    """A column `a.list.element` may look like the element of the list `a`."""
    numbers = pa.array(REPEATED)
    lists = pa.ListArray.from_arrays(pa.array(range(1001), pa.int32()), numbers)
    batch = pa.record_batch({"a": lists, "a.list.element": numbers, "b": numbers})
    assert choose_encodings(batch, {}).dictionary == ("b",)


def test_rows_of_a_large_first_frame_decide():
    """50,000 different values are too many for a frame of 65,536 rows, and few for a larger one."""
    chance = random.Random(7)
    values = pa.array([chance.randrange(50_000) / 1000 for _ in range(1 << 18)])
    batch = pa.record_batch({"value": values})
    options = {"compression": "zstd"}
    assert choose_encodings(batch.slice(0, 1 << 16), options).dictionary == ()
    assert choose_encodings(batch, options).dictionary == ("value",)
