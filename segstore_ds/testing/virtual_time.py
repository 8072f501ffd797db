"""Time that passes only when a test says so, for the engine and for the store alike."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from segstore_ds.log.clock import Clock
from segstore_ds.storage.base import ObjectInfo, Storage
from segstore_ds.testing.faults import WrappedStorage

T = TypeVar("T")
START_US = 1_760_000_000_000_000


class VirtualTime:
    """A clock whose waits return at once and move it on, with ids from a seed.

    Args:
        seed: Of ids and jitter; two that share one make the same ids.
        now_us: Microseconds since 1970 UTC.
    """

    def __init__(self, seed: int = 0, *, now_us: int = START_US) -> None:
        self.now_us = now_us
        self._random = random.Random(seed)
        self.clock = Clock(
            wall_us=lambda: self.now_us,
            boot_s=lambda: self.now_us / 1e6,
            sleep=self.advance,
            random=self._random.random,
            new_id=lambda: f"{self._random.getrandbits(128):032x}",
        )

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_us += int(seconds * 1e6)


class TimedStorage(WrappedStorage):
    """A storage whose objects are as old as a virtual clock says, so that clocks agree.

    Args:
        inner: The storage that does the work; what it holds already counts as made now.
        time: The clock.
        like: Another one, that it is a copy of: what it holds is as old as it is there.
    """

    def __init__(
        self, inner: Storage, time: VirtualTime, like: "TimedStorage | None" = None
    ) -> None:
        super().__init__(inner)
        self.time = time
        self.since_us: int = like.since_us if like else time.now_us
        self.made_us: dict[str, int] = dict(like.made_us) if like else {}

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:  # noqa: D102
        done = work()
        if verb in ("put", "commit") or (verb in ("create", "copy_from") and done):
            self.made_us[path] = self.time.now_us
        return done

    def info(self, path: str) -> ObjectInfo:  # noqa: D102
        return self._dated(super().info(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:  # noqa: D102
        return map(self._dated, super().list(prefix))

    def temporaries(self) -> Iterator[ObjectInfo]:  # noqa: D102
        return map(self._dated, super().temporaries())

    def _dated(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, modified_us=self.made_us.get(info.path, self.since_us))
