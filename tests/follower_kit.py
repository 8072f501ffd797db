"""A stream with a follower, each of which can be lost at a chosen call."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from stream_kit import SCHEMA
from virtual_time import TimedStorage, VirtualTime
from wrapped_storage import WrappedStorage

from segstore_ds.errors import StorageError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

Call = tuple[str, str, str]
# At which calls a root is lost: the sweep takes all of them, and minutes.
EVERY = [
    pytest.param(False, id="first-and-last"),
    pytest.param(True, id="every", marks=pytest.mark.sweep),
]


def strikes(calls: list[Call], *, every: bool) -> list[int]:
    """Return the numbers of all calls, or of the first and last of each root, verb and folder."""
    kinds: dict[Call, list[int]] = {}
    for number, (url, verb, path) in enumerate(calls, 1):
        kinds.setdefault((url, verb, path.partition("/")[0]), []).append(number)
    ends = {end for numbers in kinds.values() for end in (numbers[0], numbers[-1])}
    return [number for number in range(1, len(calls) + 1) if every or number in ends]


class World:
    """Roots that can be lost: nothing reaches them any more; no store copies between them."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.aliases: dict[str, str] = {}  # names, and the place that they stand for
        self._counting = threading.RLock()  # places are asked at the same time
        self.victim = ""
        self.lose_after = ""
        self.lose_at_call = ""
        self.watch: Callable[[str, str, str], object] = lambda *_: None

    @contextmanager
    def noted(self) -> Iterator[list[Call]]:
        """Give the list of all calls made meanwhile."""
        calls: list[Call] = []
        self.watch = lambda *call: calls.append(call)
        yield calls
        self.watch = lambda *_: None

    def lose_with(self, url: str, *, after: str) -> None:
        """Lose a root as soon as an object has been created in another one."""
        self.victim, self.lose_after = url, after

    def lose_before(self, url: str, call: str) -> None:
        """Lose a root with the first such call to it: ``verb path``, a prefix is enough."""
        self.victim, self.lose_at_call = url, call

    def tick(self, url: str, verb: str, path: str) -> None:
        """Note a call, lose the victim with it if it is the one, and refuse what goes to it."""
        with self._counting:
            self.watch(url, verb, path)
            call = f"{verb} {path}"
            if self.lose_at_call and url == self.victim and call.startswith(self.lose_at_call):
                self.lose_at_call = ""
                self.lost.add(url)
        if url in self.lost:
            raise StorageError("root is lost", url=url)


class Root(WrappedStorage):
    """A root of a world."""

    def __init__(self, inner: Storage, world: World, time: VirtualTime) -> None:
        super().__init__(TimedStorage(inner, time))
        self.world = world
        self.time = time

    def around(self, verb, path, work):
        self.world.tick(self.url, verb, path)
        done = work()
        world = self.world
        if (verb, path) == ("create", world.lose_after) and self.url != world.victim:
            world.lost.add(world.victim)
        return done

    def copy_from(
        self,
        source: Storage,  # noqa: ARG002
        source_path: str,  # noqa: ARG002
        path: str,
        *,
        replace: bool = False,  # noqa: ARG002
    ) -> bool:
        return self.around("copy_from", path, lambda: False)

    def sibling(self, url: str) -> Storage:
        other = Root(self.inner.sibling(self.world.aliases.get(url, url)), self.world, self.time)
        other.url = url
        return other


class Pair:
    """A stream, and the folder that is to follow it."""

    def __init__(self) -> None:
        self.world = World()
        self.time = VirtualTime(1)
        self.primary, self.follower = (f"memory://{uuid.uuid4().hex}" for _ in range(2))
        storage = Root(open_storage(self.primary), self.world, self.time)
        self.primary = storage.url
        self.follower = open_storage(self.follower).url
        self.stream = create_on(storage, SCHEMA, clock=self.time.clock)

        self.followers = [self.follower]

    def another(self) -> str:
        """Return the location of one more follower."""
        self.followers.append(open_storage(f"memory://{uuid.uuid4().hex}").url)
        return self.followers[-1]

    def reopen(self, url: str) -> Stream:
        """Return a new handle on one of the two."""
        return open_on(Root(open_storage(url), self.world, self.time), clock=self.time.clock)


def content(url: str) -> dict[str, bytes]:
    """Return all objects of a folder, hints aside."""
    storage = open_storage(url)
    return {
        info.path: storage.get(info.path)
        for info in storage.list("")
        if not info.path.endswith("_latest")
    }


def found(stream: Stream) -> list[int]:
    """Return the numbers of all events."""
    return stream.read(columns=["n"]).read_all()["n"].to_pylist()
