"""Small streams in memory on a clock of the test's, shared by tests of what is done to streams."""

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from virtual_time import TimedStorage, VirtualTime
from wrapped_storage import WrappedStorage

from segstore_ds.format.root import Root
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.connector.reads import Snapshot
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.staged import StagedTask

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ROOT_BYTES = 64 << 10  # what the shares of a root add up to at most (FORMAT.md 3.1)
# Of a sweep a change waits for crashes after a call; -m slow runs the others.
KINDS = ["crash", pytest.param("fail", marks=pytest.mark.slow)]
WHENS = ["after", pytest.param("before", marks=pytest.mark.slow)]
HOUR, DAY = 3600, 86_400
STAGED = Layout(inline_bytes=0)
CHOSEN = {"layout": Layout()}  # of `make_stream`
# Few commits fill a part, and few parts are merged.
SOFT = "segstore_ds.status.table.SEGMENTS.rows"
TIGHT = {
    SOFT: 3,
    "segstore_ds.status.table.SEGMENTS.fan_in": 2,
    "segstore_ds.status.table.RETIRED.rows": 3,
}


def fresh_url() -> str:
    """Return a place in memory where nothing is yet."""
    return f"memory://{uuid.uuid4().hex}"


def numbers(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    return pa.table(
        {"n": list(range(start, end)), "s": [f"s{n}" for n in range(start, end)]}, SCHEMA
    )


def make_stream(commits: int, seed: int = 1) -> tuple[Stream, TimedStorage]:
    """Return a stream of so many commits of ten events, an hour apart, and its storage."""
    clock = VirtualTime(seed)
    storage = TimedStorage(open_storage(fresh_url()), clock)
    stream = create_on(storage, SCHEMA, upkeep=None, clock=clock.clock)
    for n in range(commits):
        wait(storage, HOUR)
        stream.append(numbers(10 * n, 10 * n + 10), layout=CHOSEN["layout"])
    return stream, storage


def make_old(folder: Path, days: float) -> tuple[Stream, TimedStorage]:
    """Return a stream on a disk, without upkeep, on a clock that begins so many days ago."""
    clock = VirtualTime(1, now_us=time.time_ns() // 1000 - int(days * DAY * 1e6))
    storage = TimedStorage(open_storage(folder), clock)
    return create_on(storage, SCHEMA, upkeep=None, clock=clock.clock), storage


def age_files(storage: TimedStorage, folder: Path) -> None:
    """Give the files of a folder the times that they have on a virtual clock."""
    for path, made_us in storage.made_us.items():
        with suppress(FileNotFoundError):
            os.utime(folder / path, (made_us / 1e6, made_us / 1e6))


def days_later(folder: Path, days: float = 3) -> Stream:
    """Open a stream on a disk so many days later; what is there was made now."""
    clock = VirtualTime(2, now_us=time.time_ns() // 1000)
    storage = TimedStorage(open_storage(folder), clock)
    clock.advance(days * DAY)
    return open_on(storage, clock=clock.clock)


def wait(storage: TimedStorage, seconds: float) -> None:
    """Let time pass for a stream, its handles and its storage."""
    storage.time.advance(seconds)


def values(stream: Stream, *cuts: object, offset: bool = False, **options: object) -> list:
    """Return the numbers between two cuts, on request with their offsets before them."""
    table = stream.read(*cuts, columns=["n"], offset_column="o", **options).read_all()
    found = table["n"].to_pylist()
    return list(zip(table["o"].to_pylist(), found, strict=True)) if offset else found


class Meddling(WrappedStorage):
    """A storage where something else happens just before a call, once.

    Args:
        inner: The storage that does the work.
        call: The call, as ``verb path``; a prefix is enough.
        happens: What happens.
    """

    def __init__(self, inner: Storage, call: str, happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self.met = False
        self._call = call
        self._happens = happens

    def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
        if not self.met and f"{verb} {path}".startswith(self._call):
            self.met = True
            self._happens()
        return work()


def snapshot(stream: Stream, root: Root | None = None) -> Snapshot:
    """Return a version of a stream as connectors see it, the newest one that it has seen."""
    return Snapshot(stream._context, stream._log.root if root is None else root)


def objects(storage: TimedStorage, prefix: str = "") -> set[str]:
    """Return the names of all objects under a folder."""
    return {info.path for info in storage.list(prefix)}


def staged_job(stream: Stream, start: int, end: int) -> tuple[WriteJob, StagedTask]:
    """Plan a job and stage events for it, without committing."""
    job = stream.plan_write(SCHEMA, layout=STAGED)
    task = job.open_task(0, "a")
    for batch in numbers(start, end).to_batches():
        task.append(batch)
    return job, task.finish()
