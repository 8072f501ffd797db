"""What lives of the simulation have found, each by the seed of that day.

Calls that sleep between two requests while others go on, bits that flip in reads, and operators who
do the same at once.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from latest_kit import KEY, Faulty, Timed
from latest_kit import SCHEMA as USERS
from latest_kit import rows as users
from stream_kit import HOUR, SCHEMA, STAGED, Meddling, make_stream, numbers, wait
from virtual_time import VirtualTime
from wrapped_storage import WrappedStorage

from segstore_ds.errors import AlreadyExistsError, SchemaMismatchError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")


def asleep(storage, call, others):
    """Return a handle that sleeps before a call, once its `met` is reset, while others go on."""
    meddling = Meddling(storage, call, others)
    meddling.met = True
    return open_on(meddling, clock=storage.time.clock), meddling


def forget_versions(stream, storage):
    """Commit for hours, and forget what was there."""
    for n in range(4):
        wait(storage, 2 * HOUR)
        stream.append(numbers(900 + n, 901 + n))
    stream.maintain(keep="1h")


def test_verify_lists_again_when_the_newest_version_was_forgotten():
    """Seed 50117: all versions that it had listed were gone, and it called that damage."""
    stream, storage = make_stream(3)
    others = partial(forget_versions, stream, storage)
    sleeper, meddling = asleep(storage, f"get log/{3:020d}", others)
    meddling.met = False
    report = sleeper.verify()
    assert meddling.met
    assert report.check().rows == stream.tail


def test_verify_slept_while_its_newest_version_and_its_segments_went():
    """Seed 20261129343: objects that retention had rightly deleted were called missing."""
    stream, storage = make_stream(1)
    stream.append(numbers(10, 500), layout=STAGED)

    def others():
        stream.truncate(stream.tail)
        forget_versions(stream, storage)
        stream.maintain(grace="10m", short_grace=True)

    sleeper, meddling = asleep(storage, "get_range segments/", others)
    meddling.met = False
    report = sleeper.verify()
    assert meddling.met
    assert report.check().rows == stream.tail - stream.head


def test_verify_that_slept_reports_what_its_next_version_lacks():
    """The newest version that it listed is gone, but not the need for the object."""
    stream, storage = make_stream(1)
    stream.append(numbers(10, 500), layout=STAGED)
    (lost,) = [info.path for info in storage.list("segments")]

    def others():
        storage.delete(lost)
        forget_versions(stream, storage)

    sleeper, meddling = asleep(storage, "get_range segments/", others)
    meddling.met = False
    assert [problem.where for problem in sleeper.verify().problems] == [lost]
    assert meddling.met


def test_maintain_goes_on_when_others_forgot_the_versions():
    """Seed 50058: it raised MissingObjectError for a version that was rightly gone."""
    stream, storage = make_stream(4)
    sleeper, meddling = asleep(storage, "info log/0", partial(forget_versions, stream, storage))
    meddling.met = False
    sleeper.maintain(keep="1h")
    assert meddling.met
    assert sleeper.verify().ok


def test_a_member_waits_when_others_went_on_behind_its_root():
    """Seed 50049: it got PositionError, since its range began behind the tail that it knew."""
    stream, storage = make_stream(1)
    other = stream.follow("team", member="b", start="head", timeout=0)

    def others():
        stream.append(numbers(10, 30))
        assert sum(batch.num_rows for batch in other) == 30

    sleeper, meddling = asleep(storage, "list readers/team", others)
    follow = sleeper.follow("team", member="a", timeout=0)
    wait(storage, 10)
    meddling.met = False
    assert next(follow, None) is None
    assert meddling.met
    stream.append(numbers(30, 35))
    assert sum(batch.num_rows for batch in sleeper.follow("team", member="a", timeout=0)) == 5


def test_a_member_that_slept_is_not_told_that_its_events_are_gone():
    """Seed 70014: others had done its range, and retention let it go: it got TruncatedError."""
    stream, storage = make_stream(1)

    def others():
        other = stream.follow("team", member="b", timeout=60, lease=5)
        assert next(other).num_rows == 10
        stream.append(numbers(10, 12))
        assert next(other).num_rows == 2
        stream.retain()
        assert stream.head == 10

    sleeper, meddling = asleep(storage, "get log/", others)
    slept = sleeper.follow("team", member="a", start="head", timeout=0, lease=5)
    meddling.met = False
    assert next(slept, None) is None
    assert meddling.met


def test_late_write_does_not_add_some_columns_and_lose_others():
    """Seed 20270128001: a restore had taken two columns away, one of them under a new name."""
    stream, storage = make_stream(2)
    before = stream.version
    event = {"n": 7, "c": "c", "d": "d"}
    stream.append({**event, "n": 6}, merge_schema=True)
    late = open_on(storage, clock=storage.time.clock)
    stream.change_schema(rename={"c": "c2"})
    stream.restore(before)
    with pytest.raises(SchemaMismatchError, match="write again"):
        late.append(event, merge_schema=True)
    late.refresh().append(event, merge_schema=True)
    assert late.read(late.tail - 1).read_all().to_pylist() == [{**event, "s": None}]
    assert late.verify().problems == []


class Interrupted(WrappedStorage):
    """Storage before whose n-th request something else happens, or of the place beside it."""

    left = 0
    then: Callable[[], object] = staticmethod(lambda: None)

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        self.left -= 1
        if not self.left:
            self.then()
        return super().around(verb, path, work)

    def sibling(self, url: str) -> "Interrupted":
        self.follower.inner, self.follower.url = self.inner.sibling(url), url
        return self.follower


@pytest.mark.parametrize("request_number", range(1, 8))
def test_two_operators_add_one_folder_at_once(request_number):
    """Seed 2: one was told that the folder held the last commits of a dropped stream.

    The second does all of it before one of the first one's first requests to the folder.
    """
    create_on("memory://two/stream", SCHEMA)
    storage, other = Interrupted(open_storage("memory://two/stream")), "memory://two/copy"
    storage.follower = Interrupted(open_storage(other))
    storage.follower.left = request_number
    storage.follower.then = lambda: open_on("memory://two/stream").followers.add(other)
    stream = open_on(storage)
    stream.followers.add(other)
    assert stream.refresh().followers == (other,)
    assert open_on(other).version == stream.version


def test_copy_that_lacks_forgotten_versions_becomes_no_follower():
    """Seed 20270118001: who added it slept, and left a commit; each further try said: repair it."""
    stream, storage = make_stream(3)
    old = f"{stream.url}-follower"
    stream.back_up(old)
    path = f"log/{stream.version:020d}"
    left = storage.get(path)
    forget_versions(stream, storage)
    assert storage.create(path, left)
    with pytest.raises(AlreadyExistsError, match="give an empty folder"):
        stream.followers.add(old)
    assert stream.followers == ()
    stream.followers.add(f"{old}-2")
    assert stream.append(numbers(0, 1)).end == stream.tail


class Removing(Faulty):
    """A storage at whose n-th call another program removes the table."""

    left = -1

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        self.left -= 1
        if not self.left:
            open_on(self.inner, clock=self.inner.time.clock).published.remove_latest()
        return super().around(verb, path, work)


@pytest.mark.parametrize("call", [25, 40, 55])
def test_maintain_passes_a_table_that_is_removed_meanwhile(call):
    """Seed 93366."""
    time = VirtualTime(1)
    storage = Removing(Timed(open_storage("memory://removed/s"), time))
    stream = create_on(storage, USERS, clock=time.clock)
    stream.append(users(("ada", 1, False)))
    stream.publish("delta", latest_by=KEY, auto=True)
    stream.append(users(("bob", 2, False)))
    storage.left = call
    stream.maintain()
    assert not stream.refresh().published.latest


class Flipping(WrappedStorage):
    """Flips a bit in the n-th read of a commit."""

    left = 0

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        answer = work()
        if verb == "get" and path.startswith("log/0") and isinstance(answer, bytes):
            self.left -= 1
            if not self.left:
                return answer[:70] + bytes([answer[70] ^ 1]) + answer[71:]  # type: ignore[return-value]
        return answer


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_backup_goes_on_after_a_flipped_bit(number):
    """Seed 20261129333: it is no other stream's commit."""
    stream, _ = make_stream(1)
    backup = Flipping(open_storage("memory://flipped-backup"))
    stream.back_up(backup)
    stream.append(numbers(10, 20))
    backup.left = number
    assert stream.back_up(backup).tail == 20
    assert open_on(backup.inner).read().read_all()["n"].to_pylist() == list(range(20))
