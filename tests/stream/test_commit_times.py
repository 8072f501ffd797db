"""Commit times of events: from the history, whatever was done to segments and versions since."""

import datetime as dt
import pickle
from dataclasses import replace

import pytest
from stream_kit import HOUR, make_stream, numbers, snapshot, wait

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format import names
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import encode_root
from segstore_ds.read.scan import run_task
from segstore_ds.status.history import History
from segstore_ds.status.table import HISTORY
from segstore_ds.stream.opening import open as open_on


def times(stream, *cuts, **options):
    """Return the commit time of each number, in microseconds."""
    found = stream.read(*cuts, columns=["n"], commit_time_column="at", **options).read_all()
    assert str(found.schema.field("at").type) == "timestamp[us, tz=UTC]"
    return list(zip(found["n"].to_pylist(), found["at"].cast("int64").to_pylist(), strict=True))


def stamps(stream):
    """Return the commit time of each event, as the history tells it row by row."""
    rows = stream.history().read_all().to_pylist()
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return [
        (row["time"] - epoch) // dt.timedelta(microseconds=1)
        for row in rows
        for _ in range(row["rows"])
    ]


@pytest.fixture
def tiny(monkeypatch):
    """Let a dozen commits fill several parts and lists of history."""
    small = {"rows": 2, "hard": 4, "fan_in": 2, "final": 6, "parts": 4, "listed": 3}
    for name, value in small.items():
        monkeypatch.setattr(HISTORY, name, value)


@pytest.mark.usefixtures("tiny")
def test_every_range_has_the_times_of_its_commits():
    stream, _ = make_stream(24)
    assert stream._log.root.history_lists
    expected = list(enumerate(stamps(stream)))
    assert len({time for _, time in expected}) == 24
    for cuts in ((0, 240), (0, 1), (9, 11), (95, 125), (239, 240), (50, 50), (230, 240)):
        assert times(stream, *cuts) == expected[slice(*cuts)]


def test_times_outlive_compaction_purge_and_spills(monkeypatch):
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 4)
    stream, storage = make_stream(9)
    before = times(stream)
    wait(storage, 3 * HOUR)
    assert stream.compact().groups == 1
    stream.maintain(keep=HOUR)
    stream.truncate(15)
    assert times(open_on(storage)) == before[15:]


def test_restored_events_have_the_restores_commit_time():
    stream, storage = make_stream(2)
    wait(storage, HOUR)
    stream.overwrite(numbers(50, 52))
    overwritten = stream._log.root.time_us
    assert times(stream) == [(50, overwritten), (51, overwritten)]
    wait(storage, HOUR)
    stream.restore(1)
    assert times(stream) == [(n, stream._log.root.time_us) for n in range(10)]


def test_tasks_carry_the_commits_of_their_own_events():
    stream, _ = make_stream(12)
    expected = list(enumerate(stamps(stream)))
    reading = snapshot(stream).plan(5, 115, commit_time_column="at", filters=[["n", ">=", 33]])
    tasks = snapshot(stream).tasks(reading, partition_rows=20)
    assert len(tasks) > 3
    assert all(len(task.times.ends) <= 4 for task in tasks)
    tasks = pickle.loads(pickle.dumps(tasks))  # noqa: S301 - our own
    found = [
        pair
        for task in tasks
        for batch in run_task(reading, task)
        for pair in zip(batch["n"].to_pylist(), batch["at"].cast("int64").to_pylist(), strict=True)
    ]
    assert found == expected[33:115]


def test_a_version_of_the_past_has_the_same_times():
    stream, _ = make_stream(5)
    assert times(stream, as_of=3) == list(enumerate(stamps(stream)))[:30]


@pytest.mark.usefixtures("tiny")
def test_the_tail_needs_no_old_history():
    """A read of the newest events asks for no part of it."""
    _, storage = make_stream(40)
    handle = open_on(storage)
    before = storage.stats.total
    assert len(times(handle, 395)) == 5
    tail_requests = storage.stats.total - before
    plain = open_on(storage)
    before = storage.stats.total
    plain.read(395).read_all()
    assert tail_requests == storage.stats.total - before


@pytest.mark.usefixtures("no_inline")
def test_a_history_that_begins_late_is_damage():
    """So every event's commit is known, or its row is marked as lost."""
    stream, storage = make_stream(3)
    root = stream._log.root
    late = replace(root, history=root.history[-1:])
    storage.put(f"log/{root.version:020d}", encode_envelope(encode_root(late)))
    with pytest.raises(CorruptionError, match="a row for every version"):
        open_on(storage)


@pytest.mark.usefixtures("no_inline")
@pytest.mark.usefixtures("tiny")
def test_damaged_history_is_an_error_and_no_wrong_time():
    stream, storage = make_stream(12)
    parts = list(History(storage).parts(stream._log.root))
    assert parts
    for ref in parts:
        for path in names.both_names(ref.path):
            storage.put(path, b"v1\nplain 0 0 x\n")
    with pytest.raises(FormatError):
        times(open_on(storage))
    assert open_on(storage).read().read_all().num_rows == 120
