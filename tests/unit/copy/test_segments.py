"""Copies that tasks share: any split of the segments, one commit, and what is refused."""

import pickle
import uuid
from dataclasses import replace

import pytest
from stream_kit import make_stream, numbers, values

from segstore_ds.copy import segments
from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.segments import SegmentsCopy, plan_copy_segments
from segstore_ds.errors import (
    ConflictError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    SealedError,
)
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("each_format")
REQUEST = CopyRequest("c", "head", "tail")


def _target() -> Storage:
    return open_storage(f"memory://{uuid.uuid4().hex}")


def _plan(
    stream: Stream, target: Storage, request: CopyRequest = REQUEST, *, whole: bool = False
) -> SegmentsCopy:
    source = open_on(open_storage(stream.url))
    return plan_copy_segments(source._context, target, request, whole=whole)


def _rows(job: SegmentsCopy) -> list[tuple[int, int]]:
    return job.rows(TableStatus(job.job.storage))


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each task one segment."""
    monkeypatch.setattr(segments, "TASK_BYTES", 1)


def test_driver_lists_the_segments_that_tasks_copied() -> None:
    """Tasks that run in any order or twice, and appends to the source meanwhile, change nothing."""
    stream, _ = make_stream(6)
    stream.truncate(5)
    target = _target()
    job = pickle.loads(pickle.dumps(_plan(stream, target)))  # noqa: S301 - our own
    spans = _rows(job)
    assert spans == [(5, 10), *((10 * n, 10 * n + 10) for n in range(1, 6))]
    ids = [entry.segment_id for entry in stream._log.root.entries]
    stream.append(numbers(60, 70))
    behind = [*job.run(spans[3:])]
    found = [*job.run(spans[:3]), *job.run(spans[3:])]
    assert [replace(one, reused=True) for one in behind] == found[3:]
    with pytest.raises(NotFoundError):
        open_on(target)
    assert [one.epoch for one in found] == [0, *[None] * 5]  # the head divides the first
    for missing in (found[1:], found[:-1]):
        with pytest.raises(InternalError):
            job.commit(missing)
    done = job.commit(found)
    copy = open_on(target)
    assert (done.start, done.end, done.segments) == (5, 60, 6)
    assert (copy.head, [entry.segment_id for entry in copy._log.root.entries][1:]) == (5, ids[1:])
    assert values(copy, offset=True) == [(n, n) for n in range(5, 60)]
    copy.append(numbers(60, 61))
    copy.verify().check()
    again = _plan(stream, target).to.done
    assert again is not None
    assert again.repeated


def test_tasks_get_several_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are not more of them than an engine takes."""
    stream, _ = make_stream(6)
    size = max(entry.bytes for entry in stream._log.root.entries)
    monkeypatch.setattr(segments, "TASK_BYTES", size + 1)
    assert _rows(_plan(stream, _target())) == [(0, 20), (20, 40), (40, 60)]
    monkeypatch.setattr(segments, "TASK_BYTES", 1)
    monkeypatch.setattr(segments, "MOST_TASKS", 2)
    assert len(_rows(_plan(stream, _target()))) == 2


NAMED = CopyRequest("c", "segments", "segments")


def _named(stream: Stream) -> list[dict[str, int]]:
    rows = stream.segments().read_all().select(["start", "segment_id"]).to_pylist()
    return [{**row, "rows": -1} for row in rows]  # no other column counts


def test_rows_of_segments_are_copied_once_in_order() -> None:
    """Order, doubled rows and concurrent appends to the source change nothing."""
    stream, _ = make_stream(6)
    stream.truncate(5)
    target = _target()
    job = pickle.loads(pickle.dumps(_plan(stream, target, NAMED, whole=True)))  # noqa: S301 - our own
    wanted = _named(stream)
    stream.append(numbers(60, 70))
    found = [
        *job.run(job.take(wanted[3:])),
        *job.run(job.take(wanted[:3])),
        *job.run(job.take(wanted[2:4])),
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
    again = _plan(stream, target, NAMED, whole=True)
    assert again.to.done is not None
    assert again.commit([]).repeated


def test_a_range_may_be_copied_but_no_gap() -> None:
    """Neighbouring rows are a copy of that range; others are refused by the commit."""
    stream, _ = make_stream(5)
    wanted, target = _named(stream), _target()
    job = _plan(stream, target, replace(NAMED, seal=True), whole=True)
    found = [*job.run(job.take(wanted))]
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
    job = _plan(stream, _target(), NAMED, whole=True)
    ids = [row["segment_id"] for row in wanted]
    for start, segment in ((0, ids[1]), (5, ids[0]), (999, 1)):
        with pytest.raises(ConflictError, match="does not list"):
            [*job.take([{"start": start, "segment_id": segment}])]
    stream.compact()
    with pytest.raises(ConflictError, match="rows unchanged"):
        [*_plan(stream, _target(), NAMED, whole=True).take(wanted)]
