"""Threads that append through one appender and wait share commits."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.errors import (
    ClosedError,
    CommitUnknownError,
    InvalidInputError,
    SchemaMismatchError,
    StorageError,
)
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")
SCHEMA = pa.schema([("n", pa.int64())])
THREADS = 64


class Gate(WrappedStorage):
    """Holds commits in flight, or lets their answers get lost."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Semaphore(0)
        self.silent = False

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        if verb == "create" and path.startswith("log/"):
            self.reached.release()
            assert self.open.wait(300)
            if self.silent:
                raise StorageError("no answer")
        if verb == "get" and path.startswith("log/0") and self.silent:
            raise StorageError("no answer")
        return super().around(verb, path, work)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the commits that begin here until the end of the block."""
        while self.reached.acquire(blocking=False):
            pass
        self.open.clear()
        try:
            yield
        finally:
            self.open.set()


@pytest.fixture
def gate() -> Gate:
    """The storage of an empty stream."""
    name = f"memory://{uuid.uuid4().hex}"
    segstore.create(name, SCHEMA)
    return Gate(open_storage(name))


@pytest.fixture
def stream(gate: Gate) -> segstore.Stream:
    """A handle on it."""
    return open_on(gate)


def test_wait_returns_the_offset_of_a_durable_event(stream):
    stream.append(pa.table({"n": [100, 101]}))
    with stream.appender(flush_seconds=None) as appender:
        place = appender.append({"n": 0})
        assert appender.wait(place) == 2
        assert appender.flushed_place == 1
        stream.refresh()
        stream.append(pa.table({"n": [102]}))
        places = [appender.append({"n": n}) for n in range(3)]
        assert [appender.wait(place) for place in places] == [4, 5, 6]
        assert appender.wait(0) == 2
    assert appender.wait(0) == 2
    assert stream.read().read_all()["n"].to_pylist() == [100, 101, 0, 102, 0, 1, 2]


def test_waiting_threads_share_one_or_two_commits(stream, gate):
    """While the first commit is held, all others gather for the second one."""
    together = threading.Barrier(THREADS + 1)
    with stream.appender(flush_seconds=None) as appender, ThreadPoolExecutor(THREADS) as threads:

        def work(n: int) -> tuple[int, int]:
            place = appender.append({"n": n})
            together.wait(300)
            return appender.wait(place), n

        with gate.held():
            found = [threads.submit(work, n) for n in range(THREADS)]
            together.wait(300)
            assert gate.reached.acquire(timeout=300)
        offsets = dict(future.result(60) for future in found)
    assert sorted(offsets) == list(range(THREADS))
    assert stream.refresh().version <= 2
    assert stream.read().read_all()["n"].to_pylist() == [offsets[o] for o in range(THREADS)]


def test_appends_go_on_while_a_commit_is_in_flight(stream, gate):
    """They are in the next group, and can be read back like those in flight."""
    with stream.appender(flush_seconds=None) as appender, ThreadPoolExecutor(1) as threads:
        with gate.held():
            first = appender.append({"n": 0})
            waiting = threads.submit(appender.wait, first)
            assert gate.reached.acquire(timeout=300)
            assert [appender.append({"n": n}) for n in (1, 2)] == [1, 2]
            assert appender.append(pa.table({"n": [3, 4]})) == 3
            assert appender.flushed_place == 0
            assert appender.read().read_all()["n"].to_pylist() == [0, 1, 2, 3, 4]
            assert appender.read(1, 4).read_all()["n"].to_pylist() == [1, 2, 3]
        assert waiting.result(60) == 0
        assert appender.wait(4) == 4
        assert appender.read(0).read_all()["n"].to_pylist() == [0, 1, 2, 3, 4]
    assert stream.refresh().version == 2


def test_a_wait_that_times_out_cancels_nothing(stream, gate):
    with stream.appender(flush_seconds=None) as appender:
        place = appender.append({"n": 0})
        with gate.held():
            for _ in range(2):
                with pytest.raises(TimeoutError, match="place 0 is not durable yet"):
                    appender.wait(place, timeout=0.01)
            assert gate.reached.acquire(timeout=300)
        assert appender.wait(place, timeout=300) == 0
    assert stream.refresh().tail == 1


def test_an_unknown_outcome_reaches_every_waiter_of_its_group(stream, gate):
    """Threads whose events are in the next group learn that these are not committed."""
    appender = stream.appender(flush_seconds=None)
    with ThreadPoolExecutor(5) as threads:
        with gate.held():
            places = [appender.append({"n": n}) for n in range(4)]
            waiting = [threads.submit(appender.wait, place) for place in places]
            assert gate.reached.acquire(timeout=300)
            later = appender.append({"n": 4})
            last = threads.submit(appender.wait, later)
            gate.silent = True
        for one in waiting:
            with pytest.raises(CommitUnknownError) as caught:
                one.result(120)
            assert caught.value.fields["transaction"]
        with pytest.raises(ClosedError, match="is not committed"):
            last.result(60)
    with pytest.raises(CommitUnknownError):
        appender.append({"n": 5})
    assert appender.read(0).read_all()["n"].to_pylist() == [0, 1, 2, 3, 4]
    appender.close()


def test_close_waits_for_the_commit_in_flight_and_drops_the_rest(stream, gate, caplog):
    before = {*threading.enumerate()}
    appender = stream.appender(flush_seconds=None)
    with ThreadPoolExecutor(3) as threads:
        with gate.held():
            first = threads.submit(appender.wait, appender.append({"n": 0}))
            assert gate.reached.acquire(timeout=300)
            second = threads.submit(appender.wait, appender.append({"n": 1}))
            closing = threads.submit(appender.close)
        closing.result(60)
        assert first.result(60) == 0
        try:
            assert second.result(60) == 1  # it was committed before the close began
        except ClosedError:
            assert "1 events that were not flushed" in caplog.text
            assert stream.refresh().tail == 1
    left = {*threading.enumerate()} - before
    assert not [thread for thread in left if thread.name == "segstore-appender"]


def test_a_place_that_no_event_has_is_refused(stream):
    with stream.appender() as appender:
        for place in (-1, 0):
            with pytest.raises(InvalidInputError, match="no such place"):
                appender.wait(place)


def test_a_bad_row_fails_only_its_thread(stream):
    ready = threading.Barrier(8)
    with stream.appender(flush_seconds=None) as appender, ThreadPoolExecutor(8) as threads:

        def work(n: int) -> int | None:
            ready.wait(300)
            if n == 3:
                with pytest.raises(SchemaMismatchError):
                    appender.append({"n": "text"})
                return None
            return appender.wait(appender.append({"n": n}))

        offsets = list(threads.map(work, range(8)))
    assert offsets[3] is None
    assert sorted(offset for offset in offsets if offset is not None) == list(range(7))
