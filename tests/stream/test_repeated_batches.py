"""A writer's batch that comes again changes nothing, whatever was done to the stream since."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from stream_kit import DAY, HOUR, make_stream, numbers, values, wait
from virtual_time import TimedStorage

from segstore_ds.errors import SealedError, WriterConflictError
from segstore_ds.stream.stream import Stream


def compact(stream: Stream, _: TimedStorage) -> None:
    assert stream.compact().commits == 1


def restore(stream: Stream, _: TimedStorage) -> None:
    stream.restore(1)


def expire(stream: Stream, storage: TimedStorage) -> None:
    """Forget the version of the batch's commit, and delete what was dropped."""
    stream.compact()
    for _ in range(2):
        wait(storage, 3 * DAY)
        stream.append(numbers(0, 1))
    assert stream.maintain(keep=HOUR).log_start > 4
    stream.maintain(grace=DAY)


def truncate(stream: Stream, _: TimedStorage) -> None:
    stream.truncate("tail")


def seal(stream: Stream, _: TimedStorage) -> None:
    stream.seal()


def test_a_repeated_batch_may_be_of_a_wider_type() -> None:
    """Whole numbers are not compared with doubles, and nothing is committed twice."""
    stream, _ = make_stream(0)
    rows = pa.table({"n": [1], "s": ["a"], "x": pa.array([7], pa.int32())})
    stream.append(rows, writer_id="query", batch_id=7, merge_schema=True)
    wider = rows.set_column(2, "x", pa.array([7.0]))
    for data in (wider, rows):
        again = stream.append(data, writer_id="query", batch_id=7, merge_schema=True)
        assert again.repeated
        stream.append(wider, merge_schema=True)
    assert stream.tail == 3
    with pytest.raises(WriterConflictError):
        stream.append(rows.slice(1), writer_id="query", batch_id=7, merge_schema=True)


@pytest.mark.parametrize("change", [compact, restore, expire, truncate, seal])
def test_repeated_batch_changes_nothing(change: Callable[[Stream, TimedStorage], None]) -> None:
    stream, storage = make_stream(2)
    first = stream.append(numbers(20, 30), writer_id="query", batch_id=7)
    stream.append(numbers(30, 40))
    change(stream, storage)
    before = stream.refresh().version, values(stream), stream.tail
    again = stream.append(numbers(20, 30), writer_id="query", batch_id=7)
    assert again.repeated
    assert (again.version, again.start, again.end) == (first.version, first.start, first.end)
    assert (stream.refresh().version, values(stream), stream.tail) == before
    for others in (numbers(20, 31), numbers(21, 31), numbers(20, 20)):
        with pytest.raises(WriterConflictError, match="other events"):
            stream.append(others, writer_id="query", batch_id=7)
    with pytest.raises(WriterConflictError, match="older"):
        stream.append(numbers(10, 20), writer_id="query", batch_id=6)
    if change is seal:
        with pytest.raises(SealedError):
            stream.append(numbers(40, 50), writer_id="query", batch_id=8)
    else:
        assert stream.append(numbers(40, 50), writer_id="query", batch_id=8).rows == 10
    assert stream.verify().check().leftovers == []
