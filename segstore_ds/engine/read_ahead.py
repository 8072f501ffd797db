"""Reading ahead: the next values of an iterator are made while the one before is used."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
