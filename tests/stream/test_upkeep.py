"""Upkeep by default: what goes and when, what stays, and what a round costs."""

import datetime as dt
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest
from stream_kit import (
    DAY,
    HOUR,
    SCHEMA,
    STAGED,
    Meddling,
    numbers,
    objects,
    snapshot,
    staged_job,
    values,
)
from virtual_time import TimedStorage, VirtualTime

import segstore_ds as segstore
from segstore_ds.copy.pins import run_pin
from segstore_ds.errors import InvalidInputError, StagedExpiredError
from segstore_ds.format.policies import DEFAULT_POLICY, UpkeepPolicy
from segstore_ds.log.clock import Clock
from segstore_ds.read.scan import run_task
from segstore_ds.retention import upkeep
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

WEEK = 7 * DAY


def make(
    policy: UpkeepPolicy | None = DEFAULT_POLICY, seed: int = 1
) -> tuple[Stream, TimedStorage]:
    """Return an empty stream on a clock of its own, whose upkeep runs in the caller."""
    time = VirtualTime(seed)
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    return create_on(storage, SCHEMA, upkeep=policy, clock=time.clock), storage


def grow(
    stream: Stream, storage: TimedStorage, commits: int, apart_s: float, compact: str = "off"
) -> None:
    """Append so many events, one commit each."""
    for _ in range(commits):
        storage.time.advance(apart_s)
        stream.append(numbers(stream.tail, stream.tail + 1), layout=STAGED, compact=compact)
    stream.refresh()


def versions(stream: Stream) -> list[int]:
    return stream._log.files.numbers()


def test_versions_are_kept_for_a_day() -> None:
    stream, storage = make()
    grow(stream, storage, 100, 0.5 * HOUR)
    kept = versions(stream)
    assert kept[0] == stream._log.root.log_start
    assert kept == list(range(kept[0], stream.version + 1))
    age_s = (stream._log.root.time_us - stream._log.read_version(kept[0] + 2).time_us) / 1e6
    assert DAY - 3 * HOUR <= age_s <= DAY + 2 * HOUR
    assert values(stream) == list(range(100))
    stream.verify().check()


def test_young_stream_has_nothing_done_to_it() -> None:
    """No commit, and no request either."""
    stream, storage = make()
    grow(stream, storage, 20, HOUR)
    assert [row["operation"] for row in stream.history().read_all().to_pylist()].count(
        "upkeep"
    ) == 0
    assert stream._log.root.upkeep is None


def test_number_of_versions_is_bounded_but_the_last_hour_stays() -> None:
    stream, storage = make(UpkeepPolicy(keep_versions=10))
    grow(stream, storage, 160, 60)
    assert 60 <= len(versions(stream)) <= 60 + 2 * upkeep.WORTH_COMMITS
    grow(stream, storage, 40, HOUR)
    assert len(versions(stream)) <= 14


def test_dropped_objects_go_a_week_later() -> None:
    stream, storage = make()
    grow(stream, storage, 12, HOUR)
    first = f"segments/{stream._log.root.entries[0].path}"
    stream.truncate(6)
    handle = open_on(storage, clock=stream._log.clock)
    for day in range(1, 10):
        grow(handle, storage, 4, DAY / 4)
        assert (first in objects(storage)) == (day <= 7), day
    stream.refresh().verify().check()
    assert stream._log.root.retired == () or all(
        item.time_us > stream._log.root.time_us - (WEEK + DAY) * 1e6
        for item in stream._log.root.retired
    )


@pytest.mark.parametrize(
    "head", [5, *(pytest.param(head, marks=pytest.mark.slow) for head in (4, 6, 9))]
)
def test_live_segments_of_a_part_that_was_cut_stay(
    head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part that spans the head is written again: only what lies below the head goes."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 3)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 2)
    stream, storage = make()
    grow(stream, storage, 12, HOUR)
    assert stream._log.root.parts[0].count >= 4
    first = sorted(objects(storage, "segments"))
    stream.truncate(head)
    grow(stream, storage, 12, 6 * HOUR)
    reading = snapshot(stream).plan()
    tasks = snapshot(stream).tasks(reading)
    stream.compact(head + 1, head + 3)
    grow(stream, storage, 20, 6 * HOUR)
    assert not set(first[:head]) & objects(storage)
    batches = [batch for task in tasks for batch in run_task(reading, task)]
    assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(head, 24))
    grow(stream, storage, 16, 6 * HOUR)
    assert values(stream) == list(range(head, stream.tail))
    stream.verify().check()
    left = set(first) & objects(storage, "segments")
    assert left == {*first[head:]} - {*first[head + 1 : head + 3]}


