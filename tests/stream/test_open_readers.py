"""What an open reader holds, and when it lets go of it."""

import gc
import os
import threading
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError

LAYOUT = segstore.Layout(frame_rows=10, inline_bytes=0, segment_format="arrow")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[segstore.Stream]:
    """A stream of many segments, read by four threads whatever the machine; nobody tidies up."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    made = segstore.create(f"memory://{uuid.uuid4().hex}", pa.schema([("n", pa.int64())]))
    for start in range(0, 400, 10):
        made.append(pa.table({"n": range(start, start + 10)}), layout=LAYOUT)
    gc.disable()
    yield made
    gc.enable()


def threads() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("segstore-map-ahead")
    ]


def test_a_dropped_reader_ends_its_threads(stream: segstore.Stream) -> None:
    """The threads end at once, because nothing else refers to the reader."""
    reader = stream.read()
    assert reader.read_next_batch().num_rows == 10
    assert threads()
    del reader
    assert not threads()


def test_a_reader_that_gave_its_last_events_has_no_threads(stream: segstore.Stream) -> None:
    """Also if the caller does not ask for another batch."""
    reader = stream.read()
    for _ in range(40):
        reader.read_next_batch()
    for thread in threads():
        thread.join(timeout=300)
    assert not threads()
    with pytest.raises(StopIteration):
        reader.read_next_batch()


def test_close_of_a_reader_is_of_pyarrow_and_does_nothing(stream: segstore.Stream) -> None:
    """So says the docstring of `read`; if this fails, pyarrow has learnt it: say so there."""
    reader = stream.read()
    with reader:
        reader.read_next_batch()
    assert threads()
    assert reader.read_next_batch().num_rows == 10
    del reader


def test_a_reader_behind_arrows_interface_can_be_closed(stream: segstore.Stream) -> None:
    """Errors are then Arrow's own."""
    with pa.RecordBatchReader.from_stream(stream.read()) as reader:
        assert reader.read_next_batch().num_rows == 10
        assert threads()
    assert not threads()
    with pytest.raises(pa.ArrowInvalid, match="closed"):
        reader.read_next_batch()

    segment = f"segments/{stream._log.root.entries[0].path}"
    damaged = bytearray(stream._log.storage.get(segment))
    damaged[100] ^= 1
    stream._log.storage.put(segment, bytes(damaged))
    with pytest.raises(CorruptionError):
        stream.read(read_cache_bytes=0).read_all()
    with (
        pa.RecordBatchReader.from_stream(stream.read(read_cache_bytes=0)) as reader,
        pytest.raises(pa.ArrowInvalid, match="CorruptionError"),
    ):
        reader.read_all()
