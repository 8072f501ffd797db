"""Prefetch: compute the next values of an iterator while the current one is used.

The values held are bounded by a count and by bytes, since a frame may take up to 2 GiB. One value
is always computed, whatever its size.
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

AHEAD = 4  # values that one thread computes ahead
AHEAD_BYTES = 256 << 20  # ordinary frames take less


def read_ahead(values: Iterator[T]) -> Iterator[T]:
    """Yield the values of an iterator while another thread computes the next few.

    Decoding, checksums and compression release the GIL, so reading and writing use two cores. While
    the values computed ahead hold `AHEAD_BYTES` or more, no other one is begun. An error of the
    iterator is raised here, in its order. The thread ends with the iteration, also if that is
    stopped early. No value may be None.
    """
    changed, held, ended = Condition(), 0, False

    def count(size: int) -> None:
        nonlocal held
        with changed:
            held += size
            changed.notify()

    def make() -> T | None:
        with changed:
            changed.wait_for(lambda: ended or held < AHEAD_BYTES)
        value = None if ended else next(values, None)
        count(_bytes_of(value))
        return value

    with ThreadPoolExecutor(1, thread_name_prefix="segstore-read-ahead") as pool:
        pending: deque[Future[T | None]] = deque()
        try:
            while len(pending) < AHEAD and (begun := _submit(pool, make)) is not None:
                pending.append(begun)
            while pending:
                if (value := pending.popleft().result()) is None:
                    return
                count(-_bytes_of(value))
                if (begun := _submit(pool, make)) is not None:
                    pending.append(begun)
                yield value
            yield from values
        finally:
            ended = True
            count(0)


def _submit(pool: ThreadPoolExecutor, work: Callable[..., R], *given: object) -> Future[R] | None:
    """Begin work in a thread; None while the process ends, when no executor accepts any."""
    try:
        return pool.submit(work, *given)
    except RuntimeError:
        return None


def _bytes_of(value: object) -> int:
    if isinstance(value, pa.RecordBatch):
        return int(value.get_total_buffer_size())
    return value.data.size if isinstance(value, Frame) else 0


def map_ahead(
    work: Callable[[T], R],
    values: Iterator[T],
    *,
    threads: int,
    weigh: Callable[[T], int] = lambda _: 0,
    most_bytes: int = AHEAD_BYTES,
) -> Generator[R, None, None]:
    """Yield `work(value)` for each value in order, computed ahead by several threads.

    Before the caller has taken the first value, at most `threads` are begun. Then ``2 * threads``
    are held beside the one in use, so that no thread waits while the caller takes the next value.
    Fewer are held if they would weigh more than `most_bytes`; a single heavier value is still
    worked on. `weigh` returns the bytes that a value holds once worked on.
    `values` is consumed in the calling thread. With one thread, `work` runs in the calling thread,
    on demand.

    An error of `work` is raised here, in its order, and later values are not begun. The threads end
    with their last piece of work, or when the generator is closed. A forked process does not have
    the threads, so continuing there raises InvalidInputError.
    """
    if threads == 1:
        yield from map(work, values)
        return
    process = os.getpid()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="segstore-map-ahead")
    pending: deque[Future[R]] = deque()
    weights: deque[int] = deque()
    most = threads
    try:
        for value in values:
            weight = weigh(value)
            while pending and (len(pending) >= most or sum(weights) + weight > most_bytes):
                weights.popleft()
                yield pending.popleft().result()  # no local name, which would keep it alive
                most = 2 * threads
                _check_process(process)
            begun = _submit(pool, work, value)
            if begun is None:
                while pending:
                    yield pending.popleft().result()
                weights.clear()
                yield work(value)
            else:
                weights.append(weight)
                pending.append(begun)
        pool.shutdown(wait=False)
        while pending:
            yield pending.popleft().result()
            _check_process(process)
    finally:
        if os.getpid() == process:  # after a fork the threads' locks may stay held forever
            for future in pending:
                future.cancel()
            pool.shutdown()


def _check_process(process: int) -> None:
    if os.getpid() != process:
        raise InvalidInputError(
            "a reader was started before the process was forked",
            remedy="open the reader in the process that reads the events",
        )
