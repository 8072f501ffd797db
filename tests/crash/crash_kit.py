"""What crash and corruption tests share: small events, copies of streams, what a stream says."""

import resource
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import NotFoundError, SegstoreError
from segstore_ds.log.clock import Clock
from segstore_ds.read import scan
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


@dataclass(frozen=True, slots=True)
class Sweep:
    """A run from the same files and at the same time, with a fault at its 1st, 2nd, 3rd... call.

    `checked` has the states of the other faults; `like` is the storage that the files come from.
    """

    fresh: Callable[[], Storage]
    files: dict[str, bytes]
    now_us: int
    run: Callable[[Storage, Clock], object]
    checked: Checked
    like: TimedStorage | None = None

    def steps(self, fault: Fault, *, stride: int = 1) -> Iterator["Step"]:
        """Yield what each run leaves that no other has left, up to a run that succeeds."""
        for number in range(1, 1000, stride):
            time = VirtualTime(100, now_us=self.now_us)
            left = TimedStorage(restore(self.fresh(), self.files), time, like=self.like)
            faulty = FaultStorage(left, replace(fault, at=number))
            error = attempt(self.run, faulty, time.clock)
            if not faulty.struck:
                assert error is None
                assert number > 3
                discard(left)
                return
            call = faulty.calls[number - 1]
            if not is_as_before(fault, call) and self.checked.is_new(left, type(error)):
                yield Step(left, time.clock, error, f"call {number}: {call}, {error!r}")
            discard(left)
        pytest.fail("it never succeeds")


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a sweep: the storage as it was left, and how the run ended."""

    storage: TimedStorage
    clock: Clock
    error: BaseException | None
    place: str


def attempt(work: Callable[..., object], *given: object) -> BaseException | None:
    """Run something, and return the error that it ended with."""
    try:
        work(*given)
    except (Crash, SegstoreError) as error:
        return error
    return None


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


@contextmanager
def memory_limit(extra_bytes: int) -> Iterator[None]:
    """Let this process take so many bytes of address space more than it has, and no more.

    Streams are read in this thread meanwhile: one that begins, but gets no memory for it, never
    says that it has begun, and Python waits for that without end.
    """
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    now = int(statm.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + extra_bytes, hard))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan, "read_threads", lambda _reading: 1)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
