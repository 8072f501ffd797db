"""Crafted roots: of streams that never agreed to follow, and with values that can't be.

A root named another stream as its follower, which was read, written to and emptied. Properties that
are no texts, and times after the year 9999, ended in untyped errors.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from stream_kit import DAY, make_stream, numbers, values, wait
from virtual_time import TimedStorage

from segstore_ds.errors import FormatError, SegstoreError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.format.root import encode_root
from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.log.context import StreamContext
from segstore_ds.replication.follower import PROPERTY, Replication
from segstore_ds.retention.upkeep import run_upkeep
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

STAGED = Layout(inline_bytes=0, segment_format="arrow")


def files_of(storage: Storage) -> dict[str, bytes]:
    """Return every object of a storage."""
    return {info.path: storage.get(info.path) for info in storage.list("")}


@pytest.fixture
def victim() -> Stream:
    """A stream of somebody else, on a clock."""
    stream, _ = make_stream(0)
    for start in (0, 10):
        stream.append(numbers(start, start + 10), layout=STAGED)
    return stream


def copied(victim: Stream, change: Callable[[Stream], object] = lambda _: None) -> TimedStorage:
    """A copy of the victim's folder, after a change, whose root names the victim as a follower."""
    inner = open_storage("memory://copied")
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
    follow = {"version": root.version + 1, "operation": "follow", "transaction": "f" * 32}
    row = replace(root.history[-1], rows=0, segments=0, **follow)
    root = replace(
        root,
        **follow,
        parent=root.transaction,
        history=(*root.history, row),
        properties={**root.properties, **names_as_follower(storage, victim)},
        staging_floor=root.version,
    )
    storage.put(f"log/{root.version:020d}", encode_envelope(encode_root(root)))
    return storage


READS: dict[str, Callable[[Stream], object]] = {
    "read": lambda stream: stream.read(read_cache_bytes=0).read_all(),
    "copy": lambda stream: stream.copy_to("memory://copied-again", copy_id="c"),
    "repair": lambda stream: repair_on(stream._log.storage),
}


@pytest.mark.parametrize("name", READS)
def test_segments_are_not_read_from_a_folder_that_does_not_follow(victim, name) -> None:
    """The copy has lost its own; the folder that it names as its follower still has them."""
    storage = crafted(copied(victim), victim)
    for info in list(storage.list("segments")):
        storage.delete(info.path)
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
def test_nothing_is_committed_to_a_folder_that_does_not_follow(victim, name, edited) -> None:
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
    assert files_of(victim._log.storage) == before


DELETES: dict[str, Callable[[Stream], object]] = {
    "upkeep": lambda stream: run_upkeep(StreamContext.of(stream._log)),
    "maintain": lambda stream: stream.maintain(),
    "vacuum": lambda stream: stream.maintain(grace=DAY),
    "forget": lambda stream: stream.redact(
        [["n", "=", 0]], columns=["s"], forget=True, short_grace=True
    ),
}


@pytest.mark.parametrize("name", DELETES)
def test_nothing_is_deleted_in_a_folder_that_does_not_follow(victim: Stream, name: str) -> None:
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
        DELETES[name](stream)
    assert files_of(victim._log.storage) == before
    assert len(values(victim)) == 20


PROPERTIES = ["key_columns", "time_column", "publish", "latest", "replication", "retention"]
PROPERTIES += ["upkeep", "later"]


@pytest.fixture
def storage() -> Storage:
    """A stream of one commit."""
    made = open_storage("memory://crafted")
    create_on(made, pa.schema([("n", pa.int64())]))
    return made


def plant(storage: Storage, **fields: Any) -> None:
    """Change fields of the newest root, behind a right digest."""
    root = json.loads(encode_root(open_on(storage)._log.root))
    storage.put(f"log/{0:020d}", encode_envelope(json.dumps({**root, **fields}).encode()))


NO_TEXTS = [None, True, 7, 1.5, [], ["n"], {}, {"n": 1}]
TIMES = [2**63 - 1, 253_402_300_800_000_000]  # the last one is the end of the year 9999


@pytest.mark.parametrize(
    "fields",
    [
        *({"properties": {name: value}} for name in ("upkeep", "later") for value in NO_TEXTS),
        *({"time_us": value} for value in TIMES),
    ],
    ids=str,
)
def test_values_that_can_not_be_are_format_errors(storage, fields) -> None:
    """Properties that are no texts, also of a later version, and times that no date can show."""
    plant(storage, **fields)
    with pytest.raises(FormatError, match="field has an invalid value"):
        open_on(storage)
    assert not verify_on(storage).ok
    with pytest.raises(SegstoreError):
        repair_on(storage)


@pytest.mark.parametrize("text", ["[" * 100_000, "\ud800", "{", '{"followers":["' + "[" * 100_000])
@pytest.mark.parametrize("name", PROPERTIES)
def test_property_that_says_nothing_is_a_typed_error(storage, name, text) -> None:
    """Whoever needs a property parses it; the stream can be read where none is needed."""
    plant(storage, properties={name: text})
    stream = open_on(storage, clock=BRIEF_CLOCK)
    for use in (
        lambda: stream.settings.retention,
        lambda: stream.settings.key_columns,
        lambda: stream.settings.time_column,
        lambda: stream.settings.upkeep,
        lambda: stream.settings.publish,
        lambda: stream.followers,
        stream.info,
        stream.metrics,
        stream.verify,
        lambda: repair_on(storage),
        lambda: stream.append(pa.table({"n": [1]})),
    ):
        with suppress(SegstoreError):
            use()
