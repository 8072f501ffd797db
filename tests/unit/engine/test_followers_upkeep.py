"""What is done to a stream with followers: afterwards they are the same folder."""

import pytest

from segstore_ds.errors import UnderReplicatedError
from tests.follower_kit import Pair, content, found
from tests.stream_kit import STAGED, TIGHT, numbers


@pytest.fixture(autouse=True)
def _tight(monkeypatch):
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_compaction_that_a_follower_lacks_keeps_what_it_wrote(pair):
    """It is in the primary's log: to delete what it wrote would lose the events."""
    for n in range(4):
        pair.stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    pair.stream.add_follower(pair.follower)
    version = pair.stream.version
    pair.world.lose_with(pair.follower, after=f"log/{version + 1:020d}")
    with pytest.raises(UnderReplicatedError):
        pair.stream.compact()
    assert found(pair.reopen(pair.primary)) == list(range(40))
    assert pair.reopen(pair.primary).verify().ok
    pair.world.lost.clear()
    pair.reopen(pair.primary).append(numbers(40, 41))
    assert found(pair.reopen(pair.follower)) == list(range(41))
    assert content(pair.follower) == content(pair.primary)
