"""Tables that commits keep up to date by themselves: when, by whom, and until when."""

from pathlib import Path

import pytest
from faults import FaultStorage
from publish_kit import DELTA, ICEBERG, Table, shown
from stream_kit import HOUR, Meddling, make_stream, numbers, wait
from virtual_time import TimedStorage

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.log.clock import Clock
from segstore_ds.publish import auto as rounds
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SETTLED = Layout(inline_bytes=0, segment_format="parquet")
LOG = "_delta_log"


def add(stream: Stream, count: int = 1) -> None:
    """Append some events in a segment that can be published."""
    stream.append(numbers(stream.tail, stream.tail + count), layout=SETTLED, compact="off")


def published(storage: TimedStorage) -> tuple[int, int]:
    """Return how many commits the table has, and how many rows it shows."""
    commits = [info for info in storage.list(LOG) if info.path.endswith(".json")]
    return len(commits), len(shown(storage)[1])


@pytest.fixture
def made() -> tuple[Stream, TimedStorage]:
    """Return a stream of ten events on a virtual clock that publishes by itself."""
    stream, storage = make_stream(0)
    add(stream, 10)
    stream.publish("delta", auto=True)
    return stream, storage


def test_commits_publish_once_a_minute_whoever_makes_them(
    made: tuple[Stream, TimedStorage],
) -> None:
    """Upkeep may be off. What is held back is published by the next commit after the minute."""
    stream, storage = made
    assert (stream.settings.publish, published(storage)) == (("delta",), (1, 10))
    for _ in range(3):
        wait(storage, 10)
        add(stream)
        add(open_on(storage, clock=stream._log.clock))
        stream.refresh()
    assert published(storage) == (1, 10)
    assert stream.published.get("delta").lag == 6
    wait(storage, 61)
    add(stream)
    assert published(storage) == (2, 17)
    for _ in range(10):
        wait(storage, 30)
        add(stream)
    assert published(storage)[0] in (6, 7)


