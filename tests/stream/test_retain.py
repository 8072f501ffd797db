"""Retain: bounds of size and age, minima that win, who holds back what, and clocks that are off."""

import datetime as dt
import json
import logging
from dataclasses import replace

import pytest
from stream_kit import DAY, HOUR, Meddling, make_stream, numbers, objects, values, wait

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError, StorageError
from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.policies import RETENTION_PROPERTY, RetentionPolicy, parse_policy
from segstore_ds.format.root import Epoch, Root, SegmentEntry
from segstore_ds.retention.retain import plan_retain
from segstore_ds.status.table_status import Run
from segstore_ds.stream.opening import open as open_on


def size_of(stream):
    """Return the bytes of a segment of a stream whose segments are alike."""
    return stream._log.root.entries[-1].bytes


def test_maximum_of_bytes_drops_the_oldest_segments():
    """Whole segments, oldest first, until the rest fits."""
    stream, _ = make_stream(5)
    assert stream.retain(max_bytes=10**9).head == 0
    assert stream.retain(max_bytes=int(2.5 * size_of(stream))).head == 30
    assert stream.retain(max_bytes=0).head == 50
    assert values(stream) == []


def test_maximum_of_age_counts_from_the_commit():
    """Events are as old as the commit that brought them, by the store's clock."""
    stream, storage = make_stream(5)
    assert stream.retain(max_age=int(2.5 * HOUR)).head == 20
    wait(storage, HOUR)
    assert stream.retain(max_age=int(2.5 * HOUR)).head == 30
    assert stream.retain(max_age=0).head == 50


def test_minimum_wins_over_maximum():
    """What has to stay stays."""
    stream, _ = make_stream(5)
    assert stream.retain(max_bytes=0, min_bytes=int(1.5 * size_of(stream))).head == 30
    assert stream.retain(max_bytes=0, min_age=int(0.5 * HOUR)).head == 40


def test_age_of_events_comes_from_the_history():
    """Purge forgets versions, not when events were committed: both bounds go on working."""
    stream, _ = make_stream(40)
    stream.maintain(keep=HOUR)
    assert stream._log.root.log_start > 36
    assert stream.retain(max_age=int(50 * HOUR)).head == 0
    assert stream.retain(max_age=0, min_age=int(20.5 * HOUR)).head == 190
    assert stream.retain(max_age=int(10.5 * HOUR)).head == 290


def test_tags_and_readers_hold_back_and_only_what_they_need():
    """The least of them; a tag below the head and a released reader do not count."""
    stream, _ = make_stream(5)
    stream.tags.set("dead", 3)
    stream.truncate(5)
    stream.tags.set("eod", 25)
    reader = stream.readers.register("etl", start=15)
    stream.readers.register("gone", start=8).release()
    assert stream.retain(max_bytes=0).head == 15
    reader.publish(28)
    assert stream.retain(max_bytes=0).head == 25
    stream.tags.delete("eod")
    assert stream.retain(max_bytes=0).head == 28
    assert stream.retain(max_bytes=0, respect_readers=False).head == 50


def test_without_a_maximum_what_every_reader_is_done_with_goes():
    """Retention by consumption; without readers nothing is dropped."""
    stream, _ = make_stream(5)
    stream.tags.set("eod", 45)
    assert stream.retain().head == 0
    first, second = stream.readers.register("a"), stream.readers.register("b")
    first.publish(30)
    assert stream.retain().head == 0
    second.publish(20)
    assert stream.retain(min_age=int(3.5 * HOUR)).head == 10
    assert stream.retain().head == 20


def test_reader_below_the_head_blocks_retention_and_is_shown(caplog):
    """An overwrite ignores readers; retention keeps the events after it until they are read."""
    stream, storage = make_stream(3)
    reader = stream.readers.register("etl", start=5, lapse_s=int(DAY))
    stream.readers.register("other", start=10)
    stream.overwrite(numbers(30, 40))
    stream.readers.register("other", start="tail")

    def shown() -> dict:
        found = stream.metadata("readers").read_all()
        return dict(zip(found["name"].to_pylist(), found["lost"].to_pylist(), strict=True))

    assert shown() == {"etl": 25, "other": 0}
    assert stream.retain(max_bytes=0).head == 30
    assert "reader 'etl' at 5 (generation 0) is behind the head 30" in caplog.text
    assert "readers.release('etl')" in caplog.text
    assert "'other'" not in caplog.text
    caplog.clear()
    reader.publish(35)
    assert (stream.retain(max_bytes=0).head, shown()["etl"]) == (35, 0)
    stream.overwrite(numbers(40, 50))
    assert stream.retain(max_bytes=0).head == 40
    assert "reader 'etl' at 35" in caplog.text
    caplog.clear()
    wait(storage, DAY + 60)
    stream.readers.register("other", start="tail")
    assert stream.retain(max_bytes=0).head == 50
    assert caplog.text == ""


