"""Retain: bounds of size and age, minima that win, and who holds back what."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_kit import DAY, HOUR, Meddling, make_stream, numbers, objects, values, wait

from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError
from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.retention import PROPERTY, RetentionPolicy, parse_policy
from segstore_ds.format.root import Epoch, Root, SegmentEntry
from segstore_ds.retention.retain import Offsets, plan_retain
from segstore_ds.status.table_status import PlacedSegment, Run
from segstore_ds.stream import open_on


def size_of(stream):
    """Return the bytes of a segment of a stream whose segments are alike."""
    return stream.root.entries[-1].bytes


def test_maximum_of_bytes_drops_the_oldest_segments():
    """Whole segments, oldest first, until the rest fits."""
    stream, _ = make_stream(5)
    assert stream.retain(max_bytes=10**9) == 0
    assert stream.retain(max_bytes=int(2.5 * size_of(stream))) == 30
    assert stream.retain(max_bytes=0) == 50
    assert values(stream) == []


def test_maximum_of_age_counts_from_the_commit():
    """Events are as old as the commit that brought them, by the store's clock."""
    stream, storage = make_stream(5)
    assert stream.retain(max_age_s=int(2.5 * HOUR)) == 20
    wait(storage, HOUR)
    assert stream.retain(max_age_s=int(2.5 * HOUR)) == 30
    assert stream.retain(max_age_s=0) == 50


def test_minimum_wins_over_maximum():
    """What has to stay stays."""
    stream, _ = make_stream(5)
    assert stream.retain(max_bytes=0, min_bytes=int(1.5 * size_of(stream))) == 30
    assert stream.retain(max_bytes=0, min_age_s=int(0.5 * HOUR)) == 40


def test_age_of_events_comes_from_the_history():
    """Purge forgets versions, not when events were committed: both bounds go on working."""
    stream, _ = make_stream(40)
    stream.purge(older_than_s=HOUR)
    assert stream.root.log_start > 36
    assert stream.retain(max_age_s=int(50 * HOUR)) == 0
    assert stream.retain(max_age_s=0, min_age_s=int(20.5 * HOUR)) == 190
    assert stream.retain(max_age_s=int(10.5 * HOUR)) == 290


def test_tags_and_readers_hold_back_and_only_what_they_need():
    """The least of them; a tag below the head and a released reader do not count."""
    stream, _ = make_stream(5)
    stream.tag("dead", 3)
    stream.truncate(5)
    stream.tag("eod", 25)
    reader = stream.reader("etl", start=15)
    stream.reader("gone", start=8).release()
    assert stream.retain(max_bytes=0) == 15
    reader.publish(28)
    assert stream.retain(max_bytes=0) == 25
    stream.untag("eod")
    assert stream.retain(max_bytes=0) == 28
    assert stream.retain(max_bytes=0, respect_readers=False) == 50


def test_without_a_maximum_what_every_reader_is_done_with_goes():
    """Retention by consumption; without readers nothing is dropped."""
    stream, _ = make_stream(5)
    stream.tag("eod", 45)
    assert stream.retain() == 0
    first, second = stream.reader("a"), stream.reader("b")
    first.publish(30)
    assert stream.retain() == 0
    second.publish(20)
    assert stream.retain(min_age_s=int(3.5 * HOUR)) == 10
    assert stream.retain() == 20


def test_lapsed_reader_no_longer_holds_back():
    """By the store's time."""
    stream, storage = make_stream(3)
    stream.reader("etl", lapse_s=int(DAY))
    assert stream.retain(max_bytes=0) == 0
    wait(storage, DAY + 60)
    assert stream.retain(max_bytes=0) == 30


def test_reader_below_the_head_blocks_retention_and_is_shown(caplog):
    """An overwrite ignores readers; retention keeps the events after it until they are read."""
    stream, storage = make_stream(3)
    reader = stream.reader("etl", start=5, lapse_s=int(DAY))
    stream.reader("other", start=10)
    stream.overwrite(numbers(30, 40))
    stream.reader("other", start="tail")

    def shown() -> dict:
        found = stream.metadata("readers").read_all()
        return dict(zip(found["name"].to_pylist(), found["lost"].to_pylist(), strict=True))

    assert shown() == {"etl": 25, "other": 0}
    assert stream.retain(max_bytes=0) == 30
    assert "reader 'etl' at 5 (generation 0) is behind the head 30" in caplog.text
    assert "release_reader('etl')" in caplog.text
    assert "'other'" not in caplog.text
    caplog.clear()
    reader.publish(35)
    assert (stream.retain(max_bytes=0), shown()["etl"]) == (35, 0)
    stream.overwrite(numbers(40, 50))
    assert stream.retain(max_bytes=0) == 40
    assert "reader 'etl' at 35" in caplog.text
    caplog.clear()
    wait(storage, DAY + 60)
    stream.reader("other", start="tail")
    assert stream.retain(max_bytes=0) == 50
    assert caplog.text == ""


def test_unreadable_reader_stops_retention():
    """It may need everything."""
    stream, storage = make_stream(3)
    stream.reader("etl", start="tail")
    path = max(objects(storage, "readers"))
    storage.put(path, storage.get(path)[:-3])
    with pytest.raises(FormatError):
        stream.retain(max_bytes=0)
    assert stream.refresh().head == 0


