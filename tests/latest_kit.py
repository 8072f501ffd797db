"""A stream, and the stream of its newest events beside it, on storages that a test made."""

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
from faults import FaultStorage
from publish_kit import Table
from virtual_time import TimedStorage
from wrapped_storage import WrappedStorage

from segstore_ds.publish.latest import OFFSET
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

T = TypeVar("T")
KEY, TOMBSTONE = ["user"], "gone"
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])


class Timed(TimedStorage):
    """A storage on a virtual clock, and so is each place beside it."""

    def sibling(self, url: str) -> Storage:
        places = self.__dict__.setdefault("places", {})
        return places.setdefault(url, Timed(self.inner.sibling(url), self.time))


class Faulty(FaultStorage):
    """A storage that fails, and counts the calls to each place beside it as its own."""

    def sibling(self, url: str) -> Storage:
        return _Part(self, self.inner.sibling(url))


class _Part(WrappedStorage):
    def __init__(self, whole: Faulty, inner: Storage) -> None:
        super().__init__(inner)
        self.whole = whole

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        return self.whole.around(verb, f"latest:{path}", work)


def rows(*events: tuple[object, ...]) -> pa.Table:
    """Return events of a user, a number and a flag."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, e, strict=True)) for e in events], SCHEMA)


def beside(stream: Stream) -> Stream:
    """Open the stream with the newest events."""
    storage = stream._log.storage
    return open_on(storage.sibling(f"{storage.url}_latest"), clock=stream._log.clock)


def expected(stream: Stream) -> list[dict[str, object]]:
    """Return what a table of newest events has to show."""
    found = stream.latest(KEY, tombstone=TOMBSTONE, offset_column=OFFSET)
    return found.read_all().to_pylist()


def shown(stream: Stream, table: Table) -> list[dict[str, object]]:
    """Return what one shows; it is whole, and what the stream beside holds."""
    held = beside(stream)
    version, found = table.shown(held._log.storage)
    assert version == held.version
    assert str(found) == str(held.read().read_all().to_pylist())  # NaN is none
    return found
