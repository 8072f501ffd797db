"""Turns: writers that commit at once win about equally often, and a lone one hardly waits."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from virtual_threads import VirtualThreads
from wrapped_storage import LatencyStorage

from segstore_ds.format.root import Epoch, Root
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.commit import Change
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.log.turns import WRITER_DIGITS, Look, Turns
from segstore_ds.status.history import begin_history
from segstore_ds.storage import open_storage

DELAY_S, SECONDS = 0.03, 15.0
ROOT = Root("stream", 0, "t0", "", 0, "create", (Epoch(0, 0, "x", None),))


def commit_times(
    writers: int,
    *,
    pause_s: float = 0.0,
    stays: Callable[[int, float], bool] = lambda *_: True,
    waits: list[int] | None = None,
    seed: int = 0,
) -> tuple[list[list[float]], float]:
    """Return the times of all commits by writer, and the seconds that all took.

    `waits` gets how many commits came from a writer's last one, or the first of all, to its next.
    """
    threads = VirtualThreads(seed)
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
                clock.sleep(pause_s * 2 * clock.random())
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


@pytest.mark.parametrize(
    ("writers", "seed"),
    [(2, 0), (4, 0), (16, 0), *(pytest.param(16, seed, marks=pytest.mark.slow) for seed in (6, 7))],
)
def test_writers_that_commit_at_once_take_turns(writers, seed):
    """A turn is two commits: the first waits for its base to appear, the second for nothing.

    All begin at once, and whoever has not won yet is in no order of turns.
    """
    waits: list[int] = []
    times, _ = commit_times(writers, waits=waits, seed=seed)
    assert sum(map(len, times)) / SECONDS > 18
    assert max(waits) <= 64
    assert min(map(len, times)) > 0.3 * max(map(len, times))


def test_writer_that_leaves_is_passed_over():
    """The others wait for its turns only until it has let some pass."""
    [alone], _ = commit_times(1)
    left, _ = commit_times(4, stays=lambda writer, now_s: writer == 0 or now_s < SECONDS / 2)
    assert len(left[0]) > 0.35 * len(alone)


def test_who_commits_now_and_then_waits_for_nobody():
    """Where commits are far apart they hardly collide."""
    threads = VirtualThreads()

    def look(apart_s: float) -> Look | None:
        turns = Turns(threads.clock)
        turns.note([(version, writer * 32) for version, writer in enumerate("aabbaa")])
        for version in (0, 1, 4, 5):
            threads.now_s += 2 * apart_s
            root = replace(ROOT, version=version, transaction="a" * 32)
            turns.won(root, DELAY_S)
        return turns.next_look(root)

    assert look(5 * DELAY_S) is None
    near = look(1.5 * DELAY_S)
    assert near is not None
    assert near.version == 6


def test_turns_forget_a_stream_that_was_created_again():
    turns = Turns(SYSTEM_CLOCK)
    turns.note([(7, "a" * 32), (8, "b" * 32)])
    assert turns.next_look(begin_history(ROOT)) is None
    turns.won(begin_history(ROOT), 0.03)
    assert turns.first_unknown(0) == 1


def test_transactions_of_a_writer_begin_alike():
    turns = Turns(SYSTEM_CLOCK)
    first, second = turns.new_transaction(), turns.new_transaction()
    assert first != second
    assert len(first) == len(second) == 32
    assert first[:WRITER_DIGITS] == second[:WRITER_DIGITS]


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
