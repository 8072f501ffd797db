"""Reading ahead changes neither values nor errors, and leaves no thread behind."""

import threading
from collections.abc import Iterator

import pytest

from segstore_ds.engine.read_ahead import map_ahead, read_ahead


def _values(count: int, seen: list[int]) -> Iterator[int]:
    for n in range(1, count + 1):
        seen.append(n)
        yield n
    if count == 7:
        raise ValueError(count)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_values_come_in_order(count: int) -> None:
    """Also where there are fewer than the depth."""
    assert list(read_ahead(_values(count, []), depth=3)) == list(range(1, count + 1))


def test_errors_come_in_their_turn() -> None:
    """What was made before the error is seen before it."""
    found: list[int] = []
    with pytest.raises(ValueError, match="7"):
        found.extend(read_ahead(_values(7, []), depth=3))
    assert found == list(range(1, 8))


def test_breaking_off_ends_the_thread() -> None:
    """No more than the depth was made ahead."""
    seen: list[int] = []
    running = read_ahead(_values(100, seen), depth=3)
    assert next(running) == 1
    running.close()  # type: ignore[attr-defined]
    assert len(seen) <= 4
    assert not [t for t in threading.enumerate() if t.name.startswith("segstore-read-ahead")]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_results_come_in_order(count: int, threads: int) -> None:
    """Whichever thread is done first."""
    results = map_ahead(lambda n: n * n, _values(count, []), threads=threads)
    assert list(results) == [n * n for n in range(1, count + 1)]


@pytest.mark.parametrize("threads", [1, 3])
def test_errors_of_the_work_come_in_their_turn(threads: int) -> None:
    """What comes before the value that fails is seen, what comes behind it is not."""

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


def test_breaking_off_ends_the_threads() -> None:
    """Twice as many values as there are threads are held at most, and one more."""
    seen: list[int] = []
    running = map_ahead(str, _values(100, seen), threads=3)
    assert next(running) == "1"
    running.close()
    assert len(seen) <= 7
    assert not [t for t in threading.enumerate() if t.name.startswith("segstore-map-ahead")]
