"""Reads up to the newest version that every follower has: what was read outlives the primary."""

import pytest
from follower_kit import Pair, found
from stream_kit import numbers

from segstore_ds.errors import FencedError, InvalidInputError, StorageError, UnderReplicatedError
from segstore_ds.stream.connector.queries import MicroBatches
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("tight")


def replicated(stream: Stream) -> list[int]:
    """Return the numbers of all events that every follower has."""
    return stream.read(columns=["n"], replicated=True).read_all()["n"].to_pylist()


def commit_without_follower(pair: Pair, start: int, end: int) -> None:
    """Append events whose commit one follower never gets; it is reachable again afterwards."""
    version = pair.stream.refresh().version
    pair.world.lose_with(pair.followers[-1], after=f"log/{version + 1:020d}")
    with pytest.raises(UnderReplicatedError):
        pair.stream.append(numbers(start, end))
    pair.world.lost.clear()
    pair.world.lose_after = ""


def test_a_stream_without_followers_is_read_as_ever(pair):
    pair.stream.append(numbers(0, 3))
    assert replicated(pair.reopen(pair.primary)) == [0, 1, 2]
    assert pair.stream.position(replicated=True) == pair.stream.position()


@pytest.mark.parametrize("followers", [1, 2])
def test_replicated_read_ends_where_one_follower_ends(pair, followers):
    pair.stream.followers.add(pair.follower)
    if followers == 2:
        pair.stream.followers.add(pair.another())
    pair.stream.append(numbers(0, 3))
    commit_without_follower(pair, 3, 5)
    for stream in (pair.stream, pair.reopen(pair.primary)):
        assert found(stream) == [0, 1, 2, 3, 4]
        assert replicated(stream) == [0, 1, 2]
        position = stream.position(replicated=True)
        assert (position.offset, position.version) == (3, stream.version - 1)
        assert stream.scan(replicated=True).end == 3
    pair.reopen(pair.primary).append(numbers(5, 6))  # ships what was missing
    assert replicated(pair.stream) == [0, 1, 2, 3, 4, 5]


def test_handle_learns_what_others_shipped(pair):
    """What it remembers of a follower is older than what another process has shipped since."""
    pair.stream.followers.add(pair.follower)
    reader = pair.reopen(pair.primary)
    for n in range(3):
        pair.stream.append(numbers(n, n + 1))
        assert replicated(reader) == list(range(n + 1))


def test_follower_that_cant_be_read_is_an_error(pair):
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 3))
    reader = pair.reopen(pair.primary)
    assert replicated(reader) == [0, 1, 2]
    pair.world.lost.add(pair.follower)
    for stream in (reader, pair.reopen(pair.primary)):
        with pytest.raises(StorageError, match="can't be read"):
            replicated(stream)
        assert found(stream) == [0, 1, 2]


def test_commit_that_a_promotion_left_out_is_an_error(pair):
    """The old primary has a commit where the promoted follower has its own."""
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 3))
    pair.reopen(pair.follower).followers.promote()
    assert replicated(pair.reopen(pair.primary)) == [0, 1, 2]
    with pytest.raises(FencedError):
        pair.stream.append(numbers(3, 4))
    assert found(pair.reopen(pair.primary)) == [0, 1, 2, 3]
    with pytest.raises(FencedError):
        replicated(pair.reopen(pair.primary))


def test_a_follower_asks_the_other_followers(pair):
    pair.stream.followers.add(pair.follower)
    pair.stream.followers.add(pair.another())
    pair.stream.append(numbers(0, 3))
    commit_without_follower(pair, 3, 5)
    assert found(pair.reopen(pair.follower)) == [0, 1, 2, 3, 4]
    assert replicated(pair.reopen(pair.follower)) == [0, 1, 2]


def test_a_version_is_not_given_as_well(pair):
    with pytest.raises(InvalidInputError, match="replicated"):
        pair.stream.read(replicated=True, as_of=0)


def test_following_waits_for_the_follower(pair):
    """A poll returns nothing while the follower lacks what the primary has."""
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 3))
    follow = pair.reopen(pair.primary).follow(start="head", columns=["n"], replicated=True)
    assert next(follow)["n"].to_pylist() == [0, 1, 2]
    commit_without_follower(pair, 3, 5)
    assert follow._take() is None
    late = pair.reopen(pair.primary).follow(columns=["n"], replicated=True)
    pair.reopen(pair.primary).append(numbers(5, 6))
    for events in (follow, late):
        got = []
        while len(got) < 3:
            got += next(events)["n"].to_pylist()
        assert got == [3, 4, 5]
    commit_without_follower(pair, 6, 7)
    pair.world.lost.add(pair.follower)
    with pytest.raises(StorageError, match="can't be read"):
        next(follow)


def test_micro_batches_end_where_one_follower_ends(pair):
    """Their positions name commits that a promoted follower has."""
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 3))
    storage = pair.reopen(pair.primary)._log.storage
    batches = MicroBatches(
        storage,
        "head",
        "tail",
        fail_on_data_loss=True,
        replicated=True,
    )
    assert batches.follow().tail == 3
    commit_without_follower(pair, 3, 5)
    root = batches.follow()
    assert (root.tail, root.version, batches.available()) == (3, pair.stream.version - 1, 3)
    assert batches.end_of_batch(batches.begin(), limited=True) == 3
    pair.reopen(pair.primary).append(numbers(5, 6))
    assert batches.follow().tail == batches.available() == 6
    pair.world.lost.add(pair.follower)
    assert batches.follow().tail == 6, "nothing is new, so nothing is read"
    pair.world.lost.clear()
    commit_without_follower(pair, 6, 7)
    pair.world.lost.add(pair.follower)
    with pytest.raises(StorageError, match="can't be read"):
        batches.follow()
