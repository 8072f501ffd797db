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


def filled(*records: bytes, base: int = 0, **knobs) -> WriteCache:
    cache = WriteCache(CAPACITY, **knobs)
    for record in records:
        assert cache.write(base, record)
        base += len(record)
    return cache


def until_a_thread_waits(cache: WriteCache) -> None:
    """Wait until another thread does, so that what comes next has to wake it."""
    while not cache._changed._waiters:
        threading.Event().wait(0.001)


class TestWriting:
    """Records lie side by side."""

    def test_a_new_cache_is_empty(self):
        cache = WriteCache(CAPACITY)
        assert (cache.capacity, cache.bytes_written, cache.room) == (CAPACITY, 0, CAPACITY)
        assert cache.first_offset is cache.last_offset is cache.end_offset is None
        assert dict(cache.records) == {}
        assert not cache.contains(0)
        assert cache.read(0) is None
        assert cache.references == 0

    @pytest.mark.parametrize("base", BORDERS)
    def test_buffer_bytes_are_the_objects_bytes(self, base):
        cache = filled(b"one", b"three", b"x", base=base)
        assert cache.content().copy() == b"onethreex"
        assert (cache.first_offset, cache.last_offset) == (base, base + 8)
        assert (cache.end_offset, cache.bytes_written) == (base + 9, 9)
        assert [cache.read(base + place) for place in (0, 3, 8)] == [b"one", b"three", b"x"]
        assert [record.length for record in cache.records.values()] == [3, 5, 1]
        assert [record.end - base for record in cache.records.values()] == [3, 8, 9]
        assert cache.contains(base + 3)
        assert not cache.contains(base + 1)
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
        cache = WriteCache(1 << 20, checksum=True)
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
        with pytest.raises(InvalidInputError, match="larger than the buffer"):
            cache.allocate(3, size)
        assert cache.bytes_written == 3

    @pytest.mark.parametrize("offset", [0, 2, 4, -1, 1 << 31])
    def test_an_offset_that_is_not_the_next_changes_nothing(self, offset):
        cache = filled(b"abc", checksum=True)
        before = (dict(cache.records), cache.bytes_written, cache.checksum)
        with pytest.raises(InvalidInputError, match="does not follow"):
            cache.write(offset, b"xyz")
        assert (dict(cache.records), cache.bytes_written, cache.checksum) == before

    @pytest.mark.parametrize("offset", [-1, LAST_OFFSET, LAST_OFFSET - 2, 1 << 64])
    def test_an_offset_out_of_range_is_refused(self, offset):
        with pytest.raises(InvalidInputError):
            WriteCache(CAPACITY).write(offset, b"abc")

    def test_no_room_changes_nothing(self):
        cache = filled(bytes(CAPACITY - 3), checksum=True)
        before = (dict(cache.records), cache.bytes_written, cache.checksum, cache.room)
        assert cache.write(CAPACITY - 3, b"four") is False
        assert cache.allocate(CAPACITY - 3, 4) is None
        assert (dict(cache.records), cache.bytes_written, cache.checksum, cache.room) == before
        assert cache.write(CAPACITY - 3, b"fit")

    @pytest.mark.parametrize("capacity", [0, -1])
    def test_a_buffer_without_bytes_is_refused(self, capacity):
        with pytest.raises(InvalidInputError):
            WriteCache(capacity)

    @pytest.mark.parametrize("size", range(CAPACITY - 32, CAPACITY + 33))
    def test_every_size_around_the_capacity(self, size):
        """Also behind a record, so that the rest of the buffer is 0 to 3 bytes more or less."""
        bases = (0, (1 << 31) - 100, (1 << 32) - 100)
        firsts = (0, 1, 2, 3, CAPACITY // 2)
        for way, base, first in itertools.product(("write", "allocate"), bases, firsts):
            cache = WriteCache(CAPACITY)
            if first:
                cache.write(base, bytes(first))
            data = random.Random(size).randbytes(size)
            if size > CAPACITY:
                with pytest.raises(InvalidInputError):
                    getattr(cache, way)(base + first, data if way == "write" else size)
                continue
            if way == "write":
                done = cache.write(base + first, data)
            else:
                room = cache.allocate(base + first, size)
                done = room is not None
                if room is not None:
                    room.data[:] = data
                    room.publish()
            assert done is (first + size <= CAPACITY)
            assert cache.read(base + first) == (data if done else None)
            assert cache.bytes_written == first + size * done


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


class TestAllocating:
    """Reserve, fill, publish."""

    def test_a_record_is_readable_once_it_is_published(self):
        cache = filled(b"abc", checksum=True)
        room = cache.allocate(3, 4)
        room.data[:] = b"defg"
        assert not cache.contains(3)
        assert cache.bytes_written == 3
        assert room.publish().end == 7
        assert cache.read(3) == b"defg"
        assert cache.checksum == cache.recompute_checksum() == zlib.crc32(b"abcdefg")

    def test_an_exact_fit_is_accepted(self):
        cache = filled(bytes(CAPACITY - 5))
        assert cache.allocate(CAPACITY - 5, 5) is not None

    def test_nothing_else_happens_while_room_is_reserved(self):
        cache = filled(b"abc")
        room = cache.allocate(3, 4)
        for call in (
            lambda: cache.write(3, b"x"),
            lambda: cache.allocate(3, 1),
            cache.close_for_writes,
            cache.reset,
        ):
            with pytest.raises(InvalidInputError, match="reserved"):
                call()
        room.discard()
        room.discard()
        assert cache.write(3, b"x")
        with pytest.raises(ClosedError):
            room.publish()

    def test_room_is_published_once(self):
        cache = WriteCache(CAPACITY)
        room = cache.allocate(0, 4)
        room.publish()
        with pytest.raises(ClosedError):
            room.publish()
        assert cache.bytes_written == 4


class TestFlushing:
    """One write per buffer; flushed records stay."""

    def test_nothing_is_written_before_and_all_of_it_in_one_write(self):
        cache, channel = filled(b"abc", b"def"), MemoryChannel()
        assert channel.writes == []
        assert cache.flush(channel)
        assert channel.writes == [6]
        assert bytes(channel.content) == b"abcdef"
        assert cache.read(3) == b"def"
        assert cache.closed_for_writes

    def test_an_empty_buffer_writes_nothing_and_stays_open(self):
        cache, channel = WriteCache(CAPACITY), MemoryChannel()
        assert cache.flush(channel)
        assert channel.writes == []
        assert cache.write(0, b"abc")

    def test_flushed_bytes_are_not_written_twice(self):
        cache, channel = filled(b"abc"), MemoryChannel()
        assert cache.flush(channel)
        assert cache.flush(channel)
        assert channel.writes == [3]

    def test_a_closed_for_writes_buffer_changes_no_more(self):
        cache = filled(b"abc", checksum=True)
        cache.close_for_writes()
        cache.close_for_writes()
        assert cache.room == 0
        for call in (lambda: cache.write(3, b"x"), lambda: cache.allocate(3, 1)):
            with pytest.raises(ClosedError, match="closed for writes"):
                call()
        assert cache.content().copy() == b"abc"

    def test_waits_for_reserved_room_but_not_longer_than_it_may(self):
        cache, channel = filled(b"abc"), MemoryChannel()
        room = cache.allocate(3, 3)
        room.data[:] = b"def"
        assert cache.flush(channel, timeout_s=0) is False
        assert cache.flush(channel, timeout_s=0.01) is False
        assert channel.writes == []
        done = threading.Thread(target=cache.flush, args=[channel])
        done.start()
        until_a_thread_waits(cache)
        room.publish()
        done.join(30)
        assert bytes(channel.content) == b"abcdef"

    def test_a_failed_flush_is_never_tried_again(self):
        cache, channel = filled(b"abcd"), FailingChannel(0)
        for _ in range(3):
            with pytest.raises(StorageError, match="disk is full"):
                cache.flush(channel)
        assert channel.touched_after == 0
        assert not cache.flushed
        assert cache.read(0) == b"abcd"


class TestStates:
    """Flushed, durable, visible and recycled are four things."""

    def states(self, cache: WriteCache) -> tuple[bool, ...]:
        return (cache.flushed, cache.durable, cache.visible, cache.recycled)

    def test_each_follows_the_one_before(self):
        cache = filled(b"abc")
        assert self.states(cache) == (False, False, False, False)
        with pytest.raises(InvalidInputError, match="not flushed"):
            cache.mark_durable()
        cache.flush(MemoryChannel())
        assert self.states(cache) == (True, False, False, False)
        with pytest.raises(InvalidInputError, match="not durable"):
            cache.mark_visible()
        cache.mark_durable()
        assert self.states(cache) == (True, True, False, False)
        cache.mark_visible()
        assert self.states(cache) == (True, True, True, False)
        cache.reset()
        assert self.states(cache) == (False, False, False, True)
        cache.write(0, b"x")
        assert self.states(cache) == (False, False, False, False)

    def test_reset_drops_records_and_gives_back_the_full_capacity(self):
        cache, channel = filled(b"abc", b"def", checksum=True), MemoryChannel()
        cache.flush(channel)
        assert cache.reset() == 2
        assert cache.read(0) is None
        assert bytes(channel.content) == b"abcdef"
        assert cache.first_offset is None
        assert cache.checksum == 0
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


class TestChecksum:
    """Kept as records come, and equal to one computed anew."""

    @given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.sampled_from(BORDERS))
    def test_incremental_is_recomputed_is_what_the_channel_got(self, records, base):
        cache, channel = WriteCache(CAPACITY, checksum=True), MemoryChannel()
        taken, place = b"", base
        for record in records:
            if place + len(record) <= LAST_OFFSET and cache.write(place, record):
                taken += record
                place += len(record)
        cache.flush(channel)
        assert cache.checksum == cache.recompute_checksum() == zlib.crc32(taken)
        assert bytes(channel.content) == taken
        for offset, record in cache.records.items():
            assert cache.read(offset) == taken[offset - base : record.end - base]

    def test_one_that_was_not_asked_for_is_refused(self):
        with pytest.raises(InvalidInputError, match="keeps no checksum"):
            _ = filled(b"abc").checksum


