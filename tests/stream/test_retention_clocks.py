"""Clocks that stand still or go backwards: versions order what happens, times only make it wait."""

import pytest
from stream_kit import DAY, HOUR, make_stream, numbers, objects, staged_job, values, wait

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
