"""The storage interface: objects under one root, created once, read whole or by range.

The engine uses only `Storage`; the fault-injecting storage of the tests implements it, too.
`checked.py` has what the real storages share. Nothing here touches a filesystem.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from segstore_ds.errors import ConflictError, CorruptionError, InvalidInputError, MissingObjectError


@dataclass(frozen=True, slots=True)
class Profile:
    """What requests to a storage cost; a wrapper has the profile of the storage inside.

    Reads, commits and uploads go by these fields, not by the class of a storage.
    """

    is_far: bool  # requests take milliseconds, so reads prefetch and optional requests are avoided
    read_threads: int  # how many frames a read decodes at a time; twice as many are in memory
    fetch_factor: int  # size of fetches, as a multiple of that on a local disk
    part_bytes: int  # a `StagedWriter.write` should have at least this many
    trust_s: float  # how long a commit relies on its base; 0: check it before each put
    hint_every_s: float  # how often a handle writes the hint of its log; 0: after each commit


NEAR = Profile(
    is_far=False, read_threads=4, fetch_factor=1, part_bytes=1, trust_s=0.0, hint_every_s=0.0
)
FAR = Profile(
    is_far=True, read_threads=8, fetch_factor=4, part_bytes=1, trust_s=1.0, hint_every_s=1.0
)


# Name prefix of objects that probe a store; upkeep and drop recognize it.
PROBE = ".probe-"
T = TypeVar("T")

_TRIES = 5  # of `put_named`, if others delete the object
MOST_AT_ONCE = 16  # threads of `at_once`
_PART = r"(?!\.\.?(?:/|\Z))[^\x00-\x1f\x7f\\/]+"
_INSIDE = re.compile(rf"{_PART}(?:/{_PART})*")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's path relative to the root, its size in bytes, and its modification time.

    `modified_us` is in microseconds since 1970 UTC, by the store's clock.
    """

    path: str
    size: int
    modified_us: int


class StorageStats:
    """Counts calls by verb, and bytes; exact also when threads share a storage."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting from zero."""
        # Each thread changes only its own cells, so there is no lock, which a fork would copy.
        self._calls: dict[tuple[int, str], int] = {}
        self._read: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def add(self, verb: str) -> None:
        """Count a call."""
        cell = (threading.get_ident(), verb)
        self._calls[cell] = self._calls.get(cell, 0) + 1

    def add_read(self, size: int) -> None:
        """Count content bytes that were read."""
        thread = threading.get_ident()
        self._read[thread] = self._read.get(thread, 0) + size

    def add_written(self, size: int) -> None:
        """Count content bytes that were written."""
        thread = threading.get_ident()
        self._written[thread] = self._written.get(thread, 0) + size

    @property
    def requests(self) -> dict[str, int]:
        """Calls by verb: get, get_range, info, create, put, stage, copy, list, delete."""
        sums: dict[str, int] = {}
        for (_, verb), calls in list(self._calls.items()):
            sums[verb] = sums.get(verb, 0) + calls
        return sums

    @property
    def total(self) -> int:
        """The number of calls of all verbs."""
        return self.cost()[0]

    def cost(self) -> tuple[int, int]:
        """Return the number of calls of all verbs, and the content bytes written."""
        return sum(list(self._calls.values())), sum(list(self._written.values()))

    @property
    def bytes_read(self) -> int:
        """Content bytes read."""
        return sum(list(self._read.values()))

    @property
    def bytes_written(self) -> int:
        """Content bytes written."""
        return sum(list(self._written.values()))


