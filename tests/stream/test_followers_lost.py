"""Losing any one root, at any storage call of whatever is done to a stream: nothing acknowledged
is lost, and what was not is there whole or not at all."""

import itertools

import pytest
from follower_kit import EVERY, Call, Pair, content, found, strikes
from stream_kit import STAGED, fresh_url, numbers

from segstore_ds.errors import CommitUnknownError, StorageError, UnderReplicatedError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write import segment_writer
from segstore_ds.write.layout import Layout

BUFFERS = Layout(inline_bytes=0, frame_rows=50, compression="none")


pytestmark = pytest.mark.usefixtures("tight")


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a segment take several buffers."""
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", 1024)


def with_appender(stream: Stream) -> None:
    with stream.appender(layout=BUFFERS) as appender:
        for start in range(500, 560, 20):
            appender.append(numbers(start, start + 20))


STEPS = {
    "append": lambda stream: stream.append(numbers(0, 200), layout=BUFFERS),
    "inline": lambda stream: stream.append(numbers(200, 210), writer_id="w", batch_id=1),
    "staged": lambda stream: stream.append(numbers(210, 230), layout=STAGED),
    "compact": lambda stream: stream.compact(),
    "truncate": lambda stream: stream.truncate(50),
    "overwrite": lambda stream: stream.overwrite(numbers(300, 320), layout=BUFFERS),
    "restore": lambda stream: stream.restore(stream.version - 1),
    "appender": with_appender,
    "purge": lambda stream: stream.maintain(keep=86_400),
    "vacuum": lambda stream: stream.maintain(grace=0, short_grace=True),
    "after": lambda stream: stream.append(numbers(600, 610)),
}


# What puts segments and what retires them; -m slow runs the other steps.
IN_A_CHANGE = ("append", "compact")


def begin(followers: int) -> Pair:
    pair = Pair()
    pair.stream.followers.add(pair.follower)
    for _ in range(followers - 1):
        pair.stream.followers.add(pair.another())
    return pair


def step(pair: Pair, name: str) -> None:
    if name in ("purge", "vacuum"):
        pair.time.advance(40 * 86_400.0)
    STEPS[name](pair.stream)


def test_followers_stay_the_same_folder_whatever_is_done():
    pair, held = begin(3), {}
    for name in STEPS:
        step(pair, name)
        held[name] = found(pair.stream)
        whole = content(pair.primary)
        for url in pair.followers:
            assert content(url).keys() == whole.keys(), name
            assert content(url) == whole, name
    assert held["after"][-10:] == list(range(600, 610))
    assert held["restore"] != held["overwrite"]


def discard(storage: Storage) -> None:
    """Delete every object of a folder."""
    for info in list(storage.list("")):
        storage.delete(info.path)


class Snapshot:
    """What all roots hold at a time, to go back to."""

    def __init__(self, pair: Pair) -> None:
        self._now_us = pair.time.now_us
        self._objects = {}
        for url in (pair.primary, *pair.followers):
            storage = open_storage(url)
            names = [info.path for info in storage.list("")]
            self._objects[url] = {name: storage.get(name) for name in names}

    def put_back(self, pair: Pair) -> None:
        """Go back to it, with a new handle."""
        pair.world.lost.clear()
        pair.time.now_us = self._now_us
        for url, objects in self._objects.items():
            storage = open_storage(url)
            discard(storage)
            for path, data in objects.items():
                storage.put(path, data)
        pair.stream = pair.reopen(pair.primary)


def lose(pair: Pair, name: str, victims: list[str], lose_at: int) -> bool:
    """Do a step while roots are lost with one of its calls; tell whether it was acknowledged."""
    calls = itertools.count(1)
    pair.world.watch = lambda *_: next(calls) == lose_at and pair.world.lost.update(victims)
    try:
        step(pair, name)
    except (StorageError, CommitUnknownError, UnderReplicatedError):
        return False
    finally:
        pair.world.watch = lambda *_: None
    return True


def prepare(name: str) -> tuple[Pair, Snapshot, list[list[int]], list[Call]]:
    """Return a stream before a step, its events before and after the step, and its calls."""
    pair = begin(2)
    for earlier in itertools.takewhile(lambda each: each != name, STEPS):
        step(pair, earlier)
    before, snapshot = found(pair.stream), Snapshot(pair)
    snapshot.put_back(pair)
    with pair.world.noted() as calls:
        step(pair, name)
    assert len(calls) > 8
    return pair, snapshot, [before, found(pair.stream)], calls


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("which", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in IN_A_CHANGE)) for name in STEPS],
)
def test_losing_a_root_at_any_call_loses_no_acknowledged_event(which, name, every):
    """If the primary is lost a follower is promoted; if a follower is lost it is removed."""
    pair, snapshot, states, calls = prepare(name)
    victim = (pair.primary, *pair.followers)[which]
    for lose_at in strikes(calls, every=every):
        snapshot.put_back(pair)
        acknowledged = lose(pair, name, [victim], lose_at)
        assert pair.world.lost
        possible = states[1:] if acknowledged else states
        for url in pair.followers if which == 0 else [pair.primary]:
            left = pair.reopen(url)
            if which == 0:
                left.followers.promote()
            else:
                left.followers.remove(victim, allow_promoted=True)
            assert found(left) in possible, (lose_at, url)
            assert left.verify().ok, (lose_at, url)
            left.append(numbers(700, 701))
            assert found(left)[-1] == 700
            if which == 0:  # the other one is promoted only if this one is given up
                discard(open_storage(url))
        if which:  # what was put for a commit that never came about is no part of the stream
            left_over = left.verify().leftovers
            held, whole = (
                {path: data for path, data in content(url).items() if path not in left_over}
                for url in (pair.follower, pair.primary)
            )
            assert held == whole, lose_at


def promoted_copy(pair: Pair, url: str) -> Stream:
    """Promote a copy of a follower's folder."""
    copy = open_storage(fresh_url())
    for path, data in content(url).items():
        copy.put(path, data)
    stream = open_on(copy, clock=pair.time.clock)
    stream.followers.promote()
    return stream


@pytest.mark.parametrize("name", ["append", pytest.param("inline", marks=pytest.mark.slow)])
def test_process_may_die_at_any_call(name):
    """Nothing is half there, and replicated reads see no event that a promotion leaves out."""
    pair, snapshot, states, calls = prepare(name)
    phantoms = 0
    for die_at in strikes(calls, every=False):
        snapshot.put_back(pair)
        acknowledged = lose(pair, name, [pair.primary, *pair.followers], die_at)
        pair.world.lost.clear()
        primary = pair.reopen(pair.primary)
        seen, kept = found(primary), primary.read(columns=["n"], replicated=True).read_all()["n"]
        assert seen in (states[1:] if acknowledged else states)
        for url in pair.followers:
            promoted = promoted_copy(pair, url)
            left = found(promoted)
            assert left in states
            assert promoted.verify().ok
            assert not {*left} - {*seen}, "a follower never has what the primary has not"
            assert not {*kept.to_pylist()} - {*left}, die_at
            phantoms += len({*seen} - {*left})
        # The next writer ships what is missing, and the places are the same again.
        primary.append(numbers(700, 701))
        listed = {path for path in content(pair.primary) if not path.startswith("segments/")}
        for url in pair.followers:
            assert found(pair.reopen(url)) == found(primary)
            assert listed <= content(url).keys()
    assert phantoms > 0
