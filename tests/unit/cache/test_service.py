"""The dense placement: the suite of both, order, backpressure, read-through and the end."""

import random
import threading
import zlib
from functools import partial

import pytest
from channels import FailingChannel, GatedChannel, MemoryChannel

from segstore_ds.cache.buffer import Buffer, BufferPool, Record
from segstore_ds.cache.channel import Copies
from segstore_ds.cache.service import WriteCacheService
from segstore_ds.cache.views import as_view
from segstore_ds.errors import ClosedError, CorruptionError, InvalidInputError, StorageError
from unit.cache.suites import SIZE, ServiceSuite, background, until


def service(channel=None, *, buffers=2, **knobs) -> WriteCacheService:
    return WriteCacheService(channel or MemoryChannel(), BufferPool(buffers, SIZE), **knobs)


def writers() -> int:
    """Return how many threads write to a channel; others may come and go."""
    return sum(thread.name == "segstore-write-cache" for thread in threading.enumerate())


class TestWriteCacheService(ServiceSuite):
    """Parts are records of one buffer each."""

    def service(self, channel):
        return service(channel, buffers=3)

    def write(self, cache, part, data, **knobs):
        del part  # they come in order
        return cache.write(data, **knobs)


class TestOrder:
    """The object's bytes are the records, in order, dense."""

    @pytest.mark.parametrize("buffers", [1, 2, 6])
    def test_records_of_every_size_come_out_as_they_went_in(self, buffers):
        rng = random.Random(buffers)
        channel = MemoryChannel()
        cache = service(channel, buffers=buffers, load=channel.load)
        written, records = b"", []
        for _ in range(400):
            large = rng.random() < 0.1
            data = rng.randbytes(rng.randrange(1, 5 * SIZE if large else SIZE))
            record = cache.write(data, frozen=rng.random() < 0.5)
            assert record == Record(len(written), len(data), zlib.crc32(data))
            written += data
            records.append(record)
            earlier = rng.choice(records)
            assert cache.read(earlier) == written[earlier.offset : earlier.end]
        cache.flush()
        assert bytes(channel.content) == written
        assert cache.commit() == len(written)
        assert all(cache.read(record) == written[record.offset : record.end] for record in records)
        cache.close()

    @pytest.mark.parametrize("buffers", [1, 3])
    @pytest.mark.parametrize("frozen", [False, True])
    def test_every_size_around_the_buffer(self, buffers, frozen):
        """In a buffer whose rest is 0 to 3 bytes, too: there the large ones used to fail."""
        for size in range(SIZE - 5, SIZE + 6):
            for first in (0, 1, 2, 3, SIZE - 3, SIZE - 2, SIZE - 1, SIZE):
                channel = MemoryChannel()
                cache = service(channel, buffers=buffers, load=channel.load)
                head, data = bytes(first), random.Random(size).randbytes(size)
                if first:
                    cache.write(head)
                record = cache.write(data, frozen=frozen)
                tail = cache.write(b"tail")
                assert cache.read(record) == data
                assert cache.commit() == first + size + 4
                assert bytes(channel.content) == head + data + b"tail"
                assert (cache.read(record), cache.read(tail)) == (data, b"tail")
                assert cache.counters.large_records == (size > SIZE)
                cache.close()

    def test_a_full_buffer_is_one_write(self):
        channel = MemoryChannel()
        cache = service(channel)
        for _ in range(8):
            cache.write(bytes(SIZE // 4))
        cache.commit()
        assert channel.writes == [SIZE, SIZE]
        assert cache.counters.bytes_per_write == SIZE

    def test_the_thread_ends_with_the_object(self):
        for end in ("commit", "abort", "close"):
            before = writers()
            cache = service()
            for _ in range(5):
                cache.write(bytes(SIZE))
            assert writers() == before + 1
            getattr(cache, end)()
            assert writers() == before


class TestBackpressure:
    """No buffer free means waiting, never more memory."""

    @pytest.mark.parametrize("buffers", [1, 2, 3])
    def test_writer_waits_for_a_free_buffer(self, buffers):
        channel = GatedChannel()
        cache = service(channel, buffers=buffers)
        for _ in range(buffers):
            cache.write(bytes(SIZE))
        with background(lambda: cache.write(b"one more")) as waiting:
            until(lambda: cache.counters.waits == 1)
            assert cache.counters.accepted_bytes == buffers * SIZE
            assert not waiting.done()
            channel.allow(100)
            assert waiting.result(30).offset == buffers * SIZE
        cache.commit()
        assert cache.counters.waits == 1
        assert cache.counters.wait_seconds > 0

    def test_filling_continues_while_a_buffer_is_written(self):
        channel = GatedChannel()
        cache = service(channel)
        cache.write(b"a" * SIZE)
        cache.write(b"b")
        assert channel.arrived.acquire(timeout=300)
        record = cache.write(b"c" * 60)
        assert cache.read(record) == b"c" * 60
        assert cache.counters.accepted_bytes == SIZE + 61
        assert channel.writes == []
        channel.allow(100)
        cache.commit()

    @pytest.mark.parametrize(("size", "frozen"), [(2 * SIZE, False), (2 * SIZE + 1, True)])
    def test_what_may_change_or_is_larger_than_all_buffers_is_waited_for(self, size, frozen):
        channel = GatedChannel()
        cache = service(channel)
        with background(lambda: cache.write(bytes(size), frozen=frozen)) as waiting:
            assert channel.arrived.acquire(timeout=300)
            assert not waiting.done()
            channel.allow()
            waiting.result(30)
        assert channel.writes == [size]
        cache.close()

    def test_large_record_takes_the_share_of_several_buffers(self):
        channel = GatedChannel()
        pool = BufferPool(3, SIZE)
        cache = WriteCacheService(channel, pool)
        data = bytes(2 * SIZE)
        record = cache.write(data, frozen=True)
        assert channel.arrived.acquire(timeout=300)
        assert cache.read(record) == data
        assert cache.has_room(SIZE)
        cache.write(bytes(SIZE))
        assert not cache.has_room(1)
        assert all(buffer._memory is None for buffer in cache._taken)
        with background(lambda: cache.write(b"x")) as waiting:
            channel.allow()
            assert channel.arrived.acquire(timeout=300)
            assert waiting.result(30).offset == 3 * SIZE
            channel.allow(10)
        cache.commit()


class TestReading:
    """What was written is readable, wherever it is."""

    def test_a_recycled_record_is_loaded_and_verified(self):
        channel = MemoryChannel()
        cache = service(channel, load=channel.load)
        records = [cache.write(bytes([n]) * SIZE) for n in range(5)]
        cache.flush()
        assert cache.counters.buffers_evicted > 0
        assert cache.read(records[0]) == bytes(SIZE)
        channel.content[3] ^= 1
        with pytest.raises(CorruptionError, match="offset=0"):
            cache.read(records[0])
        assert cache.read(records[1]) == b"\1" * SIZE

    def test_what_is_no_record_is_refused(self):
        cache = service()
        record = cache.write(b"abcdef")
        for wrong in (
            Record(6, 1, 0),
            Record(0, 5, record.crc),
            Record(0, 6, record.crc + 1),
            Record(-1, 6, record.crc),
            Record(0, 0, 0),
        ):
            with pytest.raises(InvalidInputError, match="no such record"):
                cache.read(wrong)

    def test_reads_during_the_reuse_of_their_buffer_are_right(self):
        """What is read is the record or a load of it, never bytes of the next record."""
        channel = MemoryChannel()
        cache = service(channel, buffers=1, load=channel.load)
        ended = threading.Event()
        records = [cache.write(bytes([1]) * SIZE)]

        def read() -> int:
            count = 0
            while not ended.is_set():
                record = records[-1]
                assert cache.read(record) == bytes([record.offset // SIZE % 250 + 1]) * SIZE
                count += 1
            return count

        with background(read) as reading:
            for number in range(1, 1000):
                record = cache.write(bytes([number % 250 + 1]) * SIZE)
                records.append(record)
            ended.set()
            assert reading.result(30) > 0


class TestFlush:
    """A flush hands over all that was accepted before it."""

    def test_flush_writes_what_is_there_and_burns_no_number(self):
        seen = []
        channel = MemoryChannel()
        cache = service(channel, copies=[CopyTaker(lambda one: seen.append(one.sequence))])
        cache.flush()
        cache.write(b"a")
        cache.flush()
        cache.flush()
        assert (bytes(channel.content), channel.committed) == (b"a", False)
        cache.write(b"b")
        cache.commit()
        assert seen == [0, 1]


class TestFailure:
    """The first failure is kept; nothing is written behind it."""

    @pytest.mark.parametrize(("at", "buffers"), [(0, 1), (1, 2), (2, 1), (0, 3)])
    def test_first_error_is_raised_again_and_reads_still_work(self, at, buffers):
        channel = FailingChannel(at)
        cache = service(channel, buffers=buffers)
        records = []

        def fill() -> None:
            while True:
                records.append(cache.write(bytes([len(records)]) * (SIZE - 10)))

        with pytest.raises(StorageError, match="disk is full"):
            fill()
        for use in (lambda: cache.write(b"x"), cache.flush, cache.commit):
            with pytest.raises(StorageError, match="disk is full") as caught:
                use()
            assert isinstance(caught.value.__cause__, StorageError)
        assert channel.touched_after == 0
        assert len(channel.writes) == at + 1
        last = records[-1]
        assert cache.read(last) == bytes([len(records) - 1]) * (SIZE - 10)
        cache.close()
        assert (channel.aborted, channel.committed) == (1, False)

    def test_wakes_those_who_wait(self):
        channel = GatedChannel()
        cache = service(channel, buffers=1)
        cache.write(bytes(SIZE))
        with background(lambda: cache.write(b"x")) as waiting:
            assert channel.arrived.acquire(timeout=300)
            channel.refuse(StorageError("gone"))
            with pytest.raises(StorageError, match="gone"):
                waiting.result(30)

    @pytest.mark.parametrize("at", ["receive", "commit"])
    def test_of_a_copy_discards_that_copy_alone(self, at):
        def refuse(_):
            raise StorageError("that folder is gone")

        refusing, sound = CopyTaker(**{at: refuse}, url="one"), CopyTaker(url="two")
        channel = MemoryChannel()
        cache = service(channel, copies=[refusing, sound])
        cache.write(b"abc")
        cache.commit()
        assert (refusing.aborted, sound.aborted) == (True, False)
        assert cache.copied_to == ("two",)
        assert channel.committed

    def test_of_the_object_discards_copies_that_are_not_whole(self):
        channel, taker = MemoryChannel(), CopyTaker()
        cache = service(channel, copies=[taker])
        cache.write(b"abc")
        cache.flush()
        cache.abort()
        assert taker.aborted
        assert cache.copied_to == ()

    def test_of_a_copy_by_a_bug_is_raised(self):
        def refuse(_):
            raise ZeroDivisionError

        cache = service(copies=[CopyTaker(refuse)])
        cache.write(b"abc")
        with pytest.raises(ZeroDivisionError):
            cache.flush()


class TestEnd:
    """Commit, abort and close."""

    @pytest.mark.parametrize(
        "use",
        [
            lambda cache: cache.write(b"x"),
            lambda cache: cache.write(bytes(SIZE + 1)),
            lambda cache: cache.read(Record(0, 3, zlib.crc32(b"abc"))),
            lambda cache: cache.has_room(1),
            lambda cache: cache.flush(),
            lambda cache: cache.commit(),
            lambda cache: cache.release_buffers(),
        ],
    )
    @pytest.mark.parametrize("committed", [False, True])
    def test_every_use_after_close_raises_the_same(self, use, committed):
        cache = service()
        cache.write(b"abc")
        if committed:
            cache.commit()
        cache.close()
        with pytest.raises(ClosedError, match="service was closed"):
            use(cache)

    @pytest.mark.parametrize("record", [b"x", bytes(SIZE), bytes(2 * SIZE)])
    def test_close_wakes_a_writer_that_waits(self, record):
        channel = GatedChannel()
        cache = service(channel)
        cache.write(bytes(SIZE))
        cache.write(bytes(SIZE))
        assert channel.arrived.acquire(timeout=300)
        with background(lambda: cache.write(record)) as waiting, background(cache.close) as closing:
            # The write under way ends first: a channel is not aborted under a write.
            until(lambda: cache._closed)
            assert channel.aborted == 0
            with pytest.raises(ClosedError):
                waiting.result(30)
            channel.allow()
            closing.result(30)
        assert channel.aborted == 1
        assert channel.writes == [SIZE]

    def test_close_wakes_a_flush_and_a_commit_that_wait(self):
        for use in ("flush", "commit"):
            channel = GatedChannel()
            cache = service(channel)
            cache.write(bytes(SIZE))
            cache.write(b"x")
            assert channel.arrived.acquire(timeout=300)
            with background(getattr(cache, use)) as waiting, background(cache.close) as closing:
                until(partial(getattr, cache, "_closed"))
                channel.allow()
                closing.result(30)
                with pytest.raises(ClosedError):
                    waiting.result(30)
            assert not channel.committed

    def test_services_share_the_buffers_of_a_pool(self):
        pool = BufferPool(2, SIZE)
        first = WriteCacheService(MemoryChannel(), pool)
        for _ in range(3):
            first.write(bytes(SIZE))
        second = WriteCacheService(MemoryChannel(), pool)
        with pytest.raises(InvalidInputError, match="buffers are full"):
            second.write(b"abc")
        first.close()
        record = second.write(b"abc")
        assert second.read(record) == b"abc"
        second.close()
        assert pool.free == 2
        pool.close()
        with pytest.raises(ClosedError):
            WriteCacheService(MemoryChannel(), pool).write(b"abc")

    def test_buffers_go_to_the_next_service_and_records_are_loaded(self):
        pool, channel = BufferPool(2, SIZE), MemoryChannel()
        first = WriteCacheService(channel, pool, load=channel.load)
        record = first.write(b"abc")
        with pytest.raises(InvalidInputError, match="not durable"):
            first.release_buffers()
        first.commit()
        first.release_buffers()
        first.release_buffers()
        with WriteCacheService(MemoryChannel(), pool) as second:
            second.write(b"xyz")
            assert first.read(record) == b"abc"
        assert first.counters.loads == 1


class CopyTaker:
    """Takes the buffers of a copy."""

    def __init__(self, receive=lambda _: None, *, commit=lambda _: None, url="") -> None:
        self.receive, self.commit, self.url, self.aborted = receive, commit, url, False

    def abort(self) -> None:
        self.aborted = True


class TestCopies:
    """Every buffer as a message, checked at the other end."""

    def test_messages_tile_the_object_and_their_records_hold(self):
        seen = []

        def observe(one):
            content = Buffer.received(one.start, one.records, one.payload).content().copy()
            seen.append((one.sequence, one.start, content))

        channel = MemoryChannel()
        cache = service(channel, copies=[CopyTaker(observe)])
        rng = random.Random(11)
        for _ in range(50):
            cache.write(rng.randbytes(rng.randrange(1, 3 * SIZE)))
        cache.commit()
        assert b"".join(content for *_, content in seen) == bytes(channel.content)
        assert [sequence for sequence, *_ in seen] == list(range(len(seen)))
        place = 0
        for _, start, content in seen:
            assert start == place
            place += len(content)

    def test_a_buffer_is_closed_for_writes_before_it_is_shipped(self):
        """Bytes and records of the message are those that the channel gets."""
        refused = []

        def observe(one):
            [buffer] = cache._writing
            for change in (
                lambda: buffer.write(Record(3, 1, 0), as_view(b"x")),
                lambda: buffer.accept(Record(3, 1, 0)),
            ):
                with pytest.raises(ClosedError, match="closed for writes"):
                    change()
            refused.append(one.payload.copy())

        cache = service(copies=[CopyTaker(observe)])
        cache.write(b"abc")
        cache.commit()
        assert refused == [b"abc"]

    @pytest.mark.parametrize("last", ["write", "commit"])
    def test_a_buffer_and_the_end_reach_all_channels_at_the_same_time(self, last):
        """Each waits for the others, at every buffer or at the end."""
        together = threading.Barrier(3, timeout=300)

        class Channel(MemoryChannel):
            def write_all(self, pieces):
                if last == "write":
                    together.wait()
                super().write_all(pieces)

            def commit(self):
                if last == "commit":
                    together.wait()
                return super().commit()

        def meet(_):
            together.wait()

        work = {"receive": meet} if last == "write" else {"commit": meet}
        cache = service(Channel(), copies=[CopyTaker(**work, url=url) for url in ("a", "b")])
        cache.write(bytes(SIZE))
        cache.write(b"x")
        cache.commit()
        assert cache.copied_to == ("a", "b")

    def test_all_copies_have_ended_before_an_unknown_failure_is_raised(self):
        """The buffer's memory is reused afterwards."""
        failing, ended = threading.Event(), []

        def fail(_):
            failing.set()
            raise MemoryError

        def linger(_):
            assert failing.wait(300)
            threading.Event().wait(0.1)
            ended.append(1)

        copies = Copies([CopyTaker(fail, url="a"), CopyTaker(linger, url="b")])
        with pytest.raises(MemoryError), copies.receiving(lambda: None):
            pass
        assert ended == [1]
        copies.abort()


class TestCounters:
    """Monotonic, each event once."""

    def test_each_is_counted_once(self):
        channel = MemoryChannel()
        cache = service(channel, buffers=1, load=channel.load)
        assert cache.counters.hit_rate == cache.counters.bytes_per_write == 0
        first = cache.write(bytes(40))
        second = cache.write(bytes(40))
        cache.write(bytes(100))
        cache.read(first)
        cache.read(second)
        cache.commit()
        found = cache.counters
        assert (found.accepted_records, found.accepted_bytes) == (3, 180)
        assert (found.channel_writes, found.channel_bytes) == (3, 180)
        assert (found.large_records, found.buffers_evicted, found.records_evicted) == (1, 1, 1)
        assert (found.hits, found.misses, found.loads) == (1, 1, 1)
        assert (found.hit_rate, found.bytes_per_write) == (0.5, 60)
        assert found.waits == 1
        assert found.as_dict()["hit_rate"] == 0.5
        assert "bytes_per_write=60" in str(found)


class TestAllocate:
    """A producer lays a record into the buffer's own memory."""

    def test_laid_and_written_records_are_dense_and_one_write(self):
        channel = MemoryChannel()
        cache = service(channel)
        assert cache.write(b"ab") == Record(0, 2, zlib.crc32(b"ab"))

        def lay(memory: memoryview) -> tuple[int, int]:
            memory[:3] = b"cde"
            return 3, zlib.crc32(b"cde")

        record = cache.allocate(SIZE - 2, lay)
        assert record == Record(2, 3, zlib.crc32(b"cde"))
        assert cache.read(record) == b"cde"
        assert cache.write(b"f").offset == 5
        assert cache.commit() == 6
        assert (bytes(channel.content), channel.writes) == (b"abcdef", [6])
        assert cache.counters.accepted_bytes == 6

    def test_what_has_no_room_is_not_begun(self):
        cache = service(buffers=1)
        cache.write(b"abc")
        for nbytes in (0, SIZE - 2, SIZE, 5 * SIZE):
            assert cache.allocate(nbytes, pytest.fail) is None
        assert cache.allocate(SIZE - 3, lambda _: None) is None
        assert cache.write(b"d").offset == 3

    def test_a_producer_that_fails_writes_nothing(self):
        channel = MemoryChannel()
        cache = service(channel)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                cache.allocate(8, lambda memory: (memory[0] // 0, 0))
        assert cache.counters.accepted_records == 0
        cache.flush()
        cache.write(b"abc")
        assert cache.commit() == 3
        assert bytes(channel.content) == b"abc"

    def test_memory_that_is_being_filled_goes_to_no_other_object(self):
        """The producer of a service that was closed goes on writing into it."""
        pool, filling, go_on = BufferPool(1, SIZE), threading.Event(), threading.Event()
        first = WriteCacheService(MemoryChannel(), pool)

        def lay(memory: memoryview) -> tuple[int, int]:
            filling.set()
            assert go_on.wait(300)
            memory[:] = b"x" * SIZE
            return SIZE, 0

        def fill(memory: memoryview) -> tuple[int, int]:
            memory[:] = b"y" * SIZE
            return SIZE, zlib.crc32(b"y" * SIZE)

        with background(lambda: first.allocate(SIZE, lay)) as laying:
            assert filling.wait(300)
            first.close()
            second = WriteCacheService(MemoryChannel(), pool)
            record = second.allocate(SIZE, fill)
            go_on.set()
            with pytest.raises(ClosedError):
                laying.result(30)
        assert second.read(record) == b"y" * SIZE

    def test_records_of_other_threads_wait_for_it(self):
        """Else one would lie where the producer is about to write."""
        channel, filling, go_on = MemoryChannel(), threading.Event(), threading.Event()
        cache = service(channel)

        def lay(memory: memoryview) -> tuple[int, int]:
            filling.set()
            assert go_on.wait(300)
            memory[:4] = b"laid"
            return 4, zlib.crc32(b"laid")

        with background(lambda: cache.allocate(8, lay)) as laying:
            assert filling.wait(300)
            with background(lambda: cache.write(b"next")) as writing, background(cache.flush):
                go_on.set()
                assert (laying.result(30).offset, writing.result(30).offset) == (0, 4)
        assert cache.commit() == 8
        assert bytes(channel.content) == b"laidnext"