def test_registration_during_retention_loses_nothing_silently():
    """It registers just before retention's commit: retention looks again, and waits for it."""
    stream, storage = make_stream(3)
    other = open_on(storage, clock=stream._log.clock)
    meddling = Meddling(storage, "create log/", lambda: other.readers.register("etl", start=5))
    seen = open_on(meddling, clock=stream._log.clock)
    assert seen.retain(max_bytes=0).head == 5
    assert meddling.met
    assert values(other, "reader:etl") == list(range(5, 30))


@pytest.mark.parametrize(
    "policy",
    [
        {"max_bytes": -1},
        {"max_age": 1.5},
        {"min_bytes": True},
        {"min_age": "1"},
        {"respect_readers": False},
        {"min_bytes": 5, "respect_readers": False},
    ],
)
def test_policy_that_means_nothing_is_refused(policy):
    """Bounds are whole numbers, and something has to be droppable."""
    stream, _ = make_stream(1)
    with pytest.raises(InvalidInputError):
        stream.retain(**policy)


def test_policy_of_the_stream_is_applied_after_commits():
    """Any commit may apply it, about once a minute."""
    stream, storage = make_stream(3)
    most = int(2.5 * size_of(stream))
    stream.settings.update(retention=RetentionPolicy(max_bytes=most))
    other = open_on(storage, clock=stream._log.clock)
    other.append(numbers(30, 40))
    assert (other.head, other.settings.retention.max_bytes) == (20, most)
    other.append(numbers(40, 50))
    assert other.head == 20
    wait(storage, 61)
    other.append(numbers(50, 60))
    assert other.head == 40
    other.settings.update(retention=None)
    wait(storage, 61)
    other.append(numbers(60, 70))
    assert (other.head, other.settings.retention) == (40, None)
    other.verify().check()


def test_policy_that_cannot_be_applied_never_fails_the_commit(caplog):
    """The append is acknowledged; the failure is a warning."""
    stream, storage = make_stream(3)
    stream.settings.update(retention=RetentionPolicy(max_bytes=0))
    stream.readers.register("etl")
    path = max(objects(storage, "readers"))
    storage.put(path, b"x")
    with caplog.at_level(logging.WARNING):
        assert stream.append(numbers(30, 31)).rows == 1
    assert "retention failed and was skipped" in caplog.text
    assert stream.refresh().head == 0


def test_root_that_cannot_be_read_after_a_commit_never_fails_it(caplog, monkeypatch):
    """Another thread's unknown outcome has cleared what the handle knew of the log."""
    stream, _ = make_stream(1)
    commit = stream._commits.appender.commit

    def then_forget(plan):
        done, stream._log._base = commit(plan), None
        return done

    def fail(_log):
        raise StorageError("no answer")

    monkeypatch.setattr(stream._commits.appender, "commit", then_forget)
    monkeypatch.setattr(type(stream._log), "open", fail)
    with caplog.at_level(logging.WARNING):
        assert stream.append(numbers(10, 11)).rows == 1
    skipped = [line for line in caplog.text.splitlines() if "failed and was skipped" in line]
    assert len(skipped) == 3, caplog.text


def test_policy_is_stored_under_the_names_of_the_format():
    """FORMAT.md 3.1: numbers alone, whatever was given."""
    policy = RetentionPolicy("10g", "7d", min_age=dt.timedelta(hours=1))
    assert json.loads(policy.to_json()) == {
        "max_bytes": 10 << 30,
        "max_age_s": 604_800,
        "min_bytes": None,
        "min_age_s": 3600,
        "respect_readers": True,
    }
    assert parse_policy(policy.to_json()) == policy


def test_bounds_are_texts_a_dict_or_a_policy():
    """One meaning, whichever way they are given."""
    for policy in (
        {"max_age": "2h", "min_bytes": "1b"},
        RetentionPolicy(max_age="120m", min_bytes=1),
        RetentionPolicy(max_age=dt.timedelta(hours=2), min_bytes="1"),
    ):
        stream, _ = make_stream(5)
        assert stream.retain(policy).head == 30
        stream.settings.update(retention=policy)
        assert stream.settings.retention == RetentionPolicy(max_age=7200, min_bytes=1)
    stream, _ = make_stream(5)
    assert stream.retain(max_age="2h", min_bytes="1b").head == 30
    with pytest.raises(InvalidInputError, match="only in the policy"):
        stream.retain({"max_age": "2h"}, min_bytes=1)
    for wrong in ({"max_age_s": 5}, {"max_age": "2h", "later": 1}, {}, 5, "2h"):
        with pytest.raises(InvalidInputError, match="max_bytes, max_age, min_bytes, min_age"):
            stream.retain(wrong)