@pytest.mark.parametrize(
    ("table", "merged"), [(DELTA, "off"), (ICEBERG, "auto")], ids=["delta", "iceberg"]
)
def test_small_batches_are_shown_once_they_are_old_or_many(
    table: Table, merged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged into Parquet by rounds, or shown from files of the table's own; the reason says so."""
    stream, storage = make_stream(0)
    stream.publish(table.kind, auto=True)
    lags = []
    for minute in range(23):
        wait(storage, 61)
        stream.append(numbers(3 * minute, 3 * minute + 3), compact=merged)
        lags.append(stream.published[table.kind].lag)
    assert 0 in lags[10:13]
    assert max(lags) <= 3 * 11
    # A round in ten minutes settles, and no other; what a merge joins to shown events is shown.
    assert lags.count(0) == 2 or merged == "auto"
    if lags[-1]:
        assert "settle=True (--settle) merges" in stream.published[table.kind].reason
    monkeypatch.setattr(rounds, "SETTLE_ROWS", 3)
    monkeypatch.setattr(rounds, "SETTLE_BYTES", 1)  # then a round takes one segment
    before = stream.published[table.kind].tail
    wait(storage, 61)
    stream.append(numbers(69, 72), compact="off")
    assert before < stream.published[table.kind].tail
    monkeypatch.setattr(rounds, "SETTLE_BYTES", 1 << 20)
    wait(storage, 61)
    stream.maintain()
    assert (stream.published[table.kind].lag, stream.published[table.kind].reason) == (0, "")
    assert table.shown(storage)[1] == stream.read().read_all().to_pylist()
    stream.verify().check()


def test_a_table_keeps_up_with_more_than_one_merge_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round merges piece by piece, until its time is over; the next ones go on."""
    stream, storage = make_stream(0)
    stream.publish("delta", auto=True)
    monkeypatch.setattr(rounds, "SETTLE_ROWS", 3)
    monkeypatch.setattr(rounds, "SETTLE_BYTES", 1)  # then a merge takes one segment
    for minute in range(4):
        wait(storage, 61)
        for _ in range(5):
            tail = stream.tail
            stream.append(numbers(tail, tail + 3), compact="off")
        assert stream.published["delta"].lag <= 15, minute
    monkeypatch.setattr(rounds, "SETTLE_S", -1.0)
    before = stream.published["delta"].tail
    wait(storage, 61)
    stream.append(numbers(stream.tail, stream.tail + 3), compact="off")
    assert stream.published["delta"].tail == before + 3
    assert DELTA.shown(storage)[1] == stream.read(0, before + 3).read_all().to_pylist()


def test_streams_that_do_not_publish_pay_nothing(made: tuple[Stream, TimedStorage]) -> None:
    """And those that do list one folder, once a minute, as long as others publish."""
    stream, storage = made
    wait(storage, 10)
    asked = []
    for auto in (True, False):
        stream.publish("delta", auto=auto)
        traced = FaultStorage(storage)
        handle = open_on(traced, clock=stream._log.clock)
        for _ in range(3):
            add(handle)
        asked.append([call for call in traced.calls if LOG in call])
        stream.refresh()
    assert asked == [[f"list {LOG}"], []]


def test_failed_publication_fails_no_commit(
    made: tuple[Stream, TimedStorage], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the lag is reported, and the next one makes up for it."""
    stream, storage = made
    wait(storage, 61)
    storage.create(f"{LOG}/{1:020d}.json", b'{"commitInfo":{"operation":"WRITE"}}\n')
    wait(storage, 61)
    add(stream)
    assert "publishing failed" in caplog.text
    storage.delete(f"{LOG}/{1:020d}.json")
    assert stream.published.get("delta").lag == 1
    wait(storage, 61)
    add(stream)
    assert published(storage) == (2, 12)


def test_unpublish_ends_it(made: tuple[Stream, TimedStorage]) -> None:
    """So does None, which leaves the table; `maintain` publishes at once."""
    stream, storage = made
    add(stream)
    stream.maintain()
    assert published(storage) == (2, 11)
    stream.publish("delta", auto=False)
    wait(storage, HOUR)
    add(stream)
    assert (stream.settings.publish, published(storage)) == ((), (2, 11))
    stream.publish("delta", auto=True)
    assert stream.published.remove("delta") == 5
    wait(storage, HOUR)
    add(stream)
    stream.maintain()
    assert (stream.settings.publish, stream.published.get("delta")) == ((), None)


def test_table_removed_while_a_publisher_slept_stays_removed(
    made: tuple[Stream, TimedStorage],
) -> None:
    """The publisher looks again after its put, as a commit without the earlier ones is no table."""
    stream, storage = made
    clock = stream._log.clock
    wait(storage, 61)
    put = f"create {LOG}/{1:020d}"
    slow = Meddling(storage, put, lambda: open_on(storage, clock=clock).published.remove("delta"))
    add(open_on(slow, clock=clock))
    assert slow.met
    assert DELTA.objects(storage) == []


def test_formats_are_checked_at_once(tmp_path: Path) -> None:
    """Unknown ones, and streams that can't be published, are errors of the call."""
    stream = segstore.create(tmp_path / "s", numbers(0, 1).schema, upkeep=None)
    for call in (stream.publish, stream.published.get, stream.published.remove):
        with pytest.raises(InvalidInputError, match="table format"):
            call("hudi")
    add(stream)
    stream.copy_to(tmp_path / "c", copy_id="c", mode="clone")
    with pytest.raises(InvalidInputError, match="materialize"):
        segstore.open(tmp_path / "c").publish("delta", auto=True)


def test_nobody_waits_for_a_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is acknowledged before it has begun."""
    stream = segstore.create(tmp_path / "s", numbers(0, 1).schema, upkeep=None)
    stream.publish("delta", auto=True)
    begun = []
    monkeypatch.setattr(Clock, "start", lambda _, work, name: begun.append((name, work)))
    add(stream, 5)
    assert [name for name, _ in begun] == ["segstore-upkeep"]
    assert stream.published.get("delta").lag == 5