class _Writer(ABC):
    """Writes one large object; as a context manager it aborts unless `commit` was called."""

    @abstractmethod
    def commit(self) -> int:
        """Finish the object and return its size in bytes; it is then complete and durable."""

    @abstractmethod
    def abort(self) -> None:
        """Discard the object and remove what can be removed; safe to repeat, never raises.

        No other thread may write meanwhile.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()


class StagedWriter(_Writer):
    """Writes the bytes in order, under a name that no other writer uses."""

    size: int  # bytes written so far

    @abstractmethod
    def write(self, data: Any) -> None:
        """Append the bytes of an object that supports the buffer protocol.

        After a StorageError the object cannot be completed.
        """

    def write_all(self, pieces: Sequence[Any]) -> None:
        """Append several pieces in order, in one request if the filesystem can."""
        for piece in pieces:
            self.write(piece)


class ScatteredWriter(_Writer):
    """Writes ranges that come in any order, from several threads.

    `commit` gives the object its name in one step, and replaces an existing object. The caller has
    written every part by then.
    """

    @abstractmethod
    def write_at(self, start: int, pieces: Sequence[Any]) -> None:
        """Write one part in one request; it replaces an earlier write of the same part.

        A part starts at a multiple of the `part_bytes` of `open_scattered`, and only the last one
        is shorter. After a StorageError the part may be written again.
        """


class Mirrors(Protocol):
    """Other folders with the same objects as a storage; picklable."""

    @property
    def urls(self) -> tuple[str, ...]:
        """The locations of the mirrors."""

    def leaving(self, url: str) -> str:
        """Return the call with which a user removes one of them, for errors."""

    def open(self, storage: "Storage", path: str) -> Sequence[Any]:
        """Return the channels for copies of an object that is staged in the storage."""

    def folders(self, storage: "Storage") -> "Iterator[Storage]":
        """Yield the mirrors that can be read; each is checked when it is reached."""


class Storage(ABC):
    """Objects under one root.

    Every `path` is relative to the root, with `/` between its parts. Every call raises StorageError
    if the filesystem failed, and InvalidInputError if the path is not inside the root. Every read
    raises MissingObjectError if there is no such object.
    """

    url: str  # canonical, shown in errors; contains no secrets
    stats: StorageStats
    profile: Profile = FAR
    mirrors: Mirrors | None = None  # get copies of staged segments

    @abstractmethod
    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:
        """Read a whole object; CorruptionError if it is larger than `limit_bytes`."""

    def find(self, path: str, *, limit_bytes: int | None = None) -> bytes | None:
        """Read a whole object, or return None if there is none; raises as `get` does."""
        try:
            return self.get(path, limit_bytes=limit_bytes)
        except MissingObjectError:
            return None

    def exists(self, path: str) -> bool:
        """Ask the store whether there is an object, as `info` does."""
        try:
            return bool(self.info(path))
        except MissingObjectError:
            return False

    @abstractmethod
    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Read exactly the bytes `[start, end)`; TruncatedObjectError if the object ends before."""

    @abstractmethod
    def info(self, path: str) -> ObjectInfo:
        """Ask the store, and no cache, for an object's size and time."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Create an object if its name is free: atomic, with one winner per name.

        Returns True if this call created the object, which is then durable, and False if the name
        is definitely taken. If a client repeats a request because the answer was lost, it may get
        False for its own object. So after False, compare the stored content with `data`.

        Raises:
            StorageError: The object may or may not have been created, unless the error is
                `untouched`.
            UnsafeFilesystemError: The filesystem has no exclusive create.
            InvalidInputError: The data is empty, or the path is not inside the root.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a non-empty object, durably; an existing one is replaced in one step."""

    def put_named(self, path: str, data: bytes) -> None:
        """Put an object whose name depends on its bytes, unless it exists; others may put it, too.

        An existing object with other bytes is replaced: it was left incomplete by a process that
        ended, on a filesystem that shows incomplete objects.
        """
        for _ in range(_TRIES):
            if self.create(path, data):
                return
            try:
                if self.get(path, limit_bytes=len(data)) == data:
                    return
            except MissingObjectError:
                continue
            except CorruptionError:
                pass  # it is longer
            self.put(path, data)
            return
        raise ConflictError("another writer deletes the same object each time", path=path)

    def sync(self, path: str) -> None:  # noqa: B027
        """Make an existing object durable: its writer may have ended before the sync.

        Does nothing in an object store, where every object is durable.
        """

    def note(self, path: str, data: bytes) -> None:
        """Write a hint as cheaply as possible; readers may see none, or part of it."""
        self.put(path, data)

    @abstractmethod
    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:
        """Start a large object under a name that no other writer uses.

        The object is complete and durable after the writer's `commit`. With `replace` others may
        write the same bytes under the same name at the same time: an existing object stays until
        `commit` replaces it in one step.
        """

    def open_scattered(self, path: str, size: int, part_bytes: int) -> ScatteredWriter | None:
        """Start an object of `size` bytes whose parts of `part_bytes` come in any order.

        Others may write the same bytes under the same name at the same time. Returns None, without
        a request, if the store can write such an object only in order.
        """
        check_path(path)
        del size, part_bytes
        return None

    def copy_from(
        self, source: "Storage", source_path: str, path: str, *, replace: bool = False
    ) -> bool:
        """Copy an object inside the store, without its bytes passing through this process.

        The bytes are not verified: a caller that needs this reads the copy. `path` and `replace`
        are as for `open_staged`. Returns True if the copy was made, complete and durable. Returns
        False, with nothing created, if the storages are not in one store or the store cannot copy.
        """
        check_path(source_path)
        check_path(path)
        del source, replace
        return False

    @abstractmethod
    def list(self, folder: str, start: str = "") -> Iterator[ObjectInfo]:
        """List all objects below a folder ('' for all), asking the store each time.

        With `start`, a text without slashes, yields only those whose path within the folder begins
        with it, by a listing of that prefix if the store can. The order is undefined. Temporary
        objects, which have a path part that starts with '.', are left out. A missing folder yields
        nothing. The iteration itself may raise StorageError.
        """

    def names_from(self, folder: str, start: str) -> Sequence[str]:
        """Return the names directly in a folder from `start` on, sorted.

        Asks the store each time, by a listing from that name on if the store can. Folders and names
        that start with '.' are left out; a missing folder has no names.
        """
        inner = (info.path.removeprefix(f"{folder}/") for info in self.list(folder))
        return sorted(name for name in inner if name >= start and "/" not in name)

    def temporaries(self) -> Iterator[ObjectInfo]:
        """List temporary objects, of interrupted calls and of calls that still run.

        No commit can name a temporary object: only the process that wrote it gives it its final
        name, and that call fails if the object is gone. So whether it may be deleted depends only
        on its age, by `modified_us`. The order is undefined, and the iteration itself may raise
        StorageError.
        """
        return iter(())

    def peek(self, prefix: str, limit: int) -> tuple[str, ...] | None:
        """Return up to `limit` names directly in a folder ('' for the root), in one request.

        The order is undefined. Names that start with '.' are included, and folder names end with
        '/'. An empty folder gives no names, a missing one gives None.
        """
        start = f"{prefix}/" if prefix else ""
        found: dict[str, None] = {}
        for info in self.list(prefix):
            name, slash, _ = info.path.removeprefix(start).partition("/")
            found[f"{name}{slash}"] = None
            if len(found) == limit:
                break
        return tuple(found) or None

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Return the sorted names of the folders directly in a folder ('' for the root).

        A missing folder has none. If the store can, only folders are listed.
        """
        start = f"{prefix}/" if prefix else ""
        inner = (info.path.removeprefix(start) for info in self.list(prefix))
        return tuple(sorted({path.partition("/")[0] for path in inner if "/" in path}))

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete an object; does nothing if it is absent."""

    def sibling(self, url: str) -> "Storage":
        """Open another root with this storage's options; sends no request."""
        raise InvalidInputError(
            "this storage can't open other locations", storage=self.url, url=url
        )

    def outer(self) -> "Storage | None":
        """Return the folder that contains this root, opened with the same options; no request.

        Symbolic links of a local folder are followed. Returns None for a whole disk or bucket.
        """
        return None

    def share(
        self, url: str, folders: tuple[str, ...], agrees: Callable[["Storage"], bool]
    ) -> None:
        """From now on read objects that are missing here from another root; sends no request.

        Only reads of `folders` use the other root, which is opened with this storage's options.
        They require that `agrees`, which pickles, has returned True for that root; it is called
        until then. Lists, writes and deletes use only this root. Safe to repeat.
        """
        raise InvalidInputError(
            "this storage can't share objects",
            storage=self.url,
            url=url,
            folders=folders,
            asked=str(agrees),
        )

    def rights(self) -> str | None:
        """Return a digest of the location and of the current credentials.

        Two storages of one process with the same digest may share what they read. Returns None if
        credentials can't be compared. Sends no request.
        """
        return None

    def describe(self, path: str) -> str:
        """Return where an object is, for errors."""
        return f"{self.url}/{path}"

    def mirrored(self, mirrors: Mirrors | None) -> Self:
        """Return this storage with these mirrors, and no others, for its staged segments."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, mirrors=mirrors)
        return twin

    @abstractmethod
    def ensure_exclusive(self) -> None:
        """Make sure that `create` has one winner per name here, or raise; cheap when repeated."""


def refuse_empty(path: str, size: int) -> None:
    """Refuse to create an object without bytes, which stores handle differently."""
    if size == 0:
        raise InvalidInputError("an object can't be empty", path=path)


def check_path(path: str) -> None:
    """Refuse a path that is absolute, leaves the root, or has characters stores interpret.

    >>> check_path("log/00000000000000000041")
    """
    if not isinstance(path, str) or _INSIDE.fullmatch(path) is None:
        raise InvalidInputError(
            "path is not inside the storage's root",
            remedy="give a relative path of names that are not empty, . or ..",
            path=path,
        )


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run functions at the same time, and return their results in order.

    The first one runs in this thread; all do if no thread can start, as at the end of the process.
    All have ended when this returns or raises. Of several errors the first in order is raised.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    if len(works) == 1:
        return [works[0]()]
    if not works:
        return []
    with ThreadPoolExecutor(min(len(works) - 1, MOST_AT_ONCE), "segstore-at-once") as threads:
        others = [_begin(threads, work) for work in works[1:]]
        return [works[0](), *(end() for end in others)]


def _begin(threads: Executor, work: Callable[[], T]) -> Callable[[], T]:
    """Start work in a thread and return a getter of its result; without a thread, the work."""
    with suppress(RuntimeError):
        return threads.submit(work).result
    return work
