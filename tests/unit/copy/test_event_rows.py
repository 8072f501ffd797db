"""Copies by events through a job: one commit of all rows, in task order, once."""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage
from stream_kit import KINDS, STAGED, WHENS, make_stream, numbers, values
from virtual_time import TimedStorage

from segstore_ds.copy.destination import Copied
from segstore_ds.copy.event_rows import OffsetCheck, RowsCopy, check_offsets, plan_rows_copy
from segstore_ds.copy.staging import StagedPiece, put_piece, read_pieces
from segstore_ds.errors import (
    CommitUnknownError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    StorageError,
)
from segstore_ds.format.root import SegmentEntry
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

pytestmark = pytest.mark.usefixtures("format_by_name")
SCHEMA = pa.schema([("n", pa.int64())])


def _target(stream: Stream) -> TimedStorage:
    return TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), stream._log.storage.time)


def _plan(
    stream: Stream,
    target: Storage,
    *,
    seal: bool = False,
    schema: pa.Schema = SCHEMA,
    layout: Layout = STAGED,
    span: tuple[int, int] | None = None,
    made_by: str | None = None,
) -> RowsCopy:
    return plan_rows_copy(
        stream._log.storage,
        target,
        WriteRequest(schema=schema, layout=layout, client=""),
        "c",
        ("head", "tail"),
        seal=seal,
        span=span,
        made_by=made_by,
        clock=stream._log.clock,
    )


def _stage(work: RowsCopy, rows: Iterable[Iterable[int]], attempt: str = "0") -> list[StagedTask]:
    done = []
    for task, given_rows in enumerate(rows):
        writer = work.job.open_task(task, attempt)
        given = pa.table({"n": list(given_rows)}).cast(work.job.schema)
        for batch in given.to_batches():
            writer.append(batch)
        done.append(writer.finish())
    return done


def _commit(work: RowsCopy, tasks: list[StagedTask]) -> None:
    work.commit([(task, (-1, -1)) for task in tasks])


def _done(stream: Stream, target: Storage, *, seal: bool = False) -> Copied:
    done = _plan(stream, target, seal=seal).copy.to.done
    assert done is not None
    return done


def _open(stream: Stream, target: Storage) -> Stream:
    return open_on(target, clock=stream._log.clock)


@pytest.mark.parametrize("layout", [STAGED, Layout()])
def test_rows_keep_task_order_for_any_task_sizes(layout: Layout) -> None:
    """A job may leave events out; tasks end in any order."""
    stream, _ = make_stream(3)
    target = _target(stream)
    work = _plan(stream, target, seal=True, layout=layout)
    tasks = _stage(work, [range(5), [], range(5, 9)])
    _commit(work, sorted(tasks, key=lambda task: task.task))
    done = _done(stream, target, seal=True)
    assert (done.start, done.end, done.repeated) == (0, 30, True)
    copy = _open(stream, target)
    assert (values(copy), copy.sealed, copy.version) == (list(range(9)), True, 0)
    copy.verify().check()
    again = _plan(stream, target, seal=True)
    assert again.job.repeated
    _commit(again, _stage(again, [range(5)]))
    assert (_open(stream, target).tail, _open(stream, target).version) == (9, 0)


def test_next_job_after_a_failed_one_may_differ() -> None:
    """Its transformation was mended: other columns, more rows; the range stays as it was bound."""
    stream, _ = make_stream(2)
    target = _target(stream)
    _stage(_plan(stream, target), [range(5)])
    with pytest.raises(NotFoundError):
        _open(stream, target)
    stream.append(pa.table({"n": [99], "s": ["x"]}))
    work = _plan(stream, target, schema=pa.schema([("n", pa.float64())]))
    _commit(work, _stage(work, [range(7)]))
    assert _done(stream, target).end == 20
    copy = _open(stream, target)
    assert values(copy) == [float(n) for n in range(7)]
    copy.verify().check()


