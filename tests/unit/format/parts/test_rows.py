"""Rows as an Arrow frame, and parts of them: what goes in comes out, nothing forged comes in."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.parts.kinds import RETIRED, WRITERS
from segstore_ds.format.parts.rows import ROWS_LIMIT, decode_rows, encode_rows, facts_of
from segstore_ds.format.root import Retired, Writer

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


@pytest.mark.parametrize("rows", [5, 100_003])
def test_a_slice_is_stored_as_its_rows_alone(rows: int) -> None:
    """Behind the buffers of a slice Arrow writes what follows: bounds of other segments."""
    texts = [f"bound{n:07d}" for n in range(3 * rows)]
    whole = batch(texts, pa.string())
    for start in (0, rows, 2 * rows):
        alone = encode_rows(batch(texts[start : start + rows], pa.string()))
        assert encode_rows(whole.slice(start, rows)) == alone


@pytest.mark.parametrize("values", [range(70, 60_070), [5] * 60_000])
def test_steady_columns_take_few_bytes(values: Any) -> None:
    empty = len(encode_envelope(encode_rows(batch([0]))))
    assert len(encode_envelope(encode_rows(batch(list(values))))) < empty + 100


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


def test_facts_that_are_no_object_are_refused() -> None:
    for facts in (b"[]", b"{", b"7"):
        schema = N.with_metadata({b"facts": facts})
        forged = stored(pa.record_batch([pa.array([1])], schema=schema))
        with pytest.raises(CorruptionError):
            facts_of(decode_rows(forged, N, where="x"), where="x")


def test_rows_come_back():
    writers = {"etl": Writer("query", 4, 9, 5, 30, "AAECAwQFBgc="), "ärger": Writer("", 0, 2, 0, 0)}
    assert WRITERS.decode(WRITERS.encode(writers), where="x") == writers
    retired = (
        Retired("segment", "t/a", 3, 17),
        Retired("status", f"status/{3:020d}-segments-{'a' * 32}", 4, 18),
    )
    assert RETIRED.decode(RETIRED.encode(retired), where="x") == retired


def test_rows_that_hold_something_else_are_refused():
    """As those of a root are: paths, limits and fingerprints are checked."""
    path = f"status/{3:020d}-segments-{'a' * 32}"
    good = {"kind": "part", "path": path, "version": 3, "time_us": 7}
    wrongs = [
        {**good, "path": "../x"},
        {**good, "kind": "k" * 21},
        {**good, "version": -1},
        {**good, "version": None},
        {**good, "time_us": "x"},
        {**good, "path": b"\xff"},
        {name: good[name] for name in ("kind", "path", "version")},
    ]
    assert RETIRED.decode(encode_rows(rows_of(good)), where="x") == (Retired(*good.values()),)
    for wrong in wrongs:
        with pytest.raises(CorruptionError):
            RETIRED.decode(encode_rows(rows_of(wrong)), where="x")
    writer = {"owner": "", "batch_id": 1, "version": 2, "rows": 3, "end": 4, "fingerprint": ""}
    named = {**writer, "name": "etl"}
    assert WRITERS.decode(encode_rows(rows_of(named)), where="x") == {"etl": Writer("", 1, 2, 3, 4)}
    for wrong in ({**named, "fingerprint": "x"}, {**named, "owner": "o" * 1001}, writer):
        with pytest.raises(CorruptionError):
            WRITERS.decode(encode_rows(rows_of(wrong)), where="x")
    for body in (b"", b"{", encode_rows(rows_of(good))[:-9]):
        with pytest.raises(CorruptionError):
            RETIRED.decode(body, where="x")


def rows_of(row):
    return pa.RecordBatch.from_pylist([{k: _stored(v) for k, v in row.items()}])


def _stored(value):
    return value.encode() if isinstance(value, str) else value
