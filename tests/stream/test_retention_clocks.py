"""Clocks that stand still or go backwards: versions order what happens, times only make it wait."""

from dataclasses import replace

import pytest
from stream_kit import DAY, HOUR, make_stream, numbers, objects, staged_job, values, wait

from segstore_ds.errors import InvalidInputError
from segstore_ds.stream.opening import open as open_on


def everything(stream):
    """Run each operation once, and return what is kept."""
    tail = stream.tail
    stream.append(numbers(tail, tail + 10))
    stream.tags.set("t", "tail", move=True)
    stream.readers.register("r", start=stream.head + 3).publish(stream.head + 5)
    stream.truncate(stream.head + 7)
    stream.retain(max_bytes=1)
    now = stream.version
    stream.overwrite(numbers(0, 5))
    stream.restore(now)
    stream.maintain(keep=HOUR)
    report = stream.maintain(grace=DAY)
    stream.verify().check()
    return report


def test_stopped_clock_deletes_nothing_and_blocks_nothing():
    """All commits bear one time, but for the gaps of a writer that commits on and on."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 10))
    before = objects(storage, "segments")
    for _ in range(3):
        assert everything(stream).deleted == ()
    assert before <= objects(storage, "segments")
    times_us = [stream._log.read_version(n).time_us for n in range(stream.version)]
    assert stream._log.root.time_us - min(times_us) < 1_000_000


@pytest.mark.usefixtures("no_inline")
def test_clock_that_goes_backwards_only_makes_vacuum_wait():
    """Commit times never go back, and what was dropped is as old as the later clock says."""
    stream, storage = make_stream(3)
    wait(storage, DAY)
    everything(stream)
    stamped = stream._log.root.time_us
    wait(storage, -200)
    report = everything(stream)
    assert report.deleted == ()
    assert stream._log.root.time_us == stamped
    assert values(open_on(storage)) == values(stream)
    for _ in range(4):
        wait(storage, 2 * DAY)
        stream.append(numbers(0, 1))
    stream.maintain(keep=DAY)
    kept = values(stream)
    assert stream.maintain(grace=DAY).deleted
    assert values(open_on(storage)) == kept
    stream.verify().check()


def test_clock_set_back_does_not_expire_staged_jobs():
    """The floor is a version: it does not move because a clock did."""
    stream, storage = make_stream(2)
    job, task = staged_job(stream, 20, 30)
    wait(storage, -250)
    stream.append(numbers(100, 101))
    assert stream.maintain(grace=DAY).deleted == ()
    assert stream.commit(job, [task]).rows == 10


def test_reader_written_by_a_store_ahead_of_now_lives():
    """A record from the store's future is not lapsed."""
    stream, storage = make_stream(2)
    stream.readers.register("etl", lapse_s=60)
    wait(storage, -200)
    assert stream.retain(max_bytes=0).head == 0


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


def test_commit_with_a_future_time_blocks_no_other_writer():
    """Times never go back: what follows bears its time until that has come."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 1))
    wrong = open_on(storage, clock=shifted(storage, 24))
    unasked(wrong)
    wrong.tags.set("t", 0)
    stamped = open_on(storage)._log.root.time_us
    right = open_on(storage, clock=storage.time.clock)
    right.append(numbers(1, 2))
    assert right._log.root.time_us == stamped
    assert values(open_on(storage)) == [0, 1]
