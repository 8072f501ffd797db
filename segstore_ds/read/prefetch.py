"""Reading ahead: the next values of an iterator are made while the one before is used.

What is held is bounded twice: by a count, and by bytes, since a frame may take anything up to
2 GiB. One value is always made, whatever it takes.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from typing import TypeVar

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.arrow.frame import Frame

T = TypeVar("T")
R = TypeVar("R")

AHEAD_BYTES = 256 << 20  # more than the frames that are ordinary come to


def weigh_events(value: object) -> int:
    """Return how many bytes a batch or an encoded frame holds in memory; 0 for anything else."""
    if isinstance(value, pa.RecordBatch):
        return int(value.get_total_buffer_size())
    return value.data.size if isinstance(value, Frame) else 0


class _Room:
    """Has a thread wait while what was made and not yet taken weighs too much."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._closed = False
        self._changed = Condition()

    def wait(self) -> bool:
        """Wait until more may be made; tell whether anybody still wants it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._held_bytes < self._most_bytes)
            return not self._closed

    def add(self, weight: int) -> None:
        """Count what was made, or, with a negative weight, was taken."""
        with self._changed:
            self._held_bytes += weight
            self._changed.notify_all()

    def close(self) -> None:
        """Have nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def read_ahead(
    values: Iterator[T],
    *,
    depth: int,
    weigh: Callable[[T], int] = weigh_events,
    most_bytes: int = AHEAD_BYTES,
) -> Iterator[T]:
    """Yield the values of an iterator, which a thread of its own runs at most `depth` ahead.

    Decoding, checksums and compression let go of Python's lock, so reading and writing then use
    two cores. Whatever the iterator raises is raised here in its turn. The thread ends with the
    iteration, also when that is broken off.

    Args:
        values: None of them None.
        depth: How many values may be held (>= 1), beside the one that is used.
        weigh: How many bytes a value holds.
        most_bytes: While the values held come to so much, no other one is begun.
    """
    room = _Room(most_bytes)

    def make() -> T | None:
        value = next(values, None) if room.wait() else None
        if value is not None:
            room.add(weigh(value))
        return value

    with ThreadPoolExecutor(1, thread_name_prefix="segstore-read-ahead") as pool:
        pending: deque[Future[T | None]] = deque(pool.submit(make) for _ in range(depth))
        try:
            while (value := pending.popleft().result()) is not None:
                room.add(-weigh(value))
                yield value
                pending.append(pool.submit(make))
        finally:
            room.close()


def map_ahead(
    work: Callable[[T], R],
    values: Iterator[T],
    *,
    threads: int,
    weigh: Callable[[T], int] = weigh_events,
    most_bytes: int = AHEAD_BYTES,
) -> Generator[R, None, None]:
    """Yield `work` of each value in order; several threads work on the values that come next.

    At most twice as many values as there are threads are held, and one more, which is used: so no
    thread waits while this one takes the next value. They are fewer where they would weigh more
    than `most_bytes`. What `work` raises is raised here in its turn, and what is left then is not
    begun. The threads end with their last piece of work, or when this is closed.
    A process that is forked meanwhile does not have the threads: going on there is refused.

    Args:
        work: Runs in any thread.
        values: Are taken in this one.
        threads: How many; 1 works here, when the result is asked for.
        weigh: How many bytes a value holds or will hold, once worked on.
        most_bytes: What the values held may come to, but for a single one that is heavier.

    Raises:
        InvalidInputError: It is gone on with in a forked process.
    """
    if threads == 1:
        yield from map(work, values)
        return
    process = os.getpid()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="segstore-map-ahead")
    pending: deque[Future[R]] = deque()
    weights: deque[int] = deque()
    try:
        for value in values:
            weight = weigh(value)
            while pending and (len(pending) >= 2 * threads or sum(weights) + weight > most_bytes):
                weights.popleft()
                yield pending.popleft().result()  # no name for it, which would hold it
                _check_process(process)
            weights.append(weight)
            pending.append(pool.submit(work, value))
        pool.shutdown(wait=False)
        while pending:
            yield pending.popleft().result()
            _check_process(process)
    finally:
        if os.getpid() == process:  # in another one the locks of the threads may never be let go of
            for future in pending:
                future.cancel()
            pool.shutdown()


def _check_process(process: int) -> None:
    if os.getpid() != process:
        raise InvalidInputError(
            "a reader was begun before the process was forked",
            remedy="begin to read in the process that takes the events",
        )
