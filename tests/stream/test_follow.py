"""Following a stream: what a loop over batches sees, publishes and costs."""

import asyncio
import datetime as dt
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
from stream_kit import make_stream, numbers
from wrapped_storage import WrappedStorage

from segstore_ds.errors import InvalidInputError, PositionError, ReaderConflictError, StorageError
from segstore_ds.format import names
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on


class Waits:
    """A clock whose waits are noted; each may do something, so that a loop ends."""

    def __init__(self, stream, *works) -> None:
        self.slept, self._works = [], list(works)
        clock = stream._log.clock
        self.stream = open_on(stream._log.storage, clock=replace(clock, sleep=self._sleep))

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self._works.pop(0)()


def taken(follow):
    return [batch.column(0).to_pylist() for batch in follow]


def test_loop_sees_what_is_appended_and_ends_with_a_seal():
    stream, _ = make_stream(1)
    waits = Waits(stream, lambda: stream.append(numbers(10, 12)), lambda: None, stream.seal)
    assert taken(waits.stream.follow(columns=["n"])) == [[10, 11]]
    assert waits.slept == [0.005, 0.005, 0.01]


def test_idle_poll_is_one_request():
    stream, _ = make_stream(1)
    counts = []

    def count():
        counts.append(sum(waits.stream._log.storage.stats.requests.values()))

    waits = Waits(stream, *[count] * 9, stream.seal)
    assert taken(waits.stream.follow(poll_s=0.05)) == []
    assert {later - earlier for earlier, later in pairwise(counts)} == {1}
    assert waits.slept == [0.005, 0.01, 0.02, 0.04, *[0.05] * 6]


def test_named_reader_passes_a_batch_when_the_next_is_asked_for():
    stream, _ = make_stream(2)
    follow = stream.follow("billing", owner="a")
    assert next(follow)["n"].to_pylist() == list(range(10))
    assert stream.readers.register("billing", owner="a").offset == 0
    assert next(follow)["n"].to_pylist() == list(range(10, 20))
    assert stream.readers.register("billing", owner="a").offset == 10
    follow.publish()
    again = stream.follow("billing", owner="a")
    assert (again.offset, stream.readers.register("billing", owner="a").offset) == (20, 20)


def test_position_passes_what_a_filter_drops():
    stream, _ = make_stream(2)
    stream.seal()
    follow = stream.follow("odd", start="head", filters=[["n", "==", 12]], offset_column="at")
    assert [batch.to_pydict() for batch in follow] == [{"n": [12], "s": ["s12"], "at": [12]}]
    assert (follow.offset, stream.readers.register("odd").offset) == (20, 20)
    assert taken(stream.follow(start=3, columns=["n"], filters=[["n", "<", 5]])) == [[3, 4]]


def test_position_after_a_filtered_batch_is_behind_its_last_event():
    stream, _ = make_stream(2)
    follow = stream.follow("odd", filters=[["n", "==", 12]])
    next(follow)
    follow.publish()
    assert stream.readers.register("odd").offset == 13


def test_owner_of_a_reader_is_checked():
    stream, _ = make_stream(1)
    stream.readers.register("billing", owner="a")
    with pytest.raises(ReaderConflictError):
        stream.follow("billing", owner="b")
    with pytest.raises(InvalidInputError, match="number of seconds"):
        stream.follow(poll_s=0)


def test_async_loop_loses_nothing_to_a_cancelled_wait():
    stream, _ = make_stream(1)

    async def run():
        follow = stream.afollow("billing", poll_s=0.001)
        found = []

        async def gather():
            async for batch in follow:
                found.extend(batch["n"].to_pylist())

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gather(), 0.05)
        stream.append(numbers(10, 12))
        stream.seal()
        await gather()
        return found, follow.offset

    assert asyncio.run(run()) == (list(range(12)), 12)


def test_batch_that_a_cancelled_wait_took_comes_next():
    stream, _ = make_stream(1)

    async def run():
        follow, goes_on = stream.afollow("billing", start="head"), threading.Event()
        poll = follow._poll
        follow._poll = lambda: (poll(), goes_on.wait(300))[0]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(follow), 0.02)
        goes_on.set()
        return (await anext(follow))["n"].to_pylist()

    assert asyncio.run(run()) == list(range(10))


class Flaky(WrappedStorage):
    """A storage that gives no answer about one object."""

    lost = "none"

    def around(self, verb, path, work):  # noqa: ARG002
        if path == self.lost:
            raise StorageError("no answer")
        return work()


def _without(number):
    """Return a sealed stream of three segments, and its storage, which can't read one of them."""
    stream, storage = make_stream(3)
    stream.seal()
    flaky = Flaky(storage)
    flaky.lost = f"segments/{stream._log.root.entries[number].path}"
    return open_on(flaky, clock=stream._log.clock), flaky


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize(("name", "filters"), [(None, None), ("billing", [["n", "!=", 12]])])
def test_events_that_an_error_kept_back_come_next(name, filters):
    stream, storage = _without(1)
    follow = stream.follow(name, start=0, columns=["n"], filters=filters)
    assert next(follow)["n"].to_pylist() == list(range(10))
    for _ in range(2):
        with pytest.raises(StorageError, match="no answer"):
            next(follow)
        assert follow.offset == 10
    storage.lost = "none"
    rest = [n for batch in follow for n in batch["n"].to_pylist()]
    assert rest == [n for n in range(10, 30) if filters is None or n != 12]
    assert follow.offset == 30
    assert name is None or stream.readers.register(name).offset == 30


@pytest.mark.usefixtures("no_inline")
def test_async_loop_goes_on_after_an_error():
    async def run():
        stream, storage = _without(0)
        follow = stream.afollow(start=0)
        with pytest.raises(StorageError, match="no answer"):
            await anext(follow)
        storage.lost = "none"
        return [batch["n"].to_pylist()[0] async for batch in follow]

    assert asyncio.run(run()) == [0, 10, 20]


def test_a_loop_goes_on_in_no_other_generation():
    """Although the stream ends again where the loop was."""
    stream, storage = make_stream(2)
    follow = stream.follow(start=0, columns=["n"])
    assert [next(follow).num_rows, next(follow).num_rows] == [10, 10]
    storage.put(f"{names.LOG_FOLDER}/{names.build_log_name(stream.version)}", b"damage")
    repair_on(storage, allow_loss=True, clock=stream._log.clock)
    again = open_on(storage, clock=stream._log.clock)
    again.append(numbers(100, 110))
    assert again.tail == 20
    for _ in range(2):
        with pytest.raises(PositionError, match="another generation"):
            next(follow)


@pytest.mark.parametrize("timeout", [0.2, "1s", dt.timedelta(seconds=1)])
def test_a_loop_ends_when_nothing_came_for_the_timeout(timeout):
    stream, storage = make_stream(1)
    follow = stream.follow(start=0, columns=["n"], timeout=timeout)
    began_us = storage.time.now_us
    assert [batch["n"].to_pylist() for batch in follow] == [[*range(10)]]
    seconds = 0.2 if timeout == 0.2 else 1
    assert seconds <= (storage.time.now_us - began_us) / 1e6 < seconds + 0.2
    stream.append(numbers(10, 12))
    assert next(follow)["n"].to_pylist() == [10, 11]
    for wrong in (-1.0, "soon", True):
        with pytest.raises(InvalidInputError, match="timeout"):
            stream.follow(timeout=wrong)