class Counting(TimedStorage):
    """A storage that remembers its calls."""

    def __init__(self, inner: TimedStorage) -> None:
        super().__init__(inner, inner.time, like=inner)
        self.calls: list[tuple[str, str]] = []
        self.made_us = inner.made_us

    def around(self, verb, path, work):
        self.calls.append((verb, path))
        return super().around(verb, path, work)


def test_off_is_off() -> None:
    stream, storage = make(None)
    assert stream.settings.upkeep is None
    grow(stream, storage, 40, 12 * HOUR)
    assert versions(stream)[0] == 0
    stream.settings.update(upkeep=UpkeepPolicy())
    assert stream.settings.upkeep == UpkeepPolicy()
    assert "upkeep" not in stream._log.root.properties
    grow(stream, storage, 2, HOUR)
    assert versions(stream)[0] > 0
    stream.settings.update(upkeep=None)
    start = versions(stream)[0]
    grow(stream, storage, 40, 12 * HOUR)
    assert versions(stream)[0] == start


@pytest.mark.usefixtures("no_inline")
@pytest.mark.background_upkeep
def test_append_does_not_wait_for_a_round() -> None:
    """In a process that lives on, a round is a thread's; a failing one fails no commit."""
    stream, storage = make(None)
    grow(stream, storage, 40, 2 * HOUR)
    stream.settings.update(upkeep=UpkeepPolicy())
    gate, entered, time = threading.Event(), threading.Event(), storage.time

    def block() -> None:
        entered.set()
        assert gate.wait(60)

    blocked = Meddling(storage, "put log/_latest", block)
    plain = stream._log.clock
    clock = Clock(plain.wall_us, plain.boot_s, plain.sleep, plain.random, plain.new_id)
    handle = open_on(blocked, clock=clock)
    handle._log._hints._last_s = plain.boot_s() + 1e9
    handle._log.write_hint = lambda _root: None
    time.advance(1)
    commit = handle.append(numbers(40, 41))
    assert commit.start == 40
    assert entered.wait(60)
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "segstore-upkeep":
            thread.join(60)
    assert stream.refresh()._log.root.operation == "upkeep"


def test_calls_of_a_round_are_few() -> None:
    """Beside the deletions a round costs a few requests, however long the log is."""
    stream, storage = make()
    grow(stream, storage, 150, 600)
    stream.settings.update(upkeep=None)
    grow(stream, storage, 70, 60)
    stream.settings.update(upkeep=UpkeepPolicy())
    seen = Counting(storage)
    handle = open_on(seen, clock=stream._log.clock)
    before = handle._log.root
    seen.calls.clear()
    own = handle._context.apart()
    root = upkeep.run_upkeep(own)
    assert root is not None
    calls = Counter(verb for verb, _ in seen.calls)
    assert calls["delete"] == root.log_start - before.log_start
    assert sum(calls.values()) - calls["delete"] <= 20
    assert all("/0000" in path for verb, path in seen.calls if verb == "list")


def test_info_says_what_holds_storage_and_until_when() -> None:
    stream, storage = make()
    grow(stream, storage, 3, HOUR)
    before = stream.info()
    assert (before["versions"], before["retired_since"], before["pinned_version"]) == (
        4,
        None,
        None,
    )
    stream.truncate(2)
    run_pin(stream._context, "c", "memory://clone")
    info = stream.refresh().info()
    assert info["freed_at"] - info["retired_since"] == dt.timedelta(days=7)
    assert info["retired_since"] == info["time"]
    assert info["pinned_version"] == 5
    assert (info["upkeep"], info["upkeep_time"]) == (UpkeepPolicy().to_json(), None)
    grow(stream, storage, 40, HOUR)
    info = stream.info()
    assert DAY <= (info["time"] - info["kept_since"]).total_seconds() <= DAY + 3 * HOUR
    assert info["upkeep_time"] is not None
    stream.settings.update(upkeep=None)
    assert stream.info()["upkeep"] == "off"


