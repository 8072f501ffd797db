"""Restore: an older version's events again, without a copy, and what vacuum makes of it."""

import pyarrow as pa
import pytest
from stream_kit import DAY, TIGHT, Meddling, make_stream, numbers, objects, values, wait

from segstore_ds.errors import NotFoundError, SealedError, SnapshotExpiredError
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.usefixtures("format_by_name")


@pytest.mark.usefixtures("no_inline")
def test_restore_brings_back_events_under_new_offsets():
    """No segment is written; offsets that were given out keep their meaning."""
    stream, storage = make_stream(3)
    stream.overwrite(numbers(90, 95))
    before = objects(storage, "segments")
    commit = stream.restore(3)
    assert (commit.start, commit.end, commit.rows) == (35, 65, 30)
    assert objects(storage, "segments") == before
    assert values(stream, offset=True) == [(35 + n, n) for n in range(30)]
    ids = [entry.segment_id for entry in stream._log.root.entries]
    assert ids == [4, 5, 6]
    stream.verify().check()


def test_restore_brings_the_columns_back():
    """What was written since under another schema does not stand in the way."""
    stream, _ = make_stream(2)
    stream.overwrite(pa.table({"other": [1.5]}), overwrite_schema=True)
    stream.restore(2)
    assert stream.schema.names == ["n", "s"]
    assert values(stream) == list(range(20))
    stream.append(numbers(20, 21))
    assert [epoch.number for epoch in stream._log.root.epochs] == [0, 1, 2]
    stream.verify().check()


def test_versions_that_are_not_there_are_refused():
    """Not yet, or no longer."""
    stream, storage = make_stream(3)
    with pytest.raises(NotFoundError):
        stream.restore(4)
    for _ in range(3):
        wait(storage, 2 * DAY)
        stream.append(numbers(0, 1))
    stream.maintain(keep=DAY)
    with pytest.raises(SnapshotExpiredError):
        stream.restore(1)
    stream.seal()
    with pytest.raises(SealedError):
        stream.restore(stream.version - 1)


def test_version_purged_while_it_is_restored_is_refused():
    """Its segments may be deleted by then: every attempt asks again."""
    stream, storage = make_stream(2)
    stream.overwrite(numbers(90, 91))
    for n in range(3):
        wait(storage, DAY)
        stream.append(numbers(91 + n, 92 + n))
    other = open_on(storage, clock=stream._log.clock)
    meddling = Meddling(storage, "create log/", lambda: other.maintain(keep=3600))
    with pytest.raises(SnapshotExpiredError, match="version was forgotten"):
        open_on(meddling, clock=stream._log.clock).restore(2)
    assert meddling.met


def test_events_appended_while_restoring_come_before_it():
    """The restore is one commit: what is in the log before it is no longer part of the stream."""
    stream, storage = make_stream(2)
    stream.overwrite(numbers(90, 91))
    other = open_on(storage, clock=stream._log.clock)
    meddling = Meddling(storage, "create log/", lambda: other.append(numbers(70, 71)))
    open_on(meddling, clock=stream._log.clock).restore(2)
    assert values(other) == list(range(20))
    other.restore(other.version - 1)
    assert values(other) == [90, 70]


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("tight", [False, True])
def test_vacuum_keeps_what_is_listed_again(tight, monkeypatch):
    """An object that was retired, restored, and retired once more is as old as the last time."""
    for name, value in TIGHT.items() if tight else ():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(5)
    stream.overwrite(numbers(90, 91))
    stream.restore(stream.version - 1 if not tight else 5)

    def age():
        for _ in range(3):
            wait(storage, 2 * DAY)
            stream.append(numbers(91, 92))
        stream.maintain(keep=DAY)
        return stream.maintain(grace=DAY)

    kept = values(stream)
    report = age()
    assert sum(entry.path.startswith("segments/") for entry in report.deleted) == 1
    assert values(stream)[: len(kept)] == kept
    stream.overwrite(numbers(95, 96))
    assert stream.maintain(grace=DAY).bytes == 0
    report = age()
    assert sum(entry.path.startswith("segments/") for entry in report.deleted) == 8
    assert values(stream) == [95, 91, 91, 91]
    stream.verify().check()


@pytest.mark.usefixtures("no_inline")
def test_restore_of_the_version_before_undoes_it():
    """Forth and back, as often as one likes; the same objects are listed again and again."""
    stream, storage = make_stream(2)
    stream.overwrite(numbers(50, 53))
    for _ in range(3):
        now = stream.refresh().version
        stream.restore(2)
        assert values(stream) == list(range(20))
        stream.restore(now)
        assert values(stream) == [50, 51, 52]
        stream.verify().check()
    assert len(objects(storage, "segments")) == 3


def test_restore_hides_what_lay_below_the_old_head():
    """A segment that straddled the head is listed whole; its older events stay hidden."""
    stream, _ = make_stream(3)
    stream.truncate(13)
    version = stream.version
    stream.overwrite(numbers(90, 91))
    stream.restore(version)
    assert values(stream) == list(range(13, 30))
    assert (stream.head, stream.tail) == (34, 51)
    stream.verify().check()
