"""The open appenders of a process, which are flushed when it ends, within `EXIT_S` seconds.

When the interpreter exits they are flushed twice: before it waits for threads, while new threads
can still be started, and after the last thread, for what threads have appended. SIGTERM, and SIGHUP
of a terminal that is closed, end a process without that. So if one has no handler when an appender
is opened in the main thread, it gets one that flushes first: in another thread, since the main
thread may hold a lock that the flush needs. Another thread can't set a handler, and warns.
"""

import _thread
import atexit
import logging
import os
import signal
import threading
import time
import weakref
from contextlib import suppress
from types import FrameType
from typing import Protocol

_LOG = logging.getLogger(__name__)

EXIT_S = 10.0
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_WARNED = threading.Event()


class Flushable(Protocol):
    """An appender."""

    def _flush_at_exit(self, timeout: float) -> None:
        """Flush, or warn how many events end with the process; never raises."""


_OPEN: "weakref.WeakSet[Flushable]" = weakref.WeakSet()
DROPPED: set[Flushable] = set()  # garbage-collected, and not flushed yet


def note_open(appender: Flushable) -> None:
    """Register an appender, to be flushed if the process ends before it is closed."""
    _OPEN.add(appender)
    unhandled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is threading.main_thread():
        with suppress(ValueError):  # not in the main interpreter
            for number in unhandled:
                signal.signal(number, _on_signal)
    elif signal.SIGTERM in unhandled and not _WARNED.is_set():
        _WARNED.set()
        _LOG.warning(
            "SIGTERM ends this process without a flush of its appenders: open and close one in the "
            "main thread first, or handle the signal"
        )


def flush_open() -> None:
    """Flush all open appenders, in `EXIT_S` seconds together."""
    until_s = time.monotonic() + EXIT_S
    for appender in {*_OPEN, *DROPPED}:
        left_s = max(until_s - time.monotonic(), 0.0)
        appender._flush_at_exit(left_s)  # noqa: SLF001 - that is what it has it for


def _on_signal(number: int, _frame: FrameType | None) -> None:
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
