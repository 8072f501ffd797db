"""Dictionaries, views and lists of every kind come out whole, however large they are unpacked."""

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format.schema import conversion, unpacking
from segstore_ds.format.schema.codec import normalise_schema
from segstore_ds.format.schema.conversion import conform, conform_pieces

LONG = "long enough for a view to keep it elsewhere"
VIEWS = pa.string_view()
WORDS = ["x", LONG, None, "y"]
LISTS = [
    pa.list_,
    pa.large_list,
    pa.list_view,
    pa.large_list_view,
    lambda kind: pa.list_(kind, 2),
]


def coded(words: list[str | None], values: pa.DataType = VIEWS) -> pa.Array:
    """Return a dictionary array, as Polars makes of Categorical and Enum."""
    known = [LONG, "unused", *sorted({word for word in words if word} - {LONG})]
    codes = [known.index(word) if word else None for word in words]
    if pa.types.is_binary_view(values) or pa.types.is_large_binary(values):
        known = [word.encode() for word in known]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.uint32()), pa.array(known, values))


def through(array: pa.Array, kind: pa.DataType | None = None) -> list[Any]:
    """Conform a column to its normal type, or another one, and return its values."""
    batch = pa.record_batch({"c": array})
    schema = normalise_schema(batch.schema) if kind is None else pa.schema([("c", kind)])
    [result] = conform_pieces(batch, schema)
    result.validate(full=True)
    assert result.schema == schema
    return result["c"].to_pylist()


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("values", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_dictionaries_of_every_text_are_decoded(values: pa.DataType, start: int) -> None:
    """Also where some values are unused, and where the array is a slice or has no rows."""
    assert through(coded(WORDS, values).slice(start)) == WORDS[start:]


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("make", LISTS)
def test_dictionaries_within_lists_and_structs_are_decoded(make: Any, start: int) -> None:
    """Polars has lists and structs of Categorical."""
    words = ["x", LONG, None, "y", "x", "z", "a", "b"]
    flat = coded(words)
    pairs = [[0, 1], None, [2, 3], [4, 5]]
    lists = pa.array(pairs, make(pa.int64()))
    expected = [
        pair and [{"w": words[place], "l": [words[place]]} for place in pair] for pair in pairs
    ]
    singles = pa.LargeListArray.from_arrays(range(9), flat)
    inner = pa.StructArray.from_arrays([flat, singles], ["w", "l"])
    kind = make(inner.type)
    buffers = lists.buffers()[: len(lists.buffers()) - 2]
    # Its elements are the numbers in order, where a null pair of a fixed size takes two as well.
    child = pa.concat_arrays([inner.slice(place or 0, 1) for place in lists.values.to_pylist()])
    array = pa.Array.from_buffers(kind, len(lists), buffers, children=[child])
    assert through(array.slice(start)) == expected[start:]


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("make", LISTS)
def test_slices_of_every_kind_of_list_are_taken(make: Any, start: int) -> None:
    """Arrow's own cast of a slice of a list view fails."""
    rows = [[1, 2], [3, 4], None, [5, 6]]
    assert through(pa.array(rows, make(pa.int8())).slice(start)) == rows[start:]


def test_a_value_outside_of_a_slice_is_not_looked_at() -> None:
    """Nor converted, which would cost as much for every slice as for the whole."""
    finer = pa.array([[0], [1], [1000]], pa.large_list(pa.timestamp("ns")))
    maps = pa.array([[("a", 0)], [("a", 1)]], pa.map_(pa.string(), pa.timestamp("ns")))
    lists = pa.list_(pa.field("element", pa.timestamp("us")))
    pairs = pa.map_(pa.string(), pa.timestamp("us"))
    assert len(through(finer.slice(2), lists)) == 1
    assert len(through(maps.slice(0, 1), pairs)) == 1
    for array, kind in ((finer.slice(1), lists), (maps, pairs)):
        with pytest.raises(SchemaMismatchError, match="do not fit"):
            through(array, kind)


def large() -> Iterator[pa.Array]:
    """Return columns of 30 rows that are 50 bytes each, or 100, when they are unpacked."""
    words = [f"{place:050}" for place in range(30)]
    one = "z" * 50
    for kind in (pa.large_string(), pa.string_view()):
        yield pa.array(words, kind)
    yield pa.array([word.encode() for word in words], pa.large_binary())
    yield pa.array([word.encode() for word in words], pa.binary(50))
    yield coded([one] * 30)
    yield pa.DictionaryArray.from_arrays([0] * 30, [one])
    yield pa.array([[word, word] for word in words], pa.large_list(pa.large_string()))
    yield pa.LargeListArray.from_arrays(list(range(0, 62, 2)), coded([one] * 60))
    yield pa.StructArray.from_arrays([coded([one] * 30)], ["a"])
    keys = pa.array(["k"] * 30)
    yield pa.MapArray.from_arrays(list(range(31)), keys, coded([one] * 30))


@pytest.mark.parametrize("array", list(large()), ids=lambda array: str(array.type))
@pytest.mark.parametrize(("piece", "most"), [(1 << 28, 200), (200, 1 << 31), (300, 300)])
def test_what_no_column_holds_is_converted_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, array: pa.Array, piece: int, most: int
) -> None:
    """With a limit that a test can reach; nothing valid is refused."""
    monkeypatch.setattr(conversion, "PIECE_BYTES", piece)
    monkeypatch.setattr(unpacking, "MOST_BYTES", most)
    batch = pa.record_batch({"c": array, "n": list(range(30))})
    schema = normalise_schema(batch.schema)
    pieces = list(conform_pieces(batch, schema))
    assert len(pieces) >= 5
    assert pa.Table.from_batches(pieces, schema).to_pylist() == batch.to_pylist()


