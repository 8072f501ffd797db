"""What upkeep reads and holds of a long table status: what it needs, not all of it."""

import pytest
from faults import FaultStorage
from stream_kit import STAGED, make_stream, numbers

from segstore_ds.compact.commit import Replacement, listed_runs
from segstore_ds.format.parts.kinds import WRITERS
from segstore_ds.format.policies import RetentionPolicy
from segstore_ds.format.root import Root, Writer
from segstore_ds.retention.retain import apply_policy
from segstore_ds.status import store
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("tight")


def long_stream(monkeypatch: pytest.MonkeyPatch) -> tuple[Stream, Storage]:
    """Return a stream of twelve parts, which are not merged."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 100)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 48)
    stream, storage = make_stream(0)
    for n in range(48):
        stream.append(numbers(n, n + 1), layout=STAGED)
    assert len(stream._log.root.parts) == 12
    return stream, storage


def run_of(status: TableStatus, root: Root, start: int, end: int) -> Replacement:
    """Return what would replace some segments, by nothing."""
    found = list(status.segments(root, start, end))
    inputs = tuple((segment.entry.segment_id, segment.entry.path) for segment in found)
    return Replacement(start, inputs, end - start, 0, ())


def status_reads(storage: FaultStorage) -> list[str]:
    return [call for call in storage.calls if " status/" in call]


def test_runs_are_looked_for_one_by_one(monkeypatch):
    """Two small ones at the ends of a stream read the parts at its ends, without statistics."""
    stream, storage = long_stream(monkeypatch)
    root = stream._log.root
    runs = [
        run_of(stream._context.status, root, 0, 2),
        run_of(stream._context.status, root, 45, 47),
    ]
    counted = FaultStorage(storage)
    standing, landed = listed_runs(TableStatus(counted), root, runs)
    assert (standing, landed) == (runs, [])
    reads = status_reads(counted)
    assert len(reads) <= 2
    assert all(call.startswith("get_range ") for call in reads), "the columns alone"


def test_retention_without_a_bound_in_bytes_lists_nothing(monkeypatch):
    stream, storage = long_stream(monkeypatch)
    counted = FaultStorage(storage)
    other = open_on(counted, clock=stream._log.clock)
    apply_policy(other._context, RetentionPolicy(max_age="1h"))
    assert status_reads(counted) == []
    assert other.retain(max_age="365d").blocked_by[0].kind == "max_age"
    (dated,) = status_reads(counted)
    assert "-history-" in dated, "when the oldest event will be old enough"
    assert other.retain(max_bytes=10**9).dropped == 0
    reads = status_reads(counted)[1:]
    assert len(reads) == 12
    assert all(call.startswith("get_range ") for call in reads), "no statistics"


def test_blobs_are_kept_by_their_rows(monkeypatch):
    """Not by their number: one of them may have a hundred thousand."""
    monkeypatch.setattr(store, "_CACHED_ROWS", 100)
    objects = store.ObjectStore(make_stream(0)[1])
    writer = Writer("", 0, 0, 0, 0)
    for number in range(50):
        last = objects.put(number, WRITERS, {f"{number}-{n}": writer for n in range(7)})
    assert len(objects._cache._values) == 14
    assert objects.holds(last)
    large = objects.put(50, WRITERS, {f"{n}": writer for n in range(1000)})
    assert [*objects._cache._values] == [large.path]
