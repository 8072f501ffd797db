"""Streams of every kind for tests of damaged status objects, and what they say when sound."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import pytest
from crash_kit import SCHEMA, discard, events, files_of
from fsspec.implementations.memory import MemoryFileSystem
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.copy import events as copy_events
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write import append
from segstore_ds.write.layout import Layout

WAYS = ("missing", "empty", "cut", "longer", "flipped", "flipped behind", "swapped")
SCATTERED = Layout(inline_bytes=0, segment_rows=2)
_STATUS = "segstore_ds.status."
# Few commits fill parts, merge them, and fill lists.
TIGHT: Mapping[str, int] = {
    f"{_STATUS}table.SEGMENTS.rows": 3,
    f"{_STATUS}table.SEGMENTS.fan_in": 2,
    f"{_STATUS}table.SEGMENTS.parts": 4,
    f"{_STATUS}table.RETIRED.rows": 3,
    f"{_STATUS}table.WRITERS.rows": 4,
    f"{_STATUS}epochs.SCHEMA_INLINE_BYTES": 10,
    f"{_STATUS}table.HISTORY.rows": 4,
    f"{_STATUS}table.HISTORY.fan_in": 2,
    f"{_STATUS}table.HISTORY.parts": 3,
}


@contextmanager
def tight() -> Iterator[None]:
    """Let a few commits make objects of every kind."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TIGHT.items():
            patch.setattr(name, value)
        patch.setattr(append, "FRAME_MOST_BYTES", 0)
        yield


@dataclass(frozen=True, slots=True)
class Made:
    """A sound stream as files, and when it is."""

    folders: dict[str, dict[str, bytes]]  # its own and those that belong to it, by location
    now_us: int

    def open(self, damage: Mapping[str, str] = MappingProxyType({})) -> TimedStorage:
        """Return the stream where it was, its objects sound but for those that are damaged."""
        for url, files in self.folders.items():
            folder = open_storage(url)
            discard(folder)
            for path, data in spoiled(files, damage).items():
                if data:
                    folder.put(path, data)
                else:
                    full = f"{url.removeprefix('memory:/')}/{path}"
                    MemoryFileSystem().pipe_file(full, b"", mode="overwrite")
        own = next(iter(self.folders))
        return TimedStorage(open_storage(own), VirtualTime(7, now_us=self.now_us))

    @property
    def status(self) -> list[str]:
        """The status objects of all its folders, by their own names."""
        paths = {path for files in self.folders.values() for path in files}
        return sorted(path for path in paths if path.startswith("status/"))


def _begin() -> tuple[Stream, TimedStorage, VirtualTime]:
    time = VirtualTime(11)
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    return create_on(storage, SCHEMA, upkeep=None, clock=time.clock), storage, time


def _append(stream: Stream, time: VirtualTime, commits: int) -> None:
    for n in range(commits):
        time.advance(3600)
        rows = n % 3 + 1
        start = stream.tail
        stream.append(events(start, start + rows), writer_id=f"w{n}", batch_id=start)


def _made(storage: Storage, time: VirtualTime, *others: Storage) -> Made:
    return Made({each.url: files_of(each) for each in (storage, *others)}, time.now_us)


def appended() -> Made:
    """Return a stream of small appends."""
    stream, storage, time = _begin()
    _append(stream, time, 23)
    return _made(storage, time)


def scattered() -> Made:
    """Return a stream whose commits add many segments each."""
    stream, storage, time = _begin()
    for n in range(6):
        time.advance(3600)
        stream.append(events(stream.tail, stream.tail + 5 + n), layout=SCATTERED)
    return _made(storage, time)


def evolved() -> Made:
    """Return a stream with more than one schema, tags, and an orphan of a killed job."""
    stream, storage, time = _begin()
    _append(stream, time, 5)
    task = stream.plan_write(SCHEMA, layout=Layout(inline_bytes=0)).open_task(0, "a")
    for batch in events(0, 3).to_batches():
        task.append(batch)
    task.finish()
    wider = events(stream.tail, stream.tail + 2).append_column("x", [[1.5, 2.5]])
    stream.append(wider, merge_schema=True)
    for n in range(5):
        stream.tags.set(f"t{n}", n)
    stream.tags.delete("t1")
    for n in range(4):
        more = events(stream.tail, stream.tail + 2).append_column("x", [[n + 0.5, None]])
        stream.append(more)
    return _made(storage, time)


def compacted() -> Made:
    """Return a stream that was compacted twice, with appends in between."""
    stream, storage, time = _begin()
    _append(stream, time, 9)
    stream.compact(target_rows=4)
    _append(stream, time, 7)
    stream.compact(start=6)
    _append(stream, time, 2)
    return _made(storage, time)


def truncated() -> Made:
    """Return a stream whose head moved into a part, twice."""
    stream, storage, time = _begin()
    _append(stream, time, 14)
    stream.truncate(5)
    _append(stream, time, 4)
    stream.truncate(16)
    _append(stream, time, 3)
    return _made(storage, time)


