"""`threading`, executors and secrets for the engine's code while it runs in a world.

Each stands for the real one by what the engine uses of it. Waiting gives the baton to other
threads, so that the engine's own threads are part of the schedule that the seed decides.
"""

import concurrent.futures
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from sim_world import Thread, World

from segstore_ds.storage import local, local_files


class _Lock:
    """A lock or, with `again`, one that its thread may take several times."""

    def __init__(self, world: World, *, again: bool) -> None:
        self._world = world
        self._again = again
        self._owner: Any = None
        self._depth = 0
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._world.current
        if self._again and self._owner is me and self._depth:
            self._depth += 1
            return True
        while self._depth:
            if not blocking or timeout == 0:
                return False
            if me is None:
                raise AssertionError("a lock is held, and nobody runs who could release it")
            self._waiting.append(me)
            self._world.wait()
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._depth and self._owner is self._world.current:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                if self._waiting:
                    self._world.wake(self._waiting.popleft())

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition:
    def __init__(self, world: World, lock: Any = None) -> None:
        self._world = world
        self._lock = lock or _Lock(world, again=True)
        self._waiting: list[Thread] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        me = self._world.current
        assert me is not None
        depth, self._lock._depth, self._lock._owner = self._lock._depth, 0, None
        if self._lock._waiting:
            self._world.wake(self._lock._waiting.popleft())
        self._waiting.append(me)
        try:
            if timeout is None:
                self._world.wait()
            else:
                self._world.sleep(timeout)
        finally:
            notified = me not in self._waiting
            if not notified:
                self._waiting.remove(me)
        self._lock.acquire()
        self._lock._depth = depth
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._world.now_us + timeout * 1e6
        while not (found := predicate()):
            left = None if until is None else (until - self._world.now_us) / 1e6
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            self._world.wake(self._waiting.pop(0))

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class _Event:
    def __init__(self, world: World) -> None:
        self._changed = _Condition(world)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(self.is_set, timeout))


class _Semaphore:
    def __init__(self, world: World, value: int = 1) -> None:
        self._changed = _Condition(world)
        self._value = value

    def acquire(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._value > 0)
            self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._changed.notify()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Threading:
    """The module `threading`."""

    local = threading.local
    main_thread = staticmethod(threading.main_thread)
    TIMEOUT_MAX = threading.TIMEOUT_MAX

    def __init__(self, world: World) -> None:
        self._world = world

    def Lock(self) -> _Lock:  # noqa: N802
        return _Lock(self._world, again=False)

    def RLock(self) -> _Lock:  # noqa: N802
        return _Lock(self._world, again=True)

    def Condition(self, lock: Any = None) -> _Condition:  # noqa: N802
        return _Condition(self._world, lock)

    def Event(self) -> _Event:  # noqa: N802
        return _Event(self._world)

    def Semaphore(self, value: int = 1) -> _Semaphore:  # noqa: N802
        return _Semaphore(self._world, value)

    def Thread(  # noqa: N802
        self,
        target: Callable[..., None],
        name: str = "",
        args: Iterable[Any] = (),
        daemon: bool | None = None,
    ) -> "_Started":
        del daemon
        return _Started(self._world, lambda: target(*args), name)

    def current_thread(self) -> Any:
        current = self._world.current
        return threading.current_thread() if current is None else _handle(current)

    def get_ident(self) -> int:
        return -1 if self._world.current is None else self._world.current.number


class _Started:
    """`threading.Thread`."""

    def __init__(self, world: World, work: Callable[[], None], name: str) -> None:
        self._world = world
        self._work = work
        self.name = name
        self._thread: Thread | None = None

    def start(self) -> None:
        current = self._world.current
        assert current is not None
        self._thread = self._world.spawn(current.process, self._work, self.name)
        self._thread.handle = self  # type: ignore[attr-defined]

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.ended

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            _join(self._world, self._thread, timeout)


def _handle(thread: Thread) -> Any:
    return getattr(thread, "handle", thread)


def _join(world: World, thread: Thread, timeout: float | None = None) -> None:
    me = world.current
    assert me is not None
    until = None if timeout is None else world.now_us + timeout * 1e6
    while not thread.ended and (until is None or world.now_us < until):
        thread.joining.append(me)
        if until is None:
            world.wait()
        else:
            world.sleep((until - world.now_us) / 1e6)