def test_jobs_of_one_transformation_go_on_where_the_last_one_stopped() -> None:
    """Each job is a part of the range; one that makes other rows begins anew."""
    stream, _ = make_stream(3)
    target = _target(stream)

    def make(maker: str, span: tuple[int, int], rows: Iterable[int], attempt: str) -> None:
        work = _plan(stream, target, span=span, made_by=12 * maker)
        _commit(work, _stage(work, [rows], attempt))

    make("a", (0, 10), range(3), "0a")
    make("a", (20, 30), range(7, 9), "1a")
    stream.append(numbers(30, 31))
    assert _plan(stream, target, made_by=12 * "a").copy.missing(100) == [(10, 20)]
    assert _plan(stream, target, made_by=12 * "b").copy.missing(100) == [(0, 30)]
    with pytest.raises(MissingObjectError, match=r"missing='\[10, 20\)'"):
        _plan(stream, target, made_by=12 * "a").copy.commit()
    with pytest.raises(NotFoundError):
        _open(stream, target)
    make("b", (10, 20), range(50, 60), "2b")
    make("a", (10, 20), range(3, 7), "3a")
    make("a", (10, 20), range(3, 7), "4a")  # once more: the first one counts
    done = _plan(stream, target, made_by=12 * "a").copy.commit()
    assert (done.start, done.end, done.repeated) == (0, 30, False)
    copy = _open(stream, target)
    assert (values(copy), copy.version) == (list(range(9)), 0)
    copy.maintain(grace="7d")
    copy.verify().check()
    assert len([*target.list("segments")]) == len(copy._log.root.entries)


def test_offsets_of_rows_are_checked() -> None:
    """Each row is of the range, behind the one before it, in its task and in those before."""

    def take(*batches: list[int | None]) -> tuple[int, int]:
        check = OffsetCheck("o", (5, 20))
        for offsets in batches:
            left = check.take(pa.record_batch({"n": offsets, "o": pa.array(offsets, pa.int64())}))
            assert left.schema.names == ["n"]
            assert left.num_rows == len(offsets)
        return check.first, check.last

    assert take([]) == (-1, -1)
    assert take([5, 7], [], [19]) == (5, 19)
    for wrong in ([[4]], [[20]], [[7, 7]], [[7, 6]], [[7], [7]], [[7], [5]], [[None]], [[7, None]]):
        with pytest.raises(InvalidInputError, match=r"use segstore\.spark\.copy"):
            take(*wrong)
    check_offsets([(-1, -1), (5, 7), (-1, -1), (8, 8), (9, 19)])
    for wrong_tasks in ([(5, 7), (7, 9)], [(8, 9), (5, 7)], [(5, 9), (-1, -1), (6, 6)]):
        with pytest.raises(InvalidInputError, match="order"):
            check_offsets(wrong_tasks)


def test_the_first_attempt_at_a_piece_counts() -> None:
    """A later one leaves the object as it is, and deletes what it staged itself."""
    target, pieces = open_storage(f"memory://{uuid.uuid4().hex}"), []
    for attempt in "ab":
        path = f"copy-c/0-{attempt * 12}-0.arrow"
        target.create(f"segments/{path}", b"x" * 9)
        segments = (SegmentEntry(0, path, 10, 9, 3, 1),)
        pieces.append(StagedPiece(0, 10, "0" * 12, segments))
    first, second = pieces
    assert put_piece(target, "c", first)
    assert put_piece(target, "c", first)  # its answer was lost
    assert not put_piece(target, "c", second)
    assert [*read_pieces(target, "c", "0" * 12, (0, 10))] == [first]
    left = {info.path for info in target.list("segments") if info.path.endswith(".arrow")}
    assert left == {f"segments/{first.segments[0].path}"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", WHENS)
def test_interrupted_jobs_are_complete_or_no_stream(kind: str, when: str) -> None:
    """At every call of the plan, of the tasks and of the commit; then the same copy again."""
    stream, _ = make_stream(2)
    at = 0
    while True:
        at += 1
        target = _target(stream)
        faulty = FaultStorage(target, Fault(at, kind=kind, when=when))
        with suppress(StorageError, CommitUnknownError, Crash):
            work = _plan(stream, faulty, layout=Layout(inline_bytes=100))
            _commit(work, _stage(work, [range(3), range(3, 20)]))
        with suppress(NotFoundError):
            assert values(_open(stream, target)) == list(range(20))
        again = _plan(stream, target)
        _commit(again, _stage(again, [range(20)], "1"))
        copy = _open(stream, target)
        assert values(copy) == list(range(20))
        assert copy.version == 0
        done = _done(stream, target)
        assert replace(done, segments=0, bytes=0) == Copied(0, 20, 0, 0, repeated=True)
        copy.verify().check()
        if not faulty.struck:
            break
    assert at > 12
