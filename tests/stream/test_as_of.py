"""Reading as of an earlier version or time, whatever came since."""

import datetime as dt

import pytest
from stream_kit import DAY, HOUR, make_stream, numbers, wait

from segstore_ds.errors import InvalidInputError, NotFoundError, SnapshotExpiredError
from segstore_ds.stream.connector.reads import open_snapshot


def stamp(now_us: int) -> str:
    """Return a virtual time as users write one."""
    return dt.datetime.fromtimestamp(now_us / 1e6, dt.UTC).isoformat()


def test_a_version_reads_as_it_was_whatever_came_since():
    stream, storage = make_stream(3)
    stream.append(numbers(30, 40), merge_schema=True)
    stream.truncate(20)
    stream.overwrite(numbers(100, 105))
    for version in (1, 2, 3):
        found = stream.read(as_of=version).read_all()["n"].to_pylist()
        assert found == list(range(10 * version))
        assert stream.read("head", 5, as_of=version).read_all().num_rows == 5
        assert stream.read("tail", as_of=version).read_all().num_rows == 0
    wait(storage, HOUR)
    assert stream.read().read_all()["n"].to_pylist() == list(range(100, 105))


def test_a_time_reads_the_newest_version_of_then():
    stream, storage = make_stream(0)
    times = []
    for n in range(4):
        wait(storage, HOUR)
        stream.append(numbers(10 * n, 10 * n + 10))
        times.append(storage.time.now_us)
    for n, time_us in enumerate(times):
        later = stamp(time_us + 1_000_000)
        assert stream.read(as_of=later).read_all().num_rows == 10 * (n + 1)
    assert stream.read(as_of=stamp(times[-1] + int(DAY * 1e6))).read_all().num_rows == 40
    with pytest.raises(NotFoundError, match="created after"):
        stream.read(as_of="2001-01-01T00:00:00Z")


def test_both_a_version_and_a_time_are_refused():
    stream, _ = make_stream(1)
    with pytest.raises(InvalidInputError, match="both a version and a time"):
        open_snapshot(stream._log.storage, version_as_of=1, timestamp_as_of="2026-01-01T00:00:00Z")


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00", "yesterday", "12"])
def test_a_time_without_a_zone_or_that_is_none_is_refused(text):
    stream, _ = make_stream(1)
    with pytest.raises(InvalidInputError):
        stream.read(as_of=text)


def test_purged_and_future_versions_have_different_errors():
    stream, storage = make_stream(3)
    with pytest.raises(NotFoundError, match="no such version"):
        stream.read(as_of=4)
    wait(storage, 3 * HOUR)
    stream.append(numbers(30, 40))
    wait(storage, 3 * HOUR)
    stream.append(numbers(40, 50))
    assert stream.maintain(keep=HOUR).log_start > 1
    with pytest.raises(SnapshotExpiredError):
        stream.read(as_of=1)
