"""The append-only buffer: what the suite of both asks, records side by side, and its memory."""

import pytest
from channels import MemoryChannel
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.cache.record import LAST_OFFSET
from segstore_ds.cache.write_cache import WriteCache
from segstore_ds.errors import CorruptionError, InvalidInputError
from unit.cache.suites import BORDERS, CAPACITY, BufferSuite


class TestWriteCache(BufferSuite):
    """Records lie side by side; small ones are copied to the buffer's own memory."""

    kind = WriteCache

    def test_large_frozen_records_are_held_and_others_copied(self):
        large = bytes(range(256)) * 100
        data = bytearray(large)
        cache = WriteCache(1 << 20)
        cache.write(0, b"small")
        place = 5
        for part, frozen in ((large, True), (b"abc", True), (b"de", False), (data, False)):
            assert cache.write(place, part, frozen=frozen)
            place += len(part)
        assert cache.write(place, data, frozen=True)
        data[0] = 99
        channel = MemoryChannel()
        cache.flush(channel)
        held = b"c" + large[1:]
        assert bytes(channel.content) == b"small" + large + b"abcde" + large + held
        assert channel.writes == [3 * len(large) + 10]
        assert len(list(cache.content().buffers())) == 4
        end = 5 + len(large)
        assert [cache.read(offset) for offset in (0, 5, end, end + 3)] == [
            b"small",
            large,
            b"abc",
            b"de",
        ]
        with pytest.raises(CorruptionError):
            cache.read(place)

    @pytest.mark.parametrize("offset", [0, 2, 4, -1, 1 << 31])
    def test_an_offset_that_is_not_the_next_changes_nothing(self, offset):
        cache = self.filled(b"abc")
        before = (dict(cache.records), cache.content().copy())
        with pytest.raises(InvalidInputError, match="does not start where"):
            cache.write(offset, b"xyz")
        assert (dict(cache.records), cache.content().copy()) == before

    def test_a_flipped_bit_is_noticed(self):
        cache = self.filled(b"good", b"bad")
        cache._memory.room[5] ^= 1
        with pytest.raises(CorruptionError):
            cache.read(4)
        assert cache.read(0) == b"good"

    def test_reset_without_memory_gives_it_back(self):
        cache = self.filled(b"abc")
        cache.reset(keep_memory=False)
        assert cache._memory is None
        assert cache.write(0, bytes(CAPACITY))

    @given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.sampled_from(BORDERS))
    def test_the_channel_and_every_read_get_what_was_written(self, records, base):
        cache, channel = WriteCache(CAPACITY), MemoryChannel()
        taken, place = b"", base
        for record in records:
            if place + len(record) <= LAST_OFFSET and cache.write(place, record):
                taken += record
                place += len(record)
        cache.flush(channel)
        assert bytes(channel.content) == taken
        for offset, record in cache.records.items():
            assert cache.read(offset) == taken[offset - base : record.end - base]
