"""One buffer: records, checksums, states, and every size around its capacity."""

import itertools
import random
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.cache.composite import join
from segstore_ds.cache.record import LAST_OFFSET
from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.cache.write_cache import WriteCache
from segstore_ds.errors import ClosedError, CorruptionError, InvalidInputError, StorageError
from segstore_ds.testing.channels import FailingChannel, GatedChannel, MemoryChannel

CAPACITY = 256
BORDERS = [0, 1 << 31, (1 << 31) - 32, (1 << 32) - 1, 1 << 32, LAST_OFFSET - CAPACITY]


def filled(*records: bytes, base: int = 0) -> WriteCache:
    cache = WriteCache(CAPACITY)
    for record in records:
        assert cache.write(base, record)
        base += len(record)
    return cache


class TestWriting:
    """Records lie side by side."""

    def test_a_new_cache_is_empty(self):
        cache = WriteCache(CAPACITY)
        assert (cache.content().length, cache.room) == (0, CAPACITY)
        assert dict(cache.records) == {}
        assert cache.read(0) is None
        assert cache.references == 0

    @pytest.mark.parametrize("base", BORDERS)
    def test_buffer_bytes_are_the_objects_bytes(self, base):
        cache = filled(b"one", b"three", b"x", base=base)
        assert cache.content().copy() == b"onethreex"
        assert list(cache.records) == [base, base + 3, base + 8]
        assert [cache.read(base + place) for place in (0, 3, 8)] == [b"one", b"three", b"x"]
        assert [record.length for record in cache.records.values()] == [3, 5, 1]
        assert [record.end - base for record in cache.records.values()] == [3, 8, 9]
        assert cache.read(base + 1) is None

    def test_a_record_is_copied(self):
        data = bytearray(b"before")
        cache = filled(data)
        data[:] = b"after!"
        assert cache.read(0) == b"before"

    def test_a_view_of_several_pieces_is_one_record(self):
        pieces = join([ByteArraySegment(b"ab"), ByteArraySegment(b"cd")])
        cache = WriteCache(CAPACITY)
        assert cache.write(0, pieces)
        assert cache.read(0) == b"abcd"

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

    @pytest.mark.parametrize("data", [b"", None, bytearray(), memoryview(b"")])
    def test_nothing_is_refused(self, data):
        with pytest.raises(InvalidInputError):
            WriteCache(CAPACITY).write(0, data)

    @pytest.mark.parametrize("size", [CAPACITY + 1, CAPACITY + 4, 10 * CAPACITY])
    def test_more_than_the_capacity_is_refused(self, size):
        cache = filled(b"abc")
        with pytest.raises(InvalidInputError, match="larger than the buffer"):
            cache.write(3, bytes(size))
        assert cache.content().length == 3

    @pytest.mark.parametrize("offset", [0, 2, 4, -1, 1 << 31])
    def test_an_offset_that_is_not_the_next_changes_nothing(self, offset):
        cache = filled(b"abc")
        before = (dict(cache.records), cache.content().copy())
        with pytest.raises(InvalidInputError, match="does not start where"):
            cache.write(offset, b"xyz")
        assert (dict(cache.records), cache.content().copy()) == before

    @pytest.mark.parametrize("offset", [-1, LAST_OFFSET, LAST_OFFSET - 2, 1 << 64])
    def test_an_offset_out_of_range_is_refused(self, offset):
        with pytest.raises(InvalidInputError):
            WriteCache(CAPACITY).write(offset, b"abc")

    def test_no_room_changes_nothing(self):
        cache = filled(bytes(CAPACITY - 3))
        before = (dict(cache.records), cache.content().copy(), cache.room)
        assert cache.write(CAPACITY - 3, b"four") is False
        assert (dict(cache.records), cache.content().copy(), cache.room) == before
        assert cache.write(CAPACITY - 3, b"fit")

    @pytest.mark.parametrize("capacity", [0, -1])
    def test_a_buffer_without_bytes_is_refused(self, capacity):
        with pytest.raises(InvalidInputError):
            WriteCache(capacity)

    @pytest.mark.parametrize("size", range(CAPACITY - 32, CAPACITY + 33))
    def test_every_size_around_the_capacity(self, size):
        """Also after a record, so that the rest of the buffer is 0 to 3 bytes more or less."""
        bases = (0, (1 << 31) - 100, (1 << 32) - 100)
        firsts = (0, 1, 2, 3, CAPACITY // 2)
        for base, first in itertools.product(bases, firsts):
            cache = WriteCache(CAPACITY)
            if first:
                cache.write(base, bytes(first))
            data = random.Random(size).randbytes(size)
            if size > CAPACITY:
                with pytest.raises(InvalidInputError):
                    cache.write(base + first, data)
                continue
            done = cache.write(base + first, data)
            assert done is (first + size <= CAPACITY)
            assert cache.read(base + first) == (data if done else None)
            assert cache.content().length == first + size * done


class TestReading:
    """Every read is verified."""

    def test_a_wrong_checksum_fails_only_its_record(self):
        cache = WriteCache(CAPACITY)
        assert cache.write(0, b"good")
        assert cache.write(4, b"bad", crc=zlib.crc32(b"other"))
        assert cache.write(7, b"fine", crc=zlib.crc32(b"fine"))
        with pytest.raises(CorruptionError, match="offset=4") as caught:
            cache.read(4)
        assert caught.value.fields["expected"] == zlib.crc32(b"other")
        assert caught.value.fields["actual"] == zlib.crc32(b"bad")
        assert (cache.read(0), cache.read(7), cache.references) == (b"good", b"fine", 0)

    def test_a_flipped_bit_is_noticed(self):
        cache = filled(b"good", b"bad")
        cache._memory[5] ^= 1
        with pytest.raises(CorruptionError):
            cache.read(4)
        assert cache.read(0) == b"good"

    def test_what_was_read_outlives_the_buffer(self):
        cache = filled(b"abc")
        data = cache.read(0)
        cache.reset()
        cache.write(0, b"xyz")
        assert data == b"abc"


class TestFlushing:
    """One write per buffer; flushed records stay."""

    def test_nothing_is_written_before_and_all_of_it_in_one_write(self):
        cache, channel = filled(b"abc", b"def"), MemoryChannel()
        assert channel.writes == []
        cache.flush(channel)
        assert channel.writes == [6]
        assert bytes(channel.content) == b"abcdef"
        assert cache.read(3) == b"def"
        assert cache.room == 0

    def test_an_empty_buffer_writes_nothing_and_stays_open(self):
        cache, channel = WriteCache(CAPACITY), MemoryChannel()
        cache.flush(channel)
        assert channel.writes == []
        assert cache.write(0, b"abc")

    def test_flushed_bytes_are_not_written_twice(self):
        cache, channel = filled(b"abc"), MemoryChannel()
        cache.flush(channel)
        cache.flush(channel)
        assert channel.writes == [3]

    def test_a_closed_for_writes_buffer_changes_no_more(self):
        cache = filled(b"abc")
        cache.close_for_writes()
        cache.close_for_writes()
        assert cache.room == 0
        with pytest.raises(ClosedError, match="closed for writes"):
            cache.write(3, b"x")
        assert cache.content().copy() == b"abc"

    def test_a_buffer_refilled_on_its_release_is_written_again(self):
        class Refilled(WriteCache):
            """Resets and refills the buffer as soon as the flush lets it go."""

            def release(self) -> None:
                super().release()
                self.reset()
                assert self.write(3, b"new")

        cache, channel = Refilled(CAPACITY), MemoryChannel()
        cache.write(0, b"old")
        cache.flush(channel)
        assert not cache.flushed
        WriteCache.flush(cache, channel)
        assert bytes(channel.content) == b"oldnew"

    def test_a_failed_flush_is_never_tried_again(self):
        cache, channel = filled(b"abcd"), FailingChannel(0)
        for _ in range(3):
            with pytest.raises(StorageError, match="disk is full"):
                cache.flush(channel)
        assert channel.touched_after == 0
        assert not cache.flushed
        assert cache.read(0) == b"abcd"


class TestStates:
    """A buffer is sealed, flushed, held and reset."""

    def test_flushed_lasts_until_the_reset(self):
        cache = filled(b"abc")
        assert not cache.flushed
        cache.flush(MemoryChannel())
        assert cache.flushed
        cache.reset()
        assert not cache.flushed

    def test_reset_drops_records_and_gives_back_the_full_capacity(self):
        cache, channel = filled(b"abc", b"def"), MemoryChannel()
        cache.flush(channel)
        assert cache.reset() == 2
        assert cache.read(0) is None
        assert bytes(channel.content) == b"abcdef"
        assert dict(cache.records) == {}
        assert cache.write(1 << 40, bytes(CAPACITY))
        assert cache.write((1 << 40) + CAPACITY, b"x") is False

    def test_reset_without_memory_gives_it_back(self):
        cache = filled(b"abc")
        cache.reset(keep_memory=False)
        assert cache._memory is None
        assert cache.write(0, bytes(CAPACITY))

    def test_a_held_buffer_is_not_reset(self):
        cache = filled(b"abc")
        cache.acquire()
        with pytest.raises(InvalidInputError, match="in use"):
            cache.reset()
        assert cache.read(0) == b"abc"
        cache.release()
        cache.reset()
        with pytest.raises(InvalidInputError, match="more often"):
            cache.release()

    def test_a_buffer_on_its_way_to_the_channel_is_not_reset(self):
        cache, channel = filled(b"abc"), GatedChannel()
        writer = threading.Thread(target=cache.flush, args=[channel])
        writer.start()
        channel.arrived.acquire(timeout=30)
        assert cache.references == 1
        with pytest.raises(InvalidInputError, match="in use"):
            cache.reset()
        channel.allow()
        writer.join(30)
        cache.reset()


class TestBytes:
    """What the channel gets is what was written."""

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


USES = {
    "write": lambda cache: cache.write(3, b"x"),
    "read": lambda cache: cache.read(0),
    "flush": lambda cache: cache.flush(MemoryChannel()),
    "reset": lambda cache: cache.reset(),
    "close_for_writes": lambda cache: cache.close_for_writes(),
    "content": lambda cache: cache.content(),
    "acquire": lambda cache: cache.acquire(),
    **{
        name: (lambda cache, name=name: getattr(cache, name))
        for name in ("room", "records", "flushed", "references")
    },
}


class TestClosing:
    """Close drops everything and writes nothing."""

    @pytest.mark.parametrize("use", USES)
    def test_every_use_afterwards_raises_the_same(self, use):
        cache = filled(b"abc")
        cache.close()
        cache.close()
        assert cache.closed
        with pytest.raises(ClosedError, match="write cache was closed"):
            USES[use](cache)

    def test_every_public_name_is_in_the_table(self):
        names = {name for name in dir(WriteCache) if not name.startswith("_")}
        assert names - set(USES) == {"close", "closed", "release"}

    def test_a_view_of_the_content_outlives_it(self):
        cache = filled(b"abc")
        view = cache.content()
        cache.close()
        assert view.copy() == b"abc"
