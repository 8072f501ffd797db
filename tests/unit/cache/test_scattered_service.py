"""The scattered placement: any order of arrival, replacement, holes and failures."""

import itertools
import random
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from channels import GatedChannel, MemoryChannel

from segstore_ds.cache.buffer import BufferPool, Record
from segstore_ds.cache.service import WriteCacheService
from segstore_ds.errors import CorruptionError, InvalidInputError, StorageError
from unit.cache.suites import SIZE, ServiceSuite, background, until


def service(channel, size=3 * SIZE, *, buffers=4) -> WriteCacheService:
    return WriteCacheService(channel, BufferPool(buffers, SIZE), size=size)


class TestScatteredService(ServiceSuite):
    """Parts come in any order."""

    def service(self, channel):
        return service(channel)

    def write(self, cache, part, data, **knobs):
        return cache.write(data, at=part * SIZE, **knobs)


@pytest.mark.parametrize("order", [*itertools.permutations(range(5))])
def test_every_order_of_arrival_gives_the_same_object(order):
    """Ranges of a third, two thirds and a whole part; the last part is shorter."""
    bounds = [(0, 20), (20, SIZE), (SIZE, 2 * SIZE), (2 * SIZE, 2 * SIZE + 40), (168, 175)]
    data = random.Random(1).randbytes(175)
    channel, pool = MemoryChannel(), BufferPool(3, SIZE)
    with WriteCacheService(channel, pool, size=175) as cache:
        for place in order:
            start, end = bounds[place]
            record = cache.write(data[start:end], at=start, frozen=True)
            assert record == Record(start, end - start, zlib.crc32(data[start:end]))
        assert cache.commit() == 175
    assert (bytes(channel.content), channel.committed) == (data, True)
    assert sorted(zip(channel.starts, channel.writes, strict=True)) == [
        (0, SIZE),
        (SIZE, SIZE),
        (2 * SIZE, 175 - 2 * SIZE),
    ]
    assert pool.free == 3


def test_a_part_is_written_when_its_last_record_has_come():
    """Two parts gather at the same time, each in a buffer of its own."""
    channel = MemoryChannel()
    cache = service(channel, 2 * SIZE, buffers=3)
    half, quarter = SIZE // 2, SIZE // 4
    for start, size in ((0, half), (SIZE, half), (half, quarter), (SIZE + half, quarter)):
        cache.write(bytes([start]) * size, at=start)
    assert channel.writes == []
    cache.write(b"x" * quarter, at=half + quarter)
    assert (channel.starts, channel.writes) == ([0], [SIZE])
    cache.write(b"y" * quarter, at=SIZE + half + quarter)
    assert (channel.starts, channel.writes) == ([0, SIZE], [SIZE, SIZE])
    assert cache.commit() == 2 * SIZE


def test_a_range_that_comes_again_replaces_the_first():
    """Before its part is whole nothing of the first was written."""
    channel = MemoryChannel()
    cache = service(channel, 2 * SIZE)
    cache.write(b"a" * 10, at=0)
    again = cache.write(b"b" * 10, at=0)
    assert cache.read(again) == b"b" * 10
    cache.write(b"c" * (SIZE - 10), at=10)
    assert bytes(channel.content) == b"b" * 10 + b"c" * (SIZE - 10)


def test_a_part_that_comes_again_is_written_again():
    """The channel replaces it; until it is whole again the object has a hole."""
    channel = MemoryChannel()
    cache = service(channel, 2 * SIZE)
    cache.write(b"a" * SIZE, at=0)
    cache.write(b"b" * SIZE, at=SIZE)
    cache.write(b"c" * 10, at=0)
    with pytest.raises(InvalidInputError, match="holes"):
        cache.commit()
    cache.write(b"d" * (SIZE - 10), at=10)
    assert cache.commit() == 2 * SIZE
    assert bytes(channel.content) == b"c" * 10 + b"d" * (SIZE - 10) + b"b" * SIZE


