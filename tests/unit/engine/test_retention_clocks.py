"""Clocks that stand still or go backwards: versions order what happens, times only make it wait."""

from stream_kit import DAY, HOUR, make_stream, numbers, objects, staged_job, values, wait

from segstore_ds.stream import open_on


def everything(stream):
    """Run each operation once, and return what is kept."""
    tail = stream.tail
    stream.append(numbers(tail, tail + 10))
    stream.tag("t", "tail", move=True)
    stream.reader("r", start=stream.head + 3).publish(stream.head + 5)
    stream.truncate(stream.head + 7)
    stream.retain(max_bytes=1)
    now = stream.version
    stream.overwrite(numbers(0, 5))
    stream.restore(now)
    stream.purge(older_than_s=HOUR)
    report = stream.vacuum(dry_run=False)
    stream.verify().check()
    return report


def test_clock_that_stands_still_deletes_nothing_and_stops_nothing():
    """All commits bear one time; nothing is older than anything."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 10))
    before = objects(storage, "segments")
    for _ in range(3):
        assert everything(stream).doomed == ()
    assert before <= objects(storage, "segments")
    assert {stream._log.read_version(n).time_us for n in range(stream.version)} == {
        stream.root.time_us
    }


def test_clock_that_goes_backwards_only_makes_vacuum_wait():
    """Commit times never go back, and what was dropped is as old as the later clock says."""
    stream, storage = make_stream(3)
    wait(storage, DAY)
    everything(stream)
    stamped = stream.root.time_us
    wait(storage, -200)
    report = everything(stream)
    assert report.doomed == ()
    assert stream.root.time_us == stamped
    assert values(open_on(storage)) == values(stream)
    for _ in range(4):
        wait(storage, 2 * DAY)
        stream.append(numbers(0, 1))
    stream.purge(older_than_s=DAY)
    kept = values(stream)
    assert stream.vacuum(dry_run=False).doomed
    assert values(open_on(storage)) == kept
    stream.verify().check()


def test_job_staged_before_the_clock_went_back_is_not_taken_for_old():
    """The floor is a version: it does not move because a clock did."""
    stream, storage = make_stream(2)
    job, task = staged_job(stream, 20, 30)
    wait(storage, -250)
    stream.append(numbers(100, 101))
    assert stream.vacuum(dry_run=False).doomed == ()
    assert stream.commit(job, [task]).rows == 10


def test_reader_written_by_a_store_ahead_of_now_lives():
    """A record from the store's future is not lapsed."""
    stream, storage = make_stream(2)
    stream.reader("etl", lapse_s=60)
    wait(storage, -200)
    assert stream.retain(max_bytes=0) == 0
