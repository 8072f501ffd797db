"""A damaged follower: no remedy that an error or the runbook names loses what was acknowledged."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from follower_kit import Pair, Root, content, found
from stream_kit import STAGED, numbers

import segstore_ds as segstore
from segstore_ds.errors import (
    CorruptionError,
    FencedError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    StorageError,
    UnderReplicatedError,
)
from segstore_ds.repair.repair import RepairReport
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.rescue import repair as repair_on

pytestmark = pytest.mark.usefixtures("tight")

ACKNOWLEDGED = list(range(5))


@pytest.fixture
def followed(pair: Pair) -> Pair:
    """A stream with a follower: inline events, segments, status objects."""
    pair.stream.append(numbers(0, 1))
    pair.stream.followers.add(pair.follower)
    for n in range(1, 4):
        pair.stream.append(numbers(n, n + 1), layout=STAGED)
    pair.time.clock.sleep(2)  # where a hint costs a request, it is written once a second
    pair.stream.append(numbers(4, 5))
    return pair


def flip(place: int) -> Callable[[Storage, str], None]:
    """Return what flips one bit of an object."""

    def harm(storage: Storage, path: str) -> None:
        data = bytearray(storage.get(path))
        data[place] ^= 1
        storage.put(path, bytes(data))

    return harm


HARMS: dict[str, Callable[[Storage, str], None]] = {
    "header": flip(40),
    "body": flip(200),
    "end": flip(-9),
    "cut": lambda storage, path: storage.put(path, storage.get(path)[:100]),
    "blank": lambda storage, path: storage.put(path, bytes(len(storage.get(path)))),
    "lost": lambda storage, path: storage.delete(path),
}


def pick(storage: Storage, what: str) -> list[str]:
    """Return the objects of a kind."""
    if what in ("segments", "status"):
        return [info.path for info in storage.list(what)]
    files = sorted(info.path for info in storage.list("log") if "_latest" not in info.path)
    if what == "log":
        return files
    return [{"newest": files[-1], "older": files[-3], "first": files[0]}[what]]


def everything(url: str) -> dict[str, bytes]:
    """Return all objects of a folder."""
    storage = open_storage(url)
    return {info.path: storage.get(info.path) for info in storage.list("")}


def newest(url: str) -> str:
    """Return the newest commit file of a folder."""
    return pick(open_storage(url), "newest")[0]


def repair(pair: Pair, url: str, **how: Any) -> RepairReport:
    """Repair one of the two folders."""
    storage = Root(open_storage(url), pair.world, pair.time)
    return repair_on(storage, clock=pair.time.clock, **how)


REMEDIES: dict[str, Callable[[Pair], object]] = {
    "primary": lambda pair: repair(pair, pair.primary),
    "follower": lambda pair: repair(pair, pair.follower),
    "allow_loss": lambda pair: repair(pair, pair.follower, allow_loss=True),
    "both": lambda pair: repair(pair, pair.follower, allow_loss=True, allow_promoted=True),
    "add": lambda pair: pair.reopen(pair.primary).followers.add(pair.follower),
    "remove": lambda pair: pair.reopen(pair.primary).followers.remove(pair.follower),
}
CASES = [
    ("newest", "body"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            *(("newest", harm) for harm in HARMS if harm != "body"),
            *(("older", "lost"), ("first", "end"), ("segments", "end"), ("log", "blank")),
        )
    ),
    *(
        pytest.param(what, harm, marks=pytest.mark.sweep)
        for what in ("older", "first", "segments", "status", "log")
        for harm in HARMS
    ),
]


@pytest.mark.parametrize(("what", "harm"), CASES)
def test_no_remedy_for_a_damaged_follower_loses_events(
    followed: Pair, what: str, harm: str
) -> None:
    """The primary is whole, so it goes on, and no other folder takes commits beside it."""
    pair, storage = followed, open_storage(followed.follower)
    before = {url: everything(url) for url in (pair.primary, pair.follower)}
    whole = content(pair.follower)
    for name, remedy in REMEDIES.items():
        for path in pick(storage, what):
            HARMS[harm](storage, path)
        with suppress(FormatError, LookupError, StorageError, UnderReplicatedError):
            remedy(pair)
        with pytest.raises((FencedError, FormatError, LookupError)):
            pair.reopen(pair.follower).append(numbers(90, 91))
        stream = pair.reopen(pair.primary)
        assert found(stream) == ACKNOWLEDGED, name
        if (name == "primary" and (what, harm) != ("log", "lost")) or (
            name in ("follower", "both") and what != "log"
        ):
            assert content(pair.follower) == whole, name
            assert pair.reopen(pair.follower).verify().ok
            assert stream.append(numbers(5, 6)).start == 5
        for url, objects in before.items():
            folder = open_storage(url)
            for path in everything(url).keys() - objects.keys():
                folder.delete(path)
            for path, data in objects.items():
                folder.put(path, data)


@pytest.mark.parametrize("hint", [False, True])
def test_damage_that_may_hide_a_promotion_is_not_mended(followed: Pair, hint: bool) -> None:
    """The newest commit is the promotion, of which nothing is left; its hint may still tell."""
    pair, storage = followed, open_storage(followed.follower)
    taken = pair.reopen(pair.follower)
    taken.followers.promote()
    with pytest.raises(FencedError):
        pair.stream.append(numbers(5, 6))  # so that the primary has that version, too
    storage.put(newest(pair.follower), b"\0" * 900)
    if not hint:
        storage.delete("log/_latest")
    before = content(pair.follower)
    for act in (
        lambda: pair.reopen(pair.primary).append(numbers(6, 7)),
        lambda: pair.reopen(pair.primary).followers.remove(pair.follower),
        lambda: repair(pair, pair.primary),
    ):
        with suppress(FencedError, CorruptionError, StorageError):
            assert not act().ok
    assert content(pair.follower) == before
    if not hint:  # the operator says that it was not
        assert repair(pair, pair.primary, allow_promoted=True).ok
        pair.reopen(pair.primary).append(numbers(6, 7))
        assert content(pair.follower) == content(pair.primary)


def test_follower_that_lost_its_newest_commit_is_not_promoted(followed: Pair) -> None:
    """Its hint names the commit; its offset would be given out again."""
    pair = followed
    opened = pair.reopen(pair.follower)  # before the commit that is lost
    pair.reopen(pair.primary).append(numbers(6, 7))
    open_storage(pair.follower).delete(newest(pair.follower))
    pair.world.lost.add(pair.primary)
    for open_again in (lambda: opened, lambda: pair.reopen(pair.follower)):
        for _ in range(2):
            with pytest.raises(MissingObjectError, match="are gone"):
                open_again().followers.promote()
    pair.world.lost.clear()
    assert repair(pair, pair.follower).ok
    pair.reopen(pair.follower).followers.promote()
    assert found(pair.reopen(pair.follower)) == [*ACKNOWLEDGED, 6]


def test_promoted_follower_is_removed_by_name_only(followed: Pair) -> None:
    """The old primary would take commits beside it."""
    pair = followed
    taken = pair.reopen(pair.follower)
    taken.followers.promote()
    taken.append(numbers(5, 6))
    for stream in (pair.stream, pair.reopen(pair.primary)):
        with pytest.raises(FencedError, match="allow_promoted=True"):
            stream.followers.remove(pair.follower)
        with pytest.raises(FencedError):
            stream.append(numbers(6, 7))
    pair.stream.followers.remove(pair.follower, allow_promoted=True)
    assert pair.stream.append(numbers(6, 7)).rows == 1


def test_follower_that_holds_what_the_primary_lost_is_not_removed(followed: Pair) -> None:
    """Without it, the primary would give those offsets out again."""
    pair = followed
    for path in (newest(pair.primary), "log/_latest"):
        open_storage(pair.primary).delete(path)
    with pytest.raises(MissingObjectError, match="are gone"):
        pair.reopen(pair.primary).followers.remove(pair.follower)
    assert repair(pair, pair.primary).ok
    pair.reopen(pair.primary).followers.remove(pair.follower)
    assert found(pair.reopen(pair.primary)) == ACKNOWLEDGED


@pytest.mark.parametrize("lost", ["the commit that added it", "log"])
def test_commits_that_named_the_follower_are_fetched_from_it(pair: Pair, lost: str) -> None:
    """What is left does not name it, so the operator does."""
    pair.stream.append(numbers(0, 5), layout=STAGED)
    pair.time.clock.sleep(2)
    pair.stream.followers.add(pair.follower)
    whole = content(pair.primary)
    storage = open_storage(pair.primary)
    for path in [newest(pair.primary)] if lost != "log" else pick(storage, "log"):
        storage.delete(path)
    with pytest.raises((CorruptionError, LookupError), match="replica="):
        repair(pair, pair.primary)
    other = pair.another()
    segstore.create(other, numbers(0, 0).schema)
    with pytest.raises(InvalidInputError, match="is no replica of this one"):
        repair(pair, pair.primary, replica=other)
    report = repair(pair, pair.primary, replica=pair.follower)
    assert (report.ok, report.generation) == (True, 0)
    assert content(pair.primary) == whole
    pair.reopen(pair.primary).append(numbers(5, 6))
    assert content(pair.follower) == content(pair.primary)


def test_repair_beside_a_promoted_follower_is_a_report(followed: Pair) -> None:
    """It names the promoted one, instead of ending in its error."""
    followed.reopen(followed.follower).followers.promote()
    (text,) = repair(followed, followed.primary).damaged
    assert text.startswith(f"{followed.follower}: SEG_FENCED: ")
    assert repair(followed, followed.follower).ok


def test_promoted_follower_gives_no_commits_back(followed: Pair) -> None:
    """The old primary would be a stream beside it."""
    pair, storage = followed, open_storage(followed.primary)
    taken = pair.reopen(pair.follower)
    taken.followers.promote()
    for path in pick(storage, "log"):
        storage.delete(path)
    with pytest.raises(InvalidInputError, match="was promoted"):
        repair(pair, pair.primary, replica=pair.follower)
    assert pick(storage, "segments")
    assert not [info for info in storage.list("log") if "_latest" not in info.path]


def test_promoted_follower_that_does_not_answer_once_is_not_removed(followed: Pair) -> None:
    """One failed request would have made both folders primaries."""
    pair = followed
    taken = pair.reopen(pair.follower)
    taken.followers.promote()
    pair.world.lost.add(pair.follower)
    with pytest.raises(StorageError, match="can't be read"):
        pair.stream.followers.remove(pair.follower)
    pair.world.lost.clear()
    with pytest.raises(FencedError, match="allow_promoted=True"):
        pair.stream.followers.remove(pair.follower)
    with pytest.raises(FencedError):
        pair.stream.append(numbers(6, 7))
