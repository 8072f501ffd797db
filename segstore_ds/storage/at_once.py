"""Runs a few requests at the same time, because each of them is mostly waiting for a store."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

MOST = 16  # at a time


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of functions that run at the same time, in their order.

    The first one runs in this thread, and so do all where no thread can start, as at the end of the
    process. None of them runs any more when this returns or raises; of several errors the first in
    order is raised.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    if len(works) == 1:
        return [works[0]()]
    if not works:
        return []
    with ThreadPoolExecutor(min(len(works) - 1, MOST), "segstore-at-once") as threads:
        others = [_begin(threads, work) for work in works[1:]]
        return [works[0](), *(end() for end in others)]


def _begin(threads: Executor, work: Callable[[], T]) -> Callable[[], T]:
    """Begin work in a thread, and return what gives its result: the work where none can start."""
    with suppress(RuntimeError):
        return threads.submit(work).result
    return work
