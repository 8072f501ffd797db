"""Virtual time for the engine and for the store: it passes only when a test says so."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from wrapped_storage import WrappedStorage

from segstore_ds.log.clock import Clock
from segstore_ds.storage.base import ObjectInfo, Storage

T = TypeVar("T")
START_US = 1_760_000_000_000_000


class VirtualTime:
    """A clock whose waits return at once and advance it; ids and jitter come from a seed.

    Two clocks with the same seed create the same ids. `now_us` is microseconds since 1970 UTC.
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
            background=False,
        )

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_us += int(seconds * 1e6)


class TimedStorage(WrappedStorage):
    """A storage whose objects have modification times of a virtual clock.

    Objects already in `inner` count as made now. `like` is the storage that this one is a copy of:
    its objects keep the times they have there.
    """

    def __init__(
        self, inner: Storage, time: VirtualTime, like: "TimedStorage | None" = None
    ) -> None:
        super().__init__(inner)
        self.time = time
        self.since_us: int = like.since_us if like else time.now_us
        self.made_us: dict[str, int] = dict(like.made_us) if like else {}

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        done = work()
        if verb in ("put", "commit") or (verb in ("create", "copy_from") and done):
            self.made_us[path] = self.time.now_us
        return done

    def info(self, path: str) -> ObjectInfo:
        return self._dated(super().info(path))

    def list(self, folder: str, start: str = "") -> Iterator[ObjectInfo]:
        return map(self._dated, super().list(folder, start))

    def temporaries(self) -> Iterator[ObjectInfo]:
        return map(self._dated, super().temporaries())

    def _dated(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, modified_us=self.made_us.get(info.path, self.since_us))