def test_registration_during_retention_loses_nothing_silently():
    """It registers just before retention's commit: retention looks again, and waits for it."""
    stream, storage = make_stream(3)
    other = open_on(storage, clock=stream._log.clock)
    meddling = Meddling(storage, "create log/", lambda: other.reader("etl", start=5))
    seen = open_on(meddling, clock=stream._log.clock)
    assert seen.retain(max_bytes=0) == 5
    assert meddling.met
    assert values(other, "reader:etl") == list(range(5, 30))


@pytest.mark.parametrize(
    "policy",
    [
        {"max_bytes": -1},
        {"max_age_s": 1.5},
        {"min_bytes": True},
        {"min_age_s": "1"},
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
    stream.set_retention(RetentionPolicy(max_bytes=most))
    other = open_on(storage, clock=stream._log.clock)
    other.append(numbers(30, 40))
    assert (other.head, other.retention.max_bytes) == (20, most)
    other.append(numbers(40, 50))
    assert other.head == 20
    wait(storage, 61)
    other.append(numbers(50, 60))
    assert other.head == 40
    other.set_retention(None)
    wait(storage, 61)
    other.append(numbers(60, 70))
    assert (other.head, other.retention) == (40, None)
    other.verify().check()


def test_policy_that_cannot_be_applied_never_fails_the_commit(caplog):
    """The append is acknowledged; the failure is a warning."""
    stream, storage = make_stream(3)
    stream.set_retention(RetentionPolicy(max_bytes=0))
    stream.reader("etl")
    path = max(objects(storage, "readers"))
    storage.put(path, b"x")
    with caplog.at_level(logging.WARNING):
        assert stream.append(numbers(30, 31)).rows == 1
    assert "retention failed and was skipped" in caplog.text
    assert stream.refresh().head == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"later": 1}', '{"max_bytes": "x"}'])
def test_policy_of_a_later_version_is_not_half_applied(text):
    """What is not understood is an error, not another policy."""
    with pytest.raises(CorruptionError, match=PROPERTY):
        parse_policy(text)


bounds = st.none() | st.integers(0, 60)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), max_size=6),
    data=st.data(),
    policy=st.builds(
        RetentionPolicy,
        max_bytes=bounds,
        max_age_s=st.none() | st.just(1),
        min_bytes=bounds,
        min_age_s=st.none() | st.just(1),
    ),
)
def test_plan_keeps_every_bound(sizes, data, policy):
    """Against the definition of each bound, for any segments, readers and tags."""
    segments, cursor = [], 0
    for number, (rows, size) in enumerate(sizes):
        entry = SegmentEntry(number, f"t/{number}", rows, size, 1, 1)
        segments.append(PlacedSegment(cursor, entry))
        cursor += rows
    most = segments[0].end if segments else 0
    head = data.draw(st.integers(0, max(most - 1, 0)))
    root = Root("s", 1, "t", "", 0, "x", (Epoch(0, 0, "s", None),), head=head, tail=cursor)
    places = st.integers(head, cursor)
    aged, young = data.draw(places), data.draw(places)
    held, tagged = data.draw(st.lists(places, max_size=2)), data.draw(st.lists(places, max_size=2))
    max_bytes, min_bytes = policy.max_bytes, policy.min_bytes
    max_age, min_age = policy.max_age_s is not None, policy.min_age_s is not None
    listed = from_entries([one.entry for one in segments])
    runs = [Run(0, listed, list).trimmed(head, cursor)] if segments else []
    target = plan_retain(root, runs, policy, Offsets(aged, young, held, tagged))
    assert head <= target <= cursor
    if target > head:
        assert target <= min([*held, *tagged, young if min_age else cursor])
        if min_bytes is not None:
            assert kept_bytes(segments, head, target) >= min(
                min_bytes, kept_bytes(segments, head, head)
            )
    free = not held and not tagged and min_bytes is None and not min_age
    if free and max_bytes is not None:
        assert kept_bytes(segments, head, target) <= max_bytes
    if free and max_age:
        assert target >= aged
    if free and not max_age and max_bytes is None:
        assert target == head


def kept_bytes(segments, head, target):
    """Return the bytes of the events from a target on; the head's segment counts pro rata."""
    total = 0
    for placed in segments:
        rows = placed.end - max(placed.start, head)
        if placed.end > target:
            total += placed.entry.bytes * rows // placed.entry.rows
    return total


def test_divided_segment_counts_only_its_kept_bytes():
    """Two of its four events are left, and so is half of its bytes."""
    entry = SegmentEntry(0, "t/0", 4, 8, 1, 1)
    root = Root("s", 1, "t", "", 0, "x", (Epoch(0, 0, "s", None),), head=2, tail=4)
    runs = [Run(0, from_entries([entry]), list)]

    def plan(most: int) -> int:
        policy = RetentionPolicy(max_bytes=most)
        return plan_retain(root, runs, policy, Offsets(aged=0, young=4))

    assert (plan(4), plan(3)) == (2, 4)
