"""Time, waiting and randomness as one parameter, so that tests control all three."""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

CLOCK_LIMIT_US = 5 * 60 * 1_000_000
CLOCK_CHECK_S = 600.0
CLOCK_MOVED_S = 5.0  # more than a correction by NTP, or the time between two readings


# CLOCK_BOOTTIME counts time suspended, so a process notices that its machine slept.
_boot_s: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    _boot_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


def _wall_us() -> int:
    return time.time_ns() // 1000


def _new_id() -> str:
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class Clock:
    """The source of time and randomness; the real one is picklable."""

    wall_us: Callable[[], int] = _wall_us  # microseconds since 1970 UTC; may jump
    # Seconds since some fixed moment; never goes back, and counts time suspended.
    boot_s: Callable[[], float] = _boot_s
    sleep: Callable[[float], None] = time.sleep  # waits that many seconds
    random: Callable[[], float] = random.random  # draws from ``[0, 1)``, for jitter
    new_id: Callable[[], str] = _new_id  # returns 32 fresh hex digits
    # Whether `start` starts a thread; if not, the caller does the work.
    background: bool = True

    def backoff(self, attempt: int, *, base_s: float, most_s: float) -> None:
        """Wait with full jitter: up to `base_s` doubled `attempt` times, at most `most_s`."""
        self.sleep(self.random() * min(most_s, base_s * 2.0**attempt))

    def start(self, work: Callable[[], None], name: str) -> None:
        """Start short work in the background; the process waits for it at its end."""
        if self.background:
            threading.Thread(target=work, name=name, daemon=False).start()
        else:
            work()


class Skew:
    """Compares this machine's clock with the store's, for one handle.

    It does so at most once per `CLOCK_CHECK_S`, and after this machine's clock was set, which the
    boot clock shows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._checked_s = float("-inf")
        self._offset_s = self._read_offset_s()

    def has_moved(self) -> bool:
        """Tell whether this machine's clock was set since the last comparison."""
        clock = self._clock
        return abs(clock.wall_us() / 1e6 - clock.boot_s() - self._offset_s) > CLOCK_MOVED_S

    def is_known(self) -> bool:
        """Tell whether the clocks were compared a short time ago."""
        return self._clock.boot_s() - self._checked_s < CLOCK_CHECK_S and not self.has_moved()

    def compare(self, ask: Callable[[], int]) -> tuple[int, int] | None:
        """Ask for the store's time; return both times if they are too far apart, else None."""
        asked_us, offset_s = self._clock.wall_us(), self._read_offset_s()
        store_us = ask()
        # This process may have been suspended between the two readings of the clock.
        if not asked_us - CLOCK_LIMIT_US <= store_us <= self._clock.wall_us() + CLOCK_LIMIT_US:
            return asked_us, store_us
        self._checked_s, self._offset_s = self._clock.boot_s(), offset_s
        return None

    def _read_offset_s(self) -> float:
        return self._clock.wall_us() / 1e6 - self._clock.boot_s()


SYSTEM_CLOCK = Clock()
# For processes that end right after a commit.
BRIEF_CLOCK = Clock(background=False)
