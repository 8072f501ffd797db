"""Every kind of view shows, cuts and compares its content, and shares memory that stays alive."""

import mmap
import random
import zlib
from itertools import pairwise

import pyarrow as pa
import pytest

from segstore_ds.cache.views import (
    EMPTY,
    BufferView,
    ByteArraySegment,
    ViewReader,
    as_view,
    join,
)
from segstore_ds.errors import InvalidInputError

CONTENT = random.Random(7).randbytes(487)


def mapped(content: bytes) -> ByteArraySegment:
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    return ByteArraySegment(memory)


def joined(*borders: int) -> BufferView:
    bounds = [0, *borders, len(CONTENT)]
    pieces = (ByteArraySegment(CONTENT, *pair) for pair in pairwise(bounds))
    return join([EMPTY, *pieces, EMPTY])


KINDS = {
    "bytes": ByteArraySegment(CONTENT + b"xyz", 0, 487),
    "a window": ByteArraySegment(bytearray(b"xyz" + CONTENT + b"xyz"), 3, 490),
    "an Arrow buffer": ByteArraySegment(pa.py_buffer(b"abc" + CONTENT).slice(3)),
    "mapped memory": mapped(CONTENT),
    "a composite": joined(*range(40, 487, 40)),
    "a composite of composites": join([joined().slice(0, 1), EMPTY, joined(2, 3).slice(1, 487)]),
}


@pytest.fixture(params=KINDS)
def view(request: pytest.FixtureRequest) -> BufferView:
    return KINDS[request.param]


def test_shows_its_content_read_only(view):
    assert (view.length, view.copy(), view.crc32()) == (487, CONTENT, zlib.crc32(CONTENT))
    assert b"".join(view.buffers()) == CONTENT
    assert all(buffer.readonly and len(buffer) for buffer in view.buffers())
    assert [view[place] for place in range(0, 487, 31)] == [*CONTENT[::31]]


def test_every_slice_is_the_slice(view):
    """An empty one is allowed everywhere, and has no buffers."""
    for start in range(0, 488, 19):
        for end in range(start, 488, 13):
            cut = view.slice(start, end)
            assert cut.copy() == CONTENT[start:end]
            assert cut.slice(0, cut.length) == cut
        assert list(view.slice(start, start).buffers()) == []
    assert view.slice(487, 487).length == 0


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 3), (0, 488), (488, 488), (5, 4), (0, -1), (-3, -1), (-1, 1 << 64)]
)
def test_a_range_outside_is_refused(view, start, end):
    """Also a place before a window, where other bytes lie."""
    for ask in (lambda: view.slice(start, end), lambda: view[487], lambda: view[-1]):
        with pytest.raises(InvalidInputError, match="out of bounds"):
            ask()


def test_copies_into_other_memory_as_much_as_fits(view):
    for room in (0, 1, 100, 487, 900):
        target = bytearray(room)
        assert view.copy_to(memoryview(target)) == min(room, 487)
        assert target == CONTENT[:room].ljust(room, b"\0")


def test_a_reader_copies_on_from_where_it_is(view):
    reader, target, found = ViewReader(view), bytearray(50), b""
    assert reader.read(7).copy() == CONTENT[:7]
    while reader.available:
        found += target[: reader.read_into(target)]
    assert found == CONTENT[7:]
    assert reader.read_into(target) == 0


@pytest.mark.parametrize("wrong", [CONTENT, None, memoryview(bytearray(8))[::2]])
def test_what_fails_does_not_move_a_reader(view, wrong):
    reader = ViewReader(view)
    with pytest.raises(InvalidInputError, match="can't be written"):
        reader.read_into(wrong)
    for length in (488, -1):
        with pytest.raises(InvalidInputError, match="out of bounds"):
            reader.read(length)
    assert reader.available == 487


def test_lengths_are_not_32_bits(tmp_path):
    path = tmp_path / "sparse"
    size = (1 << 32) + 4096
    with path.open("wb") as file:
        file.truncate(size)
        for border in (1 << 31, 1 << 32):
            file.seek(border - 4)
            file.write(b"12345678")
    with path.open("rb") as file:
        view = ByteArraySegment(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    both = join([view, view])
    assert (view.length, both.length) == (size, 2 * size)
    for border in (1 << 31, 1 << 32):
        assert view.slice(border - 4, border + 4).copy() == b"12345678"
    assert view.to_arrow().size == size


@pytest.mark.parametrize("data", [None, 5, "text", [1], memoryview(bytes(8))[::2]])
def test_what_has_no_plain_bytes_is_refused(data):
    with pytest.raises(InvalidInputError, match="support the buffer protocol"):
        as_view(data)


def test_equal_content_is_equal(view):
    for same in KINDS.values():
        assert view == same
        assert hash(view) == hash(same)
    assert view != ByteArraySegment(CONTENT[:-1] + b"?")
    assert view != CONTENT
