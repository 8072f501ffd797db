"""Time, waiting and randomness as one parameter, so that tests control all three."""

import random
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
    """

    wall_us: Callable[[], int] = _wall_us
    boot_s: Callable[[], float] = _boot_s
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    new_id: Callable[[], str] = field(default=lambda: uuid.uuid4().hex)

    def backoff(self, attempt: int, *, base_s: float, most_s: float) -> None:
        """Wait with full jitter: up to `base_s` doubled `attempt` times, at most `most_s`."""
        self.sleep(self.random() * min(most_s, base_s * 2.0**attempt))


SYSTEM_CLOCK = Clock()
