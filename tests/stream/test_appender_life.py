"""The life of an appender: forks, pickles, threads that end, and input that calls it back."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64())])
STAGED = Layout(inline_bytes=0)


@pytest.fixture
def stream(tmp_path) -> segstore.Stream:
    """An empty stream on a disk."""
    return segstore.create(tmp_path / "stream", SCHEMA)


def events(*found: int) -> pa.Table:
    """Return events as a table."""
    return pa.table({"n": list(found)}, SCHEMA)


def in_fork(check) -> bool:
    """Tell whether something holds in a forked process; False if it takes a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def is_refused(call) -> bool:
    """Tell whether a call says that it belongs to another process."""
    try:
        call()
    except InvalidInputError as error:
        return "before the process was forked" in str(error)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forked_child_is_refused(stream) -> None:
    """Though the lock is held; what the parent took is the parent's to commit."""
    appender = stream.appender(layout=STAGED)
    place = appender.append(events(1, 2))
    calls = {
        "wait": lambda: appender.wait(place),
        "append": lambda: appender.append({"n": 3}),
        "flush": appender.flush,
        "read": appender.read,
        "counters": lambda: appender.counters,
        "with": lambda: appender.__exit__(None, None, None),
    }
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with appender._lock:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    failed = [name for name, call in calls.items() if not in_fork(lambda c=call: is_refused(c))]
    closed = in_fork(lambda: appender.close() is None)
    done.set()
    holder.join()
    assert not failed
    assert closed
    assert appender.wait(place) == 0
    appender.close()
    assert stream.read().read_all().equals(events(1, 2))


@pytest.mark.parametrize("cycle", [False, True])
def test_appender_that_is_dropped_ends_its_threads(stream, caplog, cycle) -> None:
    """Its unflushed events are flushed, with a warning as of an open file."""
    held = [stream.appender(flush_seconds=None, layout=STAGED)]
    held[0].wait(held[0].append(events(1)))
    held[0].append(events(2, 3))
    lead = held[0]._lead
    if cycle:
        held[0].me = held[0]

    def let_go() -> None:
        held.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="2 unflushed events"):
        let_go()
    lead.join(60)
    assert not lead.is_alive()
    assert caplog.messages == []
    assert stream.refresh().tail == 3
    assert stream.verify().leftovers == []


def test_appender_that_is_dropped_flushes_what_is_due(stream) -> None:
    """What was to be flushed by time is flushed; then the thread ends."""
    appender = stream.appender(flush_seconds=0.01)
    appender.append(events(1))
    lead = appender._lead
    del appender
    lead.join(60)
    assert not lead.is_alive()
    assert stream.refresh().tail == 1


ENDS = """
import multiprocessing, signal, sys, threading, time, pyarrow as pa, segstore_ds as segstore
how, *folders = sys.argv[1:]
opened = []
def append():
    for folder in folders:
        opened.append(segstore.create(folder, pa.schema([("n", pa.int64())])).appender())
        opened[-1].append({"n": 1})
if how == "THREAD":
    thread = threading.Thread(target=append)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGTERM)
if how == "child":
    child = multiprocessing.get_context("fork").Process(target=append)
    child.start()
    child.join()
    sys.exit(child.exitcode)
append()
if how != "exit":
    print("ready", flush=True)
    time.sleep(100)
del opened[1:2]
with opened[-1]:
    sys.exit()
"""


@pytest.mark.parametrize("how", ["exit", "child", "SIGTERM", "SIGHUP"])
def test_process_that_ends_flushes_what_is_open(tmp_path, how) -> None:
    """An appender that is open, one that was dropped, one whose block is left by `sys.exit`."""
    folders = [str(tmp_path / name) for name in "abc"]
    command = [sys.executable, "-c", ENDS, how, *folders]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        number = getattr(signal, how, 0)
        if number:
            assert child.stdout.readline() == b"ready\n"
            child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (-number, b"")
    assert [segstore.open(folder).tail for folder in folders] == [1, 1, 1]


def test_appender_of_another_thread_says_that_a_signal_ends_it(tmp_path) -> None:
    """Python lets only the main thread handle signals; a program that has a handler is not told."""
    command = [sys.executable, "-c", ENDS, "THREAD", str(tmp_path / "a"), str(tmp_path / "b")]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGTERM
    assert ended.stderr.count(b"SIGTERM ends this process without a flush") == 1
    handled = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    command[2] = command[2].replace("how, *", f"{handled}\nhow, *", 1)
    command[4:] = [str(tmp_path / name) for name in "cd"]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (3, b"")
    assert [segstore.open(folder).tail for folder in command[4:]] == [1, 1]


def test_process_that_ends_says_what_it_could_not_flush(stream, caplog) -> None:
    """With the number of events."""
    with stream.appender(flush_seconds=None) as appender:
        appender.append(events(1, 2))
        with appender._lock:
            other = threading.Thread(target=appender._flush_at_exit, args=(0.01,))
            other.start()
            other.join()
    assert "2 events of an appender end with the process" in caplog.text


def test_appender_and_reader_are_not_pickled(stream) -> None:
    """The error says what to pickle instead."""
    with (
        stream.appender() as appender,
        pytest.raises(InvalidInputError, match="open an appender there"),
    ):
        pickle.dumps(appender)
    reader = stream.readers.register("etl")
    with pytest.raises(InvalidInputError, match="register it again there"):
        copy.copy(reader)


class Calling(Mapping):
    """An event whose values call the appender."""

    def __init__(self, call) -> None:
        self.call = call

    def __getitem__(self, name: str) -> int:
        """Call, and return a value."""
        self.call()
        return {"n": 2}[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names of the columns."""
        return iter(["n"])

    def __len__(self) -> int:
        """Return the number of columns."""
        return 1


@pytest.mark.parametrize("limits", [{}, {"flush_rows": 2}])
def test_input_that_flushes_the_appender_loses_nothing(stream, limits) -> None:
    """An iterator of batches may use the appender that takes it, and others may meanwhile, too."""
    with stream.appender(layout=STAGED, **limits) as appender:
        appender.append({"n": 1})

        def batches():
            other = threading.Thread(target=appender.flush)
            other.start()
            other.join()  # so no lock is held here
            appender.append({"n": 10})
            yield from events(2, 3).to_batches()
            appender.flush()
            yield from events(4).to_batches()

        place = appender.append(batches())
        assert appender.append(Calling(appender.flush)) == appender.next_place - 1
        appender.flush()
        found = appender.read(0).read_all()["n"].to_pylist()
        assert found == [1, 10, 2, 3, 4, 2]
        assert found[place : place + 3] == [2, 3, 4]
    assert stream.read().read_all()["n"].to_pylist() == found
    assert stream.verify().ok
