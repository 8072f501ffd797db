"""An appender after a failure that passes: `resume` keeps every event once, at its place."""

from itertools import count

import pyarrow as pa
import pytest
from faults import Fault, FaultStorage
from follower_kit import Pair, found
from stream_kit import fresh_url, numbers

from segstore_ds.errors import CommitUnknownError, StorageError, UnderReplicatedError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize(
    ("when", "calls", "inline_bytes"),
    [
        ("after", 1, 0),
        pytest.param("before", 99, 60_000, marks=pytest.mark.slow),
        pytest.param("after", 99, 0, marks=pytest.mark.slow),
    ],
)
def test_every_event_is_there_once_wherever_the_storage_fails(when, calls, inline_bytes):
    """While rows are staged, or while they are committed, with or without effect."""
    layout = Layout(inline_bytes=inline_bytes, frame_rows=3)
    failed, unknown = 0, False
    for at in count(1):
        storage = FaultStorage(open_storage(fresh_url()))
        stream = create_on(storage, SCHEMA)
        storage.fault = Fault(len(storage.calls) + at, "fail", when, calls)
        with stream.appender(layout=layout, flush_seconds=None) as appender:
            while appender.flushed_place < 10:
                try:
                    while appender.next_place < 10:
                        start = appender.next_place
                        appender.append(pa.table({"n": [start, start + 1]}))
                    appender.flush()
                except (StorageError, CommitUnknownError) as error:
                    unknown |= isinstance(error, CommitUnknownError)
                    failed += 1
                    storage.fault = None
                    assert appender.resume() == appender.next_place - appender.flushed_place
                    assert appender.read(0).read_all()["n"].to_pylist() == [
                        *range(appender.next_place)
                    ]
            assert [appender.wait(place) for place in (0, 9)] == [0, 9]
        struck, storage.fault = storage.struck, None
        assert stream.refresh().read().read_all()["n"].to_pylist() == [*range(10)]
        if not struck:
            break
    stream.verify().check()
    assert failed > 3
    assert unknown == (calls > 1)


def test_it_goes_on_when_a_follower_is_back():
    """What is in the log is not committed again, nor acknowledged before the follower has it."""
    pair = Pair()
    pair.stream.followers.add(pair.follower)
    appender = pair.stream.appender(flush_seconds=None)
    place = appender.append(numbers(0, 3))
    pair.world.lose_before(pair.follower, "create log")
    for again in (appender.flush, appender.flush, appender.resume):
        with pytest.raises(UnderReplicatedError):
            again()
    assert appender.flushed_place == 0
    pair.world.lost.clear()
    assert appender.resume() == 0
    assert appender.wait(place + 2) == 2
    appender.append(numbers(3, 5))
    pair.world.lost.add(pair.follower)
    with pytest.raises(StorageError):
        appender.flush()
    pair.world.lost.clear()
    assert appender.resume() == 2
    assert appender.flush().end == 5
    assert found(pair.reopen(pair.follower)) == found(pair.stream.refresh()) == [*range(5)]
    appender.close()
