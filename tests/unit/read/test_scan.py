"""Scan: every row is claimed by one task, read once, and lifted to the schema of the plan."""

import pickle
import uuid

import pyarrow as pa
import pytest
from stream_kit import snapshot

from segstore_ds.errors import (
    CorruptionError,
    InvalidInputError,
    MissingObjectError,
    SnapshotExpiredError,
    TruncatedObjectError,
)
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


@pytest.mark.parametrize("partition_rows", [None, 1, 9, 10, 11, 300])
@pytest.mark.parametrize(
    "cuts", [(0, 1000), (249, 251), (255, 256), (333, 777), (999, 1000), (400, 400)]
)
def test_any_range_in_tasks_of_any_size_gives_its_events(stream, cuts, partition_rows):
    assert read(stream, *cuts, partition_rows=partition_rows) == table(*cuts)


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


@pytest.mark.usefixtures("no_inline")
def test_a_filter_reads_only_frames_that_may_match(stream, monkeypatch):
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    storage = stream._log.storage
    storage.stats.reset()
    reading = snapshot(stream).plan(filters=[["n", "==", 333]])
    (batch,) = [b for task in snapshot(stream).tasks(reading) for b in run_task(reading, task)]
    assert batch["n"].to_pylist() == [333]
    assert storage.stats.requests["get_range"] == 2  # one footer, one frame of ten rows


def test_large_segments_are_read_by_range_as_small_ones_whole(stream, monkeypatch):
    whole = read(stream)
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    monkeypatch.setattr(segments, "READ_BYTES", 1000)
    assert read(stream) == whole
    assert read(stream, 333, 777, partition_rows=9) == table(333, 777)


def test_older_epochs_are_lifted_to_the_schema_of_the_version(stream):
    before = stream._log.root
    stream.append(pa.table({"n": [1000], "x": [1.5]}), merge_schema=True)
    got = read(stream, 998, 1001)
    assert got.to_pylist() == [
        {"n": 998, "s": "s998", "x": None},
        {"n": 999, "s": "s999", "x": None},
        {"n": 1000, "s": None, "x": 1.5},
    ]
    assert read(stream, 998, 1001, columns=["x"])["x"].to_pylist() == [None, None, 1.5]
    assert read(stream, 998, 1001, filters=[["x", "is null"]])["n"].to_pylist() == [998, 999]
    assert read(stream, 998, 1001, filters=[["x", ">", 1.0]])["n"].to_pylist() == [1000]
    pinned = snapshot(stream, before).plan()
    assert (pinned.end, pinned.result_schema) == (1000, SCHEMA)


def test_plan_keeps_its_version_when_the_handle_refreshes(stream):
    pinned = snapshot(stream)
    reading, other = pinned.plan(), pinned.plan(0, 10)
    stream.overwrite(table(0, 3))
    tasks = pinned.tasks(reading)
    batches = [batch for task in tasks for batch in run_task(reading, task)]
    assert pa.Table.from_batches(batches) == table(0, 1000)
    with pytest.raises(InvalidInputError, match="bound to another stream or version"):
        snapshot(stream).tasks(other)


# --- damage ---------------------------------------------------------------------------------------


def segment_path(stream: Stream, number: int) -> str:
    return f"segments/{stream._log.root.entries[number].path}"


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_frame_is_named_and_hides_nothing_else(stream, monkeypatch, whole):
    if not whole:
        monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    path = segment_path(stream, 1)
    data = bytearray(stream._log.storage.get(path))
    data[200] ^= 1  # within the first frame of ten rows
    stream._log.storage.put(path, bytes(data))
    with pytest.raises(CorruptionError, match=path):
        read(stream)
    assert read(stream, 0, 250) == table(0, 250)
    assert read(stream, 260, 1000) == table(260, 1000)


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("whole", [True, False])
def test_a_segment_that_is_cut_or_grown_is_noticed(stream, monkeypatch, whole):
    if not whole:
        monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    path = segment_path(stream, 2)
    data = stream._log.storage.get(path)
    stream._log.storage.put(path, data[:-1])
    with pytest.raises(TruncatedObjectError):
        read(stream, 500, 750)
    stream._log.storage.put(path, data[:100])
    with pytest.raises(TruncatedObjectError):
        read(stream, 500, 750)
    if whole:
        stream._log.storage.put(path, data + b"?")
        with pytest.raises(CorruptionError):
            read(stream, 500, 750)


@pytest.mark.usefixtures("no_inline")
def test_another_segments_bytes_are_noticed(stream):
    stream._log.storage.put(
        segment_path(stream, 2), stream._log.storage.get(segment_path(stream, 3))
    )
    with pytest.raises((CorruptionError, TruncatedObjectError)):
        read(stream, 500, 750)


@pytest.mark.usefixtures("no_inline")
def test_missing_segment_is_damage_and_dropped_is_expired(stream):
    path = segment_path(stream, 0)
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
