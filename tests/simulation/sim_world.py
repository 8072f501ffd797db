"""Virtual time for many processes: one thread runs at a time, in an order that a seed decides.

A *process* is what can be killed, paused, or have a wrong clock; its threads are real ones that
hand a baton on. A thread gives the baton away where it waits: in a sleep, in a request to the
store, for a lock or for another thread. The world then wakes who is due next, and time jumps there.
So days pass in seconds, and the same seed always gives the same trace.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any

from segstore_ds.log.clock import Clock

START_US = 1_760_000_000_000_000
HOUR_US = 3_600_000_000


class Killed(BaseException):
    """The process of this thread has ended: nothing that it does reaches anything any more."""


class Stuck(AssertionError):  # noqa: N818 - what a checker finds is no failure of its own
    """Threads wait for each other, or did not end in the time that they were given."""


@dataclass(eq=False)
class Process:
    """What is killed and paused as one, and whose clock may be wrong.

    Attributes:
        skew_us: How far its wall clock is ahead of the store's.
        drift: How much faster its wall clock runs, as a fraction.
        jump_us: How far its wall clock was set ahead, and `jumped` whether that ever happened.
        paused_until_us: Until when none of its threads runs.
        spoiled: How many bodies that it read were spoiled.
        chance: The randomness of its ids, and of what strikes its requests.
    """

    world: "World"
    name: str
    skew_us: int = 0
    drift: float = 0.0
    jump_us: int = 0
    jumped: bool = False
    alive: bool = True
    paused_until_us: int = 0
    spoiled: int = 0
    threads: list["Thread"] = field(default_factory=list)
    clock: Clock = field(init=False)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Make the clock that its handles are opened with."""
        chance = self.chance = self.world.chance_of(self.name)
        born_us = self.world.now_us
        self.clock = Clock(
            wall_us=lambda: int(
                self.world.now_us
                + self.skew_us
                + self.jump_us
                + (self.world.now_us - born_us) * self.drift
            ),
            boot_s=lambda: (self.world.now_us - START_US) / 1e6,
            sleep=self.world.sleep,
            random=chance.random,
            new_id=lambda: f"{chance.getrandbits(128):032x}",
            background=False,
        )

    def kill(self) -> None:
        """End the process: its threads raise `Killed` where they wait, or at their next step."""
        if self.alive:
            self.alive = False
            self.world.note(f"{self.name} is killed")
            for thread in self.threads:
                if thread is not self.world.current:
                    self.world.wake(thread)

    def pause(self, seconds: float) -> None:
        """Let none of its threads run for a while, as a suspended machine does."""
        self.world.note(f"{self.name} is paused for {seconds:.3f} s")
        self.paused_until_us = max(self.paused_until_us, self.world.now_us + int(seconds * 1e6))


class Thread:
    """A thread of a process; `threading.Thread` as the engine uses it."""

    def __init__(self, process: Process, work: Callable[[], None], name: str) -> None:
        self.process = process
        self.name = name
        self.number = next(process.world.numbers)
        self.ended = False
        self.error: BaseException | None = None
        self.turn = threading.Lock()
        self.turn.acquire()
        self.token = 0  # of the only entry of the queue that counts
        self.joining: list[Thread] = []
        self._work = work

    def run(self) -> None:
        """Do the work once the baton comes; raises nothing."""
        self.turn.acquire()
        try:
            self.process.world.check_alive(self)
            self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the world raises it
            self.error = error
        self.ended = True
        self.process.threads.remove(self)
        for other in self.joining:
            self.process.world.wake(other)