def restored() -> Made:
    """Return a stream that lists segments of an older version again."""
    stream, storage, time = _begin()
    _append(stream, time, 5)
    version = stream.version
    stream.overwrite(events(0, 1))
    stream.restore(version)
    _append(stream, time, 4)
    return _made(storage, time)


def purged() -> Made:
    """Return a stream that keeps its newest versions alone; nothing was vacuumed."""
    stream, storage, time = _begin()
    _append(stream, time, 20)
    time.advance(86_400 * 2)
    _append(stream, time, 2)
    stream.maintain(keep=3600)
    return _made(storage, time)


def aged() -> Made:
    """Return a stream that was compacted, purged and vacuumed: names and the history tell parts."""
    stream, storage, time = _begin()
    _append(stream, time, 12)
    stream.compact(target_rows=8)
    _append(stream, time, 5)
    time.advance(86_400 * 2)
    _append(stream, time, 2)
    stream.maintain(keep=3600)
    stream.maintain(grace="7d", dry_run=True)
    return _made(storage, time)


def listed() -> Made:
    """Return a stream whose oldest parts, of segments and of history, stand in lists."""
    stream, storage, time = _begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_STATUS}table.SEGMENTS.fan_in", 50)
        patch.setattr(f"{_STATUS}table.HISTORY.fan_in", 50)
        _append(stream, time, 34)
    assert stream._log.root.lists
    assert stream._log.root.history_lists
    return _made(storage, time)


def copied() -> Made:
    """Return a copy by events of many segments, which went on by itself."""
    stream, _, time = _begin()
    _append(stream, time, 12)
    target = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_events, "LEAST_PIECE_ROWS", 2)
        patch.setattr(copy_events, "PIECE_BYTES", 1)
        stream.copy_to(target.url, copy_id="c", mode="events", start=3)
    copy = open_on(target, clock=time.clock)
    _append(copy, time, 2)
    assert copy._log.root.parts[0].path.startswith(f"status/{0:020d}")
    return _made(target, time)


def cloned() -> Made:
    """Return a clone that went on by itself; its origin is sound."""
    stream, storage, time = _begin()
    _append(stream, time, 12)
    url = f"memory://{uuid.uuid4().hex}"
    stream.copy_to(url, copy_id="clone", mode="clone")
    other = TimedStorage(open_storage(url), time)
    clone = open_on(other, clock=time.clock)
    _append(clone, time, 9)
    return _made(other, time, storage)


def redacted() -> Made:
    """Return a stream of which an event was redacted and another column expired."""
    stream, storage, time = _begin()
    _append(stream, time, 9)
    stream.redact([("n", "=", 3)], columns=["s"], redact_id="r")
    _append(stream, time, 4)
    return _made(storage, time)


def renamed() -> Made:
    """Return a stream of which a column was renamed and found by key, with filters of parts."""
    stream, storage, time = _begin()
    stream.settings.update(key_columns=["s"])
    _append(stream, time, 7)
    stream.change_schema(rename={"s": "word"})
    for n in range(5):
        time.advance(3600)
        start = stream.tail
        stream.append(events(start, start + n + 1).rename_columns(["n", "word"]), layout=SCATTERED)
    return _made(storage, time)


def tabled() -> Made:
    """Return a stream whose events are published, and the newest of each key, too."""
    stream, storage, time = _begin()
    _append(stream, time, 9)
    stream.publish("delta", settle=True)
    stream.publish("delta", latest_by="s")
    _append(stream, time, 5)
    latest = open_storage(f"{storage.url}_latest")
    return _made(storage, time, latest)


MAKERS: tuple[Callable[[], Made], ...] = (
    appended,
    copied,
    scattered,
    evolved,
    compacted,
    truncated,
    restored,
    purged,
    aged,
    listed,
    cloned,
    redacted,
    renamed,
    tabled,
)


def spoiled(files: Mapping[str, bytes], damage: Mapping[str, str]) -> dict[str, bytes]:
    """Return files some of which are damaged, each in a way of its own.

    Swapped, it holds what the next one does.
    """
    found, paths = dict(files), sorted(damage.keys() & files.keys())
    for path, other in zip(paths, [*paths[1:], *paths[:1]], strict=True):
        data, way = files[path], damage[path]
        place = {"flipped": len(data) // 3, "flipped behind": len(data) - 3}.get(way, 0)
        flipped = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        simple = {"empty": b"", "cut": data[: len(data) // 2], "longer": data + b"x"}
        found[path] = files[other] if way == "swapped" else simple.get(way, flipped)
        if way == "missing":
            del found[path]
    return found


def said(stream: Stream) -> dict[str, object]:
    """Return all that a stream says of itself, and that no repair may change."""
    root = stream._log.root
    writers = sorted(stream.metadata("writers").read_all().to_pylist(), key=str)
    return {
        "events": stream.read(offset_column="o").read_all().to_pylist(),
        "range": (stream.head, stream.tail, root.generation),
        "tags": {name: tag.offset for name, tag in stream.tags.items()},
        "writers": writers,
        "history": stream.metadata("history").read_all().to_pylist(),
        "segments": stream.metadata("segments").read_all().to_pylist(),
        "next": root.next_segment,
    }