def why(done) -> list[tuple]:
    """Return what keeps a retention from dropping more, without its sentences."""
    return [(found.kind, found.offset, found.name, found.owner) for found in done.blocked_by]


def test_retain_that_drops_all_that_exceeds_is_not_blocked():
    """Nor is one that dropped nothing because a tag or a reader is further up."""
    stream, _ = make_stream(5)
    stream.tags.set("later", 45)
    done = stream.retain(max_age="2h")
    assert (done.head, done.dropped, done.blocked_by) == (30, 30, ())
    assert str(done) == "dropped 30 events, the head is 30"


def test_retain_names_the_reader_that_blocks_it():
    """With its owner, and with the time until which retention waits for it."""
    stream, storage = make_stream(5)
    stream.readers.register("etl", owner="ada", start=20, lapse_s=3600)
    stream.readers.register("ad-hoc")
    begin_us = storage.time.now_us
    done = stream.retain(max_bytes=0)
    assert (done.head, done.dropped) == (0, 0)
    assert why(done) == [("reader", 0, "ad-hoc", ""), ("reader", 20, "etl", "ada")]
    lapses = dt.datetime.fromtimestamp(begin_us / 1e6, dt.UTC) + dt.timedelta(hours=1)
    until = done.blocked_by[1].until
    assert abs((until - lapses).total_seconds()) < 60
    assert str(done.blocked_by[1]) == (
        "reader 'etl' of 'ada' has read up to 20; retention waits for it until "
        f"{until.isoformat(timespec='seconds')}"
    )
    assert "kept: reader 'ad-hoc' has read up to 0" in str(done)
    stream.readers.release("ad-hoc")
    wait(storage, (until - lapses).total_seconds() + 3599)
    assert stream.retain(max_bytes=0).head == 20
    wait(storage, 60)
    assert why(stream.retain(max_bytes=0)) == []


def test_retain_names_tags_and_minima_that_block_it():
    """The lowest first, with what they hold; only what lies below what would be dropped."""
    stream, storage = make_stream(5)
    stream.tags.set("b", 10)
    stream.tags.set("a", 10)
    stream.tags.set("kept", 45)
    size = size_of(stream)
    done = stream.retain(max_age="2h", min_bytes=int(3.5 * size), min_age="4h")
    assert (done.head, done.dropped) == (10, 10)
    assert why(done) == [
        ("tag", 10, "a", ""),
        ("tag", 10, "b", ""),
        ("min_bytes", 10, "", ""),
        ("min_age", 10, "", ""),
    ]
    until = done.blocked_by[-1].until
    assert until.timestamp() == storage.time.now_us / 1e6 + HOUR
    assert f"min_bytes={int(3.5 * size)} keeps the events from 10 on" in str(done)
    stream.tags.delete("a")
    stream.tags.delete("b")
    wait(storage, HOUR + 1)
    again = stream.retain(max_age="2h", min_age="4h")
    assert (again.head, again.dropped) == (20, 10)


def test_retain_says_when_something_will_be_old_enough():
    """That is when it drops it."""
    stream, storage = make_stream(3)
    done = stream.retain(max_age="1d", max_bytes="1g")
    assert why(done) == [("max_age", 0, "", ""), ("max_bytes", 0, "", "")]
    assert "no event is older than max_age=86400 s until 20" in str(done)
    assert f"the events have {stream.info()['bytes']} bytes" in str(done)
    wait(storage, done.blocked_by[0].until.timestamp() - storage.time.now_us / 1e6 - 1)
    assert stream.retain(max_age="1d").head == 0
    wait(storage, 1)
    assert stream.retain(max_age="1d").head == 10


def test_retain_without_maxima_says_that_nobody_reads():
    """And with readers, who has not read on; an empty stream has nothing to drop."""
    stream, _ = make_stream(2)
    assert why(stream.retain()) == [("no readers", 0, "", "")]
    reader = stream.readers.register("etl")
    assert why(stream.retain()) == [("reader", 0, "etl", "")]
    reader.publish(20)
    assert stream.retain() == segstore.reports.Retained(20, 20)
    assert why(stream.retain(max_bytes=0)) == [("no events", 20, "", "")]


