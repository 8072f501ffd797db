"""Maintain: everything that upkeep does, at once, with a reason for each object."""

from collections import Counter

import pytest
from stream_kit import DAY, HOUR, STAGED, make_stream, numbers, objects, staged_job, wait

from segstore_ds.stream.opening import open as open_on


def neglected():
    """Return a stream without upkeep, with old versions, dropped segments and a dead job."""
    stream, storage = make_stream(3)
    staged_job(open_on(storage, clock=stream._log.clock), 90, 95)
    stream.truncate(20)
    for n in range(6):
        wait(storage, 3 * DAY)
        stream.append(numbers(30 + n, 31 + n), layout=STAGED)
    return stream, storage


@pytest.mark.usefixtures("no_inline")
def test_maintain_does_all_of_it_and_reports_totals() -> None:
    stream, storage = neglected()
    before = objects(storage, "segments")
    assert stream.metrics().last_upkeep is None
    done = stream.maintain()
    assert (stream.metrics().measured - stream.metrics().last_upkeep).total_seconds() < 60
    gone = len(before - objects(storage, "segments"))
    assert len(done.deleted) == gone == 3
    assert {item.why for item in done.deleted} == {
        "dropped by truncate or retention",
        "never committed",
    }
    assert done.versions == stream.refresh()._log.root.log_start > 0
    assert done.bytes > 0
    assert "deleted: 2 objects" in str(done)
    assert stream.verify().check().leftovers == []


@pytest.mark.usefixtures("no_inline")
def test_maintain_says_what_stays_and_why() -> None:
    stream, storage = make_stream(3)
    stream.truncate(20)
    wait(storage, HOUR)
    done = stream.maintain()
    assert (done.versions, done.deleted) == (0, ())
    held = "dropped by truncate or retention: a version that is kept still"
    assert [item.why for item in done.kept] == 2 * [f"{held} needs it"]
    stream.compact()
    wait(storage, HOUR)
    stream.overwrite(numbers(0, 1), layout=STAGED)
    for n in range(2):
        wait(storage, 2 * DAY)
        stream.append(numbers(n, n + 1), layout=STAGED)
    done = stream.maintain()
    assert Counter(item.why for item in done.kept) == {
        "dropped by truncate or retention: within the grace": 2,
        "overwritten: within the grace": 1,
    }
    assert all(item.bytes > 0 for item in done.kept)


def test_maintain_repeated_finds_nothing() -> None:
    stream, _ = neglected()
    stream.maintain()
    again = stream.maintain()
    assert (again.versions, again.deleted) == (0, ())
