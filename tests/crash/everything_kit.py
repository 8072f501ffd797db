"""A stream that has an object of every kind, and what every supported read says of it."""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from crash_kit import discard, files_of, restore
from damage_kit import TIGHT
from publish_kit import shown, shown_iceberg
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import SegstoreError
from segstore_ds.format import names
from segstore_ds.publish import paths
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("key", pa.string())])
WAYS = ("flipped", "flipped first", "flipped last", "cut", "longer", "empty", "gone")
_TABLES = ("segments", "frames", "history", "info", "storage", "writers", "readers", "tags")


def _rows(start: int, end: int) -> pa.Table:
    return pa.table(
        {"n": list(range(start, end)), "key": [f"k{n % 7}" for n in range(start, end)]}, SCHEMA
    )


@dataclass(frozen=True, slots=True)
class Everything:
    """A sound stream as files, when it is, and what its readers say."""

    url: str
    files: dict[str, bytes]
    now_us: int
    answers: dict[str, object]

    def open(self) -> tuple[Storage, VirtualTime]:
        """Return the stream, sound again, where it was: an Iceberg table names its location."""
        time = VirtualTime(uuid.uuid4().int % 1000, now_us=self.now_us)
        storage = open_storage(self.url)
        discard(storage)
        return TimedStorage(restore(storage, self.files), time), time


def make_everything(form: str) -> Everything:
    """Return a stream of segments in a format, with filters, and tables of it published."""
    time = VirtualTime(11)
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    with pytest.MonkeyPatch.context() as patch:
        few = {name: 2 for name in TIGHT if name.endswith(".parts")}
        for name, value in {**TIGHT, **few}.items():
            patch.setattr(name, value)
        stream = create_on(storage, SCHEMA, upkeep=None, clock=time.clock)
        stream.settings.update(key_columns=["key"])
        _fill(stream, time, form)
    files = files_of(storage)
    everything = Everything(storage.url, files, time.now_us, {})
    again, _ = everything.open()
    everything.answers.update(ask_all(again))
    broken = {what: found for what, found in everything.answers.items() if found == "error"}
    assert not broken, broken
    kinds = {kind_of(path) for path in files}
    missing = {"log", "hint", "segment", "part", "history", "writers", "schema"} - kinds
    assert not missing, missing
    assert {"retired", "list", "reader", "delta", "iceberg", "own file"} <= kinds, kinds
    return everything


def _fill(stream: Stream, time: VirtualTime, form: str) -> None:
    apart = Layout(inline_bytes=0, segment_format=form)

    def write(rows: int, writer: str, layout: Layout = apart) -> None:
        time.advance(3600)
        start = stream.tail
        stream.append(_rows(start, start + rows), layout=layout, writer_id=writer, batch_id=start)

    for n in range(9):
        write(2, f"w{n}")
    for n in range(4):
        stream.tags.set(f"t{n}", n)
    stream.compact(target_rows=6, layout=apart)
    stream.truncate(3)
    fast, slow = stream.readers.register("fast"), stream.readers.register("slow")
    slow.publish(5)
    fast.publish(9)
    write(3, "w1")
    stream.publish("delta", settle=True)
    stream.publish("iceberg", settle=True)
    write(2, "w2")
    stream.publish("delta", settle=True)
    stream.publish("iceberg", settle=True)
    for n in range(8):
        write(1, f"v{n % 3}")
    while sum(1 for entry in stream._log.root.entries if entry.frame) < 2:
        write(2, "inline", Layout())


def kind_of(path: str) -> str:
    """Return what an object is."""
    folder = path.partition("/")[0]
    if paths.published_key(path) != path:
        return "own file"
    if folder in names.TABLE_FOLDERS:
        return "delta" if "delta" in folder else "iceberg"
    if names.is_status(path):
        return {"segments": "part"}.get(kind := names.parse_status_kind(path) or "", kind)
    if path == names.HINT_PATH:
        return "hint"
    return folder.rstrip("s")


def ask_all(storage: Storage) -> dict[str, object]:
    """Return what each supported read answers, or "error" where it fails with a typed error."""
    try:
        stream = open_on(storage)
    except SegstoreError:
        return {"open": "error"}
    asked: dict[str, Callable[[], object]] = {"open": lambda: stream.version}
    for version in range(stream._log.root.log_start, stream.version + 1):
        asked[f"version {version}"] = lambda v=version: _read(stream, as_of=v)
    asked["filter"] = lambda: _read(stream, filters=[("n", "=", 12)])
    asked["key"] = lambda: _read(stream, filters=[("key", "=", "k3")])
    for table in _TABLES:
        asked[table] = lambda t=table: stream.metadata(t).read_all().to_pylist()
    for name in ("fast", "slow"):
        asked[name] = lambda n=name: _offset_of(stream, n)
    asked["delta"] = lambda: shown(storage)
    asked["iceberg"] = lambda: shown_iceberg(storage)
    return {what: _answer(ask) for what, ask in asked.items()}


def _read(stream: Stream, **options: object) -> object:
    return stream.read(offset_column="o", read_cache_bytes=0, **options).read_all().to_pylist()


def _offset_of(stream: Stream, name: str) -> int:
    return next(seen.record.offset for seen in stream.readers if seen.name == name)


def _answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - of other engines' readers, too: whatever it is, it is no answer
        return "error"


def spoil(storage: Storage, path: str, way: str) -> None:
    """Damage an object in one of the `WAYS`."""
    data = storage.get(path)
    storage.delete(path)
    if way == "gone":
        return
    place = {"flipped": len(data) // 3, "flipped first": 0, "flipped last": len(data) - 1}.get(way)
    if place is not None:
        changed = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
    else:
        changed = {"cut": data[:-3], "longer": data + b"\0\0", "empty": b""}[way]
    if changed:
        storage.put(path, changed)
    else:
        from fsspec.implementations.memory import MemoryFileSystem

        full = storage.url.removeprefix("memory:/")
        MemoryFileSystem().pipe_file(f"{full}/{path}", b"", mode="overwrite")


def named_in(texts: Iterable[str]) -> Iterator[str]:
    """Yield the objects that the places of problems name."""
    for text in texts:
        yield re.split(r": |\[| ", text)[0]
