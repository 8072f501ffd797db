"""What a write cache of either strategy does: one suite for the buffers, one for the services."""

import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from channels import FailingChannel, GatedChannel, MemoryChannel

from segstore_ds.cache.buffer import Buffer
from segstore_ds.cache.composite import join
from segstore_ds.cache.object_cache import ObjectCache
from segstore_ds.cache.record import LAST_OFFSET, Record
from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.errors import (
    ClosedError,
    CorruptionError,
    InternalError,
    InvalidInputError,
    StorageError,
)

CAPACITY = 256
BORDERS = [0, 1 << 31, (1 << 31) - 32, (1 << 32) - 1, 1 << 32, LAST_OFFSET - CAPACITY]
SIZE = 64


@contextmanager
def background(work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Run work in a thread; its result or error is asked for at the end."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to come to a place."""
    limit = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < limit, "the other thread never comes there"
        threading.Event().wait(0.001)


USES: dict[str, Callable[[Any], object]] = {
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


class BufferSuite:
    """A buffer: records, checksums, states, and every size around its capacity."""

    kind: Callable[[int], Buffer[Any]]

    def filled(self, *records: bytes, base: int = 0) -> Any:
        """Return a buffer of records side by side."""
        cache = type(self).kind(CAPACITY)
        for record in records:
            assert cache.write(base, record)
            base += len(record)
        return cache

    def test_a_new_cache_is_empty(self):
        cache = self.filled()
        assert (cache.content().length, cache.room) == (0, CAPACITY)
        assert dict(cache.records) == {}
        assert cache.read(0) is None
        assert cache.references == 0

    @pytest.mark.parametrize("base", BORDERS)
    def test_buffer_bytes_are_the_objects_bytes(self, base):
        cache = self.filled(b"one", b"three", b"x", base=base)
        assert cache.content().copy() == b"onethreex"
        assert list(cache.records) == [base, base + 3, base + 8]
        assert [cache.read(base + place) for place in (0, 3, 8)] == [b"one", b"three", b"x"]
        assert [record.length for record in cache.records.values()] == [3, 5, 1]
        assert [record.end - base for record in cache.records.values()] == [3, 8, 9]
        assert cache.read(base + 1) is None

    def test_a_record_is_copied(self):
        data = bytearray(b"before")
        cache = self.filled(data)
        data[:] = b"after!"
        assert cache.read(0) == b"before"

    def test_a_view_of_several_pieces_is_one_record(self):
        pieces = join([ByteArraySegment(b"ab"), ByteArraySegment(b"cd")])
        cache = self.filled()
        assert cache.write(0, pieces)
        assert cache.read(0) == b"abcd"

    @pytest.mark.parametrize("data", [b"", None, bytearray(), memoryview(b"")])
    def test_nothing_is_refused(self, data):
        with pytest.raises(InvalidInputError):
            self.filled().write(0, data)

    @pytest.mark.parametrize("size", [CAPACITY + 1, CAPACITY + 4, 10 * CAPACITY])
    def test_more_than_the_capacity_is_refused(self, size):
        cache = self.filled(b"abc")
        with pytest.raises(InvalidInputError, match="larger than the buffer"):
            cache.write(3, bytes(size))
        assert cache.content().length == 3

    @pytest.mark.parametrize("offset", [-1, LAST_OFFSET, LAST_OFFSET - 2, 1 << 64])
    def test_an_offset_out_of_range_is_refused(self, offset):
        cache = self.filled()
        with pytest.raises(InvalidInputError):
            cache.write(offset, b"abc")
        assert (dict(cache.records), cache.content().length) == ({}, 0)

    def test_no_room_changes_nothing(self):
        cache = self.filled(bytes(CAPACITY - 3))
        before = (dict(cache.records), cache.content().copy(), cache.room)
        assert cache.write(CAPACITY - 3, b"four") is False
        assert (dict(cache.records), cache.content().copy(), cache.room) == before
        assert cache.write(CAPACITY - 3, b"fit")

    @pytest.mark.parametrize("capacity", [0, -1])
    def test_a_buffer_without_bytes_is_refused(self, capacity):
        with pytest.raises(InvalidInputError):
            type(self).kind(capacity)

    @pytest.mark.parametrize("size", range(CAPACITY - 32, CAPACITY + 33))
    def test_every_size_around_the_capacity(self, size):
        """Also after a record, so that the rest of the buffer is 0 to 3 bytes more or less."""
        data = random.Random(size).randbytes(size)
        for base in (0, (1 << 31) - 100, (1 << 32) - 100):
            for first in (0, 1, 2, 3, CAPACITY // 2):
                cache = self.filled(*[bytes(first)][: bool(first)], base=base)
                if size > CAPACITY:
                    with pytest.raises(InvalidInputError):
                        cache.write(base + first, data)
                    continue
                done = cache.write(base + first, data)
                assert done is (first + size <= CAPACITY)
                assert cache.read(base + first) == (data if done else None)
                assert cache.content().length == first + size * done

    def test_a_wrong_checksum_fails_only_its_record(self):
        cache = self.filled(b"good")
        assert cache.write(4, b"bad", crc=zlib.crc32(b"other"))
        assert cache.write(7, b"fine", crc=zlib.crc32(b"fine"))
        with pytest.raises(CorruptionError, match="offset=4") as caught:
            cache.read(4)
        assert caught.value.fields["expected"] == zlib.crc32(b"other")
        assert caught.value.fields["actual"] == zlib.crc32(b"bad")
        assert (cache.read(0), cache.read(7), cache.references) == (b"good", b"fine", 0)

    def test_what_was_read_outlives_the_buffer(self):
        cache = self.filled(b"abc")
        data = cache.read(0)
        cache.reset()
        cache.write(0, b"xyz")
        assert data == b"abc"

    def test_neighbours_are_one_write_which_only_a_flush_makes(self):
        cache, channel = self.filled(b"abc", b"def"), MemoryChannel()
        assert channel.writes == []
        cache.flush(channel)
        assert channel.writes == [6]
        assert bytes(channel.content) == b"abcdef"
        assert cache.read(3) == b"def"
        assert cache.room == 0

    def test_an_empty_buffer_writes_nothing_and_stays_open(self):
        cache, channel = self.filled(), MemoryChannel()
        cache.flush(channel)
        assert channel.writes == []
        assert cache.write(0, b"abc")

    def test_flushed_bytes_are_not_written_twice(self):
        cache, channel = self.filled(b"abc"), MemoryChannel()
        cache.flush(channel)
        cache.flush(channel)
        assert channel.writes == [3]

    def test_a_closed_for_writes_buffer_changes_no_more(self):
        cache = self.filled(b"abc")
        cache.close_for_writes()
        cache.close_for_writes()
        assert cache.room == 0
        with pytest.raises(ClosedError, match="closed for writes"):
            cache.write(3, b"x")
        assert cache.content().copy() == b"abc"

    def test_a_buffer_refilled_on_its_release_is_written_again(self):
        kind = type(self).kind

        class Refilled(kind):  # type: ignore[valid-type, misc]
            """Resets and refills the buffer as soon as the flush lets it go."""

            def release(self) -> None:
                super().release()
                self.reset()
                assert self.write(3, b"new")

        cache, channel = Refilled(CAPACITY), MemoryChannel()
        cache.write(0, b"old")
        cache.flush(channel)
        assert not cache.flushed
        kind.flush(cache, channel)
        assert bytes(channel.content) == b"oldnew"

    def test_a_failed_flush_is_never_tried_again(self):
        cache, channel = self.filled(b"abcd"), FailingChannel(0)
        for _ in range(3):
            with pytest.raises(StorageError, match="disk is full"):
                cache.flush(channel)
        assert channel.touched_after == 0
        assert not cache.flushed
        assert cache.read(0) == b"abcd"

    def test_flushed_lasts_until_the_reset(self):
        cache = self.filled(b"abc")
        assert not cache.flushed
        cache.flush(MemoryChannel())
        assert cache.flushed
        cache.reset()
        assert not cache.flushed

    def test_reset_drops_records_and_gives_back_the_full_capacity(self):
        cache, channel = self.filled(b"abc", b"def"), MemoryChannel()
        cache.flush(channel)
        assert cache.reset() == 2
        assert cache.read(0) is None
        assert bytes(channel.content) == b"abcdef"
        assert dict(cache.records) == {}
        assert cache.write(1 << 40, bytes(CAPACITY))
        assert cache.write((1 << 40) + CAPACITY, b"x") is False

    def test_a_held_buffer_is_not_reset(self):
        cache = self.filled(b"abc")
        cache.acquire()
        with pytest.raises(InvalidInputError, match="in use"):
            cache.reset()
        assert cache.read(0) == b"abc"
        cache.release()
        cache.reset()
        with pytest.raises(InvalidInputError, match="more often"):
            cache.release()

    def test_a_buffer_on_its_way_to_the_channel_is_not_reset(self):
        cache, channel = self.filled(b"abc"), GatedChannel()
        writer = threading.Thread(target=cache.flush, args=[channel])
        writer.start()
        channel.arrived.acquire(timeout=300)
        assert cache.references == 1
        with pytest.raises(InvalidInputError, match="in use"):
            cache.reset()
        channel.allow()
        writer.join(300)
        cache.reset()

    @pytest.mark.parametrize("use", USES)
    def test_every_use_after_close_raises_the_same(self, use):
        cache = self.filled(b"abc")
        cache.close()
        cache.close()
        assert cache.closed
        with pytest.raises(ClosedError, match="write cache was closed"):
            USES[use](cache)

    def test_every_public_name_is_in_the_table(self):
        names = {name for name in dir(Buffer) if not name.startswith("_")}
        assert names - set(USES) == {"close", "closed", "release"}

    def test_a_view_of_the_content_outlives_it(self):
        cache = self.filled(b"abc")
        view = cache.content()
        cache.close()
        assert view.copy() == b"abc"


class ServiceSuite:
    """A service for an object of three parts of `SIZE` bytes, each of which is one record."""

    def service(self, channel: Any) -> Any:
        """Return a service."""
        raise NotImplementedError

    def write(self, cache: Any, part: int, data: Any, **knobs: Any) -> Record:
        """Write a part; parts are written in order."""
        raise NotImplementedError

    def fill(self, cache: ObjectCache[Any], parts: int = 3) -> list[Record]:
        """Write some parts."""
        return [self.write(cache, part, bytes([part]) * SIZE) for part in range(parts)]

    def test_the_object_is_what_was_written(self):
        channel = MemoryChannel()
        cache = self.service(channel)
        records = self.fill(cache)
        assert records == [
            Record(part * SIZE, SIZE, zlib.crc32(bytes([part]) * SIZE)) for part in range(3)
        ]
        assert cache.commit() == 3 * SIZE
        assert bytes(channel.content) == b"".join(bytes([part]) * SIZE for part in range(3))
        assert channel.writes == [SIZE] * 3
        counters = cache.counters
        assert (counters.accepted_records, counters.accepted_bytes) == (3, 3 * SIZE)
        assert (counters.channel_writes, counters.channel_bytes) == (3, 3 * SIZE)

    def test_the_callers_bytes_may_change_afterwards(self):
        channel = MemoryChannel()
        cache = self.service(channel)
        data = bytearray(b"x" * SIZE)
        self.write(cache, 0, data)
        data[:] = b"y" * SIZE
        cache.flush()
        assert channel.load(0, SIZE) in (b"x" * SIZE, b"")
        cache.close()

    @pytest.mark.parametrize("data", [b"", None, "text"])
    def test_what_is_no_record_is_not_written(self, data):
        cache = self.service(MemoryChannel())
        with pytest.raises(InvalidInputError):
            self.write(cache, 0, data)
        assert cache.counters.accepted_records == 0

    def test_reading_what_is_no_record_is_refused(self):
        cache = self.service(MemoryChannel())
        for wrong in (Record(-1, 6, 0), Record(0, 0, 0), Record(3 * SIZE, 1, 0)):
            with pytest.raises(InvalidInputError, match="no such record"):
                cache.read(wrong)

    @pytest.mark.parametrize("error", [StorageError("disk is full"), MemoryError("no memory")])
    def test_the_first_failure_is_raised_to_all_later_callers(self, error):
        """Nothing is written after it; an error of another kind is an internal one."""
        channel = FailingChannel(0, error)
        cache = self.service(channel)
        later = StorageError if isinstance(error, StorageError) else InternalError

        def fill() -> None:
            for _ in range(3):
                self.fill(cache)
                cache.flush()

        with pytest.raises((type(error), later)):
            fill()
        for use in (lambda: self.write(cache, 2, bytes(SIZE)), cache.flush, cache.commit):
            with pytest.raises(later, match=str(error)) as caught:
                use()
            assert isinstance(caught.value.__cause__, type(error))
        cache.close()
        assert (channel.touched_after, channel.committed, channel.aborted) == (0, False, 1)

    def test_a_failed_commit_is_final(self):
        channel = FailingChannel(-1)
        cache = self.service(channel)
        self.fill(cache)
        with pytest.raises(StorageError):
            cache.commit()
        for use in (cache.commit, lambda: self.write(cache, 0, bytes(SIZE))):
            with pytest.raises(StorageError):
                use()
        cache.abort()
        assert channel.aborted == 1

    @pytest.mark.parametrize("end", ["abort", "close"])
    def test_abort_and_close_never_commit(self, end):
        channel = MemoryChannel()
        cache = self.service(channel)
        self.fill(cache)
        for _ in range(2):
            getattr(cache, end)()
        assert (channel.committed, channel.aborted) == (False, 1)

    def test_leaving_the_context_aborts_what_is_not_committed(self):
        channel = MemoryChannel()
        with self.service(channel) as cache:
            self.fill(cache)
        assert channel.aborted == 1
        with self.service(MemoryChannel()) as cache:
            self.fill(cache)
            cache.commit()
        assert channel.aborted == 1

    def test_nothing_is_written_after_commit(self):
        cache = self.service(MemoryChannel())
        self.fill(cache)
        cache.commit()
        for use in (lambda: self.write(cache, 0, bytes(SIZE)), cache.commit):
            with pytest.raises(ClosedError, match="was committed"):
                use()

    @pytest.mark.parametrize("use", ["write", "read", "flush", "commit"])
    def test_every_use_after_close_raises_the_same(self, use):
        cache = self.service(MemoryChannel())
        [record] = self.fill(cache, 1)
        cache.close()
        uses = {
            "write": lambda: self.write(cache, 1, bytes(SIZE)),
            "read": lambda: cache.read(record),
        }
        with pytest.raises(ClosedError, match="service was closed"):
            uses.get(use, getattr(cache, use))()

    def test_close_waits_for_a_write_under_way(self):
        """A channel is not aborted under a write."""
        channel = GatedChannel()
        cache = self.service(channel)

        def write() -> None:
            self.fill(cache)
            cache.flush()

        with background(write) as writing:
            assert channel.arrived.acquire(timeout=300)
            with background(cache.close) as closing:
                until(lambda: cache._closed)
                assert channel.aborted == 0
                channel.allow(3)
                closing.result(30)
            with pytest.raises(ClosedError):
                writing.result(30)
        assert channel.aborted == 1
