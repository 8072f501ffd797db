"""One suite for every kind of view, and the defects that views elsewhere have had."""

import mmap
import random
import zlib
from abc import ABC, abstractmethod

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.cache.views import (
    EMPTY,
    BufferView,
    ByteArraySegment,
    as_view,
    join,
)
from segstore_ds.errors import InvalidInputError

CONTENT = random.Random(7).randbytes(487)


class ViewSuite(ABC):
    """What holds for a view of any kind; `make` wraps the content."""

    @abstractmethod
    def make(self, content: bytes) -> BufferView: ...

    def test_shows_its_content(self):
        view = self.make(CONTENT)
        assert view.length == len(CONTENT)
        assert view.copy() == CONTENT
        assert b"".join(view.buffers()) == CONTENT

    def test_checksum_goes_over_all_components(self):
        assert self.make(CONTENT).crc32() == zlib.crc32(CONTENT)

    def test_cannot_be_written(self):
        view = self.make(CONTENT)
        for buffer in view.buffers():
            assert buffer.readonly

    def test_slices_bytes_and_copies_are_those_of_the_content(self):
        view = self.make(CONTENT)
        for start, end in ((0, 0), (0, 487), (3, 4), (40, 300), (487, 487)):
            assert view.slice(start, end).copy() == CONTENT[start:end]
        assert [view[place] for place in range(0, 487, 31)] == [*CONTENT[::31]]
        for place in (-1, 487):
            with pytest.raises(InvalidInputError, match="out of bounds"):
                view[place]

    def test_equal_content_is_equal(self):
        view, same = self.make(CONTENT), join(map(as_view, (CONTENT[:100], CONTENT[100:])))
        assert view == same
        assert hash(view) == hash(same)
        assert view != self.make(CONTENT[:-1] + b"?")
        assert view != CONTENT


class SegmentSuite(ViewSuite):
    """What holds for bytes in one piece."""

    @abstractmethod
    def make(self, content: bytes) -> ByteArraySegment: ...

    def test_every_slice_is_the_slice(self):
        view = self.make(CONTENT)
        for start in range(0, len(CONTENT) + 1, 19):
            for end in range(start, len(CONTENT) + 1, 11):
                cut = view.slice(start, end)
                assert cut.copy() == CONTENT[start:end]
                assert cut.slice(0, cut.length).copy() == cut.copy()
        for place in range(0, len(CONTENT) // 2, 7):
            cut = view.slice(place, len(CONTENT) - place)
            assert cut.copy() == CONTENT[place : len(CONTENT) - place]

    def test_an_empty_slice_is_allowed_everywhere_and_has_no_buffers(self):
        view = self.make(CONTENT)
        for place in range(len(CONTENT) + 1):
            assert view.slice(place, place).copy() == b""
            assert list(view.slice(place, place).buffers()) == []

    @pytest.mark.parametrize(
        ("start", "end"), [(-1, 3), (0, 488), (488, 488), (5, 4), (0, -1), (-3, -1)]
    )
    def test_a_range_outside_is_refused(self, start, end):
        with pytest.raises(InvalidInputError, match="out of bounds"):
            self.make(CONTENT).slice(start, end)


class TestBytes(SegmentSuite):
    def make(self, content: bytes) -> ByteArraySegment:
        return ByteArraySegment(content)


class TestWindowOfWritableBytes(SegmentSuite):
    def make(self, content: bytes) -> ByteArraySegment:
        return ByteArraySegment(bytearray(b"xyz" + content + b"xyz"), 3, 3 + len(content))


class TestArrowBuffer(SegmentSuite):
    def make(self, content: bytes) -> ByteArraySegment:
        return ByteArraySegment(pa.py_buffer(b"abc" + content).slice(3))


class TestMmap(SegmentSuite):
    def make(self, content: bytes) -> ByteArraySegment:
        memory = mmap.mmap(-1, max(len(content), 1))
        memory[: len(content)] = content
        return ByteArraySegment(memory, 0, len(content))


class TestComposite(ViewSuite):
    def make(self, content: bytes) -> BufferView:
        step = max(len(content) // 10, 1)
        pieces = [content[place : place + step] for place in range(0, len(content), step)]
        return join(ByteArraySegment(piece) for piece in pieces)


class TestNestedComposite(ViewSuite):
    def make(self, content: bytes) -> BufferView:
        one, two = (
            join(ByteArraySegment(content, place, place + 1) for place in places)
            for places in (range(len(content) // 2), range(len(content) // 2, len(content)))
        )
        return join([one, EMPTY, two])


class TestComposites:
    """What only composites do."""

    def test_join_flattens_and_leaves_out_what_is_empty(self):
        one, two = ByteArraySegment(b"one"), ByteArraySegment(b"two")
        assert join([]) is EMPTY
        assert join([EMPTY, EMPTY]) is EMPTY
        assert join([EMPTY, one]) is one
        nested = join([join([one, two]), EMPTY, join([two, one])])
        assert [bytes(piece) for piece in nested.buffers()] == [b"one", b"two", b"two", b"one"]

    @given(st.lists(st.binary(max_size=9), max_size=9))
    def test_is_the_concatenation(self, pieces):
        content = b"".join(pieces)
        view = join(ByteArraySegment(piece) for piece in pieces)
        assert (view.copy(), view.length) == (content, len(content))


class TestDefects:
    """The defects of the views that these are modelled on."""

    def test_1_a_place_before_the_view_is_refused(self):
        view = ByteArraySegment(b"secret" + bytes(20), 6)
        for place in (-1, -8, 20, 1 << 64):
            with pytest.raises(InvalidInputError, match="out of bounds"):
                view.slice(place, place + 1)

    def test_2_an_empty_slice_at_the_end_is_allowed(self):
        assert ByteArraySegment(b"ab").slice(2, 2).length == 0

    def test_3_an_empty_view_has_no_buffers(self):
        for view in (
            EMPTY,
            ByteArraySegment(b""),
            ByteArraySegment(b"abc", 1, 1),
            BufferView(()),
        ):
            assert list(view.buffers()) == []

    def test_7_a_view_is_read_only(self):
        view = ByteArraySegment(bytearray(8))
        with pytest.raises(TypeError):
            view.data[0] = 1
        assert view.slice(1, 3).data.readonly

    def test_8_lengths_are_not_32_bits(self, tmp_path):
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


class TestSharing:
    """Memory is shared, and kept as long as somebody looks at it."""

    def test_arrow_comes_back_without_a_copy(self):
        array = pa.array([1, 2, 3], pa.int64())
        buffer = array.buffers()[1]
        view = ByteArraySegment(buffer)
        back = view.slice(8, 24).to_arrow()
        assert back.address == buffer.address + 8
        del array, buffer, view
        assert pa.Array.from_buffers(pa.int64(), 2, [None, back]).to_pylist() == [2, 3]

    def test_a_view_of_a_view_shares(self):
        memory = bytearray(b"abcdef")
        view = ByteArraySegment(ByteArraySegment(memory, 1).data, 1)
        memory[2] = ord("X")
        assert view.copy() == b"Xdef"

    @pytest.mark.parametrize("data", [None, 5, "text", [1], memoryview(bytes(8))[::2]])
    def test_what_has_no_plain_bytes_is_refused(self, data):
        with pytest.raises(InvalidInputError, match="support the buffer protocol"):
            as_view(data)
