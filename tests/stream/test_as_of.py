"""Reading as of an earlier version or time, whatever came since."""

import datetime as dt

import pytest
from stream_kit import HOUR, make_stream, numbers, wait

from segstore_ds.errors import NotFoundError


def test_a_version_reads_as_it_was_whatever_came_since():
    stream, _ = make_stream(3)
    stream.append(numbers(30, 40), merge_schema=True)
    stream.truncate(20)
    stream.overwrite(numbers(100, 105))
    for version in (1, 2, 3):
        found = stream.read(as_of=version).read_all()["n"].to_pylist()
        assert found == list(range(10 * version))
        assert stream.read("head", 5, as_of=version).read_all().num_rows == 5
        assert stream.read("tail", as_of=version).read_all().num_rows == 0
    assert stream.read().read_all()["n"].to_pylist() == list(range(100, 105))


def test_a_time_reads_the_newest_version_of_then():
    stream, storage = make_stream(0)
    times = list[dt.datetime]()
    for n in range(4):
        wait(storage, HOUR)
        stream.append(numbers(10 * n, 10 * n + 10))
        times.append(dt.datetime.fromtimestamp(storage.time.now_us / 1e6, dt.UTC))
    for n, time in enumerate([*times, times[-1] + dt.timedelta(days=1)]):
        later = (time + dt.timedelta(seconds=1)).isoformat()
        assert stream.read(as_of=later).read_all().num_rows == min(10 * (n + 1), 40)
    with pytest.raises(NotFoundError, match="created after"):
        stream.read(as_of="2001-01-01T00:00:00Z")
