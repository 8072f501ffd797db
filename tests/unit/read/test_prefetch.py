"""Reading ahead changes neither values nor errors, and leaves no thread behind."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from segstore_ds.errors import InvalidInputError
from segstore_ds.read import prefetch
from segstore_ds.read.prefetch import AHEAD, map_ahead, read_ahead


def _values(count: int, seen: list[int]) -> Iterator[int]:
    for n in range(1, count + 1):
        seen.append(n)
        yield n
    if count == 7:
        raise ValueError(count)


@pytest.mark.parametrize(("rows", "ahead"), [(1, 4), (3, 4), (5, 3), (7, 2), (99, 1)])
def test_values_held_are_bounded_by_bytes(
    rows: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they weigh is known only once they were made: one begins while less is held."""
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", 100)
    made = [threading.Event() for _ in range(30)]

    def values() -> Iterator[pa.RecordBatch]:
        for event in made:
            event.set()
            yield pa.record_batch({"n": pa.array(range(rows), pa.int64())})

    running = read_ahead(values())
    for taken in range(20):
        next(running)
        assert made[taken + ahead].wait(timeout=300)
        assert not any(event.is_set() for event in made[taken + ahead + 1 :])
    running.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("segstore-read-ahead")]


def test_breaking_off_ends_the_threads() -> None:
    """Twice as many values as there are threads are held at most, and one more."""
    seen: list[int] = []
    running = map_ahead(str, _values(100, seen), threads=3)
    assert next(running) == "1"
    running.close()
    assert len(seen) <= 7
    assert not [t for t in threading.enumerate() if t.name.startswith("segstore-map-ahead")]


@pytest.mark.parametrize(("weight", "ahead"), [(1, 6), (16, 6), (20, 5), (49, 2), (999, 1)])
def test_results_held_are_bounded_by_bytes(weight: int, ahead: int) -> None:
    """Light ones by their count, heavy ones by 100 bytes; a single one may be heavier than that."""
    seen: list[int] = []
    running = map_ahead(str, _values(100, seen), threads=3, weigh=lambda _: weight, most_bytes=100)
    for taken in range(1, 50):
        assert next(running) == str(taken)
        # One value was taken in vain: it is worked on when what is used now was used.
        assert len(seen) == taken + (ahead if taken > 1 else min(ahead, 3))
    running.close()


def _in_fork(check: Callable[[], bool]) -> bool:
    """Tell whether something holds in a forked process; False if it takes a minute."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        held = False
        try:
            held = check()
        finally:
            os._exit(not held)
    return os.waitpid(child, 0)[1] == 0


def _is_refused(running: Iterator[str]) -> bool:
    try:
        next(running)
    except InvalidInputError:
        return True
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("count", [5, 100])
def test_a_fork_is_refused_what_it_has_no_threads_for(count: int) -> None:
    """It would wait for them without end. Dropping it there does not wait either."""
    running = map_ahead(str, _values(count + 1, []), threads=3)
    assert _in_fork(lambda: next(running) == "1")  # not begun before: its own threads
    assert next(running) == "1"
    assert _in_fork(lambda: _is_refused(running))
    assert _in_fork(lambda: running.close() is None)
    assert list(running) == [str(n) for n in range(2, count + 2)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_values_come_in_order(count: int) -> None:
    """Also where there is none."""
    assert list(read_ahead(_values(count, []))) == list(range(1, count + 1))


def test_errors_come_in_their_turn() -> None:
    """What was made before the error is seen before it."""
    found: list[int] = []
    with pytest.raises(ValueError, match="7"):
        found.extend(read_ahead(_values(7, [])))
    assert found == list(range(1, 8))


def test_breaking_off_ends_the_thread() -> None:
    """No more than a few were made ahead."""
    seen: list[int] = []
    running = read_ahead(_values(100, seen))
    assert next(running) == 1
    running.close()  # type: ignore[attr-defined]
    assert len(seen) <= 1 + AHEAD
    assert not [t for t in threading.enumerate() if t.name.startswith("segstore-read-ahead")]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_results_come_in_order(count: int, threads: int) -> None:
    """Whichever thread is done first."""
    results = map_ahead(lambda n: n * n, _values(count, []), threads=threads)
    assert list(results) == [n * n for n in range(1, count + 1)]


@pytest.mark.parametrize("threads", [1, 3])
def test_errors_are_raised_in_order(threads: int) -> None:
    """Values before the failing one are delivered, values after it are not."""

    def work(n: int) -> int:
        if n >= 5:
            raise ValueError(n)
        return n

    found: list[int] = []
    with pytest.raises(ValueError, match="5"):
        found.extend(map_ahead(work, _values(20, []), threads=threads))
    assert found == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="7"):  # and those of the values
        list(map_ahead(str, _values(7, []), threads=threads))
