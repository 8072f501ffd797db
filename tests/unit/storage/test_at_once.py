"""Functions that run at the same time: all of them end, and the first error is raised."""

import threading

import pytest

from segstore_ds.storage.base import at_once


def test_results_come_in_order_of_the_functions():
    barrier = threading.Barrier(3, timeout=300)  # passed only if all run at the same time

    def work(number: int) -> int:
        barrier.wait()
        return number

    assert at_once([lambda n=n: work(n) for n in range(3)]) == [0, 1, 2]


def test_one_function_runs_in_this_thread():
    assert at_once([threading.get_ident]) == [threading.get_ident()]
    assert at_once([]) == []


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 2}, {1, 2}])
def test_all_have_ended_when_the_first_error_is_raised(failing):
    ended = []

    def work(number: int) -> None:
        ended.append(number)
        if number in failing:
            raise LookupError(number)

    with pytest.raises(LookupError, match=str(min(failing))):
        at_once([lambda n=n: work(n) for n in range(3)])
    assert sorted(ended) == [0, 1, 2]


def test_all_run_in_this_thread_where_none_can_start(monkeypatch):
    """At the end of a process, or under a limit: a commit that waits for followers goes on."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert at_once([threading.get_ident] * 3) == [threading.get_ident()] * 3
