"""Reading ahead: the next values of an iterator are made while the one before is used."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(values: Iterator[T], *, depth: int) -> Iterator[T]:
    """Yield the values of an iterator, which a thread of its own runs at most `depth` ahead.

    Decoding, checksums and compression let go of Python's lock, so reading and writing then use
    two cores. Whatever the iterator raises is raised here in its turn. The thread ends with the
    iteration, also when that is broken off.

    Args:
        values: None of them None.
        depth: How many values may be held (>= 1).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="segstore-read-ahead") as pool:
        pending: deque[Future[T | None]] = deque(
            pool.submit(next, values, None) for _ in range(depth)
        )
        while (value := pending.popleft().result()) is not None:
            yield value
            pending.append(pool.submit(next, values, None))


def map_ahead(
    work: Callable[[T], R], values: Iterator[T], *, threads: int
) -> Generator[R, None, None]:
    """Yield `work` of each value in order; several threads work on the values that come next.

    At most twice as many values as there are threads are held, and one more: so no thread waits
    while this one takes the next value. What `work` raises is raised here in its turn, and what is
    left then is not begun. Closed, it ends its threads.

    Args:
        work: Runs in any thread.
        values: Are taken in this one.
        threads: How many; 1 works here, when the result is asked for.
    """
    if threads == 1:
        yield from map(work, values)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="segstore-map-ahead") as pool:
        pending: deque[Future[R]] = deque()
        try:
            for value in values:
                pending.append(pool.submit(work, value))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
