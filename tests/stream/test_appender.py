"""The long-lived appender: places, offsets, flushing by size, time and call, and failures."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from stream_kit import fresh_url
from unit.cache.suites import until
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.errors import (
    ClosedError,
    CommitUnknownError,
    InternalError,
    InvalidInputError,
    SealedError,
    StorageError,
)
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.write import segment_writer
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


@pytest.fixture
def stream() -> segstore.Stream:
    """An empty stream."""
    return segstore.create(fresh_url(), SCHEMA)


def event(n: int) -> dict[str, object]:
    """Return an event of about 1 kB."""
    return {"n": n, "s": f"{n} " * (1000 // (len(str(n)) + 1))}


def numbers(reader) -> list[int]:
    """Return the numbers of events, having checked their texts."""
    table = reader.read_all()
    found = table["n"].to_pylist()
    assert table["s"].to_pylist() == [event(n)["s"] for n in found]
    return found


def table(*found: int) -> pa.Table:
    """Return events as a table."""
    return pa.Table.from_pylist([event(n) for n in found], SCHEMA)


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    """Let a flush take several buffers."""
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", 128 << 10)


def small(**knobs) -> Layout:
    """Return a layout that passes through every stage soon."""
    knobs = {"frame_rows": 50, "inline_bytes": 60_000} | knobs
    return Layout(compression="none", **knobs)


def test_events_are_readable_at_once_and_get_offsets_at_flush(stream):
    stream.append(table(100, 101))
    with stream.appender(flush_seconds=None) as appender:
        assert [appender.append(event(n)) for n in range(5)] == [0, 1, 2, 3, 4]
        assert numbers(appender.read()) == [0, 1, 2, 3, 4]
        assert numbers(appender.read(1, 3)) == [1, 2]
        assert stream.refresh().tail == 2
        commit = appender.flush()
        assert (commit.start, commit.end) == (2, 7)
        assert (appender.flushed_place, appender.next_place) == (5, 5)
        assert appender.append(event(5)) == 5
        assert numbers(appender.read()) == [5]
        assert numbers(appender.read(0)) == [0, 1, 2, 3, 4, 5]
    assert numbers(stream.read(2)) == [0, 1, 2, 3, 4, 5]
    assert stream.version == 3


def test_a_flush_of_nothing_commits_nothing(stream):
    with stream.appender() as appender:
        assert appender.flush() is None
        assert appender.read().read_all().num_rows == 0
        appender.append(event(0))
        assert appender.flush().rows == 1
        assert appender.flush() is None
    assert stream.refresh().version == 1


@pytest.mark.parametrize(("buffers", "buffer_bytes"), [(1, 20_000), (2, 128 << 10), (2, 8 << 20)])
def test_own_events_are_read_wherever_they_are(tmp_path, buffers, buffer_bytes, monkeypatch):
    """As rows, gathered, inline, in a buffer, in an object, committed between those of others."""
    monkeypatch.setattr(segment_writer, "BUFFERS", buffers)
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", buffer_bytes)
    stream = segstore.create(tmp_path / "stream", SCHEMA)
    with stream.appender(flush_seconds=None, flush_rows=777, layout=small()) as appender:
        for n in range(2000):
            assert appender.append(event(n)) == n
            if n % 97 == 0:
                first = max(0, n - 500)
                assert numbers(appender.read(first, n)) == list(range(first, n))
            if n % 500 == 0:
                stream.append(table(-1))
        assert numbers(appender.read(0)) == list(range(2000))
    mine = [n for n in numbers(stream.read()) if n >= 0]
    assert mine == list(range(2000))
    assert stream.verify().ok


def test_events_and_batches_keep_their_order(stream):
    with stream.appender() as appender:
        assert appender.append(event(0)) == 0
        assert appender.append(table(1, 2, 3)) == 1
        assert appender.append(event(4)) == 4
        assert appender.append(table(5).to_batches()) == 5
        assert appender.append(table()) == 6
        assert numbers(appender.read(0)) == [0, 1, 2, 3, 4, 5]
    assert numbers(stream.read()) == [0, 1, 2, 3, 4, 5]


WRONG = [{"n": 1.5}, {"x": 1}, pa.table({"n": [1]}), pa.table({"n": ["x"], "s": ["x"]}), 5, None]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_and_nothing_else_is_lost(stream, wrong):
    with stream.appender() as appender:
        appender.append(event(0))
        with pytest.raises(InvalidInputError):
            appender.append(wrong)
        assert appender.append(event(1)) == 1
    assert numbers(stream.read()) == [0, 1]


def test_flushes_by_rows_and_by_bytes(stream):
    with stream.appender(flush_rows=10, flush_seconds=None) as appender:
        for n in range(25):
            appender.append(event(n))
        assert appender.flushed_place == 20
        appender.append(table(*range(20)))
        assert appender.flushed_place == 45
    with stream.appender(flush_bytes=25_000, flush_seconds=None) as appender:
        for n in range(50):
            appender.append(event(n))
        assert appender.flushed_place == 50
        for n in range(0, 50, 10):
            appender.append(table(*range(n, n + 10)))
        assert appender.flushed_place == 80


def test_flushes_by_time(stream):
    appender = stream.appender(flush_seconds=0.02)
    for n in range(3):
        appender.append(event(n))
        deadline = time.monotonic() + 300
        while appender.flushed_place <= n and time.monotonic() < deadline:
            threading.Event().wait(0.005)
        assert appender.flushed_place == n + 1
    appender.close()
    assert stream.refresh().tail == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "segstore-appender"]


def test_many_threads_append_in_one_order(stream):
    with stream.appender(flush_rows=333, flush_seconds=None, layout=small()) as appender:

        def work(worker: int) -> list[tuple[int, int]]:
            return [(appender.append(event(n)), n) for n in range(worker, 2000, 4)]

        with ThreadPoolExecutor(4) as threads:
            found = sorted(pair for pairs in threads.map(work, range(4)) for pair in pairs)
    assert [place for place, _ in found] == list(range(2000))
    assert numbers(stream.read()) == [n for _, n in found]


def test_close_commits_nothing_and_logs_dropped_events(stream, caplog):
    appender = stream.appender(layout=small())
    for n in range(500):
        appender.append(event(n))
    appender.close()
    appender.close()
    assert "500 events that were not flushed" in caplog.text
    assert stream.refresh().tail == 0
    assert [info.path for info in stream._log.storage.list("segments")] == []
    for use in (lambda: appender.append(event(0)), appender.flush, appender.read):
        with pytest.raises(ClosedError):
            use()


def test_a_block_that_fails_commits_nothing(stream):
    def work() -> None:
        with stream.appender() as appender:
            appender.append(event(0))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()
    assert stream.refresh().tail == 0


def test_events_stay_readable_after_a_failed_flush(stream, monkeypatch):
    appender = stream.appender(layout=small(), flush_seconds=None)
    for n in range(500):
        appender.append(event(n))
    with monkeypatch.context() as patch:
        patch.setattr(type(stream._log.storage), "create", _timed_out)
        patch.setattr(StreamLog, "commit", _timed_out)
        with pytest.raises(StorageError, match=r"timed out.*call resume\(\)") as first:
            appender.flush()
    assert not first.value.retryable
    for use in (lambda: appender.append(event(0)), appender.flush):
        with pytest.raises(StorageError, match="timed out") as caught:
            use()
        assert not caught.value.retryable
        assert str(caught.value) == str(first.value)
    assert numbers(appender.read(0)) == list(range(500))
    appender.close()
    assert stream.refresh().tail == 0
    assert [info.path for info in stream._log.storage.list("segments")] == []


class _FailsLater(WrappedStorage):
    """Fails the n-th call of a verb on segments, and every one after it."""

    verb, left = "", 0

    def around(self, verb, path, work):
        if verb == self.verb and path.startswith("segments/"):
            self.left -= 1
            if self.left < 0:
                raise StorageError("no answer", url=self.url)
        return work()


@pytest.mark.parametrize("verb", ["open_staged", "write", "commit"])
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("as_table", [False, True])
def test_failed_writes_hide_no_events_from_the_appender(verb, place, as_table):
    """Wherever the storage fails: what was taken is read back, to be appended again."""
    storage = _FailsLater(open_storage(fresh_url()))
    stream = create_on(storage, SCHEMA)
    appender = stream.appender(layout=small(segment_bytes=120_000), flush_seconds=None)
    storage.verb, storage.left = verb, place
    taken = 0

    def append_and_flush():
        nonlocal taken
        while taken < 1000:
            appender.append(table(*range(taken, taken + 60)) if as_table else event(taken))
            taken += 60 if as_table else 1
        appender.flush()

    with pytest.raises(StorageError, match="no answer"):
        append_and_flush()
    assert numbers(appender.read(0, taken)) == list(range(taken))
    appender.close()


class _Gated(WrappedStorage):
    """Lets no call of a verb pass until the gate is open."""

    def __init__(self, inner, verb) -> None:
        super().__init__(inner)
        self.verb, self.arrived, self.gate = verb, threading.Event(), threading.Event()
        self.gate.set()

    def around(self, verb, path, work):
        if verb == self.verb and path:
            self.arrived.set()
            assert self.gate.wait(300)
        return work()


def gated(verb: str) -> tuple[_Gated, segstore.Stream]:
    """Return a storage whose gate is closed, and a stream there."""
    storage = _Gated(open_storage(fresh_url()), verb)
    stream = create_on(storage, SCHEMA)
    storage.gate.clear()
    storage.arrived.clear()
    return storage, stream


@pytest.mark.parametrize("verb", ["open_staged", "write", "commit", "create"])
def test_a_flush_raises_in_time_and_loses_nothing(verb):
    """Wherever the storage hangs: what was appended is committed once, by this flush or a later."""
    storage, stream = gated(verb)
    with stream.appender(layout=small(inline_bytes=0), flush_seconds=None) as appender:
        for n in (0, 1):
            appender.append(event(n))
            with pytest.raises(TimeoutError, match="call flush again"):
                appender.flush(timeout=0.05)
        assert storage.arrived.wait(300)
        storage.gate.set()
        appender.flush(timeout=300)  # None if the one that timed out has committed all meanwhile
        assert appender.flushed_place == 2
        appender.append(event(2))
        assert appender.flush(timeout=300).end == 3
        assert numbers(appender.read(0)) == [0, 1, 2]
    assert numbers(stream.refresh().read()) == [0, 1, 2]


def test_a_flush_raises_in_time_while_another_append_hangs():
    """The other thread holds the appender's lock; the flush is done in the background then."""
    storage, stream = gated("write")
    with stream.appender(layout=small(), flush_seconds=None) as appender:
        appender.append(event(0))
        with ThreadPoolExecutor(1) as threads:
            hanging = threads.submit(appender.append, table(*range(1, 600)))
            assert storage.arrived.wait(300)
            with pytest.raises(TimeoutError, match="call flush again"):
                appender.flush(timeout=0.05)
            storage.gate.set()
            assert hanging.result(300) == 1
        until(lambda: appender.flushed_place == 600)
    assert numbers(stream.refresh().read()) == list(range(600))