USES = {
    "write": lambda cache: cache.write(3, b"x"),
    "allocate": lambda cache: cache.allocate(3, 1),
    "read": lambda cache: cache.read(0),
    "contains": lambda cache: cache.contains(0),
    "flush": lambda cache: cache.flush(MemoryChannel()),
    "reset": lambda cache: cache.reset(),
    "close_for_writes": lambda cache: cache.close_for_writes(),
    "content": lambda cache: cache.content(),
    "acquire": lambda cache: cache.acquire(),
    "mark_durable": lambda cache: cache.mark_durable(),
    "mark_visible": lambda cache: cache.mark_visible(),
    "recompute_checksum": lambda cache: cache.recompute_checksum(),
    **{
        name: (lambda cache, name=name: getattr(cache, name))
        for name in (
            *("capacity", "bytes_written", "room", "records", "first_offset", "last_offset"),
            *("end_offset", "checksum", "closed_for_writes", "flushed", "durable", "visible"),
            *("recycled", "references"),
        )
    },
}


class TestClosing:
    """Close drops everything and writes nothing."""

    @pytest.mark.parametrize("use", USES)
    def test_every_use_afterwards_raises_the_same(self, use):
        cache = filled(b"abc", checksum=True)
        cache.close()
        cache.close()
        assert cache.closed
        with pytest.raises(ClosedError, match="write cache was closed"):
            USES[use](cache)

    def test_every_public_name_is_in_the_table(self):
        names = {name for name in dir(WriteCache) if not name.startswith("_")}
        assert names - set(USES) == {"close", "closed", "release"}

    def test_wakes_a_flush_that_waits_for_reserved_room(self):
        cache = filled(b"abc")
        room = cache.allocate(3, 1)
        caught = []

        def flush() -> None:
            try:
                cache.flush(MemoryChannel())
            except ClosedError as error:
                caught.append(error)

        waiting = threading.Thread(target=flush)
        waiting.start()
        until_a_thread_waits(cache)
        cache.close()
        waiting.join(30)
        assert len(caught) == 1
        with pytest.raises(ClosedError):
            room.publish()

    def test_a_view_of_the_content_outlives_it(self):
        cache = filled(b"abc")
        view = cache.content()
        cache.close()
        assert view.copy() == b"abc"
