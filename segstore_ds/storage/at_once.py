"""Runs a few requests at the same time, because each of them is mostly waiting for a store."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MOST = 16  # at a time


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of functions that run at the same time, in their order.

    The first one runs in this thread. All of them have ended when this returns or raises; of
    several errors the first in order is raised.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    if len(works) == 1:
        return [works[0]()]
    if not works:
        return []
    with ThreadPoolExecutor(min(len(works) - 1, MOST), "segstore-at-once") as threads:
        others = [threads.submit(work) for work in works[1:]]
        return [works[0](), *(other.result() for other in others)]
