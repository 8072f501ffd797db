"""Death at the n-th system call that changes a file; one that writes is half done by then."""

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Whatever changes a file, whoever calls it.
SYSTEM_CALLS = (
    "open",
    "write",
    "writev",
    "copy_file_range",
    "fsync",
    "link",
    "unlink",
    "mkdir",
    "replace",
    "close",
)


@contextmanager
def deadly(number: int) -> Iterator[set[str]]:
    """Kill this process at its n-th call; give the names of those that it has made."""
    calls, lock = itertools.count(1), threading.Lock()
    kept = {name: getattr(os, name) for name in SYSTEM_CALLS}
    made: set[str] = set()

    def watch(name: str) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            with lock:
                fatal = next(calls) == number
                made.add(name)
            if fatal:
                _do_half(name, kept, arguments, options)
                os.kill(os.getpid(), signal.SIGKILL)
            return kept[name](*arguments, **options)

        return run

    for name in kept:
        setattr(os, name, watch(name))
    try:
        yield made
    finally:
        for name, call in kept.items():
            setattr(os, name, call)


def _do_half(name: str, kept: dict[str, Any], arguments: Any, options: Any) -> None:
    if name in ("write", "writev"):
        data = b"".join(arguments[1]) if name == "writev" else arguments[1]
        kept["write"](arguments[0], data[: len(data) // 2])
    elif name == "copy_file_range":
        source, target, most = arguments
        kept[name](source, target, most // 2, **options)
