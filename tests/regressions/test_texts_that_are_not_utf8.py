"""Texts that are not UTF-8, in Arrow data of Python callers: refused before anything is stored."""

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError

BAD = pa.array([b"fine", b"\xff\xfe", None], pa.binary()).view(pa.string())
SURROGATE = pa.array([b"\xed\xa0\x80"] * 3, pa.binary()).view(pa.string())
ARRAYS = {
    "string": BAD,
    "a lone surrogate": SURROGATE,
    "slice": pa.concat_arrays([BAD, BAD]).slice(1, 3),
    "large string": BAD.view(pa.string())
    .cast(pa.binary())
    .cast(pa.large_binary())
    .view(pa.large_string()),
    "view": pa.array([b"fine", b"\xff" * 40, None], pa.binary_view()).view(pa.string_view()),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), BAD),
    "struct": pa.StructArray.from_arrays([BAD], ["a"]),
    "list": pa.ListArray.from_arrays([0, 1, 2, 3], BAD),
    "large list": pa.LargeListArray.from_arrays([0, 1, 2, 3], BAD),
    "map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), BAD),
    "keys": pa.MapArray.from_arrays([0, 1, 2, 2], BAD.slice(0, 2), pa.array([1, 2])),
    "deep": pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2, 3], BAD)], ["a"]),
    "fixed list": pa.FixedSizeListArray.from_arrays(BAD, 1),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_such_texts_are_refused(tmp_path, name):
    """In every type, and through each way in; the stream stays as it was."""
    table = pa.table({"c": ARRAYS[name]})
    stream = segstore.create(tmp_path / "s", table.schema, upkeep=None)
    job = stream.plan_write(table.schema)
    with pytest.raises(InvalidInputError, match="column='c'"):
        stream.append(table)
    with pytest.raises(InvalidInputError, match="column='c'"):
        stream.overwrite(table)
    with stream.appender() as appender, pytest.raises(InvalidInputError, match="column='c'"):
        appender.append(table)
    with pytest.raises(InvalidInputError, match="column='c'"):
        job.open_task(0, "first").append(table.to_batches()[0])
    assert stream.refresh().tail == 0


def test_the_error_says_what_is_wrong(tmp_path):
    """It names the column and what to do."""
    stream = segstore.create(tmp_path / "s", pa.schema([("c", pa.string())]), upkeep=None)
    with pytest.raises(InvalidInputError, match=r"not UTF-8.*binary"):
        stream.append(pa.table({"c": BAD}))


def test_texts_outside_ascii_are_taken(tmp_path):
    """Whole characters pass, wherever a slice begins, and so does what a null hides."""
    words = pa.array(["é中", None, "\U0010ffff", ""])
    hidden = pa.Array.from_buffers(
        pa.string(), 3, [pa.py_buffer(b"\x05"), *BAD.buffers()[1:]], null_count=1
    )
    stream = segstore.create(tmp_path / "s", pa.schema([("c", pa.string())]), upkeep=None)
    stream.append(pa.table({"c": words.slice(1)}))
    stream.append(pa.table({"c": words.dictionary_encode()}))
    stream.append(pa.table({"c": hidden}))
    found = stream.read().read_all()["c"].to_pylist()
    assert found == [*words.to_pylist()[1:], *words.to_pylist(), "fine", None, ""]
