"""Rows as an Arrow frame: what goes in comes out, in few bytes, and nothing forged comes in."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.parts.rows import (
    ROWS_LIMIT,
    decode_rows,
    encode_rows,
    facts_of,
    integers_of,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
N = pa.schema([("n", pa.int64())])


def batch(values: list[Any], kind: Any = None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind or pa.int64())], ["n"])


def stored(found: pa.RecordBatch, *, batches: int = 1, **options: Any) -> bytes:
    """Return a batch as a frame that nobody of ours wrote."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema, **options) as writer:
        for _ in range(batches):
            writer.write_batch(found)
    return sink.getvalue().to_pybytes()


@given(st.lists(INT64) | st.lists(st.integers(0, 300)) | st.lists(INT64).map(sorted))
def test_integers_come_back_whatever_they_are(values: list[int]) -> None:
    assert decode_rows(encode_rows(batch(values)), N, where="x")["n"].to_pylist() == values


@given(st.lists(st.none() | INT64), st.lists(st.none() | st.text(), min_size=1))
def test_nulls_and_texts_come_back(numbers: list[Any], texts: list[Any]) -> None:
    found = decode_rows(encode_rows(batch(numbers)), N, where="x", optional=("n",))
    assert found["n"].to_pylist() == numbers
    schema = pa.schema([("n", pa.string())])
    for repeated in (texts, texts * 9):
        body = encode_rows(batch(repeated, pa.string()))
        assert decode_rows(body, schema, where="x", optional=("n",))["n"].to_pylist() == repeated


def test_columns_that_others_added_are_passed_over() -> None:
    both = pa.record_batch([pa.array([1, 2]), pa.array(["a", "b"])], ["n", "later"])
    found = decode_rows(encode_rows(both, {"more": [1]}), N, where="x")
    assert found.schema.names == ["n"]
    assert facts_of(found, where="x") == {"more": [1]}
    assert facts_of(decode_rows(encode_rows(both), N, where="x"), where="x") == {}


@pytest.mark.parametrize("values", [range(70, 60_070), [5] * 60_000])
def test_steady_columns_take_few_bytes(values: Any) -> None:
    empty = len(encode_envelope(encode_rows(batch([0]))))
    assert len(encode_envelope(encode_rows(batch(list(values))))) < empty + 100


def test_a_column_that_mostly_counts_up_takes_a_byte_per_row() -> None:
    values = np.cumsum(np.arange(60_000) % 3 + 10**12 % 7).tolist()
    assert len(encode_rows(batch(values))) < 60_000 + 1000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00",
        b"\xff\xff\xff\xff{}",
        stored(batch([1]))[:-30],
        stored(batch([1]), batches=0),
        stored(batch([1]), batches=2),
        stored(batch([1], pa.uint8()), options=pa.ipc.IpcWriteOptions(use_legacy_format=True)),
        stored(batch([1.5], pa.float64())),
        stored(batch([None, 1])),
        stored(batch(["a"], pa.string())),
        stored(batch([[1]], pa.list_(pa.int64()))),
        stored(pa.record_batch([pa.array([1])], ["other"])),
        stored(pa.record_batch([pa.array([1]), pa.array([1])], ["n", "n"])),
        stored(batch([0] * (ROWS_LIMIT + 1), pa.uint8())),
        stored(batch([7] * 100_000), options=pa.ipc.IpcWriteOptions(compression="zstd")),
        stored(
            pa.record_batch(
                [pa.array([0, 1], pa.uint8())],
                schema=pa.schema([pa.field("n", pa.uint8(), metadata={"first": "x"})]),
            )
        ),
        stored(
            pa.record_batch(
                [pa.array([0, 1], pa.uint8())],
                schema=pa.schema([pa.field("n", pa.uint8(), metadata={"first": str(1 << 64)})]),
            )
        ),
    ],
)
def test_forged_frames_are_corruption(body: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_rows(body, N, where="x")


def test_nulls_among_repeated_texts_are_refused() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1]), pa.array(["a", None]))
    forged = stored(pa.record_batch([words], ["n"]))
    schema = pa.schema([("n", pa.string())])
    with pytest.raises(CorruptionError, match="nulls in n"):
        decode_rows(forged, schema, where="x")
    found = decode_rows(forged, schema, where="x", optional=("n",))
    assert found["n"].to_pylist() == [None, "a", None]


def test_offsets_of_texts_are_checked() -> None:
    sound = stored(batch(["ada", "bob"], pa.string()))
    offsets = np.array([0, 3, 6], np.int32).tobytes()
    for wrong in ([0, 3, 1 << 30], [0, -3, 6], [5, 3, 6]):
        forged = sound.replace(offsets, np.array(wrong, np.int32).tobytes())
        assert forged != sound
        with pytest.raises(CorruptionError):
            decode_rows(forged, pa.schema([("n", pa.string())]), where="x")


def test_integers_are_checked_where_they_are_taken() -> None:
    found = decode_rows(encode_rows(batch([3, 4])), N, where="x")
    assert integers_of(found, "n", where="x", least=3, most=4).tolist() == [3, 4]
    for least, most in ((4, 9), (0, 3)):
        with pytest.raises(CorruptionError, match="out of range"):
            integers_of(found, "n", where="x", least=least, most=most)


def test_facts_that_are_no_object_are_refused() -> None:
    for facts in (b"[]", b"{", b"7"):
        schema = N.with_metadata({b"facts": facts})
        forged = stored(pa.record_batch([pa.array([1])], schema=schema))
        with pytest.raises(CorruptionError):
            facts_of(decode_rows(forged, N, where="x"), where="x")
