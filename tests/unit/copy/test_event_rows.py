"""Copies by events through a job: one commit of all rows, in task order, once."""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import KINDS, STAGED, WHENS, make_stream, values

from benchmarks.faults import Crash, Fault, FaultStorage
from benchmarks.virtual_time import TimedStorage
from segstore_ds.copy.event_rows import ROWS, RowsCopy, commit_rows_copy, plan_rows_copy
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    IncompleteStreamError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, open_on
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

pytestmark = pytest.mark.usefixtures("each_format")
SCHEMA = pa.schema([("n", pa.int64())])


def _target(stream: Stream) -> TimedStorage:
    return TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), stream.storage.time)


def _plan(
    stream: Stream,
    target: Storage,
    *,
    copy_id: str = "c",
    seal: bool = False,
    schema: pa.Schema = SCHEMA,
    layout: Layout = STAGED,
) -> RowsCopy:
    return plan_rows_copy(
        stream.storage,
        target,
        CopyRequest(copy_id, "head", "tail", seal, ROWS),
        WriteRequest(schema=schema, layout=layout, client=""),
        clock=stream._log.clock,
    )


def _stage(work: RowsCopy, rows: Iterable[Iterable[int]], attempt: str = "0") -> list[StagedTask]:
    done = []
    for task, numbers in enumerate(rows):
        writer = work.job.open_task(task, attempt)
        given = pa.table({"n": list(numbers)}).cast(work.job.schema)
        for batch in given.to_batches():
            writer.append(batch)
        done.append(writer.finish())
    return done


def _commit(stream: Stream, work: RowsCopy, tasks: list[StagedTask]) -> Copied:
    return commit_rows_copy(work, tasks, clock=stream._log.clock)


def _open(stream: Stream, target: Storage) -> Stream:
    return open_on(target, clock=stream._log.clock)


@pytest.mark.parametrize("layout", [STAGED, Layout()])
def test_rows_keep_task_order_for_any_task_sizes(layout: Layout) -> None:
    """A job may leave events out; tasks end in any order."""
    stream, _ = make_stream(3)
    target = _target(stream)
    work = _plan(stream, target, seal=True, layout=layout)
    tasks = _stage(work, [range(5), [], range(5, 9)])
    done = _commit(stream, work, tasks[::-1])
    assert (done.start, done.end, done.repeated) == (0, 30, False)
    copy = _open(stream, target)
    assert (values(copy), copy.sealed, copy.version) == (list(range(9)), True, 1)
    copy.verify().check()
    again = _plan(stream, target, seal=True)
    assert again.job.repeated
    assert _commit(stream, again, _stage(again, [range(5)])).repeated
    assert (_open(stream, target).tail, _open(stream, target).version) == (9, 1)


def test_next_job_after_a_failed_one_may_differ() -> None:
    """Its transformation was mended: other columns, more rows; the range stays as it was bound."""
    stream, _ = make_stream(2)
    target = _target(stream)
    _stage(_plan(stream, target), [range(5)])
    with pytest.raises(IncompleteStreamError):
        _open(stream, target)
    stream.append(pa.table({"n": [99], "s": ["x"]}))
    work = _plan(stream, target, schema=pa.schema([("n", pa.float64())]))
    done = _commit(stream, work, _stage(work, [range(7)]))
    assert done.end == 20
    copy = _open(stream, target)
    assert values(copy) == [float(n) for n in range(7)]
    copy.verify().check()


def test_empty_sources_and_other_copies() -> None:
    """An empty range is done after one job; ids and modes are kept apart."""
    stream, _ = make_stream(0)
    target = _target(stream)
    work = _plan(stream, target)
    assert not work.state.done
    _commit(stream, work, [])
    assert values(_open(stream, target)) == []
    with pytest.raises(InvalidInputError, match="another copy"):
        _plan(stream, target, seal=True)
    with pytest.raises(AlreadyExistsError):
        _plan(stream, target, copy_id="d")
    with pytest.raises(InvalidInputError, match="onto itself"):
        _plan(stream, stream.storage)


def test_of_two_jobs_at_once_one_counts() -> None:
    """The slower one deletes what it staged and says that it was done."""
    stream, _ = make_stream(2)
    target = _target(stream)
    one, other = _plan(stream, target), _plan(stream, target)
    mine, theirs = _stage(one, [range(20)]), _stage(other, [range(20)])
    assert not _commit(stream, other, theirs).repeated
    assert _commit(stream, one, mine).repeated
    copy = _open(stream, target)
    assert values(copy) == list(range(20))
    assert {info.path for info in target.list("segments/")} == {
        f"segments/{entry.path}" for entry in copy.root.entries
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", WHENS)
def test_interrupted_jobs_are_complete_or_unreadable(kind: str, when: str) -> None:
    """At every call of the plan, of the tasks and of the commit; then the same copy again."""
    stream, _ = make_stream(2)
    at = 0
    while True:
        at += 1
        target = _target(stream)
        faulty = FaultStorage(target, Fault(at, kind=kind, when=when))
        with suppress(StorageError, CommitUnknownError, Crash):
            work = _plan(stream, faulty, layout=Layout(inline_bytes=100))
            _commit(stream, work, _stage(work, [range(3), range(3, 20)]))
        with suppress(NotFoundError, IncompleteStreamError):
            assert values(_open(stream, target)) == list(range(20))
        again = _plan(stream, target)
        done = _commit(stream, again, _stage(again, [range(20)], "1"))
        copy = _open(stream, target)
        assert values(copy) == list(range(20))
        assert copy.version == 1
        assert replace(done, repeated=False, segments=0, bytes=0) == Copied(0, 20, 0, 0)
        copy.verify().check()
        if not faulty.struck:
            break
    assert at > 12
