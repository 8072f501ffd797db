"""A process that appends once to an old stream and ends, while the round that it began still runs.

`python upkeep_child.py <folder> <what happens at the round's first deletion>`
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from stream_kit import numbers
from wrapped_storage import WrappedStorage

from segstore_ds.log.clock import Clock
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")


REACHED = threading.Event()


class Meddled(WrappedStorage):
    """A storage where something happens before a call of the round, which has its own thread."""

    def __init__(self, inner: Storage, call: str, happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self.call, self.happens = call, happens

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        ours = threading.current_thread() is not threading.main_thread()
        if ours and not REACHED.is_set() and f"{verb} {path}".startswith(self.call):
            REACHED.set()
            self.happens()
        return work()


def wait_for_the_end() -> None:
    threading.main_thread().join()


def boot_s() -> float:
    """Return a time of which six seconds pass once the process has nothing else to do."""
    return time.monotonic() + 6 * (not threading.main_thread().is_alive())


WAYS = {
    "nothing": ("delete log/", lambda _: None),
    "ends": ("delete log/", lambda _: wait_for_the_end()),
    "expires": ("info log/", lambda _: wait_for_the_end()),
    "removed": ("create log/", shutil.rmtree),
}


def main(folder: str, way: str) -> None:
    """Append to the stream and return when the round is where something happens to it."""
    call, happens = WAYS[way]
    storage = Meddled(open_storage(folder), call, lambda: happens(folder))
    clock = Clock(boot_s=boot_s) if way == "ends" else Clock()
    open_on(storage, clock=clock).append(numbers(0, 1))
    assert REACHED.wait(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
