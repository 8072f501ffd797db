"""The open appenders of a process, which are flushed when it ends, within `EXIT_S` seconds.

When the interpreter exits they are flushed twice: before it waits for threads, while new threads
can still be started, and after the last thread, for what threads have appended. SIGTERM ends a
process without that. So if SIGTERM has no handler when an appender is opened in the main thread, it
gets one that flushes first: in another thread, since the main thread may hold a lock that the flush
needs.
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
DROPPED: set[Flushable] = set()  # garbage-collected, and not flushed yet


def note_open(appender: Flushable) -> None:
    """Register an appender, to be flushed if the process ends before it is closed."""
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
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once

    def end() -> None:
        try:
            flush_open()
        finally:
            os.kill(os.getpid(), number)

    # Not `threading.Thread`: its start takes locks, which the main thread may hold.
    _thread.start_new_thread(end, ())


atexit.register(flush_open)
with suppress(RuntimeError):  # imported after the threads have ended
    # Since Python 3.12 no thread can be started in an `atexit` function.
    getattr(threading, "_register_atexit", atexit.register)(flush_open)
