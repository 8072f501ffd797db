"""The scattered buffer: what the suite of both asks, positions in any order, and packing."""

import pytest
from channels import MemoryChannel
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.cache.scattered_cache import ScatteredCache
from segstore_ds.errors import InvalidInputError
from unit.cache.suites import CAPACITY, BufferSuite


class TestScatteredCache(BufferSuite):
    """Records have positions of their own."""

    kind = ScatteredCache

    def test_a_flush_sorts_and_makes_one_write_per_run(self):
        cache, channel = self.filled(), MemoryChannel()
        for offset, data in ((20, b"uvw"), (3, b"def"), (0, b"abc"), (30, b"x"), (23, b"yz")):
            assert cache.write(offset, data)
        cache.flush(channel)
        assert list(zip(channel.starts, channel.writes, strict=True)) == [(0, 6), (20, 5), (30, 1)]
        assert channel.load(0, 6) + channel.load(20, 31) == b"abcdefuvwyz\0\0\0\0\0x"

    def test_a_record_of_the_same_range_replaces_the_first(self):
        cache, channel = self.filled(b"abc", b"def"), MemoryChannel()
        room = cache.room
        assert cache.write(0, b"ABC")
        assert (cache.read(0), cache.room) == (b"ABC", room)
        cache.flush(channel)
        assert bytes(channel.content) == b"ABCdef"

    def test_a_full_buffer_still_takes_a_replacement(self):
        cache = self.filled(bytes(CAPACITY))
        assert cache.write(0, b"x" * CAPACITY)
        assert cache.read(0) == b"x" * CAPACITY

    @pytest.mark.parametrize(
        ("offset", "size"), [(8, 3), (10, 2), (10, 6), (12, 1), (14, 9), (5, 20)]
    )
    def test_a_record_over_another_range_changes_nothing(self, offset, size):
        cache = self.filled()
        cache.write(10, b"abcde")
        with pytest.raises(InvalidInputError, match="lies over another"):
            cache.write(offset, bytes(size))
        assert (list(cache.records), cache.read(10)) == ([10], b"abcde")

    def test_frozen_records_are_held_and_others_copied(self):
        frozen, other = bytearray(b"abc"), bytearray(b"def")
        cache = self.filled()
        cache.write(0, frozen, frozen=True)
        cache.write(3, other)
        frozen[0] = other[0] = 0
        assert cache.content().copy() == b"\0bcdef"

    def test_sparse_buffers_are_packed_into_one(self):
        """Bytes, checksums and room move; what lies outside the range stays."""
        first, second, packed = self.filled(b"ab"), ScatteredCache(CAPACITY), ScatteredCache(5)
        second.write(2, b"cde", 7)
        second.write(90, b"z")
        assert (first.move(packed, 0, 5), second.move(packed, 0, 5)) == (1, 1)
        channel = MemoryChannel()
        packed.flush(channel)
        assert (channel.writes, bytes(channel.content)) == ([5], b"abcde")
        assert packed.records[2].crc == 7
        assert (dict(first.records), first.room, list(second.records)) == ({}, CAPACITY, [90])
        assert second.room == CAPACITY - 1

    def test_what_does_not_fit_or_is_sealed_does_not_move(self):
        cache, small = self.filled(b"abc", b"def"), ScatteredCache(5)
        with pytest.raises(InvalidInputError, match="do not fit"):
            cache.move(small, 0, 6)
        cache.close_for_writes()
        with pytest.raises(InvalidInputError, match="do not fit"):
            cache.move(small, 0, 3)
        assert (len(cache.records), len(small.records)) == (2, 0)

    @given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
    def test_any_order_gives_the_same_bytes(self, order, again):
        cache, channel = ScatteredCache(CAPACITY), MemoryChannel()
        expected = bytearray(12 * 7)
        for place in (*order, *again):
            data = bytes([len(cache.records) + place]) * 7
            assert cache.write(place * 7, data)
            expected[place * 7 : place * 7 + 7] = data
        cache.flush(channel)
        assert (channel.writes, channel.content) == ([12 * 7], expected)
