"""Turns: writers that commit at once win about equally often, and a lone one hardly waits."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from segstore_ds.commit.commit import Change, StreamLog
from segstore_ds.commit.turns import LONE_RUN
from segstore_ds.format.root import Epoch, Root
from segstore_ds.log.clock import Clock
from segstore_ds.status.history import begin_history
from segstore_ds.storage import open_storage
from segstore_ds.testing.faults import LatencyStorage
from segstore_ds.testing.virtual_threads import VirtualThreads

DELAY_S, SECONDS = 0.03, 15.0


def commit_times(writers: int) -> tuple[list[list[float]], float]:
    """Return the times of all commits by writer, and the seconds that all took."""
    threads = VirtualThreads()
    clock = threads.clock
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    first = Root("stream", 0, "t0", "", clock.wall_us(), "create", (Epoch(0, 0, "x", None),))
    assert StreamLog(storage, clock=clock).create(begin_history(first))
    times: list[list[float]] = [[] for _ in range(writers)]

    def delay(seconds: float) -> None:
        threads.sleep(seconds * (1 + 0.1 * clock.random()))

    def writer(own: list[float]) -> Callable[[], None]:
        def run() -> None:
            log = StreamLog(LatencyStorage(storage, DELAY_S, sleep=delay), clock=clock)
            log.open()
            while threads.now_s < SECONDS:
                began = threads.now_s
                log.commit(lambda root, _slot: Change(replace(root, operation="append")))
                own.append(threads.now_s - began)

        return run

    threads.run([writer(own) for own in times])
    return times, threads.now_s


def test_a_lone_writer_commits_at_nearly_the_pace_of_a_put():
    [times], seconds = commit_times(1)
    assert len(times) / seconds > 28
    assert max(times) < 10 * DELAY_S


@pytest.mark.parametrize("writers", [4, 16])
def test_writers_that_commit_at_once_take_turns(writers):
    times, seconds = commit_times(writers)
    # A loser pays a put and a get, so losers alone could commit 16 times a second.
    rate = sum(map(len, times)) / seconds
    assert rate > 12
    per_turn_s = 1 / rate
    # A writer that always won before can't know that others lose until it leaves a gap.
    patience_s = LONE_RUN * 0.035 + 64 * per_turn_s
    assert max(max(own) for own in times) < patience_s
    assert min(map(len, times)) >= 10


def test_the_clock_of_virtual_threads_only_moves_by_waits():
    threads = VirtualThreads()
    seen: list[tuple[str, float]] = []

    def walk(name: str, step_s: float, clock: Clock) -> Callable[[], None]:
        def run() -> None:
            for _ in range(2):
                clock.sleep(step_s)
                seen.append((name, clock.boot_s()))

        return run

    threads.run([walk("a", 2.0, threads.clock), walk("b", 3.0, threads.clock)])
    assert seen == [("a", 2.0), ("b", 3.0), ("a", 4.0), ("b", 6.0)]
