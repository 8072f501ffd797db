"""The appenders that are open: flushed when their process ends, within `EXIT_S` seconds.

At Python's end they are flushed twice: before threads end, while threads can still be started, and
after the last of them, for what these have appended. SIGTERM ends a process without Python's end.
If nothing else handles it when an appender is opened in the main thread, it flushes first: in a
thread of its own, since the main thread may hold a lock that the flush needs.
"""

import _thread
import atexit
import os
import signal
import threading
import time
import weakref
from contextlib import suppress
from types import FrameType
from typing import Protocol

EXIT_S = 10.0


class Flushable(Protocol):
    """An appender."""

    def _flush_at_exit(self, timeout: float) -> None:
        """Flush, or warn how many events end with the process; never raises."""


_OPEN: "weakref.WeakSet[Flushable]" = weakref.WeakSet()
DROPPED: set[Flushable] = set()  # by all who used them, and not flushed yet


def note_open(appender: Flushable) -> None:
    """Flush an appender when the process ends before it is closed."""
    _OPEN.add(appender)
    if threading.current_thread() is threading.main_thread():
        with suppress(ValueError):  # not in the main interpreter
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, _on_sigterm)


def flush_open() -> None:
    """Flush all open appenders, in `EXIT_S` seconds together."""
    until_s = time.monotonic() + EXIT_S
    for appender in {*_OPEN, *DROPPED}:
        left_s = max(until_s - time.monotonic(), 0.0)
        appender._flush_at_exit(left_s)  # noqa: SLF001 - that is what it has it for


def _on_sigterm(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # another one ends the process at once

    def end() -> None:
        try:
            flush_open()
        finally:
            os.kill(os.getpid(), number)

    # A Thread takes locks of its module when it starts, which the main thread may hold.
    _thread.start_new_thread(end, ())


atexit.register(flush_open)
with suppress(RuntimeError):  # the threads have ended
    # Only before they end can others be started, since Python 3.12.
    getattr(threading, "_register_atexit", atexit.register)(flush_open)