def test_divided_segment_counts_only_its_kept_bytes():
    """Two of its four events are left, and so is half of its bytes."""
    entry = SegmentEntry(0, "t/0", 4, 8, 1, 1)
    root = Root("s", 1, "t", "", 0, "x", (Epoch(0, 0, "s", None),), head=2, tail=4)
    runs = [Run(0, from_entries([entry]), list)]

    def plan(most: int) -> int:
        policy = RetentionPolicy(max_bytes=most)
        return plan_retain(root, runs, policy, aged=0, young=4).offset

    assert (plan(4), plan(3)) == (2, 4)


def shifted(storage, hours):
    """Return a clock that is off by some hours."""
    time = storage.time
    return replace(time.clock, wall_us=lambda: time.now_us + int(hours * HOUR) * 1_000_000)


def unasked(stream):
    """Let a handle commit whatever its clock says, as an older client does."""
    stream._log.check_clock = lambda _=None: None


def assert_commits_stay(stream, storage):
    """What is committed to the handle's base is in the log, and everybody reads it."""
    before = values(open_on(storage))
    commit = stream.append(numbers(900, 901))
    assert values(open_on(storage)) == [*before, 900]
    assert open_on(storage).version == commit.version


@pytest.mark.parametrize("hours", [2, 24])
def test_clock_ahead_purges_no_version_in_use(hours):
    """Its clock says that hours have passed, and the store's that none has."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 1))
    other = open_on(storage, clock=storage.time.clock)
    for number in range(5):
        other.append(numbers(number, number + 1))
    ahead = open_on(storage, clock=shifted(storage, hours))
    with pytest.raises(InvalidInputError, match="clock"):
        ahead.maintain(keep=HOUR)
    unasked(ahead)
    assert ahead.maintain(keep=HOUR).log_start == 0
    assert_commits_stay(stream, storage)


def test_early_commit_times_cause_no_early_purge():
    """A slow clock dates a version hours back that was superseded just now."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 1))
    wait(storage, 3 * HOUR)
    here = open_on(storage, clock=storage.time.clock)
    here.outcome("x")  # its base is the newest, found just now
    late = open_on(storage, clock=shifted(storage, -2))
    unasked(late)
    for number in range(4):
        late.tags.set(f"t{number}", 0)
    kept = open_on(storage, clock=storage.time.clock).maintain(keep=HOUR).log_start
    assert kept <= here.version
    assert_commits_stay(here, storage)


@pytest.mark.parametrize("hours", [24, -24])
def test_no_commit_is_made_by_a_clock_that_is_wrong(hours):
    """Not even one that stages nothing: what follows would have to be stamped as it is."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 1))
    wait(storage, HOUR)
    wrong = open_on(storage, clock=shifted(storage, hours))
    for change in (
        lambda: wrong.tags.set("t", 0),
        lambda: wrong.truncate(1),
        lambda: wrong.readers.register("r"),
        lambda: wrong.append(numbers(1, 2)),
    ):
        with pytest.raises(InvalidInputError, match="clock"):
            change()
    assert open_on(storage).version == stream.version


def test_reader_written_by_a_store_ahead_of_now_lives():
    """A record from the store's future is not lapsed."""
    stream, storage = make_stream(2)
    stream.readers.register("etl", lapse_s=60)
    wait(storage, -200)
    assert stream.retain(max_bytes=0).head == 0


def test_unreadable_reader_stops_retention():
    """It may need everything."""
    stream, storage = make_stream(3)
    stream.readers.register("etl", start="tail")
    path = max(objects(storage, "readers"))
    storage.put(path, storage.get(path)[:-3])
    with pytest.raises(FormatError):
        stream.retain(max_bytes=0)
    assert stream.refresh().head == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"later": 1}',
        '{"max_bytes": "x"}',
        '{"max_bytes": "10g"}',
        '{"max_age": 1}',
        '{"max_age_s": "7d"}',
    ],
)
def test_policy_of_a_later_version_is_not_half_applied(text):
    """What is not understood is an error, not another policy."""
    with pytest.raises(CorruptionError, match=RETENTION_PROPERTY):
        parse_policy(text)


def test_dry_runs_tell_what_would_be_done_and_do_nothing():
    stream, storage = make_stream(5)
    wait(storage, 40 * DAY)
    stream.seal()
    version = stream.version
    planned = stream.retain(max_age=30 * 86_400, dry_run=True)
    assert (planned.head, planned.dropped, stream.refresh().head) == (50, 50, 0)
    kept = stream.maintain(keep="30d", dry_run=True).log_start
    assert kept > stream._log.root.log_start
    assert stream.refresh().version == version
    assert stream.retain(max_age=30 * 86_400) == planned
    assert stream.maintain(keep="30d").log_start == kept