def small() -> Iterator[pa.Array]:
    """Return columns of a few hundred bytes whose 1,000 rows are about 1 MB when unpacked."""
    one, rows = "z" * 1000, 1000
    views = np.zeros((rows, 4), np.int32)
    views[:, 0], views[:, 1] = len(one), np.frombuffer(b"zzzz", np.int32)[0]
    texts = pa.Array.from_buffers(
        VIEWS, rows, [None, pa.py_buffer(views), pa.py_buffer(one.encode())]
    )
    starts, lengths = pa.array([0] * rows, pa.int32()), pa.array([120] * rows, pa.int32())
    yield texts
    yield pa.StructArray.from_arrays([texts], ["a"])
    yield pa.ListViewArray.from_arrays(starts, lengths, pa.array(range(120)))
    # Values of which one is long: their mean says nothing of the rows.
    lists = pa.array([[0] * 120, *[[]] * 999])
    yield pa.DictionaryArray.from_arrays(starts, lists)
    yield pa.ListArray.from_arrays(
        [*range(rows + 1)], pa.DictionaryArray.from_arrays(starts, [one, *map(str, range(999))])
    )


@pytest.mark.parametrize("array", list(small()), ids=lambda array: str(array.type)[:40])
def test_what_unpacks_to_a_thousand_times_its_size_is_cut_beforehand(
    monkeypatch: pytest.MonkeyPatch, array: pa.Array
) -> None:
    """Also with the nulls of columns that a batch lacks."""
    monkeypatch.setattr(conversion, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(conversion, "MANY_ROWS", 1000)
    batch = pa.record_batch({"c": array})
    inner = pa.struct([pa.field(f"a{place}", pa.int64()) for place in range(20)])
    for more in (pa.schema([]), pa.schema([("more", inner)])):
        schema = pa.schema([*normalise_schema(batch.schema), *more])
        pieces = list(conform_pieces(batch, schema))
        assert max(piece.nbytes for piece in pieces) < 120_000
        result = pa.Table.from_batches(pieces, schema)
        assert result["c"].to_pylist() == array.to_pylist()


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.large_list(pa.large_binary())], ids=str)
def test_slices_far_inside_a_large_column_are_accepted(kind: pa.DataType) -> None:
    """Real offsets beyond 32 bits, in memory of which only the last bytes are used."""
    far = 1 << 32
    data = mmap.mmap(-1, far + 8)
    data[far:] = b"abcdefgh"
    offsets = pa.array([0, far, far + 3, far + 8], pa.int64()).buffers()[1]
    array = pa.Array.from_buffers(pa.large_binary(), 3, [None, offsets, pa.py_buffer(data)])
    expected: list[Any] = [b"abc", b"defgh"]
    if pa.types.is_large_list(kind):
        array = pa.LargeListArray.from_arrays([0, 1, 2, 3], array)
        expected = [[value] for value in expected]
    assert through(array.slice(1)) == expected
    with pytest.raises(SchemaMismatchError, match=r"too large.*rows=1"):
        through(array)


def test_a_single_value_that_no_column_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, and so is a whole batch where it may not be cut."""
    monkeypatch.setattr(unpacking, "MOST_BYTES", 40)
    for array in (pa.array(["x", LONG], pa.large_string()), coded(["x", LONG])):
        batch = pa.record_batch({"c": array})
        with pytest.raises(SchemaMismatchError, match=r"too large.*column='c', rows=1"):
            list(conform_pieces(batch, pa.schema([("c", pa.string())])))
        with pytest.raises(SchemaMismatchError, match=r"too large.*rows=2"):
            conform(batch, pa.schema([("c", pa.string())]))
