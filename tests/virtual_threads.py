"""Threads on a virtual clock: one runs at a time, and a wait ends when all others wait longer."""

import heapq
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from virtual_time import START_US

from segstore_ds.log.clock import Clock


class VirtualThreads:
    """Runs functions as threads whose waits cost no time and always interleave the same way.

    `now_s` is the time since the start. Only what waits through `clock` or `sleep` lets others run.
    """

    def __init__(self, seed: int = 0) -> None:
        self.now_s = 0.0
        self._random = random.Random(seed)
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._order = 0
        self._finished = threading.Event()
        self.clock = Clock(
            wall_us=lambda: START_US + int(self.now_s * 1e6),
            boot_s=lambda: self.now_s,
            sleep=self.sleep,
            random=self._random.random,
            new_id=lambda: f"{self._random.getrandbits(128):032x}",
        )

    def sleep(self, seconds: float) -> None:
        """Let the others run until all of them wait longer than this."""
        turn = self._enter(seconds)
        self._leave()
        turn.wait()

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Run functions at once until all have returned; raises the first error."""
        with ThreadPoolExecutor(len(work)) as threads:
            turns = [self._enter(0.0) for _ in work]
            running = [threads.submit(self._run, *each) for each in zip(work, turns, strict=True)]
            self._leave()
            self._finished.wait()
        for thread in running:
            thread.result()

    def _run(self, function: Callable[[], None], turn: threading.Event) -> None:
        turn.wait()
        try:
            function()
        finally:
            self._leave()

    def _enter(self, seconds: float) -> threading.Event:
        self._order += 1
        turn = threading.Event()
        heapq.heappush(self._waiting, (self.now_s + seconds, self._order, turn))
        return turn

    def _leave(self) -> None:
        if not self._waiting:
            self._finished.set()
            return
        self.now_s, _, turn = heapq.heappop(self._waiting)
        turn.set()
