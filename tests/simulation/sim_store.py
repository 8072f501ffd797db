"""An object store in simulation: latencies, requests that fail in every way, views of processes.

The store's content is shared; a `SimStorage` is one process's connection to it. It stands on the
engine's own checks and translation of failures, as the real storages do. What a request does and
what its caller hears are two things: each of the faults below takes them apart in another way.
"""

import errno
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from random import Random
from typing import Any, TypeVar

from sim_disk import Disk, SimFiles
from sim_weather import SPELLS, Spell
from sim_world import Killed, Process, World

from segstore_ds.storage.base import FAR as FAR_PROFILE
from segstore_ds.storage.base import Storage
from segstore_ds.storage.checked import CheckedStorage
from segstore_ds.storage.gathered import GatheringStorage
from segstore_ds.storage.locations import Location

T = TypeVar("T")

READS, WRITES = ("get", "get_range", "info", "list"), ("create", "put", "copy", "delete")
DISK_WRITES = ("open", "write", "fsync", "create", "rename", "delete", "mkdir")

# Chance of each kind among the faults of single requests, for those that it can strike.
REQUESTS = {
    "fail": 5.0,  # an error, no effect
    "lost": 5.0,  # the effect, but an error
    "late": 2.0,  # an error, and the effect later
    "denied": 2.0,  # a create has its effect, and says that the name was taken
    "cut": 2.0,  # a body ends early
    "flip": 2.0,  # a body with one wrong bit
    "slow": 3.0,  # an answer that takes as long as a client waits
    "pause": 2.0,  # the machine is suspended before the request, or before its answer
    "kill": 2.0,  # the process ends before the request, or before its answer
    "power": 1.5,  # the machine ends, and what its disk was not told to keep may be gone
}
KINDS = (*REQUESTS, *SPELLS)
LATE_S = (0.01, 0.5, 5.0, 60.0, 1800.0)
PAUSE_S = (0.05, 1.0, 20.0, 70.0, 1900.0, 4000.0, 86_400.0, 3 * 86_400.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a request takes, in milliseconds: half of them at most `p50`, one in 100 `p99`."""

    p50: float
    p99: float

    def draw(self, chance: Random) -> float:
        """Return a time in seconds, from the log-normal distribution with these percentiles."""
        spread = math.log(self.p99 / self.p50) / 2.326
        return float(chance.lognormvariate(math.log(self.p50), spread)) / 1000


# Amazon S3 Standard within a region, small objects; a local SSD whose files are synced.
FAR = {"get": Latency(14, 60), "put": Latency(22, 110), "list": Latency(25, 120)}
NEAR = {"get": Latency(0.05, 0.4), "put": Latency(0.9, 6), "list": Latency(0.05, 0.5)}


@dataclass
class Faults:
    """Which requests fail, and how many so far of each kind.

    Attributes:
        rate: The chance that a request fails; 0 for a calm store.
        spells: Those that go on now.
        kinds: Those of `KINDS` that strike.
    """

    rate: float = 0.0
    spells: list[Spell] = field(default_factory=list)
    kinds: Collection[str] = KINDS
    counts: dict[str, int] = field(default_factory=dict)

    def draw(self, chance: Random, verb: str) -> str:
        """Return the kind of fault that strikes a request; '' for none."""
        if chance.random() >= self.rate:
            return ""
        fitting = [kind for kind in REQUESTS if _fits(kind, verb)]
        (kind,) = chance.choices(fitting, [REQUESTS[each] for each in fitting])
        if kind not in self.kinds:
            return ""
        self.count(kind)
        return kind

    def count(self, kind: str) -> None:
        """Count a fault."""
        self.counts[kind] = self.counts.get(kind, 0) + 1


def _fits(kind: str, verb: str) -> bool:
    if kind not in REQUESTS:
        return False
    if kind == "power":
        return verb in DISK_WRITES
    if kind == "late":
        return verb in WRITES
    if kind == "denied":
        return verb == "create"
    if kind in ("cut", "flip"):
        return verb in ("get", "get_range")
    return True


class Objects(dict[str, tuple[bytes, int]]):
    """What is stored; it knows its names in order, so that a listing looks at no others."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []

    def __setitem__(self, name: str, stored: tuple[bytes, int]) -> None:
        if name not in self:
            insort(self._names, name)
        super().__setitem__(name, stored)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        del self._names[bisect_left(self._names, name)]

    def pop(self, name: str, default: Any = None) -> Any:
        stored = self.get(name, default)
        if name in self:
            del self[name]
        return stored

    def below(self, prefix: str) -> list[str]:
        """Return the names with a prefix, in order."""
        at = bisect_left(self._names, prefix)
        return [*takewhile(lambda name: name.startswith(prefix), islice(self._names, at, None))]


@dataclass
class Store:
    """What is stored: name -> content and modification time; and how requests go."""

    world: World
    far: bool = True
    faults: Faults = field(default_factory=Faults)
    objects: MutableMapping[str, tuple[bytes, int]] = field(default_factory=Objects)
    disk: Disk | None = None
    disk_share: float = 0.25  # a request to a disk is several calls
    requests: int = 0

    def __post_init__(self) -> None:
        """Have the objects be files of a disk, if the store is near."""
        if not self.far:
            self.objects = self.disk = Disk(self)

    def connect(self, process: Process, url: str) -> CheckedStorage:
        """Connect a process to a folder; `url` as the engine shows it: ``memory://stream``."""
        location = Location(url=url, scheme="memory", path="/" + url.partition("://")[2])
        connect = SimStorage if self.disk is None else SimFiles
        return connect(location, self, process)

    def put(self, full: str, data: bytes) -> None:
        """Have an object now, in place of what had its name."""
        self.objects[full] = data, self.world.now_us

    def plant(self, full: str, data: bytes) -> None:
        """Have an object that no process of ours put."""
        if self.disk is not None:
            self.disk.plant(full)
        self.objects[full] = data, self.world.now_us

    def latency_s(self, chance: Random, verb: str) -> float:
        """Draw how long a request takes."""
        table = FAR if self.far else NEAR
        kind = "list" if verb == "list" else "put" if verb in WRITES else "get"
        return table[kind].draw(chance)

    def ask(self, process: Process, verb: str, full: str, effect: Callable[[], T]) -> T:
        """Make a request of a process: let time pass, have the effect, and answer or not."""
        world, faults, chance = self.world, self.faults, process.chance
        if not process.alive:
            raise Killed
        self.requests += 1
        kind, took_s = faults.draw(chance, verb), self.latency_s(chance, verb)
        world.note(f"{process.name}: {verb} {full}{f' -> {kind}' if kind else ''}")
        world.sleep(took_s / 2)
        after = bool(kind) and chance.random() < 0.5
        if kind in ("pause", "kill") and not after:
            self.strike(process, kind)
        if kind == "slow":
            world.sleep(chance.choice((1.0, 10.0, 30.0, 61.0)))
        if kind == "late":
            world.at(world.now_us + int(1e6 * chance.choice(LATE_S)), _without_answer(effect))
        if kind in ("fail", "late") or (kind == "slow" and not after):
            raise TimeoutError(errno.ETIMEDOUT, "simulated: the store did not answer", full)
        for spell in faults.spells:
            if (failure := spell.strike(verb, full, chance)) is not None:
                raise failure
        answer = effect()
        world.sleep(took_s / 2)
        if kind in ("pause", "kill") and after:
            self.strike(process, kind)
        if kind == "lost":
            raise ConnectionResetError(errno.ECONNRESET, "simulated: the answer was lost", full)
        process.spoiled += kind in ("cut", "flip")
        return self.spoil(chance, kind, answer)

    def strike(self, process: Process, kind: str) -> None:
        """End a process, or pause it."""
        if kind == "kill":
            process.kill()
            raise Killed
        process.pause(process.chance.choice(PAUSE_S))
        self.world.sleep(0)

    @staticmethod
    def spoil(chance: Random, kind: str, answer: Any) -> Any:
        """Return an answer as it arrives."""
        if kind == "denied":
            return False
        if kind == "cut" and answer:
            return answer[: chance.randrange(len(answer))]
        if kind == "flip" and answer:
            spoiled = bytearray(answer)
            spoiled[chance.randrange(len(spoiled))] ^= 1 << chance.randrange(8)
            return bytes(spoiled)
        return answer


def _without_answer(effect: Callable[[], Any]) -> Callable[[], None]:
    def have() -> None:
        with suppress(OSError):  # nobody hears of it
            effect()

    return have


class SimStorage(GatheringStorage):
    """One process's connection to a folder of the store."""

    def __init__(self, location: Location, store: Store, process: Process, **how: Any) -> None:
        super().__init__(location, **how)
        self.store = store
        self.process = process
        self.profile = FAR_PROFILE

    def __reduce__(self) -> Any:
        raise AssertionError("a storage of the simulation stays in its process")

    def sibling(self, url: str) -> Storage:
        return self.store.connect(self.process, url)

    def outer(self) -> Storage | None:
        outer, _, _ = self.location.url.rpartition("/")
        return None if outer.endswith("/") else self.sibling(outer)

    def rights(self) -> str | None:
        return None  # the read cache is the real process's, and would be shared by all actors

    def note(self, path: str, data: bytes) -> None:
        self.run("put", path, self._put, self._full(path), data)

    def _ask(self, verb: str, full: str, effect: Callable[[], T]) -> T:
        return self.store.ask(self.process, verb, full, effect)

    def _content(self, full: str) -> bytes:
        if full not in self.store.objects:
            raise FileNotFoundError(full)
        return self.store.objects[full][0]

    def _get(self, full: str, limit: int | None) -> bytes:
        content = self._ask("get", full, lambda: self._content(full))
        return content if limit is None else content[: limit + 1]

    def _get_range(self, full: str, start: int, end: int) -> bytes:
        return self._ask("get_range", full, lambda: self._content(full)[start:end])

    def _info(self, full: str) -> tuple[int, int]:
        return self._ask(
            "info", full, lambda: (len(self._content(full)), self.store.objects[full][1])
        )

    def _create(self, full: str, data: bytes) -> bool:
        def create() -> bool:
            if full in self.store.objects:
                return False
            self.store.put(full, bytes(data))
            return True

        return self._ask("create", full, create)

    def _put(self, full: str, data: bytes) -> None:
        content = bytes(data)
        self._ask("put", full, lambda: self.store.put(full, content))

    def _copies_from(self, source: CheckedStorage) -> bool:
        return isinstance(source, SimStorage)

    def _copy(self, source: Any, source_path: str, path: str, *, replace: bool) -> bool:  # noqa: ARG002
        full, target = source._full(source_path), self._full(path)

        def copy() -> bytes:
            content: bytes = source._content(full)
            self.store.put(target, content)
            return content

        # What is missing is missing in the source.
        source.resume("get", source_path, source._content, full)
        self.run("copy", path, self._ask, "copy", target, copy)
        return True

    def _list(self, folder: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        prefix = f"{folder.rstrip('/')}/{start}"
        found = self._ask("list", prefix, lambda: self._below(prefix))
        yield from found

    def _below(self, prefix: str) -> list[tuple[str, int, int]]:
        objects = self.store.objects
        assert isinstance(objects, Objects)
        found = ((name, objects[name]) for name in objects.below(prefix))
        return [(name, len(data), time_us) for name, (data, time_us) in found]

    def _peek(self, folder: str, limit: int) -> list[str] | None:
        start = folder.rstrip("/") + "/"
        found: dict[str, None] = {}
        for full, _, _ in self._list(folder):
            name, slash, _ = full.removeprefix(start).partition("/")
            found[f"{name}{slash}"] = None
            if len(found) == limit:
                break
        return [*found] or None

    def _delete(self, full: str) -> None:
        self._ask("delete", full, lambda: self.store.objects.pop(full, None))

    def ensure_exclusive(self) -> None:
        """Do nothing: the store's create is exclusive."""


def open_sim(store: Store, process: Process, url: str) -> CheckedStorage:
    """Connect a process to a folder of the store."""
    return store.connect(process, url)
