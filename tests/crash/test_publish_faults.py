"""Publishing, failing and crashing at its 1st, 2nd, 3rd... storage call until it succeeds.

After each the table shows the old or the new state whole, the stream is what it was, and publishing
again ends in the new state.
"""

from contextlib import suppress
from dataclasses import replace

import pytest
from crash_kit import (
    SCHEMA,
    Checked,
    content_on,
    discard,
    events,
    files_of,
    fresh_storage,
    restore,
)
from faults import Crash, Fault, FaultStorage
from publish_kit import DELTA, ICEBERG, TABLES, Table
from stream_kit import Meddling
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import NotFoundError, SegstoreError
from segstore_ds.log.clock import Clock
from segstore_ds.publish import delta, life
from segstore_ds.read.segments import PROCESS_CACHE
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

SETTLED = Layout(inline_bytes=0, segment_format="parquet")
# A crash before a call leaves what a crash after the call before it leaves.
FAULTS = [
    Fault(1, "fail", "after"),
    Fault(1, "fail", "before", calls=10**9),
    Fault(1, "fail", "after", calls=10**9),
    Fault(1, "crash", "after"),
]


def prepared(table: Table) -> tuple[TimedStorage, VirtualTime]:
    """Return a stream that was published, and then changed in every way that the table must see."""
    time = VirtualTime(1)
    storage = TimedStorage(fresh_storage("memory", None), time)
    stream = create_on(storage, SCHEMA, clock=time.clock)
    stream.settings.update(upkeep=None)
    for start in range(0, 20, 5):
        stream.append(events(start, start + 5), layout=SETTLED)
    table.publish(stream)
    stream.compact(start=5, layout=SETTLED)
    stream.append(events(20, 25), layout=SETTLED)
    stream.truncate(2)
    return storage, time


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.when}-{fault.calls}"
)
@pytest.mark.parametrize("knows", [False, True], ids=["fresh", "knows"])
def test_publishing_survives_a_fault_at_every_call(
    fault: Fault, table: Table, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table shows the newest version's events up to an old or the new tail, or the old state.

    The stream never changes. A publisher that `knows` the table made the commit before this one, so
    it reads nothing back.
    """
    monkeypatch.setattr(life, "CLEAN_EVERY", 1)
    start, time = prepared(table)
    place = start.inner
    files, now_us = files_of(start), time.now_us
    if knows:
        table.publish(open_on(start, clock=time.clock))
    before = table.shown(start)
    if knows:
        open_on(start, clock=time.clock).append(events(25, 30), layout=SETTLED)
    events_then = content_on(start)
    table.publish(open_on(start, clock=time.clock))
    after = table.shown(start)
    assert [len(rows) for _, rows in (before, after)] == ([23, 28] if knows else [20, 23])
    # What the table has shown is brought up to date first, then new events are added.
    shown = [row for row in after[1] if row["n"] < before[1][-1]["n"] + 1]
    allowed = [before, after, *([] if knows else [(after[0], shown)])]
    met, checked = [], Checked()
    for number in range(1, 200):
        discard(place)  # Iceberg's metadata names the place
        PROCESS_CACHE.reset()  # the same ids are drawn again
        later = VirtualTime(2, now_us=now_us)
        inner = TimedStorage(restore(place, files), later, like=start)
        faulty = FaultStorage(inner)
        stream = open_on(faulty, clock=later.clock)
        if knows:
            table.publish(stream)
            stream.append(events(25, 30), layout=SETTLED)
        faulty.fault = replace(fault, at=len(faulty.calls) + number)
        ended = None
        try:
            table.publish(stream)
        except (Crash, SegstoreError) as error:
            ended = error
        if faulty.struck and not checked.is_new(inner, type(ended)):
            continue
        found = table.shown(inner)
        assert found in ([after] if ended is None else allowed), faulty.calls[-3:]
        met.append(found)
        assert content_on(inner) == events_then
        table.publish(open_on(inner, clock=later.clock))
        assert table.shown(inner) == after
        if not faulty.struck:
            assert number > 6
            assert fault.calls > 1 or fault.kind == "fail" or all(each in met for each in allowed)
            return
    pytest.fail("publishing never succeeds")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
@pytest.mark.parametrize("also", ["append", "nothing"])
@pytest.mark.parametrize("nth", [1, 2])
def test_publisher_that_loses_a_race_plans_again(nth: int, also: str, table: Table) -> None:
    """Two publishers at once leave the table that one of them alone would."""
    storage, time = prepared(table)

    def come_first() -> None:
        other = open_on(storage, clock=time.clock)
        if also == "append":
            other.append(events(25, 28), layout=SETTLED)
        table.publish(other)

    raced = Meddling(storage, table.create_of(nth), come_first)
    found = table.publish(open_on(raced, clock=time.clock))
    assert raced.met
    assert (found.table_version - table.first, found.tail) == (2, 28 if also == "append" else 25)
    assert [row["n"] for row in table.shown(storage)[1]] == list(range(2, found.tail))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_publisher_that_slept_past_a_purge_publishes_again(table: Table) -> None:
    """What it listed may have been deleted while it slept."""
    storage, time = prepared(table)

    def sleep() -> None:
        other = open_on(storage, clock=time.clock)
        other.compact(layout=SETTLED)
        time.advance(20 * 86_400)
        other.append(events(25, 28), layout=SETTLED)
        time.advance(2 * 3600)
        other.append(events(28, 30), layout=SETTLED)
        other.maintain(keep=3600)
        other.maintain(grace="7d")

    slept = Meddling(storage, table.create_of(1), sleep)
    found = table.publish(open_on(slept, clock=time.clock))
    assert (found.table_version - table.first, found.tail) == (4, 30)
    assert [row["n"] for row in table.shown(storage)[1]] == list(range(2, 30))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
@pytest.mark.parametrize("others", ["publish", "remove", "make anew", "make anew twice"])
def test_publisher_that_knows_the_table_sees_what_others_did(others: str, table: Table) -> None:
    """What it remembers is never more than a hint: no table is made of two."""
    storage, time = prepared(table)
    stream = open_on(storage, clock=time.clock)
    stream.settings.update(upkeep=None)
    assert table.publish(stream).table_version == table.first + 2
    other = open_on(storage, clock=time.clock)
    if others != "publish":
        other.published.remove(table.kind)
    for start in {"remove": (), "make anew twice": (25, 28)}.get(others, (25,)):
        other.append(events(start, start + 3), layout=SETTLED)
        table.publish(other)
    stream.refresh()
    stream.append(events(stream.tail, stream.tail + 2), layout=SETTLED)
    found = table.publish(stream)
    counts = {"publish": 5, "remove": 1, "make anew": 2, "make anew twice": 3}
    assert found.table_version - table.first + 1 == counts[others]
    assert [row["n"] for row in table.shown(storage)[1]] == list(range(2, found.tail))
    stream.append(events(found.tail, found.tail + 5), layout=SETTLED)
    assert table.publish(stream).table_version == found.table_version + 1
    assert [row["n"] for row in table.shown(storage)[1]] == list(range(2, found.tail + 5))
    stream.published.remove(table.kind)
    assert table.objects(storage) == []
    assert table.publish(stream).table_version == table.first


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
@pytest.mark.parametrize("when", ["create", "check"])
def test_table_removed_during_a_commit_leaves_nothing_behind(when: str, table: Table) -> None:
    """Whichever comes first: who removes looks again, and who commits does."""
    storage, time = prepared(table)

    def remove() -> None:
        open_on(storage, clock=time.clock).published.remove(table.kind)

    looks = {"iceberg": "info metadata/snap-", "delta": "get_range _delta_log/"}
    creates = {"iceberg": "create metadata/v", "delta": "create _delta_log/"}
    call = (creates if when == "create" else looks)[table.kind]
    raced = Meddling(storage, call, remove)
    raced.met = True
    stream = open_on(raced, clock=time.clock)
    table.publish(stream)
    before = {*table.objects(storage)}
    stream.append(events(25, 30), layout=SETTLED)
    raced.met = False
    found = table.publish(stream)
    assert raced.met
    assert (found.table_version, found.tail) == (table.first, 30)
    assert [row["n"] for row in table.shown(storage)[1]] == list(range(2, 30))
    left = {*table.objects(storage)}
    assert len(left) < len(before)
    assert not [path for path in left & before if not path.endswith((".json", ".text"))]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_publisher_goes_on_where_a_removal_was_killed(table: Table) -> None:
    """The newest commits go first, so what is left is an older table, or none (seed 93094)."""
    for number in range(1, 60, 2):
        storage, time = prepared(table)
        for _ in range(2):
            stream = open_on(storage, clock=time.clock)
            stream.append(events(stream.tail, stream.tail + 5), layout=SETTLED)
            table.publish(stream)
        faulty = FaultStorage(storage)
        stream = open_on(faulty, clock=time.clock)
        faulty.fault = Fault(len(faulty.calls) + number, "crash", "before")
        with suppress(Crash):
            stream.published.remove(table.kind)
        stream = open_on(storage, clock=time.clock)
        left = {problem.where for problem in stream.verify().problems}
        assert delta.HINT not in left  # it goes first, else an older table would be damaged
        table.publish(stream)
        assert stream.verify().ok, faulty.calls[-1]
        assert [row["n"] for row in table.shown(storage)[1]] == list(range(2, stream.tail))
        discard(storage)
        if not faulty.struck:
            assert number > 6
            return
    pytest.fail("the removal never succeeds")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["drop", "unpublish"])
def test_removal_that_stopped_anywhere_is_finished_by_the_next(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is known to be the stream's; another program's file beside it stays."""
    monkeypatch.setattr(life, "CLEAN_EVERY", 1)
    for number in range(1, 200):
        storage, time = prepared(ICEBERG)
        for _ in range(2):
            stream = open_on(storage, clock=time.clock)
            stream.append(events(stream.tail, stream.tail + 5), layout=SETTLED)
            DELTA.publish(stream)
        storage.create("metadata/notes.txt", b"mine")
        faulty = FaultStorage(storage)

        def remove(place: Storage, clock: Clock = time.clock) -> None:
            if verb == "drop":
                run_drop(place, confirm=place.url, clock=clock, client="")
                return
            handle = open_on(place, clock=clock)
            handle.published.remove("delta")
            handle.published.remove("iceberg")

        faulty.fault = Fault(number, "crash")
        with suppress(Crash):
            remove(faulty)
        with suppress(NotFoundError):  # all but the last answer was done
            remove(storage)
        left = {info.path for info in storage.list("") if not info.path.startswith("log/")}
        if verb == "drop":
            assert left == {"metadata/notes.txt"}, faulty.calls[-1]
        else:
            assert DELTA.objects(storage) == []
            assert ICEBERG.objects(storage) == ["metadata/notes.txt"]
            stream.refresh().verify().check()
        if not faulty.struck:
            assert number > 15
            return
    pytest.fail("the removal never succeeds")


def prepare(storage: Storage, clock: Clock, table: Table = DELTA) -> None:
    """Make a stream that is published, and then changes in every way that the table has to see."""
    stream = create_on(storage, SCHEMA, clock=clock)
    stream.settings.update(upkeep=None)
    for start in range(0, 20, 5):
        stream.append(events(start, start + 5), layout=SETTLED)
    table.publish(stream)
    stream.compact(start=5, layout=SETTLED)
    stream.append(events(20, 25), layout=SETTLED)
    stream.truncate(2)


def test_stranger_who_committed_is_an_error() -> None:
    """Another program's commit is never taken for the stream's."""
    time = VirtualTime(1)
    storage = TimedStorage(fresh_storage("memory", None), time)
    prepare(storage, time.clock)
    storage.create(f"_delta_log/{1:020d}.json", b'{"commitInfo":{"operation":"WRITE"}}\n')
    stream = open_on(storage, clock=time.clock)
    with pytest.raises(SegstoreError, match="another program"):
        stream.publish("delta")
    stream.published.remove("delta")
    assert stream.publish("delta").tail == 25
