"""When hints are written: after each commit, or after a burst of commits.

On an object store commits write the hint at most once a second, so after a burst it may name an
older commit. It is written once more when the burst is over or the process ends. No call waits for
this late hint, and its failure does no harm: a hint makes the next open shorter, and shows it if
the newest commits are gone.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from segstore_ds.errors import SegstoreError
from segstore_ds.log.clock import Clock
from segstore_ds.storage import Storage

_WAIT_S = 0.05  # hints that are due at nearly the same time are written together


class LateHints:
    """The hints that a process still has to write, one per stream, and the thread for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, tuple[float, Callable[[], None]]] = {}
        self._runs = False

    def note(self, url: str, due_s: float, write: Callable[[], None], *, background: bool) -> None:
        """Have a stream's hint written at a monotonic time, or at the end of the process.

        Without `background`, or if no thread can start, it is written only at the end.
        """
        with self._changed:
            self._due[url] = due_s, write
            if background and not self._runs:
                with suppress(RuntimeError):
                    threading.Thread(target=self._run, name="segstore-hints", daemon=True).start()
                    self._runs = True

    def forget(self, url: str) -> None:
        """Remove a stream whose hint was just written."""
        with self._changed:
            self._due.pop(url, None)

    def flush(self) -> None:
        """Write all hints now."""
        with self._changed:
            left, self._due = self._due, {}
        for _, write in left.values():
            with suppress(SegstoreError, OSError, RuntimeError):
                write()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._runs = False
                    return
                url, (due_s, write) = min(self._due.items(), key=lambda item: item[1][0])
                wait_s = due_s - time.monotonic()
                if wait_s > 0:
                    self._changed.wait(wait_s + _WAIT_S)
                    continue
                del self._due[url]
            with suppress(SegstoreError, OSError, RuntimeError):
                write()


LATE_HINTS = LateHints()


class HintPace:
    """Limits how often one handle writes the hint of its log."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage, self._clock = storage, clock
        self._last_s = float("-inf")

    def write(
        self, write: Callable[[], None], late: Callable[[], None], *, writers: int = 1
    ) -> None:
        """Call `write` now, or have `late` called later; raises only what they raise."""
        every_s = self._storage.profile.hint_every_s
        if not every_s:
            # On local disk, writing a hint is faster than scheduling it.
            write()
            return
        now_s, url = self._clock.boot_s(), self._storage.url
        wait_s = self._last_s + every_s * writers - now_s
        if wait_s <= 0:
            self._last_s = now_s
            LATE_HINTS.forget(url)
            write()
        else:
            due_s = time.monotonic() + wait_s
            LATE_HINTS.note(url, due_s, late, background=self._clock.background)


# A forked child has no such thread, and the lock may be held. The parent writes the hints.
os.register_at_fork(after_in_child=LATE_HINTS.__init__)  # type: ignore[misc]
atexit.register(LATE_HINTS.flush)