def test_a_flush_with_a_timeout_raises_what_the_commit_raised(stream, monkeypatch):
    appender = stream.appender(flush_seconds=None)
    assert appender.flush(timeout=0) is None
    appender.append(event(0))
    monkeypatch.setattr(StreamLog, "commit", _timed_out)
    for _ in range(2):
        with pytest.raises(StorageError, match="timed out"):
            appender.flush(timeout=300)
    assert numbers(appender.read(0)) == [0]
    appender.close()
    with pytest.raises(ClosedError):
        appender.flush(timeout=300)


def test_close_wakes_a_flush_with_a_timeout():
    """Its events are in the group after the one in flight, so they are dropped."""
    storage, stream = gated("create")
    appender = stream.appender(flush_seconds=None)
    appender.append(event(0))
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(appender.flush)
        assert storage.arrived.wait(300)
        appender.append(event(1))
        group = appender._open
        second = threads.submit(appender.flush, timeout=300)
        until(lambda: group.due_s is not None)
        closing = threads.submit(appender.close)
        with pytest.raises(ClosedError):
            second.result(300)
        storage.gate.set()
        closing.result(300)
        assert first.result(300).end == 1
    assert numbers(stream.refresh().read()) == [0]


def _timed_out(*_args, **_knobs):
    raise StorageError("timed out")