def test_an_object_with_holes_is_not_committed():
    """Size and last bytes alone would not show it; what is missing may still come."""
    channel = MemoryChannel()
    cache = service(channel)
    cache.write(bytes(SIZE), at=2 * SIZE)
    cache.write(bytes(SIZE), at=0)
    cache.write(bytes(SIZE - 1), at=SIZE)
    with pytest.raises(InvalidInputError, match="holes") as caught:
        cache.commit()
    assert caught.value.fields["missing"] == [(SIZE, 2 * SIZE)]
    assert not channel.committed
    cache.write(b"x", at=2 * SIZE - 1)
    assert cache.commit() == 3 * SIZE


@pytest.mark.parametrize(
    ("start", "size"), [(-1, 2), (0, SIZE + 1), (SIZE - 1, 2), (3 * SIZE - 1, 2), (3 * SIZE, 1)]
)
def test_a_record_outside_one_part_is_refused(start, size):
    cache = service(MemoryChannel())
    with pytest.raises(InvalidInputError, match="not inside one part"):
        cache.write(bytes(size), at=start)
    assert cache.counters.accepted_records == 0


def test_a_record_over_another_one_is_refused():
    """Else a part would count as whole while it has a hole."""
    cache = service(MemoryChannel(), buffers=2)
    cache.write(bytes(SIZE // 2 + 1), at=0)
    for start, size in ((SIZE // 2, SIZE // 2), (0, 3), (SIZE // 2 - 1, 1)):
        with pytest.raises(InvalidInputError, match="overlaps another"):
            cache.write(bytes(size), at=start)


def test_buffers_full_of_incomplete_parts_are_an_error():
    """No write could free one; what is there stays, and room elsewhere is found."""
    cache = service(MemoryChannel(), 9 * SIZE, buffers=2)
    for part in (0, 1):
        cache.write(bytes(SIZE - 1), at=part * SIZE)
    with pytest.raises(InvalidInputError, match="incomplete parts"):
        cache.write(bytes(SIZE - 1), at=2 * SIZE)
    cache.write(b"x", at=SIZE - 1)
    cache.write(bytes(SIZE - 1), at=2 * SIZE)


def test_unwritten_records_are_read_and_verified():
    """What the channel has taken is a miss: its memory is free for the next range."""
    cache = service(MemoryChannel())
    good, bad = cache.write(b"good", at=0), cache.write(b"bad", 1, at=4)
    assert cache.read(good) == b"good"
    with pytest.raises(CorruptionError, match="offset=4"):
        cache.read(bad)
    part = cache.write(bytes(SIZE), at=SIZE)
    assert cache.read(part) is None
    assert (cache.counters.hits, cache.counters.misses, cache.counters.hit_rate) == (2, 1, 2 / 3)


def test_threads_write_several_parts_at_once():
    """A thread that waits in the channel does not hold up others; both parts arrive."""
    channel = GatedChannel()
    cache = service(channel, 2 * SIZE)
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(cache.write, bytes(SIZE), at=start) for start in (SIZE, 0)]
        for _ in done:
            assert channel.arrived.acquire(timeout=300)
        channel.allow(2)
        for one in done:
            one.result(30)
    assert cache.commit() == 2 * SIZE


def test_a_range_that_comes_again_waits_for_its_part_to_be_written():
    channel = GatedChannel()
    cache = service(channel, SIZE)
    with background(lambda: cache.write(b"a" * SIZE, at=0)) as first:
        assert channel.arrived.acquire(timeout=300)
        with background(lambda: cache.write(b"b" * SIZE, at=0)) as second:
            until(lambda: len(cache._changed._waiters) == 1)
            channel.allow(2)
            first.result(30)
            second.result(30)
    assert bytes(channel.content) == b"b" * SIZE


def test_a_failure_wakes_those_who_wait_and_reads_continue():
    channel = GatedChannel()
    cache = service(channel, SIZE * 2)
    kept = cache.write(b"kept", at=SIZE)
    with background(lambda: cache.write(b"a" * SIZE, at=0)) as first:
        assert channel.arrived.acquire(timeout=300)
        with background(cache.flush) as second:
            until(lambda: len(cache._changed._waiters) == 1)
            channel.refuse(StorageError("gone"))
            for one in (first, second):
                with pytest.raises(StorageError, match="gone"):
                    one.result(30)
    assert cache.read(kept) == b"kept"
    cache.close()
