"""What a follower is copied from: what the stream lists, compared with what its metadata says."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import fsspec
import pytest
from follower_kit import Pair, Root, content, found
from stream_kit import STAGED, numbers

from segstore_ds.errors import (
    CorruptionError,
    FencedError,
    FormatError,
    StorageError,
    UnderReplicatedError,
)
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("tight")

T = TypeVar("T")


class Noisy(Root):
    """A root of which one read of each object has a wrong bit: the n-th of those below `wanted`."""

    def __init__(self, pair: Pair, wanted: str, *, nth: int, place: int) -> None:
        super().__init__(open_storage(pair.primary), pair.world, pair.time)
        self.wanted, self.nth, self.place = wanted, nth, place
        self.reads: dict[str, int] = {}

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        done = super().around(verb, path, work)
        if not isinstance(done, bytes) or not path.startswith(self.wanted):
            return done
        self.reads[path] = self.reads.get(path, 0) + 1
        if self.reads[path] != self.nth:
            return done
        changed = bytearray(done)
        changed[self.place % len(changed)] ^= 1
        return bytes(changed)  # type: ignore[return-value]


def until_done(storage: Root, act: Callable[[Stream], object]) -> None:
    """Do something with new handles until it succeeds."""
    for _ in range(30):
        with suppress(FormatError, StorageError, UnderReplicatedError):
            act(open_on(storage, clock=storage.time.clock))
            return
    pytest.fail("it never succeeded")


def grow(stream: Stream, start: int, end: int) -> None:
    """Append one event at a time: segments, and inline events in between."""
    for n in range(start, end):
        stream.append(numbers(n, n + 1), layout=STAGED if n % 3 else None)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("wanted", ["log/", "status/", "segments/"])
def test_wrong_bit_in_a_read_is_not_stored_in_a_new_follower(wanted: str, nth: int) -> None:
    for place in (120, -9):
        pair = Pair()
        grow(pair.stream, 0, 3)
        pair.stream.tags.set("v1", keep=True)
        pair.stream.truncate("tail")  # the root lists them no more
        grow(pair.stream, 3, 6)
        storage = Noisy(pair, wanted, nth=nth, place=place)
        until_done(storage, lambda stream, url=pair.follower: stream.followers.add(url))
        assert storage.reads
        assert content(pair.follower) == content(pair.primary)
        assert pair.reopen(pair.follower).verify().ok


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("wanted", ["log/", "status/", "segments/"])
def test_wrong_bit_in_a_read_is_not_shipped_with_a_commit(
    pair: Pair, wanted: str, nth: int
) -> None:
    """The next writer ships what the one before could not."""
    pair.stream.followers.add(pair.follower)
    grow(pair.stream, 0, 7)
    version = pair.stream.version
    kept = [f"log/{number:020d}" for number in range(version - 2)]
    for path in content(pair.follower).keys() - set(kept):  # as if all else came only now
        open_storage(pair.follower).delete(path)
    storage = Noisy(pair, wanted, nth=nth, place=-9)
    until_done(storage, lambda stream: stream.outcome(pair.stream._log.root.transaction))
    there = content(pair.follower)
    assert {path: content(pair.primary)[path] for path in there} == there
    assert f"log/{version:020d}" in there


def test_a_file_that_a_killed_writer_left_does_not_stop_an_addition(pair: Pair) -> None:
    """No version lists it: an empty file and a part of one, as a kill on a disk leaves them."""
    grow(pair.stream, 0, 3)
    primary = open_storage(pair.primary)
    killed = "segments/00000000000000000003-aaaaaaaaaaaa"
    primary.put(f"{killed}/0-0-0.parquet", b"PAR1")
    fsspec.filesystem("memory").pipe_file(f"{pair.primary}/{killed}/0-0-1.parquet", b"")
    primary.put("status/00000000000000000003-segments-0123456789abcdef01234567", b"v1\n")
    pair.stream.followers.add(pair.follower)
    assert content(pair.follower).keys() < content(pair.primary).keys()
    assert pair.reopen(pair.follower).verify().leftovers == []


class Meddled(Root):
    """A root that calls `meddle` before each of its calls, and of those to its siblings."""

    def __init__(self, inner: Storage, pair: Pair, meddle: Callable[[], None]) -> None:
        super().__init__(inner, pair.world, pair.time)
        self.pair, self.meddle = pair, meddle

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        self.meddle()
        return super().around(verb, path, work)

    def sibling(self, url: str) -> Storage:
        other = Meddled(self.inner.sibling(url), self.pair, self.meddle)
        other.url = url
        return other


def test_a_follower_is_added_again_while_others_append() -> None:
    """An interrupted call is repeated; whichever of its calls a commit and its shipping precede."""
    for strike in range(1, 200):
        pair, calls = Pair(), list[int]()
        pair.stream.followers.add(pair.follower)
        other = pair.reopen(pair.primary)

        def meddle(calls: list[int] = calls, strike: int = strike, other: Stream = other) -> None:
            calls.append(0)
            if len(calls) == strike:
                other.append(numbers(0, 1))

        storage = Meddled(open_storage(pair.primary), pair, meddle)
        open_on(storage, clock=pair.time.clock).followers.add(pair.follower)
        assert content(pair.follower) == content(pair.primary)
        if len(calls) < strike:
            break
    assert 5 < strike < 199


def test_objects_that_go_while_a_follower_is_added_are_left_out(pair: Pair) -> None:
    """They are replaced, and deleted after a short grace, between the look and the copy."""
    grow(pair.stream, 0, 6)
    other, gone = pair.reopen(pair.primary), list[str]()

    def replace(url: str, verb: str, _path: str) -> None:
        if (url, verb) == (pair.follower, "open_scattered") and not gone:
            gone.extend(info.path for info in open_storage(pair.primary).list("segments"))
            other.overwrite(numbers(10, 12), layout=STAGED)
            for each in gone:
                open_storage(pair.primary).delete(each)

    pair.world.watch = replace
    pair.stream.followers.add(pair.follower)
    assert len(gone) > 2
    assert found(pair.reopen(pair.follower)) == [10, 11]
    assert pair.reopen(pair.follower).followers == (pair.follower,)


def test_damaged_segment_is_not_given_to_a_new_follower(tmp_path) -> None:
    """Where the filesystem could copy it by itself, too; one that is retired is left out."""
    primary, follower = open_storage(tmp_path / "p"), open_storage(tmp_path / "f")
    stream = create_on(primary, numbers(0, 0).schema)
    stream.append(numbers(0, 500), layout=STAGED)
    [old] = primary.list("segments")
    stream.overwrite(numbers(500, 1000), layout=STAGED)
    [new] = {info.path for info in primary.list("segments")} - {old.path}
    for path in (old.path, new):
        data = primary.get(path)
        primary.put(path, data[:90] + bytes([data[90] ^ 1]) + data[91:])
        if path != old.path:
            with pytest.raises(CorruptionError):
                stream.followers.add(follower.url)
            primary.put(path, data)
    stream.followers.add(follower.url)
    assert found(open_on(follower)) == list(range(500, 1000))


def test_addition_that_must_fail_copies_nothing(pair: Pair) -> None:
    """On a follower, on a primary that was superseded, and beside a follower that is away."""
    grow(pair.stream, 0, 3)
    pair.stream.followers.add(pair.follower)
    another = pair.another()
    with pytest.raises(FencedError):
        pair.reopen(pair.follower).followers.add(another)
    pair.world.lost.add(pair.follower)
    with pytest.raises(StorageError, match="can't be brought up to date"):
        pair.stream.followers.add(another)
    pair.world.lost.clear()
    pair.reopen(pair.follower).followers.promote()
    for stream in (pair.stream, pair.reopen(pair.primary)):
        with pytest.raises(FencedError):
            stream.followers.add(another)
    assert content(another) == {}


def test_full_disk_of_a_follower_is_not_retryable(pair: Pair) -> None:
    """As without followers: it lasts until somebody acts."""
    pair.stream.followers.add(pair.follower)

    def full(url: str, verb: str, _path: str) -> None:
        if url == pair.follower and verb.startswith("open_s"):
            error = StorageError("filesystem failed", url=url)
            error.refuse_retry("the disk is full: free space, then repeat")
            raise error

    pair.world.watch = full
    with pytest.raises(StorageError, match="nothing was committed") as caught:
        pair.stream.append(numbers(0, 1), layout=STAGED)
    assert not caught.value.retryable
    pair.world.watch = lambda *_: None
    pair.world.lost.add(pair.follower)
    with pytest.raises(StorageError, match="nothing was committed") as caught:
        pair.stream.append(numbers(0, 1), layout=STAGED)
    assert caught.value.retryable