@pytest.mark.parametrize("error", [CommitUnknownError("no answer"), KeyboardInterrupt()])
def test_a_commit_that_may_have_landed_deletes_nothing(stream, monkeypatch, error):
    """It may name what was staged: that has to stay, also when the appender is closed."""
    commit = StreamLog.commit

    def lost_answer(*args, **knobs):
        commit(*args, **knobs)
        raise error

    appender = stream.appender(layout=small(), flush_seconds=None)
    for n in range(500):
        appender.append(event(n))
    with monkeypatch.context() as patch:
        patch.setattr(StreamLog, "commit", lost_answer)
        with pytest.raises(type(error)):
            appender.flush()
    with pytest.raises((CommitUnknownError, InternalError)):
        appender.append(event(500))
    assert numbers(appender.read(0)) == list(range(500))
    appender.close()
    assert numbers(stream.read()) == list(range(500))
    assert stream.verify().ok


def test_an_interrupt_while_staging_leaves_no_objects(stream, monkeypatch):
    """No commit can name the objects of a task that was not finished."""
    opened, begun = stream._log.storage.open_staged, []

    def interrupted(path):
        begun.append(path)
        if len(begun) > 2:
            raise KeyboardInterrupt
        return opened(path)

    appender = stream.appender(layout=small(segment_bytes=1 << 18), flush_seconds=None)
    with monkeypatch.context() as patch:
        patch.setattr(stream._log.storage, "open_staged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            appender.append(table(*range(2000)))
    assert list(stream._log.storage.list("segments"))
    appender.close()
    assert not list(stream._log.storage.list("segments"))


def test_a_plan_that_fails_takes_nothing_and_may_be_repeated(stream, monkeypatch):
    appender = stream.appender(flush_seconds=None)
    with monkeypatch.context() as patch:
        patch.setattr("segstore_ds.stream.writes.plan_job", _timed_out)
        with pytest.raises(StorageError) as caught:
            appender.append(event(0))
    assert caught.value.retryable
    assert appender.next_place == 0
    assert appender.append(event(0)) == 0
    appender.flush()
    appender.close()
    assert stream.refresh().tail == 1


def test_a_column_added_by_others_is_null_with_merge_schema(stream):
    more = pa.table({"n": [7], "s": ["x"], "more": [1.5]})
    with stream.appender(merge_schema=True, flush_seconds=None) as appender:
        appender.append(event(0))
        stream.append(more, merge_schema=True)
        appender.flush()
        appender.append(event(1))
        assert appender.read(0).read_all()["more"].to_pylist() == [None, None]
    assert stream.read().read_all()["more"].to_pylist() == [1.5, None, None]


@pytest.mark.usefixtures("no_inline")
def test_counters_count_the_smallest_flush_too(stream):
    with stream.appender(flush_seconds=None) as appender:
        for flushes in (1, 2):
            appender.append(event(0))
            appender.flush()
            counters = appender.counters
            assert (counters.channel_writes, counters.channel_bytes) == (
                flushes,
                sum(entry.bytes for entry in stream.refresh()._log.root.entries),
            )


def test_of_several_batches_all_fit_or_none_is_taken(stream):
    good, other = table(0).to_batches()[0], pa.record_batch({"n": ["x"], "s": ["x"]})
    with stream.appender() as appender:
        for wrong in ([good, other], [good, "no batch"]):
            with pytest.raises((InvalidInputError, TypeError, ValueError)):
                appender.append(wrong)
            assert appender.next_place == 0
    assert stream.refresh().tail == 0


def test_a_sealed_stream_is_refused(stream, monkeypatch):
    appender = stream.appender(flush_seconds=None)
    monkeypatch.setattr("segstore_ds.stream.writes.plan_job", _sealed)
    with pytest.raises(SealedError):
        appender.append(event(0))
    appender.close()


def _sealed(*_args, **_knobs):
    raise SealedError("stream is sealed")