class World:
    """The clock, the queue of threads that wait, and the trace.

    Attributes:
        now_us: The store's time, in microseconds since 1970 UTC.
        seed: The only source of randomness. Each process draws its own from it, by its name: so
            a life without one of its actors goes on much as before.
        current: The thread that has the baton.
        trace: What happened, line by line; `digest` covers all of it, also what was dropped.
    """

    def __init__(self, seed: int, *, keep: int = 400) -> None:
        self.seed = seed
        self.now_us = START_US
        self.current: Thread | None = None
        self.numbers = itertools.count()
        self.steps = 0
        self.trace: list[str] = []
        self.errors: list[BaseException] = []
        self._keep = keep
        self._digest = blake2b(digest_size=16)
        self._queue: list[tuple[int, int, int, Thread | Callable[[], None]]] = []
        self._order = itertools.count()
        self.processes: list[Process] = []
        self._idle: list[SimpleQueue[Thread | None]] = []
        self._real: list[threading.Thread] = []
        self._main = threading.Lock()
        self._main.acquire()
        self._until_us = START_US

    @property
    def digest(self) -> str:
        """The digest of the whole trace: two runs of a seed have the same."""
        return self._digest.hexdigest()

    def chance_of(self, name: str) -> random.Random:
        """Return the randomness that belongs to a name."""
        return random.Random(f"{self.seed} {name}")

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        hours = (self.now_us - START_US) / HOUR_US
        text = f"{hours:12.6f} h  {line}"
        self._digest.update(text.encode())
        self.trace.append(text)
        if len(self.trace) > 2 * self._keep:
            del self.trace[: self._keep]

    # --- what the test calls -----------------------------------------------------------------

    def process(self, name: str, **how: Any) -> Process:
        """Begin a process."""
        process = Process(self, name, **how)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, work: Callable[[], None], name: str) -> Thread:
        """Begin a thread; it runs once others wait."""
        thread = Thread(process, work, name)
        process.threads.append(thread)
        if self._idle:
            self._idle.pop().put(thread)
        else:
            jobs: SimpleQueue[Thread | None] = SimpleQueue()
            jobs.put(thread)
            self._real.append(threading.Thread(target=self._work, args=(jobs,), daemon=True))
            self._real[-1].start()
        self._push(thread, self.now_us)
        return thread

    def _work(self, jobs: "SimpleQueue[Thread | None]") -> None:
        """Run one thread of the world after another: a real thread costs more than most of them."""
        while (thread := jobs.get()) is not None:
            thread.run()
            self._idle.append(jobs)
            self.leave(thread)

    def at(self, when_us: int, effect: Callable[[], None]) -> None:
        """Have something happen at a time; it must not wait."""
        heapq.heappush(self._queue, (when_us, next(self._order), 0, effect))

    def run(self, until_us: int) -> None:
        """Let time pass until all threads have ended, or until a time; raises their first error."""
        self._until_us = until_us
        if self._next():
            self._main.acquire()
        if self.errors:
            raise self.errors[0]

    def close(self) -> None:
        """End all processes, and wait until their threads have ended."""
        self.errors.clear()
        for process in self.processes:
            process.paused_until_us = 0
            process.kill()
        with suppress(BaseException):
            self.run(self.now_us)
        for jobs in self._idle:
            jobs.put(None)
        for real in self._real:  # the end of Python aborts where it meets one inside Arrow
            real.join(1.0)

    # --- what threads call -------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Let this thread wait, and others run meanwhile."""
        thread = self._running()
        self.check_alive(thread)
        when_us = self.now_us + max(int(seconds * 1e6), 0)
        next_us = self._queue[0][0] if self._queue else self._until_us + 1
        if self.errors or when_us > self._until_us or next_us <= when_us:
            self._push(thread, when_us)
            self.wait()
            return
        thread.token += 1  # nobody else is due before: it keeps the baton
        self.steps += 1
        self.now_us = when_us
        self.check_alive(thread)

    def wait(self) -> None:
        """Give the baton away until somebody wakes this thread; raises Killed."""
        thread = self._running()
        if not thread.process.alive:
            raise Killed  # nobody would wake it
        self._give(thread)
        self.check_alive(thread)

    def wake(self, thread: Thread) -> None:
        """Let a thread that waits go on now."""
        if not thread.ended:
            self._push(thread, self.now_us)

    def check_alive(self, thread: Thread) -> None:
        """Wait while the process is paused; raise Killed if it has ended."""
        while thread.process.alive and thread.process.paused_until_us > self.now_us:
            self._push(thread, thread.process.paused_until_us)
            self._give(thread)
        if not thread.process.alive:
            raise Killed

    def _give(self, thread: Thread) -> None:
        if not self._next():
            self._main.release()
        thread.turn.acquire()

    def leave(self, thread: Thread) -> None:
        """Give the baton away for good."""
        if thread.error is not None:
            self.errors.append(thread.error)
        if not self._next():
            self._main.release()

    # --- the queue ---------------------------------------------------------------------------

    def _running(self) -> Thread:
        assert self.current is not None, "only threads of a world may wait"
        return self.current

    def _push(self, thread: Thread, when_us: int) -> None:
        thread.token += 1
        heapq.heappush(self._queue, (when_us, next(self._order), thread.token, thread))

    def _next(self) -> bool:
        """Hand the baton to who is due; False if the test gets it back."""
        while self._queue and not self.errors:
            when_us, _, token, due = self._queue[0]
            if isinstance(due, Thread) and (due.ended or token != due.token):
                heapq.heappop(self._queue)
                continue
            if when_us > self._until_us:
                break
            heapq.heappop(self._queue)
            self.now_us = max(self.now_us, when_us)
            if not isinstance(due, Thread):
                self.current = None
                try:
                    due()
                except BaseException as error:  # noqa: BLE001 - `run` raises it
                    self.errors.append(error)
                continue
            self.steps += 1
            self.current = due
            due.turn.release()
            return True
        self.current = None
        return False
