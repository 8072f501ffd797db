"""What crash and corruption tests share: small events, copies of streams, what a stream says."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from faults import Fault
from virtual_time import TimedStorage

from segstore_ds.errors import NotFoundError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ABSENT = "absent"
READS = ("get", "get_range", "info", "list")


def events(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    return pa.table(
        {"n": list(range(start, end)), "s": [f"event {n}" for n in range(start, end)]}, SCHEMA
    )


def is_as_before(fault: Fault, call: str) -> bool:
    """Tell whether a fault after a call leaves what it leaves before: the call only reads."""
    return fault.when == "after" and fault.calls == 1 and call.startswith(READS)


class Checked:
    """The states that the sweeps of one operation have checked.

    Two faults may leave the same objects, made at the same times, behind the same error. What may
    be seen then depends on nothing else, and what is done afterwards not even on the error: so
    each is checked once.
    """

    def __init__(self) -> None:
        self._states: set[object] = set()

    def is_new(self, storage: TimedStorage, behind: object = None) -> bool:
        """Tell whether a state was not met before behind something, and remember it."""
        temporary = frozenset(info.path for info in storage.temporaries())
        objects = frozenset(files_of(storage).items())
        made = frozenset(storage.made_us.items())
        state = (behind, storage.time.now_us, objects, made, temporary)
        known = state in self._states
        self._states.add(state)
        return not known


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Give a folder of a filesystem whose syncs cost nothing, where there is one."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def fresh_storage(kind: str, folder: Path) -> Storage:
    """Return an empty storage of a kind: ``local`` or ``memory``."""
    name = uuid.uuid4().hex
    return open_storage(str(folder / name) if kind == "local" else f"memory://{name}")


def files_of(storage: Storage) -> dict[str, bytes]:
    """Return every object of a storage."""
    return {info.path: storage.get(info.path) for info in storage.list("")}


def restore(storage: Storage, files: dict[str, bytes]) -> Storage:
    """Fill a storage with objects."""
    for path, data in files.items():
        storage.put(path, data)
    return storage


def content(stream: Stream) -> tuple[object, ...]:
    """Return everything a reader can learn of a stream's events."""
    table = stream.read(offset_column="offset", read_cache_bytes=0).read_all()
    seen = (stream.head, stream.tail, table.schema.names, table.to_pylist())
    if stream.settings.time_column is None:
        return seen
    within = stream.read(event_time=(2, 5), offset_column="offset", read_cache_bytes=0)
    cuts = (stream.position("eventtime:3").offset, stream.scan("head", "eventtime:5").count())
    return (*seen, within.read_all().to_pylist(), cuts)


def content_on(storage: Storage) -> tuple[object, ...] | str:
    """Return what a reader learns that opens the stream now; `ABSENT` where there is none."""
    try:
        return content(open_on(storage))
    except NotFoundError:
        return ABSENT


def discard(storage: Storage) -> None:
    """Delete every object: memory keeps them all, and lists them all, until it does."""
    for info in list(storage.list("")):
        storage.delete(info.path)
