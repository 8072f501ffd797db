"""Scan: every row is claimed by one task, read once, and lifted to the schema of the plan."""

import pickle
import uuid

import pyarrow as pa
import pytest
from stream_kit import snapshot

from segstore_ds.errors import InvalidInputError, MissingObjectError, SnapshotExpiredError
from segstore_ds.format.root import Root
from segstore_ds.read import decode, segments
from segstore_ds.read.scan import run_task
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def table(start: int, end: int) -> pa.Table:
    columns = {"n": range(start, end), "s": [f"s{n}" for n in range(start, end)]}
    return pa.table({name: list(values) for name, values in columns.items()}, SCHEMA)


@pytest.fixture
def stream() -> Stream:
    """1000 events in four segments; the second has frames of ten rows."""
    made = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), SCHEMA)
    for start, frame_rows in ((0, 100), (250, 10), (500, 1000), (750, 7)):
        made.append(table(start, start + 250), layout=Layout(frame_rows=frame_rows))
    return made


def read(
    stream: Stream, *cuts, partition_rows: int | None = None, root: Root | None = None, **options
) -> pa.Table:
    version = snapshot(stream, root)
    reading = version.plan(*cuts, **options)
    tasks = version.tasks(reading, partition_rows=partition_rows)
    reading, tasks = pickle.loads(pickle.dumps((reading, tasks)))  # noqa: S301 - our own
    batches = [batch for task in tasks for batch in run_task(reading, task)]
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, reading.result_schema)


def test_offsets_and_segments_are_those_of_the_events(stream):
    got = read(stream, 245, 505, offset_column="o", segment_column="g", columns=["n"])
    assert got.column_names == ["n", "o", "g"]
    assert got["o"].to_pylist() == got["n"].to_pylist() == list(range(245, 505))
    assert got["g"].to_pylist() == [n // 250 for n in range(245, 505)]
    got = read(stream, filters=[["n", "in", [3, 333, 999]]], offset_column="o", columns=[])
    assert got.to_pydict() == {"o": [3, 333, 999]}


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("partition_rows", [None, 9, 300])
@pytest.mark.parametrize("cuts", [(0, 1000), (333, 777), (999, 1000), (400, 400)])
def test_offsets_alone_send_no_request(stream, cuts, partition_rows, monkeypatch):
    """Nor do segment ids, commit times and counts: the plan knows them."""
    names = {"offset_column": "o", "segment_column": "g", "commit_time_column": "t"}
    expected = read(stream, *cuts, columns=["n"], **names)
    monkeypatch.setattr(decode, "ROWS_WITHOUT_DATA", 7)
    reading = snapshot(stream).plan(*cuts, columns=[], **names)
    tasks = snapshot(stream).tasks(reading, partition_rows=partition_rows)
    stream._log.storage.stats.reset()
    batches = [batch for task in tasks for batch in run_task(reading, task)]
    assert stream._log.storage.stats.total == 0
    got = pa.Table.from_batches(batches, reading.result_schema)
    assert got == expected.select(["o", "g", "t"])
    counted = stream.read(*cuts, columns=[]).read_all()
    assert (counted.num_columns, counted.num_rows) == (0, cuts[1] - cuts[0])


def test_large_segments_are_read_by_range_as_small_ones_whole(stream, monkeypatch):
    whole = read(stream)
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    monkeypatch.setattr(segments, "READ_BYTES", 1000)
    assert read(stream) == whole
    assert read(stream, 333, 777, partition_rows=9) == table(333, 777)


def test_plan_keeps_its_version_when_the_handle_refreshes(stream):
    pinned = snapshot(stream)
    reading, other = pinned.plan(), pinned.plan(0, 10)
    stream.overwrite(table(0, 3))
    tasks = pinned.tasks(reading)
    batches = [batch for task in tasks for batch in run_task(reading, task)]
    assert pa.Table.from_batches(batches) == table(0, 1000)
    with pytest.raises(InvalidInputError, match="bound to another stream or version"):
        snapshot(stream).tasks(other)


@pytest.mark.usefixtures("no_inline")
def test_missing_segment_is_damage_and_dropped_is_expired(stream):
    path = f"segments/{stream._log.root.entries[0].path}"
    before = stream._log.root
    data = stream._log.storage.get(path)
    stream._log.storage.delete(path)
    with pytest.raises(MissingObjectError, match=path):
        read(stream, 0, 10)
    stream._log.storage.put(path, data)
    stream.overwrite(table(0, 1))
    stream._log.storage.delete(path)  # as upkeep does after its grace
    with pytest.raises(SnapshotExpiredError, match=f"version={before.version}"):
        read(stream, 0, 10, root=before)
