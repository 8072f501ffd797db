"""What the service does, whichever the placement: one suite, and how to watch other threads."""

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from channels import FailingChannel, GatedChannel, MemoryChannel

from segstore_ds.cache.buffer import Record
from segstore_ds.cache.service import WriteCacheService
from segstore_ds.errors import ClosedError, InternalError, InvalidInputError, StorageError

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


class ServiceSuite:
    """A service for an object of three parts of `SIZE` bytes, each of which is one record."""

    def service(self, channel: Any) -> Any:
        """Return a service."""
        raise NotImplementedError

    def write(self, cache: Any, part: int, data: Any, **knobs: Any) -> Record:
        """Write a part; parts are written in order."""
        raise NotImplementedError

    def fill(self, cache: WriteCacheService, parts: int = 3) -> list[Record]:
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
