"""The bytes of a batch's fingerprint, and which differences between two batches count."""

import base64
import hashlib
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.batch_fingerprint import (
    COLUMNS_MOST,
    BatchFacts,
    batch_facts,
    decode_fingerprint,
    differing_columns,
    encode_fingerprint,
    gather_facts,
)
from segstore_ds.format.bounds import columns_with_stats


def facts(table: pa.Table | pa.RecordBatch) -> BatchFacts:
    batch = table.combine_chunks().to_batches()[0] if isinstance(table, pa.Table) else table
    return gather_facts([batch_facts(batch, columns_with_stats(batch.schema))])


def of(values: list, type_: pa.DataType) -> BatchFacts:
    return facts(pa.record_batch({"c": pa.array(values, type_)}))


def cell(label: str, nulls: int, low: bytes | None, high: bytes | None, known: int) -> bytes:
    """Return a cell as FORMAT.md 3.4 describes it, without any code of the library."""
    text = struct.pack("<Q", nulls)
    for bound in (low, high):
        text += b"\xff" * 4 if bound is None else struct.pack("<I", len(bound)) + bound
    digest = bytearray(hashlib.blake2b(text, digest_size=4).digest())
    digest[3] = digest[3] & 0b11111100 | known
    return hashlib.blake2b(label.encode(), digest_size=4).digest() + digest


@pytest.mark.parametrize(
    ("type_", "values", "label", "low", "high"),
    [
        (pa.int32(), [3, None, -12], "int:c", b"-12", b"3"),
        (pa.bool_(), [True, None, True], "bool:c", b"1", b"1"),
        (
            pa.float32(),
            [0.0, None, 0.5],
            "float:c",
            struct.pack("<d", -0.0),
            struct.pack("<d", 0.5),
        ),
        (
            pa.decimal128(38, 2),
            [Decimal("-0.50"), None, Decimal(100)],
            "decimal:c",
            b"-0.5",
            b"100",
        ),
        (pa.string(), ["é", None, "x" * 40], "string:c", b"x" * 32, "é".encode()),
        (pa.binary(), [b"\x00", None, b"a" * 40], "binary:c", b"\x00", b"a" * 31 + b"b"),
        (pa.date32(), [1, None, 2], "date:c", b"1", b"2"),
        (pa.time64("ns"), [1, None, 2], "time:c", b"1", b"2"),
        (pa.duration("us"), [-1, None, 2], "duration:c", b"-1", b"2"),
        (pa.timestamp("us", "UTC"), [1, None, 2], "timestamp:c", b"1", b"2"),
        (pa.timestamp("us"), [1, None, 2], "timestamp_ntz:c", b"1", b"2"),
        (pa.duration("ns"), [-1, None, 2], "duration_ns:c", b"-1", b"2"),
        (pa.timestamp("ns", "UTC"), [1, None, 2], "timestamp_ns:c", b"1", b"2"),
        (pa.timestamp("ns"), [1, None, 2], "timestamp_ntz_ns:c", b"1", b"2"),
    ],
)
def test_bytes_are_those_of_the_format(type_, values, label, low, high):
    text = encode_fingerprint(of(values, type_))
    assert base64.b64decode(text) == cell(label, 1, low, high, 3)


def test_cells_of_unknown_bounds_and_of_no_values():
    assert base64.b64decode(encode_fingerprint(of([None], pa.int8()))) == cell(
        "int:c", 1, None, None, 3
    )
    nan = encode_fingerprint(of([float("nan"), 1.0], pa.float64()))
    assert base64.b64decode(nan) == cell("float:c", 0, None, None, 0)
    assert encode_fingerprint(BatchFacts()) == ""
    assert encode_fingerprint(of([], pa.int8())) == ""
    assert encode_fingerprint(of([None], pa.null())) == ""


def test_the_same_columns_are_kept_of_a_wide_batch_in_any_order():
    names = [f"c{number}" for number in range(3 * COLUMNS_MOST)]
    wide = pa.table({name: [1] for name in names})
    text = encode_fingerprint(facts(wide))
    assert len(decode_fingerprint(text, where="")) == COLUMNS_MOST
    assert encode_fingerprint(facts(wide.select(names[::-1]))) == text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("first", "again", "differing"),
    [
        ({"n": [1, 3]}, {"n": [3, 1]}, []),
        ({"n": [1, 3]}, {"n": [1, 4]}, ["n"]),
        ({"n": [1, 3]}, {"n": [1, None]}, ["n"]),
        ({"n": [1, 3], "t": ["a", "b"]}, {"n": [1, 3], "t": ["a", "c"]}, ["t"]),
        ({"n": [None, None]}, {"n": [None, 1]}, []),  # null alone has another type
        ({"n": [1, 3], "t": ["a", "b"]}, {"n": [1, 3]}, []),
        ({"n": [1, 3]}, {"n": [1, 3], "t": ["a", "b"]}, []),
        ({"n": [1, 3]}, {"n": [1.0, 3.5]}, []),  # in another type bounds may mean something else
        ({"n": [1.0, float("nan")]}, {"n": [2.0, 3.0]}, []),  # one of the two has no bounds
        ({"n": [1.0, float("nan")]}, {"n": [None, float("nan")]}, ["n"]),
    ],
)
def test_only_what_both_have_is_compared(first, again, differing):
    text = encode_fingerprint(facts(pa.table(first)))
    assert differing_columns(text, facts(pa.table(again))) == differing


@pytest.mark.parametrize("text", ["A", "AAAA", "!" * 8, "AAAAAAAAAAA", "ä" * 8])
def test_other_texts_are_corrupt(text):
    with pytest.raises(CorruptionError, match="fingerprint"):
        decode_fingerprint(text, where="log/1")
