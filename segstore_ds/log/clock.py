"""Time, waiting and randomness as one parameter, so that tests control all three."""

import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


def _boot_s() -> float:
    # CLOCK_BOOTTIME counts time suspended, so a process notices that its machine slept.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _wall_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Clock:
    """The engine's source of time and randomness.

    Attributes:
        wall_us: Microseconds since 1970 UTC; may jump.
        boot_s: Seconds since some fixed moment; never goes back, and counts time suspended.
        sleep: Waits that many seconds.
        random: Draws from ``[0, 1)``, for jitter.
        new_id: Returns 32 fresh hex digits.
        background: Whether `start` begins a thread; if not, the caller waits for the work.
    """

    wall_us: Callable[[], int] = _wall_us
    boot_s: Callable[[], float] = _boot_s
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    new_id: Callable[[], str] = field(default=lambda: uuid.uuid4().hex)
    background: bool = True

    def backoff(self, attempt: int, *, base_s: float, most_s: float) -> None:
        """Wait with full jitter: up to `base_s` doubled `attempt` times, at most `most_s`."""
        self.sleep(self.random() * min(most_s, base_s * 2.0**attempt))

    def start(self, work: Callable[[], None], name: str) -> None:
        """Begin short work that nobody waits for; a process ends when it has ended."""
        if self.background:
            threading.Thread(target=work, name=name, daemon=False).start()
        else:
            work()


SYSTEM_CLOCK = Clock()
# For processes that end right after a commit.
BRIEF_CLOCK = Clock(background=False)
