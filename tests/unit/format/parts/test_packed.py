"""Packed columns: what goes in comes out, in few bytes, and nothing forged comes in."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.packed import ROWS_LIMIT, Packer, unpack

INT64 = st.integers(-(2**63), 2**63 - 1)


def packed(**columns) -> bytes:
    rows = len(next(iter(columns.values())))
    packer = Packer(rows)
    for name, values in columns.items():
        packer.integers(name, np.array(values, np.int64))
    return packer.finish()


@given(st.lists(INT64) | st.lists(st.integers(0, 300)))
def test_integers_come_back_whatever_they_are(values):
    found = unpack(packed(n=values), where="x").columns["n"]
    assert found.tolist() == values


@pytest.mark.parametrize("values", [range(70, 1070), [5] * 1000, range(9000, 0, -9)])
def test_steady_columns_take_no_bytes(values):
    assert len(packed(n=list(values))) < 80


def test_a_column_that_mostly_counts_up_takes_a_byte_per_row():
    body = packed(n=np.cumsum(np.arange(1000) % 3 + 10**12).tolist())
    assert len(body) < 1000 + 100


def test_raw_and_json_come_back():
    packer = Packer(2, {"more": [1]})
    packer.raw("r", np.array([[1, 2, 3], [4, 5, 6]], np.uint8))
    packer.json("j", ["ä", "b"])
    found = unpack(packer.finish(), where="x")
    assert found.raw("r", 3).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.texts("j") == ("ä", "b")
    assert found.extra["more"] == [1]


def forged(header: dict, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + data


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00",
        b"\xff\xff\xff\xff{}",
        forged({}),
        forged({"rows": -1, "columns": []}),
        forged({"rows": ROWS_LIMIT + 1, "columns": []}),
        forged({"rows": 1, "columns": []}, b"x"),
        forged({"rows": 1, "columns": [["n", "int", 1, 0, 0, 0, 1]]}),
        forged({"rows": 1, "columns": [["n", "int", 2, 0, 0, 0, 0]]}),
        forged({"rows": 1, "columns": [["n", "int", 1, 2, 0, 0, 0]]}),
        forged({"rows": 1, "columns": [["n", "int", 1, 0, 0, 2**63, 0]]}),
        forged({"rows": 1, "columns": [["n", "int", 1, 0, 0, 0, 9]]}, b"123456789"),
        forged({"rows": 1, "columns": [["n", "int", -1, 0, 0, 0, -1]]}),
        forged({"rows": 1, "columns": [["n", "raw", 1, 0]]}),
        forged({"rows": 1, "columns": [["n", "json", -1]]}),
        forged({"rows": 1, "columns": [["n", "json", 1]]}, b"?"),
        forged({"rows": 1, "columns": ["n"]}),
    ],
)
def test_forged_bodies_are_corruption(body):
    with pytest.raises(CorruptionError):
        unpack(body, where="x")


def test_columns_are_checked_where_they_are_taken():
    found = unpack(packed(n=[1, 2], m=[7, 7]), where="x")
    for take in (
        lambda: found.integers("missing"),
        lambda: found.integers("n", least=2),
        lambda: found.integers("n", most=1),
        lambda: found.raw("n", 1),
        lambda: found.texts("n"),
    ):
        with pytest.raises(CorruptionError):
            take()
