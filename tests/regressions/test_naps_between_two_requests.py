"""A call that sleeps between two requests, while others go on, reports no damage and no bad cut."""

from functools import partial

from stream_kit import HOUR, Meddling, make_stream, numbers, wait

from segstore_ds.stream.opening import open as open_on


def asleep(storage, call, others):
    """Return a handle that sleeps before a call, once its `met` is reset, while others go on."""
    meddling = Meddling(storage, call, others)
    meddling.met = True
    return open_on(meddling, clock=storage.time.clock), meddling


def forget_versions(stream, storage):
    """Commit for hours, and forget what was there."""
    for n in range(4):
        wait(storage, 2 * HOUR)
        stream.append(numbers(900 + n, 901 + n))
    stream.maintain(keep="1h")


def test_verify_lists_again_when_the_newest_version_was_forgotten():
    """Seed 50117: all versions that it had listed were gone, and it called that damage."""
    stream, storage = make_stream(3)
    others = partial(forget_versions, stream, storage)
    sleeper, meddling = asleep(storage, f"get log/{3:020d}", others)
    meddling.met = False
    report = sleeper.verify()
    assert meddling.met
    assert report.check().rows == stream.tail


def test_maintain_goes_on_when_others_forgot_the_versions():
    """Seed 50058: it raised MissingObjectError for a version that was rightly gone."""
    stream, storage = make_stream(4)
    others = partial(forget_versions, stream, storage)
    sleeper, meddling = asleep(storage, "info log/0", others)
    meddling.met = False
    sleeper.maintain(keep="1h")
    assert meddling.met
    assert sleeper.verify().ok


def test_a_member_waits_when_others_went_on_behind_its_root():
    """Seed 50049: it got PositionError, since its range began behind the tail that it knew."""
    stream, storage = make_stream(1)
    other = stream.follow("team", member="b", start="head", timeout=0)

    def others():
        stream.append(numbers(10, 30))
        assert sum(batch.num_rows for batch in other) == 30

    sleeper, meddling = asleep(storage, "list readers/team", others)
    follow = sleeper.follow("team", member="a", timeout=0)
    wait(storage, 10)
    meddling.met = False
    assert next(follow, None) is None
    assert meddling.met
    stream.append(numbers(30, 35))
    assert sum(batch.num_rows for batch in sleeper.follow("team", member="a", timeout=0)) == 5


def test_a_member_that_slept_is_not_told_that_its_events_are_gone():
    """Seed 70014: others had done its range, and retention let it go: it got TruncatedError."""
    stream, storage = make_stream(1)

    def others():
        other = stream.follow("team", member="b", timeout=60, lease=5)
        assert next(other).num_rows == 10
        stream.append(numbers(10, 12))
        assert next(other).num_rows == 2
        stream.retain()
        assert stream.head == 10

    sleeper, meddling = asleep(storage, "get log/", others)
    slept = sleeper.follow("team", member="a", start="head", timeout=0, lease=5)
    meddling.met = False
    assert next(slept, None) is None
    assert meddling.met
