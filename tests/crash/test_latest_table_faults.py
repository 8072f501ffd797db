"""A round of newest events, failing and crashing at its 1st, 2nd, 3rd... call until it succeeds.

Calls are those to the stream and to the stream beside it. After each the table shows the old or the
new state whole, the stream is what it was, and the next round ends in the new state.
"""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from crash_kit import Checked, discard, files_of, restore
from faults import Crash, Fault
from latest_kit import KEY, SCHEMA, TOMBSTONE, Faulty, Timed, beside, expected, rows, shown
from publish_kit import DELTA, ICEBERG, Table
from stream_kit import Meddling
from virtual_time import VirtualTime

from segstore_ds.errors import NotFoundError, SegstoreError
from segstore_ds.read.segments import PROCESS_CACHE
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.latest_table import run_latest
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

FAULTS = [Fault(1, "fail", "after"), Fault(1, "fail", calls=10**9), Fault(1, "crash", "after")]
SWEPT = [(DELTA, True), (DELTA, False), (ICEBERG, True)]
FIRST, LATER = [("ada", 1, None), ("bob", 2, None), ("eve", 3, None)], [("bob", 4, True)]


def publish(stream: Stream, table: Table) -> None:
    """Publish the newest events."""
    stream.publish(table.kind, latest_by=KEY, tombstone=TOMBSTONE)


def made(*, again: bool, table: Table = DELTA) -> tuple[Timed, VirtualTime]:
    """Make a stream, whose newest events are published, and then change."""
    time = VirtualTime(1)
    storage = Timed(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    stream = create_on(storage, SCHEMA, upkeep=None, clock=time.clock)
    stream.append(rows(*FIRST))
    if again:
        publish(stream, table)
        stream.truncate(1)
        stream.append(rows(*LATER))
        stream.redact("user == 'eve'", columns=["n"])
        stream.append(rows(("ada", 5, False)))
    return storage, time


@pytest.mark.slow
@pytest.mark.parametrize(("table", "again"), SWEPT, ids=["delta", "first", "iceberg"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.when}")
def test_round_survives_a_fault_at_every_call(fault: Fault, table: Table, again: bool) -> None:
    """Also where it makes the table, and a stream for it."""
    first, time = made(again=again, table=table)
    stream = open_on(first, clock=time.clock)
    before = shown(stream, table) if again else None
    wanted, events = expected(stream), stream.read().read_all()
    places = [first.inner, first.inner.sibling(f"{first.url}_latest")]
    files, now_us, checked = [files_of(place) for place in places], time.now_us, Checked()
    for number in range(1, 300):
        for place, objects in zip(places, files, strict=True):
            discard(place)
            restore(place, objects)
        PROCESS_CACHE.reset()  # the same ids are drawn again
        time = VirtualTime(2, now_us=now_us)
        storage = Timed(first.inner, time, like=first)
        stream = open_on(storage, clock=time.clock)
        faulty = Faulty(storage, replace(fault, at=number))
        ended = None
        try:
            publish(open_on(faulty, clock=time.clock), table)
        except (Crash, SegstoreError) as error:
            ended = error
        held = frozenset(files_of(places[1]).items())
        if faulty.struck and not checked.is_new(storage, (type(ended), held)):
            continue
        found = _shown(stream, table)
        assert found in ([wanted] if ended is None else [before, wanted]), faulty.calls[-3:]
        assert stream.refresh().read().read_all().equals(events)
        publish(open_on(storage, clock=time.clock), table)
        assert shown(stream, table) == wanted, faulty.calls[-3:]
        beside(stream).verify().check()
        if not faulty.struck:
            assert number > 20
            return
    pytest.fail("the round never succeeds")


def _shown(stream: Stream, table: Table) -> list[dict[str, object]] | None:
    """Return what the table shows; None if there is none yet."""
    try:
        held = beside(stream)
    except NotFoundError:
        return None
    return table.shown(held._log.storage)[1] if table.kind in held.published else None


@pytest.mark.parametrize("call", ["open_staged segments/", "create log/"])
def test_of_two_rounds_at_once_each_leaves_the_newest_state(call: str) -> None:
    """The one that comes second has seen less, and plans again."""
    storage, time = made(again=True)

    def come_first() -> None:
        other = open_on(storage, clock=time.clock)
        other.append(rows(("ada", 6, None), ("bob", 7, None)))
        publish(other, DELTA)

    raced = Raced(storage, call, come_first)
    stream = open_on(raced, clock=time.clock)
    publish(stream, DELTA)
    assert raced.met()
    assert shown(stream.refresh(), DELTA) == expected(stream)
    assert [row["n"] for row in shown(stream, DELTA)] == [None, 6, 7]


class Raced(Timed):
    """A storage where something happens just before a call to the stream beside, once."""

    def __init__(self, inner: Timed, call: str, happens: Callable[[], object]) -> None:
        super().__init__(inner, inner.time, like=inner)
        self._how = call, happens

    def sibling(self, url: str) -> Storage:
        self.beside = self.__dict__.get("beside") or Meddling(self.inner.sibling(url), *self._how)
        return self.beside

    def met(self) -> bool:
        """Tell whether it has happened."""
        return self.beside.met


@pytest.mark.parametrize("verb", ["remove", "drop"])
def test_table_removed_while_a_round_makes_it_stays_removed(verb: str) -> None:
    """The round looks for the rule again after it has made the stream beside."""
    storage, time = made(again=False)
    stream = open_on(storage, clock=time.clock)
    stream.publish("delta", latest_by=KEY, tombstone=TOMBSTONE, auto=True)
    held = beside(stream)._log.storage
    run_drop(held, confirm=held.url, clock=time.clock, client="")

    def remove() -> None:
        if verb == "drop":
            run_drop(storage, confirm=storage.url, clock=time.clock, client="")
        else:
            open_on(storage, clock=time.clock).published.remove_latest()

    raced = Raced(storage, "create log/", remove)
    late = open_on(raced, clock=time.clock)
    run_latest(late._context, at_once=True)
    assert raced.met()
    assert all(info.path.startswith("log/") for info in held.list(""))
    with pytest.raises(NotFoundError):
        beside(stream)
