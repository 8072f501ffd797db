"""Scans by several threads: the order of one thread, its errors in their turn, and no waiting."""

import uuid
from collections.abc import Callable, Iterator
from itertools import accumulate
from threading import Condition
from typing import TypeVar

import pyarrow as pa
import pytest
from stream_kit import snapshot
from wrapped_storage import WrappedStorage

from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.read import prefetch, scan, segments
from segstore_ds.read.scan import run_tasks
from segstore_ds.read.segments import open_segment
from segstore_ds.storage import Storage, open_storage
from segstore_ds.storage.base import NEAR
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

T = TypeVar("T")
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def table(start: int, end: int) -> pa.Table:
    numbers = range(start, end)
    return pa.table({"n": numbers, "s": [f"s{n}" for n in numbers]}, schema=SCHEMA)


@pytest.fixture(params=["arrow", "parquet"])
def stream(request: pytest.FixtureRequest) -> Stream:
    """Five segments of a hundred events, in frames of ten."""
    made = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), SCHEMA)
    for start in range(0, 500, 100):
        layout = Layout(frame_rows=10, segment_format=request.param, inline_bytes=0)
        made.append(table(start, start + 100), layout=layout)
    return made


def batches(stream: Stream, threads: int, **tasks: int) -> Iterator[pa.RecordBatch]:
    reading = snapshot(stream).plan(offset_column="o", read_cache_bytes=0)
    return run_tasks(reading, snapshot(stream).tasks(reading, **tasks), threads=threads)


@pytest.fixture(params=["small", "dense", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take segments for small ones, which are one part of the work, or for large ones.

    Or for small ones that unpack to so much that only three frames are decoded ahead.
    """
    if request.param == "large":
        take_for_large(monkeypatch)
    if request.param == "dense":
        monkeypatch.setattr(scan, "_SMALL_RAW_BYTES", 600)


@pytest.fixture
def near(stream: Stream) -> None:
    """Take the storage for a local disk, whose answers come at once."""
    stream._log.storage.profile = NEAR


def take_for_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_SMALL_ROWS", 0)
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    monkeypatch.setattr(segments, "READ_BYTES", 1)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("partition_rows", [30, 1000])
def test_events_come_in_order(stream: Stream, threads: int, partition_rows: int) -> None:
    """Whatever the tasks: a thread may be at the next segment or the next task already."""
    found = pa.Table.from_batches(batches(stream, threads, partition_rows=partition_rows))
    assert found["o"].to_pylist() == list(range(500))
    assert found.drop_columns("o") == table(0, 500)


@pytest.mark.usefixtures("near")
def test_few_small_segments_need_no_thread_where_answers_take_no_time(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads would wait for each other more than they decode."""
    monkeypatch.setattr(prefetch, "ThreadPoolExecutor", None)
    assert stream.read(95, 105).read_all() == table(95, 105)


@pytest.mark.parametrize("raw_bytes", [1, 600, 1 << 20])
def test_a_small_segment_is_decoded_ahead_up_to_a_size(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, raw_bytes: int
) -> None:
    """Nobody knows what it unpacks to before it is opened; the rest waits for its turn."""
    monkeypatch.setattr(scan, "_SMALL_RAW_BYTES", raw_bytes)
    decoded, sizes = dict[str, list[int]](), dict[str, list[int]]()
    decode = segments.OpenSegment.decode

    def note(self, number, data, **rest):
        decoded.setdefault(self.where, []).append(self.frames[number].raw_bytes)
        sizes[self.where] = [frame.raw_bytes for frame in self.frames]
        return decode(self, number, data, **rest)

    monkeypatch.setattr(segments.OpenSegment, "decode", note)
    running = batches(stream, 2)
    assert next(running)["o"].to_pylist() == list(range(10))
    running.close()  # type: ignore[attr-defined]
    first = f"{stream._log.storage.url}/segments/{stream._log.root.entries[0].path}"
    fitting = sum(size <= raw_bytes for size in accumulate(sizes[first]))
    assert len(decoded.pop(first)) == max(fitting, 1)
    assert all(sum(ahead) <= raw_bytes for ahead in decoded.values())


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("threads", [1, 2])
def test_events_before_damage_are_delivered_first(stream: Stream, threads: int) -> None:
    """Within a segment, too, whichever thread decodes the frame."""
    entry = stream._log.root.entries[1]
    name = f"segments/{entry.path}"
    frame = open_segment(stream._log.storage, entry).frames[6]
    damaged = bytearray(stream._log.storage.get(name))
    damaged[(frame.start + frame.end) // 2] ^= 1
    stream._log.storage.put(name, bytes(damaged))
    seen: list[int] = []
    with pytest.raises(CorruptionError):
        seen.extend(n for batch in batches(stream, threads) for n in batch["o"].to_pylist())
    assert seen == list(range(160))


class Waiting(WrappedStorage):
    """A far storage that answers no read of a segment before four others are under way.

    The first request for a segment is that of its index.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.most = {"index": 0, "frames": 0}
        self._opened: set[str] = set()
        self._now = {"index": 0, "frames": 0}
        self._changed = Condition()

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        if verb != "get_range" or not path.startswith("segments/"):
            return work()
        with self._changed:
            kind = "frames" if path in self._opened else "index"
            self._opened.add(path)
            self._now[kind] += 1
            self.most[kind] = max(self.most[kind], self._now[kind])
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.most[kind] >= 4, 10)
        try:
            return work()
        finally:
            with self._changed:
                self._now[kind] -= 1


def test_requests_to_an_object_store_are_under_way_together(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indices of segments, and frames of a segment, which otherwise would wait for each other."""
    take_for_large(monkeypatch)
    storage = Waiting(stream._log.storage)
    assert open_on(storage).read(read_cache_bytes=0).read_all() == table(0, 500)
    assert min(storage.most.values()) >= 4


def test_a_scan_of_generated_columns_alone_opens_no_segment(stream: Stream) -> None:
    stats = stream._log.storage.stats
    stats.reset()
    assert stream.scan().count() == 500
    counted = stats.total
    stats.reset()
    assert stream.read(columns=[], offset_column="o").read_all().num_rows == 500
    assert stats.total == counted


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("threads", [1, 4])
def test_events_before_an_error_are_delivered_first(stream: Stream, threads: int) -> None:
    """Although it was met before those events were asked for."""
    stream._log.storage.delete(f"segments/{stream._log.root.entries[2].path}")
    seen: list[int] = []
    with pytest.raises(MissingObjectError):
        seen.extend(n for batch in batches(stream, threads) for n in batch["o"].to_pylist())
    assert seen == list(range(200))
