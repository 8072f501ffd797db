"""Copies of segments that rows name: any split of the rows, one commit, and what is refused."""

import pickle
import uuid

import pytest
from stream_kit import make_stream, numbers, values

from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.segments import RowsOfSegments, plan_copy_segments
from segstore_ds.errors import ConflictError, InvalidInputError, NotFoundError, SealedError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("each_format")
REQUEST = CopyRequest("c", "segments", "segments")


def _target() -> Storage:
    return open_storage(f"memory://{uuid.uuid4().hex}")


def _named(stream: Stream) -> list[dict[str, int]]:
    rows = stream.segments().read_all().select(["start", "segment_id"]).to_pylist()
    return [{**row, "rows": -1} for row in rows]  # no other column counts


def _plan(stream: Stream, target: Storage, request: CopyRequest = REQUEST) -> RowsOfSegments:
    source = open_on(open_storage(stream.url))
    return RowsOfSegments(plan_copy_segments(source._context, target, request, client=""))


def test_driver_lists_the_segments_that_tasks_copied() -> None:
    """Order, doubled rows and concurrent appends to the source change nothing."""
    stream, _ = make_stream(6)
    stream.truncate(5)
    target = _target()
    job = pickle.loads(pickle.dumps(_plan(stream, target)))  # noqa: S301 - our own
    wanted = _named(stream)
    stream.append(numbers(60, 70))
    found = [
        *job.run(wanted[3:]),
        *job.run(wanted[:3]),
        *job.run(wanted[2:4]),
    ]
    with pytest.raises(NotFoundError):
        open_on(target)
    done = job.commit(found)
    copy = open_on(target)
    assert (done.start, done.end, done.segments) == (5, 60, 6)
    assert (copy.head, _named(copy)) == (5, wanted)
    assert values(copy, offset=True) == [(n, n) for n in range(5, 60)]
    copy.append(numbers(60, 61))
    copy.verify().check()
    again = _plan(stream, target)
    assert again.copy.to.done is not None
    assert again.commit([]).repeated


def test_a_range_may_be_copied_but_no_gap() -> None:
    """Neighbouring rows are a copy of that range; others are refused by the commit."""
    stream, _ = make_stream(5)
    wanted, target = _named(stream), _target()
    job = _plan(stream, target, CopyRequest("c", "segments", "segments", seal=True))
    found = [*job.run(wanted)]
    with pytest.raises(InvalidInputError, match=r"gap='\[10, 20\)'"):
        job.commit([found[0], *found[2:]])
    with pytest.raises(InvalidInputError, match="no segments"):
        job.commit([])
    job.commit(found[1:3])
    copy = open_on(target)
    assert values(copy, offset=True) == [(n, n) for n in range(10, 30)]
    with pytest.raises(SealedError):
        copy.append(numbers(0, 1))


def test_altered_and_stale_rows_are_refused() -> None:
    """A row counts only as far as the source lists such a segment there."""
    stream, _ = make_stream(4)
    wanted = _named(stream)
    job = _plan(stream, _target())
    ids = [row["segment_id"] for row in wanted]
    for start, segment in ((0, ids[1]), (5, ids[0]), (999, 1)):
        with pytest.raises(ConflictError, match="does not list"):
            [*job.run([{"start": start, "segment_id": segment}])]
    stream.compact()
    with pytest.raises(ConflictError, match="rows unchanged"):
        [*_plan(stream, _target()).run(wanted)]
