"""A crafted root named another stream as its follower, which was read, written to and emptied."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from stream_kit import DAY, make_stream, numbers, values, wait
from virtual_time import TimedStorage

from segstore_ds.errors import SegstoreError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.format.root import encode_root
from segstore_ds.log.context import StreamContext
from segstore_ds.replication.follower import PROPERTY, Replication
from segstore_ds.retention.upkeep import run_upkeep
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

STAGED = Layout(inline_bytes=0, segment_format="arrow")


def files_of(storage: Storage) -> dict[str, bytes]:
    """Return every object of a storage."""
    return {info.path: storage.get(info.path) for info in storage.list("")}


def empty() -> Storage:
    """An empty folder."""
    return open_storage(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def victim() -> Stream:
    """A stream of somebody else, on a clock."""
    stream, _ = make_stream(0)
    for start in (0, 10):
        stream.append(numbers(start, start + 10), layout=STAGED)
    return stream


def copied(victim: Stream, change: Callable[[Stream], object] = lambda _: None) -> TimedStorage:
    """A copy of the victim's folder, after a change, whose root names the victim as a follower."""
    inner = empty()
    for path, data in files_of(victim._log.storage).items():
        inner.put(path, data)
    storage = TimedStorage(inner, victim._log.storage.time, like=victim._log.storage)
    change(open_on(storage, clock=storage.time.clock))
    return storage


def names_as_follower(storage: Storage, victim: Stream) -> dict[str, str]:
    """Return the property by which a folder claims to be the primary of the victim."""
    return {PROPERTY: Replication(storage.url, (victim.url,)).to_text()}


def crafted(storage: TimedStorage, victim: Stream) -> TimedStorage:
    """Put a follow commit that nobody asked the victim about."""
    root = open_on(storage, clock=storage.time.clock)._log.root
    row = replace(
        root.history[-1], version=root.version + 1, operation="follow", rows=0, segments=0
    )
    root = replace(
        root,
        version=root.version + 1,
        parent=root.transaction,
        transaction=uuid.uuid4().hex,
        operation="follow",
        history=(*root.history, replace(row, transaction="f")),
        properties={**root.properties, **names_as_follower(storage, victim)},
        staging_floor=root.version,
    )
    storage.put(f"log/{root.version:020d}", encode_envelope(encode_root(root)))
    return storage


def assert_untouched(victim: Stream, before: dict[str, bytes]) -> None:
    """No object of the victim is another one, or gone, or new."""
    assert files_of(victim._log.storage) == before


def lose_segments(storage: Storage) -> None:
    """Delete the segments of a copy."""
    for info in list(storage.list("segments")):
        storage.delete(info.path)


READS: dict[str, Callable[[Stream], object]] = {
    "read": lambda stream: stream.read(read_cache_bytes=0).read_all(),
    "copy": lambda stream: stream.copy_to(empty().url, copy_id="c"),
    "repair": lambda stream: repair_on(stream._log.storage),
}


@pytest.mark.parametrize("name", READS)
def test_segments_are_not_read_from_a_folder_that_does_not_follow(
    victim: Stream, name: str
) -> None:
    """The copy has lost its own; the folder that it names as its follower still has them."""
    storage = crafted(copied(victim), victim)
    lose_segments(storage)
    with suppress(SegstoreError):
        READS[name](open_on(storage, clock=storage.time.clock))
    assert not list(storage.list("segments"))
    with pytest.raises(SegstoreError):
        values(open_on(storage, clock=storage.time.clock), read_cache_bytes=0)


WRITES: dict[str, Callable[[Stream], object]] = {
    "append": lambda stream: stream.append(numbers(90, 91)),
    "staged": lambda stream: stream.append(numbers(90, 91), layout=STAGED),
    "tag": lambda stream: stream.tags.set("t", 3),
    "compact": lambda stream: stream.compact(),
    "truncate": lambda stream: stream.truncate(5),
    "purge": lambda stream: stream.maintain(keep=0),
}


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_committed_to_a_folder_that_does_not_follow(
    victim: Stream, name: str, *, edited: bool
) -> None:
    """Its log is the same up to the commit that names it, so every step would fit."""
    storage, before = crafted(copied(victim), victim), files_of(victim._log.storage)
    if edited:
        storage.delete(f"log/{victim.version + 1:020d}")
        root = replace(victim._log.root, properties=names_as_follower(storage, victim))
        storage.put(f"log/{victim.version:020d}", encode_envelope(encode_root(root)))
    wait(storage, DAY)
    with pytest.raises(SegstoreError, match="can't be brought up to date") as caught:
        WRITES[name](open_on(storage, clock=storage.time.clock))
    assert "is not marked as a follower" in str(caught.value.__cause__)
    assert_untouched(victim, before)


@pytest.mark.parametrize("verb", ["upkeep", "maintain", "vacuum", "forget"])
def test_nothing_is_deleted_in_a_folder_that_does_not_follow(victim: Stream, verb: str) -> None:
    """What the copy has dropped long ago is what the victim still lists."""

    def drop(stream: Stream) -> None:
        stream.overwrite(numbers(0, 1), layout=STAGED)
        for _ in range(3):
            wait(stream._log.storage, 4 * DAY)
            stream.append(numbers(1, 2), layout=STAGED)
        stream.maintain(keep=DAY)
        stream.settings.update(upkeep=UpkeepPolicy(keep_s=0, grace_s=int(DAY)))

    storage, before = copied(victim, drop), files_of(victim._log.storage)
    storage = crafted(storage, victim)
    stream = open_on(storage, clock=storage.time.clock)
    with suppress(SegstoreError):
        if verb == "upkeep":
            run_upkeep(StreamContext.of(stream._log))
        elif verb == "maintain":
            stream.maintain()
        elif verb == "vacuum":
            stream.maintain(grace=DAY)
        else:
            stream.redact([["n", "=", 0]], columns=["s"], forget=True, short_grace=True)
    assert_untouched(victim, before)
    assert len(values(victim)) == 20