class _Future:
    def __init__(self, executor: "Executor", work: Callable[[], Any]) -> None:
        self._executor = executor
        self._work = work
        self._changed = _Condition(executor.world)
        self._state = "pending"
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        self._state = "running"
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001 - whoever asks gets it
            self._error = error
        self._state = "done"
        self._changed.notify_all()
        self._executor.after(self)

    def done(self) -> bool:
        return self._state in ("done", "cancelled")

    def cancel(self) -> bool:
        if self._state == "pending":
            self._state = "cancelled"
            self._changed.notify_all()
        return self._state == "cancelled"

    def result(self, timeout: float | None = None) -> Any:
        with self._changed:
            if not self._changed.wait_for(self.done, timeout):
                raise TimeoutError
        if self._state == "cancelled":
            raise concurrent.futures.CancelledError
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with self._changed:
            self._changed.wait_for(self.done, timeout)
        return self._error


class Executor:
    """`ThreadPoolExecutor`: at most `most` threads of the process that submits."""

    def __init__(
        self, world: World, max_workers: int | None = None, thread_name_prefix: str = ""
    ) -> None:
        self.world = world
        self._most = max_workers or 4
        self._name = thread_name_prefix or "executor"
        self._queue: deque[_Future] = deque()
        self._running = 0
        self._shut = False
        assert world.current is not None
        self._process = world.current.process

    def submit(self, work: Callable[..., Any], *args: Any, **how: Any) -> _Future:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _Future(self, lambda: work(*args, **how))
        self._queue.append(future)
        self._begin()
        return future

    def map(self, work: Callable[..., Any], *values: Iterable[Any]) -> Iterator[Any]:
        futures = [self.submit(work, *each) for each in zip(*values, strict=False)]
        return (future.result() for future in futures)

    def _begin(self) -> None:
        while self._queue and self._running < self._most:
            future = self._queue.popleft()
            if future._state == "pending":
                self._running += 1
                self.world.spawn(self._process, future.run, self._name)

    def after(self, _: _Future) -> None:
        self._running -= 1
        self._begin()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shut = True
        if cancel_futures:
            for future in self._queue:
                future.cancel()
            self._queue.clear()
        # What a killed process left is closed by whoever collects it.
        while wait and self._running and self._process.alive and self.world.current is not None:
            self.world.sleep(0.001)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _Secrets:
    def __init__(self, world: World) -> None:
        self._world = world

    def token_hex(self, count: int) -> str:
        return self.token_bytes(count).hex()

    def token_bytes(self, count: int) -> bytes:
        assert self._world.current is not None
        return self._world.current.process.chance.randbytes(count)


class _Time:
    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now_us / 1e6

    perf_counter = monotonic
    time = monotonic

    def time_ns(self) -> int:
        current = self._world.current
        return 1000 * (self._world.now_us if current is None else current.process.clock.wall_us())

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


def _wait(world: World) -> Callable[..., Any]:
    def wait(futures: Iterable[_Future], timeout: Any = None, return_when: str = "ALL") -> Any:
        del timeout
        futures = list(futures)
        first = return_when.startswith("FIRST")
        while not (any if first else all)(future.done() for future in futures):
            world.sleep(0.001)
        done = {future for future in futures if future.done()}
        return done, set(futures) - done

    return wait


@contextmanager
def engine_in(world: World, system: Any = os) -> Iterator[None]:
    """Let the engine's modules use the threads, locks, secrets and time of a world, and its disk.

    `system` is what the storage of local files takes for the module `os`.
    """
    own = Threading(world)
    stand_ins: dict[int, Any] = {
        id(threading): own,
        id(threading.Lock): own.Lock,
        id(threading.Condition): own.Condition,
        id(concurrent.futures.ThreadPoolExecutor): lambda *given, **how: Executor(
            world, *given, **how
        ),
        id(concurrent.futures.wait): _wait(world),
        id(secrets): _Secrets(world),
        id(time): _Time(world),
    }
    changed: list[tuple[Any, str, Any]] = []
    for name, module in [*sys.modules.items()]:
        if name == "segstore_ds" or name.startswith("segstore_ds."):
            for attribute, value in [*vars(module).items()]:
                if id(value) in stand_ins and not name.startswith("segstore_ds.spark"):
                    changed.append((module, attribute, value))
                    setattr(module, attribute, stand_ins[id(value)])
    for module in (local, local_files):
        changed.append((module, "os", os))
        vars(module)["os"] = system
    changed.append((os, "cpu_count", os.cpu_count))
    os.cpu_count = lambda: 2  # as many threads on every machine
    try:
        yield
    finally:
        for module, attribute, value in changed:
            setattr(module, attribute, value)