def test_what_is_no_policy_is_refused_at_once(tmp_path: Path) -> None:
    """A stream is not created with it."""
    with pytest.raises(InvalidInputError, match="not an upkeep policy"):
        segstore.create(tmp_path / "s", SCHEMA, upkeep="1d")
    assert not segstore.exists(tmp_path / "s")


@pytest.mark.slow
def test_storage_is_bounded_over_a_month() -> None:
    """Small commits with compaction: objects and retired entries stop growing."""
    stream, storage = make()
    counts = []
    for _ in range(24):
        grow(stream, storage, 12, 2 * HOUR, "auto")
        counts.append(len(objects(storage)))
    assert counts[-1] < 1.3 * counts[12]
    assert values(stream) == list(range(288))
    assert stream.verify().check().leftovers == []


@pytest.mark.parametrize("bounds", [{"keep_s": -1}, {"keep_versions": 0}, {"grace_s": 3600}])
def test_policy_out_of_range_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        UpkeepPolicy(**bounds)


def test_orphans_of_a_dead_job_go_when_its_floor_has_passed() -> None:
    """A job that stages for six days still commits; one that died is cleared away."""
    stream, storage = make()
    grow(stream, storage, 3, HOUR)
    other = open_on(storage, clock=stream._log.clock)
    job, task = staged_job(other, 3, 5)
    dead, left = staged_job(open_on(storage, clock=stream._log.clock), 90, 95)
    late, staged = staged_job(open_on(storage, clock=stream._log.clock), 90, 95)
    grow(stream, storage, 24, 6 * HOUR)
    other.commit(job, [task])
    assert values(stream.refresh())[-2:] == [3, 4]
    orphan = f"segments/{left.segments[0].path}"
    assert orphan in objects(storage)
    grow(stream, storage, 50, 8 * HOUR)
    assert orphan not in objects(storage)
    with pytest.raises(StagedExpiredError):
        open_on(storage, clock=stream._log.clock).commit(late, [staged])
    assert dead.token != late.token
    stream.refresh().verify().check()


def test_what_was_restored_stays() -> None:
    """A segment that was dropped, and listed again by a restore, is never deleted."""
    stream, storage = make()
    grow(stream, storage, 3, HOUR)
    before = stream.version
    stream.overwrite(numbers(50, 52), layout=STAGED)
    stream.restore(before)
    wanted = values(stream)
    grow(stream, storage, 80, 6 * HOUR)
    assert values(stream)[:3] == wanted == [0, 1, 2]
    stream.verify().check()


def test_pins_hold_what_a_clone_needs() -> None:
    stream, storage = make()
    grow(stream, storage, 3, HOUR)
    first = f"segments/{stream._log.root.entries[0].path}"
    run_pin(stream._context, "c", "memory://clone")
    stream.truncate(3)
    grow(stream, storage, 60, 6 * HOUR)
    assert first in objects(storage)
    stream.pins.release("c")
    grow(stream, storage, 10, 6 * HOUR)
    assert first not in objects(storage)


def test_tags_and_readers_keep_their_events() -> None:
    """Upkeep deletes what was dropped; it drops nothing itself."""
    stream, storage = make()
    grow(stream, storage, 3, HOUR)
    stream.tags.set("eod", 1)
    stream.readers.register("etl", start=2)
    grow(stream, storage, 60, 6 * HOUR)
    assert (stream.head, values(stream, "tag:eod")[0]) == (0, 1)
    assert values(stream, "reader:etl")[0] == 2


def test_two_rounds_at_once() -> None:
    """The later one finds the work done, commits nothing, and nothing is lost."""
    stream, storage = make(None)
    grow(stream, storage, 6, HOUR)
    stream.truncate(4)
    grow(stream, storage, 64, 6 * HOUR)
    stream.settings.update(upkeep=UpkeepPolicy())
    done = []
    other = open_on(storage, clock=stream._log.clock)
    meddling = Meddling(
        storage, "create log/", lambda: done.append(upkeep.run_upkeep(other._context))
    )
    first = open_on(meddling, clock=stream._log.clock)
    assert upkeep.run_upkeep(first._context) is None
    assert done[0] is not None
    rows = stream.history().read_all().to_pylist()
    assert [row["operation"] for row in rows].count("upkeep") == 1
    stream.refresh().verify().check()
