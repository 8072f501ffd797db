"""Staging through the write cache: the same objects whatever its buffers, and rows read back."""

import itertools
import os
import uuid
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage

import segstore_ds as segstore
from segstore_ds.errors import ClosedError, InvalidInputError, SegstoreError, StorageError
from segstore_ds.format.names import build_token
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write import segment_writer
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import Target
from segstore_ds.write.task_writer import TaskWriter, stage_few
from unit.cache.suites import until

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
TOKEN = build_token(1, "0123456789ab")


def events(start: int, end: int) -> pa.RecordBatch:
    """Return a batch of the events start to end, about 1 kB each."""
    return pa.record_batch(
        [list(range(start, end)), [f"{n}" * (1000 // len(f"{n}")) for n in range(start, end)]],
        schema=SCHEMA,
    )


def layout(**knobs) -> Layout:
    """Return a layout of 100 kB frames."""
    sizes = {"frame_rows": 100, "inline_bytes": 0}
    return Layout(compression="none", segment_format="arrow", **sizes, **knobs)


def begin(storage: Storage, one: Layout, **knobs) -> TaskWriter:
    """Begin a task."""
    attempt = uuid.uuid4().hex[:8]
    return TaskWriter(Target(storage, SCHEMA, one, TOKEN), 0, attempt, **knobs)


@pytest.fixture(params=["memory", "local"])
def storage(request, tmp_path) -> Storage:
    """A folder."""
    name = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else tmp_path / "stream"
    return open_storage(name)


@pytest.mark.parametrize(
    ("buffers", "buffer_bytes"), [(1, 1), (2, 4 << 10), (4, 110_000), (1, 1 << 20)]
)
def test_objects_are_the_same_whatever_the_buffers(storage, buffers, buffer_bytes, monkeypatch):
    """Buffers of less than a frame, of about one, and of all of them."""
    found = []
    for count, size in ((2, 8 << 20), (buffers, buffer_bytes)):
        monkeypatch.setattr(segment_writer, "BUFFERS", count)
        monkeypatch.setattr(segment_writer, "BUFFER_BYTES", size)
        task = begin(storage, layout())
        for start in range(0, 1000, 50):
            task.append(events(start, start + 50))
        [segment] = task.finish().segments
        found.append(storage.get(f"segments/{segment.path}"))
        assert len(found[-1]) == segment.bytes
    assert found[0] == found[1]


@pytest.mark.parametrize("at", range(1, 6))
def test_rows_are_read_back_after_a_write_that_failed(tmp_path, at, monkeypatch):
    """Whichever write it is: nothing that the task took is lost to the reader."""
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", 256 << 10)
    calls = itertools.count(1)
    written = os.writev

    def writev(*args):
        return _no_space() if next(calls) >= at else written(*args)

    monkeypatch.setattr("segstore_ds.storage.local.os.writev", writev)
    task = begin(open_storage(tmp_path / "stream"), layout(segment_bytes=500_000), readable=True)
    with pytest.raises(StorageError, match="No space left"):
        _append_for_ever(task)
    _check(task, 0, task.rows)
    task.abort()


@pytest.mark.parametrize(
    ("knobs", "columns"),
    [
        ({}, {}),
        ({"compression": "none", "stats_columns": ("s",)}, {"time_column": "n"}),
        ({"segment_format": "parquet"}, {"key_columns": ("s",)}),
        ({"inline_bytes": 2000}, {}),
        ({"inline_bytes": 300}, {}),
        ({"inline_bytes": 0}, {}),
        ({"frame_rows": 2}, {}),
    ],
)
@pytest.mark.parametrize("end", [3, 64])
def test_few_rows_are_staged_as_a_writer_stages_them(storage, knobs, columns, end):
    """In one step where they stay inline; it leaves alone what would become a segment."""
    target = Target(storage, SCHEMA, Layout(**knobs), TOKEN, **columns)
    batch = events(0, end)
    task = TaskWriter(target, 0, "0").stage([batch])
    few = stage_few(target, batch)
    if few is not None:
        assert few == replace(task, host="")
    elif len(task.frames) == 1:
        assert task.frames[0].raw_bytes > 0.8 * target.layout.inline_bytes


def test_a_failed_write_is_raised_and_leaves_nothing(tmp_path, monkeypatch):
    storage = open_storage(tmp_path / "stream")
    monkeypatch.setattr("segstore_ds.storage.local.os.writev", _no_space)
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", 128 << 10)
    task = begin(storage, layout())
    with pytest.raises(StorageError, match="No space left"):
        _append_for_ever(task)
    with pytest.raises(StorageError, match="No space left"):
        task.finish()
    task.abort()
    assert list((tmp_path / "stream").rglob("*.arrow")) == []
    with pytest.raises(ClosedError):
        task.append(events(0, 1))


@pytest.mark.parametrize("kind", ["fail", "crash"])
def test_whatever_call_breaks_the_stream_stays_whole(kind, monkeypatch):
    """The n-th call, for every n, also those of the cache's own thread."""
    monkeypatch.setattr(segment_writer, "BUFFERS", 2)
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", 110_000)
    for at in range(1, 1000):
        inner = open_storage(f"memory://{uuid.uuid4().hex}")
        segstore.create(inner.url, SCHEMA).append(pa.Table.from_batches([events(0, 10)]))
        faults = FaultStorage(inner, Fault(at, kind, "after"))
        try:
            stream = open_on(faults)
            commit = stream.append(pa.Table.from_batches([events(10, 410)]), layout=layout())
        except (SegstoreError, Crash):
            commit = None
        again = segstore.open(inner.url)
        assert again.verify().ok
        assert again.tail in ((410,) if commit else (10, 410))
        found = again.read().read_all()["n"].to_pylist()
        assert found == list(range(again.tail))
        if not faults.struck:
            assert at > 10
            return
    raise AssertionError("the sweep has no end")


def _no_space(*_):
    raise OSError(28, "No space left on device")


def _append_for_ever(task: TaskWriter) -> None:
    while True:
        task.append(events(task.rows, task.rows + 100))


@pytest.mark.parametrize(
    ("buffers", "buffer_bytes", "inline_bytes"),
    [(1, 50_000, 0), (2, 110_000, 150_000), (2, 256 << 10, 0), (1, 8 << 20, 150_000)],
)
def test_rows_are_read_back_wherever_they_are(
    storage, buffers, buffer_bytes, inline_bytes, monkeypatch
):
    """Gathered, inline, in a buffer, in an object that is whole: all of them at any time."""
    monkeypatch.setattr(segment_writer, "BUFFERS", buffers)
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", buffer_bytes)
    one = Layout(compression="none", frame_rows=100, inline_bytes=inline_bytes)
    task = begin(storage, one, readable=True)
    for start in range(0, 1000, 70):
        task.append(events(start, start + 70))
        rows = task.rows
        for first, last in ((0, rows), (rows - 71, rows - 3), (start // 2, start), (5, 5)):
            _check(task, max(first, 0), last)
    staged = task.finish()
    _check(task, 0, task.rows)
    assert sum(segment.rows for segment in staged.segments) == staged.rows
    whole = len(staged.segments)
    assert whole >= (2 if buffers * buffer_bytes < 1_000_000 else 1)
    task.abort()
    with pytest.raises(ClosedError):
        list(task.read(0, 1))
    with pytest.raises(InvalidInputError, match="not readable"):
        list(begin(storage, layout()).read(0, 0))


def _check(task: TaskWriter, start: int, end: int) -> None:
    found = pa.Table.from_batches(task.read(start, end), SCHEMA)
    assert found["n"].to_pylist() == list(range(start, end))
    assert found["s"].to_pylist() == events(start, end)["s"].to_pylist()


def test_rows_are_read_back_if_the_failure_was_there_before_their_encode(tmp_path, monkeypatch):
    """The cache's thread has failed: no memory is given to the encoder, and no row is lost."""
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", 256 << 10)
    monkeypatch.setattr(segment_writer, "BUFFERS", 3)
    monkeypatch.setattr("segstore_ds.storage.local.os.writev", _no_space)
    task = begin(open_storage(tmp_path / "stream"), layout(), readable=True)
    for start in range(0, 450, 100):
        if start == 400:
            until(lambda: task._segment._cache._failure.error is not None)
        with suppress(StorageError):
            task.append(events(start, start + 100))
    assert task.rows == 500
    _check(task, 0, 500)
    task.abort()
