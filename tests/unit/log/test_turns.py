"""Turns: writers that commit at once win about equally often, and a lone one hardly waits."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from virtual_threads import VirtualThreads
from wrapped_storage import LatencyStorage

from segstore_ds.format.root import Epoch, Root
from segstore_ds.log.commit import Change
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.status.history import begin_history
from segstore_ds.storage import open_storage

DELAY_S, SECONDS = 0.03, 15.0
ROOT = Root("stream", 0, "t0", "", 0, "create", (Epoch(0, 0, "x", None),))


def commit_times(
    writers: int,
    *,
    stays: Callable[[int, float], bool] = lambda *_: True,
    waits: list[int] | None = None,
) -> tuple[list[list[float]], float]:
    """Return the times of all commits by writer, and the seconds that all took.

    `waits` gets how many commits came from a writer's last one, or the first of all, to its next.
    """
    threads = VirtualThreads()
    clock = threads.clock
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    first = begin_history(replace(ROOT, time_us=clock.wall_us()))
    assert StreamLog(storage, clock=clock).create(first)
    times: list[list[float]] = [[] for _ in range(writers)]

    def delay(seconds: float) -> None:
        threads.sleep(seconds * (1 + 0.1 * clock.random()))

    def writer(number: int, own: list[float]) -> Callable[[], None]:
        def run() -> None:
            log = StreamLog(LatencyStorage(storage, DELAY_S, sleep=delay), clock=clock)
            last = log.open().version
            while threads.now_s < SECONDS and stays(number, threads.now_s):
                began = threads.now_s
                done = log.commit(lambda root, _slot: Change(replace(root, operation="append")))
                if waits is not None:
                    waits.append(done.root.version - last)
                last = done.root.version
                if threads.now_s <= SECONDS:  # after that the others have gone
                    own.append(threads.now_s - began)

        return run

    threads.run([writer(number, own) for number, own in enumerate(times)])
    return times, threads.now_s


def test_a_lone_writer_commits_at_nearly_the_pace_of_a_put():
    [times], seconds = commit_times(1)
    assert len(times) / seconds > 28
    assert max(times) < 10 * DELAY_S


@pytest.mark.parametrize("writers", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_writers_that_commit_at_once_take_turns(writers):
    """A turn is two commits: the first waits for its base to appear, the second for nothing.

    All begin at once, and whoever has not won yet is in no order of turns.
    """
    waits: list[int] = []
    times, _ = commit_times(writers, waits=waits)
    assert sum(map(len, times)) / SECONDS > 18
    assert max(waits) <= 64
    assert min(map(len, times)) > 0.3 * max(map(len, times))


def test_writer_that_leaves_is_passed_over():
    """The others wait for its turns only until it has let some pass."""
    [alone], _ = commit_times(1)
    left, _ = commit_times(4, stays=lambda writer, now_s: writer == 0 or now_s < SECONDS / 2)
    assert len(left[0]) > 0.35 * len(alone)
