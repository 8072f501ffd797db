"""Copies that tasks share: any split of the segments, one commit, and what is refused."""

import pickle
import uuid

import pytest
from stream_kit import make_stream, numbers, values

from segstore_ds.copy import segments
from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.segments import SegmentsCopy, plan_copy_segments
from segstore_ds.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    SealedError,
)
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("each_format")
REQUEST = CopyRequest("c", "segments", "segments")


def _target() -> Storage:
    return open_storage(f"memory://{uuid.uuid4().hex}")


def _plan(stream: Stream, target: Storage, request: CopyRequest = REQUEST) -> SegmentsCopy:
    source = open_on(open_storage(stream.url))
    return plan_copy_segments(source._context, target, request, client="")


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
    spans = job.spans()
    assert spans == [(10 * n, 10 * n + 10) for n in range(6)]
    ids = [entry.segment_id for entry in stream._log.root.entries]
    stream.append(numbers(60, 70))
    behind = [*job.run(spans[3:])]
    found = [*job.run(spans[:3]), *job.run(spans[3:])]
    assert behind == found[3:]
    with pytest.raises(NotFoundError):
        open_on(target)
    for missing in (found[1:], found[:-1]):
        with pytest.raises(InternalError):
            job.commit(missing)
    done = job.commit(found)
    copy = open_on(target)
    assert (done.start, done.end, done.segments) == (5, 60, 6)
    assert (copy.head, [entry.segment_id for entry in copy._log.root.entries]) == (5, ids)
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
    assert _plan(stream, _target()).spans() == [(0, 20), (20, 40), (40, 60)]
    monkeypatch.setattr(segments, "TASK_BYTES", 1)
    monkeypatch.setattr(segments, "MOST_TASKS", 2)
    assert len(_plan(stream, _target()).spans()) == 2


def test_a_second_attempt_takes_what_has_arrived() -> None:
    """A job that failed deletes nothing, and nothing is copied twice."""
    stream, _ = make_stream(3)
    target = _target()
    first, second = (_plan(stream, target) for _ in range(2))
    paths = [[entry.path for entry in job.run(job.spans())] for job in (first, second)]
    assert paths[0] == paths[1]


def test_a_sealed_copy_takes_no_events() -> None:
    """It is sealed by its first commit."""
    stream, _ = make_stream(5)
    target = _target()
    job = _plan(stream, target, CopyRequest("c", "segments", "segments", seal=True))
    job.commit([*job.run(job.spans())])
    with pytest.raises(SealedError):
        open_on(target).append(numbers(0, 1))


def test_destinations_that_are_taken_are_refused() -> None:
    """Before any task runs, or by the commit where it came later."""
    stream, _ = make_stream(2)
    other, _ = make_stream(0)
    with pytest.raises(AlreadyExistsError):
        _plan(stream, open_storage(other.url))
    with pytest.raises(InvalidInputError, match="onto itself"):
        _plan(stream, open_storage(stream.url))
    target = _target()
    job, rival = _plan(stream, target), _plan(stream, target, CopyRequest("d", "x", "x"))
    found = [*job.run(job.spans())]
    rival.commit([*rival.run(rival.spans())])
    with pytest.raises(AlreadyExistsError):
        job.commit(found)
