"""Truncate and seal: what goes, what stays, who is refused."""

import pyarrow as pa
import pytest
from stream_kit import DAY, SCHEMA, SOFT, TIGHT, make_stream, numbers, objects, values, wait

from segstore_ds.errors import (
    NotFoundError,
    PositionError,
    SealedError,
    TruncatedError,
)
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.usefixtures("format_by_name")


@pytest.mark.usefixtures("no_inline")
def test_truncate_keeps_the_offsets_after_the_cut():
    """The head moves, offsets stay, the segment that straddles the head is kept."""
    stream, _ = make_stream(3)
    assert stream.truncate(12) == 12
    assert values(stream, offset=True) == [(n, n) for n in range(12, 30)]
    assert [entry.rows for entry in stream._log.root.entries] == [10, 10]
    assert [item.kind for item in stream._log.root.retired] == ["segment"]
    with pytest.raises(TruncatedError, match=r"lost='\[3, 12\)'"):
        stream.read(3)
    stream.verify().check()


def test_truncate_is_monotonic_and_safe_to_repeat():
    """The same cut again changes nothing; one below the head says that it is too late."""
    stream, _ = make_stream(3)
    stream.truncate(12)
    version = stream.version
    assert stream.truncate(12) == stream.truncate("head") == 12
    assert stream.version == version
    with pytest.raises(TruncatedError, match="below the head"):
        stream.truncate(11)
    with pytest.raises(PositionError, match="beyond the tail"):
        stream.truncate(31)
    with pytest.raises(NotFoundError):
        stream.truncate("tag:none")


def test_sealed_stream_refuses_events_and_nothing_else():
    """Appends and overwrites are refused; everything else works."""
    stream, storage = make_stream(3)
    stale = open_on(storage, clock=stream._log.clock)
    assert stream.seal() == stream.seal() == 30
    assert (stream.sealed, stream.version) == (True, 4)
    for write in (stream.append, stream.overwrite, stale.append):
        with pytest.raises(SealedError, match="stream is sealed"):
            write(numbers(30, 31))
    assert values(open_on(storage)) == list(range(30))
    assert stream.truncate(5) == 5
    assert stream.tags.set("end", "tail").offset == 30
    stream.verify().check()


def test_append_during_a_seal_is_refused_completely():
    """A job that was staged before the seal commits nothing and leaves nothing."""
    stream, storage = make_stream(1)
    job = stream.plan_write(SCHEMA)
    task = job.open_task(0, "a")
    task.append(pa.RecordBatch.from_pylist([{"n": 1, "s": "x"}], SCHEMA))
    staged = task.finish()
    open_on(storage, clock=stream._log.clock).seal()
    with pytest.raises(SealedError):
        stream.commit(job, [staged])
    assert stream.verify().check().leftovers == []


@pytest.mark.usefixtures("no_inline")
def test_part_that_straddles_the_head_is_cut_down(monkeypatch):
    """Its dead segments are retired now, not when the head has passed the whole part."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(8)
    (whole,) = stream._log.root.parts
    stream.truncate(15)
    assert stream._log.root.parts == (whole,)  # less than a quarter of it is dead
    stream.truncate(25)
    (trimmed,) = stream._log.root.parts
    assert (trimmed.start, trimmed.count) == (20, 6)
    assert values(open_on(storage)) == list(range(25, 80))
    stream.verify().check()
    for _ in range(3):
        wait(storage, 2 * DAY)
        stream.append(numbers(stream.tail, stream.tail + 1))
    stream.maintain(keep=DAY)
    deleted = {entry.path for entry in stream.maintain(grace=DAY).deleted}
    assert len([path for path in deleted if path.startswith("segments/")]) == 2
    assert whole.path in deleted
    assert values(open_on(storage)) == list(range(25, 83))
    assert stream.verify().check().leftovers == []
    stream.truncate("tail")
    for _ in range(3):
        wait(storage, 2 * DAY)
        stream.append(numbers(0, 1))
    stream.maintain(keep=DAY)
    assert stream.maintain(grace=DAY).bytes
    assert len(objects(storage, "segments")) == 3


@pytest.mark.usefixtures("no_inline")
def test_truncate_within_parts_retires_whole_parts(monkeypatch):
    """Parts below the head go as one, the part that straddles it stays listed."""
    stream, storage = make_stream(0)
    monkeypatch.setattr(SOFT, 3)
    for n in range(12):
        stream.append(numbers(n, n + 1))
    parts = stream._log.root.parts
    assert len(parts) >= 2
    stream.truncate(parts[0].end + 1)
    assert parts[0].path in {item.path for item in stream._log.root.retired}
    assert values(open_on(storage)) == list(range(parts[0].end + 1, 12))
    stream.verify().check()


def test_truncate_that_loses_to_a_deeper_one_is_done():
    """Another handle truncates further in between: nothing is left to do."""
    stream, storage = make_stream(3)
    other = open_on(storage, clock=stream._log.clock)
    commit = stream._log.commit

    def late(build, **options):
        other.truncate(20)
        return commit(build, **options)

    stream._log.commit = late
    assert stream.truncate(12) == 20


def test_batch_that_is_known_may_be_repeated_on_a_sealed_stream():
    """What is committed is done, whatever has changed since."""
    stream, _ = make_stream(0)
    first = stream.append(numbers(0, 5), writer_id="w", batch_id=1)
    stream.seal()
    again = stream.append(numbers(0, 5), writer_id="w", batch_id=1)
    assert (again.repeated, again.start, again.end) == (True, first.start, first.end)
