"""A primary and two followers that finish in any order, and a process that dies at any step."""

import itertools
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress

import pytest
from faults import Crash
from follower_kit import content, found
from stream_kit import SCHEMA, STAGED, numbers
from wrapped_storage import WrappedStorage

from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.usefixtures("tight")
# The orders of the primary and its followers. A commit without segments comes to the primary first,
# so two orders are all that it has; the slow suite runs all but one.
CASES = [
    pytest.param((2, 1, 0), Layout(), id="inline-2-1-0"),
    pytest.param((0, 1, 2), Layout(), id="inline-0-1-2", marks=pytest.mark.slow),
    *(
        pytest.param(order, STAGED, id="segment-{}-{}-{}".format(*order), marks=pytest.mark.slow)
        for order in itertools.permutations(range(3))
    ),
]
DEADLOCK_S = 300


class Order:
    """Lets places finish what they do at once in a given order; the process dies at its n-th call.

    That call and all later ones raise `Crash`.
    """

    def __init__(self, urls: list[str], primary: str, crash_at: int) -> None:
        self.calls = 0
        self.crashed = False
        self.finished: list[tuple[str, str, str]] = []
        self._urls, self._primary, self._crash_at = urls, primary, crash_at
        self._changed = threading.Condition()

    def pass_on(self, url: str, verb: str, path: str, work: Callable[[], object]) -> object:
        """Make a call when the places before this one have made the same."""
        call = (verb, path)
        before = [(each, *call) for each in self._before(url, verb, path)]
        with self._changed:
            while not self.crashed and not {*before} <= {*self.finished}:
                assert self._changed.wait(DEADLOCK_S), f"{url} waits to {verb} {path}"
            self.calls += 1
            self.crashed = self.crashed or self.calls == self._crash_at
            self._changed.notify_all()
            if self.crashed:
                raise Crash(f"at call {self.calls}: {verb} {path}")
        done = work()
        with self._changed:
            self.finished.append((url, *call))
            self._changed.notify_all()
        return done

    def _before(self, url: str, verb: str, path: str) -> list[str]:
        earlier = self._urls[: self._urls.index(url)]
        if verb == "commit" and path.startswith("segments/"):
            return earlier
        if verb == "create" and path.startswith("log/") and url != self._primary:
            # The primary's commit comes first in every order.
            return [self._primary, *(each for each in earlier if each != self._primary)]
        return []


class Ordered(WrappedStorage):
    """A place whose calls wait for their turn."""

    def __init__(self, inner: Storage, order: Order) -> None:
        super().__init__(inner)
        self.order = order

    def around(self, verb, path, work):
        return self.order.pass_on(self.url, verb, path, work)

    def copy_from(self, *_, **__):
        return False  # places of different stores

    def sibling(self, url):
        return Ordered(self.inner.sibling(url), self.order)


class Places:
    """A stream with two followers, and one writer that dies at its n-th call."""

    def __init__(self, order: tuple[int, ...], crash_at: int) -> None:
        self.clock = BRIEF_CLOCK
        self.primary, *self.followers = (
            open_storage(f"memory://{uuid.uuid4().hex}").url for _ in range(3)
        )
        first = create_on(open_storage(self.primary), SCHEMA, clock=self.clock)
        for url in self.followers:
            first.followers.add(url)
        first.append(numbers(0, 10))
        self.urls = [self.primary, *self.followers]
        ranked = [self.urls[place] for place in order]
        self.order = Order(ranked, self.primary, 0)
        self.stream = open_on(Ordered(open_storage(self.primary), self.order), clock=self.clock)
        self.stream.append(numbers(10, 20))  # from now on it knows what the followers hold
        self.order.calls, self.order._crash_at = 0, crash_at
        self.order.finished.clear()

    def reopen(self, url: str) -> Stream:
        """Return a handle of another process."""
        return open_on(open_storage(url), clock=self.clock)

    def promoted_copy(self, url: str) -> Stream:
        """Promote a copy of a follower's folder."""
        copy = open_storage(f"memory://{uuid.uuid4().hex}")
        for path, data in content(url).items():
            copy.put(path, data)
        stream = open_on(copy, clock=self.clock)
        stream.followers.promote()
        return stream


@pytest.mark.parametrize(("order", "layout"), CASES)
def test_process_may_die_at_any_call_in_any_order_of_arrival(order, layout):
    """Nothing is half there, and replicated reads see no event that a promotion leaves out."""
    before, after = list(range(20)), list(range(30))
    phantoms, crash_at = 0, 0
    while True:
        crash_at += 1
        places = Places(order, crash_at)
        with suppress(Crash):
            places.stream.append(numbers(20, 30), layout=layout)
        if not places.order.crashed:
            break
        seen, kept = found(places.reopen(places.primary)), replicated(places.reopen(places.primary))
        assert seen in (before, after)
        for follower in places.followers:
            promoted = places.promoted_copy(follower)
            left = found(promoted)
            assert left in (before, after)
            assert not {*left} - {*seen}, "a follower never has what the primary has not"
            assert not {*kept} - {*left}, crash_at
            assert promoted.verify().ok
            phantoms += len({*seen} - {*left})
        # The next writer ships what is missing, and the places are the same again.
        places.reopen(places.primary).append(numbers(30, 31))
        assert places.reopen(places.primary).verify().ok
        listed = {path for path in content(places.primary) if not path.startswith("segments/")}
        for follower in places.followers:
            theirs = content(follower)
            assert {path: theirs[path] for path in listed} == {
                path: data for path, data in content(places.primary).items() if path in listed
            }
            assert found(places.reopen(follower)) == found(places.reopen(places.primary))
    assert crash_at > 10
    assert phantoms > 0
    arrived = [url for url, verb, path in places.order.finished if verb == "commit"]
    assert arrived == ([places.urls[place] for place in order] if layout is STAGED else [])
    for follower in places.followers:
        assert content(follower) == content(places.primary)


def replicated(stream: Stream) -> list[int]:
    return stream.read(columns=["n"], replicated=True).read_all()["n"].to_pylist()


class Raced(WrappedStorage):
    """A primary in which a rival commits just before a commit is put."""

    def __init__(self, inner: Storage, path: str, rival: Callable[[], object]) -> None:
        super().__init__(inner)
        self.path, self.rival = path, rival

    def around(self, verb, path, work):
        if (verb, path) == ("create", self.path):
            self.path = ""
            self.rival()
        return work()


def test_lost_race_leaves_no_commit_in_a_follower():
    """Its objects are in the followers by then: they go there before the race is decided."""
    places = Places((0, 1, 2), 0)
    rival, version = places.reopen(places.primary), places.stream.version + 1
    raced = Raced(
        open_storage(places.primary),
        f"log/{version:020d}",
        lambda: rival.append(numbers(30, 40), layout=STAGED),
    )
    commit = open_on(raced, clock=places.clock).append(numbers(20, 30), layout=STAGED)
    assert (commit.version, commit.attempts) == (version + 1, 2)
    for follower in places.followers:
        assert content(follower) == content(places.primary)
        assert found(places.reopen(follower)) == [*range(20), *range(30, 40), *range(20, 30)]
