"""The storage interface: objects under one root, created once, read whole or by range.

`Storage` is what the engine sees and what the fault-injecting storage of the tests implements too;
what the real storages share is in `checked.py`. Nothing here touches a filesystem.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from segstore_ds.errors import InvalidInputError

# Begins the name of an object that only asks something of a store. Vacuum and drop know it.
PROBE = ".probe-"
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What the store says about an object.

    Args:
        path: Path relative to the root of the storage.
        size: Length in bytes.
        modified_us: Time of the last change by the store's clock, UTC microseconds.
    """

    path: str
    size: int
    modified_us: int


class StorageStats:
    """Counts calls by verb, and bytes; exact also when many threads share a storage."""

    def __init__(self) -> None:
        # Each thread changes only cells of its own, so no lock is needed, and none breaks a fork.
        self._cells: dict[tuple[int, str], int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a counter.

        Args:
            name: A verb, `bytes_read` or `bytes_written`.
            amount: How much to add.

        Raises:
            Nothing.
        """
        cell = (threading.get_ident(), name)
        self._cells[cell] = self._cells.get(cell, 0) + amount

    def _sums(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for (_, name), amount in list(self._cells.items()):
            sums[name] = sums.get(name, 0) + amount
        return sums

    @property
    def requests(self) -> dict[str, int]:
        """Calls by verb: get, get_range, info, create, put, stage, copy, list, delete."""
        return {name: n for name, n in self._sums().items() if not name.startswith("bytes_")}

    @property
    def total(self) -> int:
        """All calls together."""
        return sum(self.requests.values())

    @property
    def bytes_read(self) -> int:
        """Bytes of content that were read."""
        return self._sums().get("bytes_read", 0)

    @property
    def bytes_written(self) -> int:
        """Bytes of content that were written."""
        return self._sums().get("bytes_written", 0)

    def reset(self) -> None:
        """Start counting from zero.

        Raises:
            Nothing.
        """
        self._cells = {}


class StagedWriter(ABC):
    """Writes one large object under a name that nobody shares.

    As a context manager it aborts unless `commit` was called.
    """

    size: int  # bytes written so far

    @abstractmethod
    def write(self, data: Any) -> None:
        """Append bytes.

        Args:
            data: Anything that gives its bytes through the buffer protocol.

        Raises:
            StorageError: The filesystem failed; the object will not become whole.
            InvalidInputError: The writer was committed or aborted before.
        """

    def write_all(self, pieces: Sequence[Any]) -> None:
        """Append several pieces, in one request where the filesystem can; raises as `write`.

        Args:
            pieces: As for `write`, in order.
        """
        for piece in pieces:
            self.write(piece)

    @abstractmethod
    def commit(self) -> int:
        """Finish the object: afterwards it is whole and durable.

        Returns:
            The size of the object in bytes.

        Raises:
            StorageError: It is not known to be whole; write it again under another name.
            InvalidInputError: Nothing was written, or the writer was closed before.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give the object up and remove what can be removed; safe to repeat.

        Raises:
            Nothing.
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


class Storage(ABC):
    """Objects under one root. Every `path` is relative to it, with `/` between its parts."""

    url: str  # canonical, shown in errors; never holds secrets
    stats: StorageStats
    least_part_bytes: int = 1  # what `StagedWriter.write` should be given at once, at least

    @abstractmethod
    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:
        """Read a whole object.

        Args:
            path: The object.
            limit_bytes: Most bytes that it may have; None for any size.

        Returns:
            Its content, possibly empty.

        Raises:
            MissingObjectError: There is no such object.
            CorruptionError: It is larger than the limit; not all of it was read.
            StorageError: The filesystem failed.
            InvalidInputError: The path is not one inside the root.
        """

    @abstractmethod
    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Read the bytes `[start, end)` of an object.

        Args:
            path: The object.
            start: First byte.
            end: The byte after the last, at least `start`.

        Returns:
            Exactly `end - start` bytes.

        Raises:
            MissingObjectError: There is no such object.
            TruncatedObjectError: It ends before `end`.
            StorageError: The filesystem failed.
            InvalidInputError: The path or the range is malformed.
        """

    @abstractmethod
    def info(self, path: str) -> ObjectInfo:
        """Ask the store about an object; never answered from a cache.

        Args:
            path: The object.

        Returns:
            Its size and time.

        Raises:
            MissingObjectError: There is no such object.
            StorageError: The filesystem failed.
            InvalidInputError: The path is not one inside the root.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Create an object if its name is free: whole or not at all, one winner per name.

        A client that repeats a request whose answer was lost may be told False about its own
        object, so the loser of a race compares what lies there with what it wrote.

        Args:
            path: The name to take.
            data: Its content, not empty.

        Returns:
            True when this call made the object, which is then durable; False when the name is
            definitely taken.

        Raises:
            StorageError: Anything doubtful; the object may or may not have been made, unless the
                error says `untouched`.
            UnsafeFilesystemError: The filesystem has no exclusive create.
            InvalidInputError: The data is empty, or the path is not one inside the root.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write an object, over another if there is one. Not durable: for hints only.

        Args:
            path: The object.
            data: Its content, not empty.

        Raises:
            StorageError: The filesystem failed.
            InvalidInputError: The data is empty, or the path is not one inside the root.
        """

    @abstractmethod
    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:
        """Start a large object under a name that nobody else uses.

        Args:
            path: The object.
            replace: Others may write the same bytes under the same name at the same time: what lies
                there stays until `commit` puts this object in its place, in one step.

        Returns:
            A writer; the object is whole and durable once its `commit` returned.

        Raises:
            StorageError: The filesystem failed.
            InvalidInputError: The path is not one inside the root.
        """

    def copy_from(
        self, source: "Storage", source_path: str, path: str, *, replace: bool = False
    ) -> bool:
        """Copy an object without its bytes passing through this process, where the store can.

        It copies what lies there, sound or not: whoever needs to know reads the copy.

        Args:
            source: Where the object is; any storage.
            source_path: The object.
            path: What the copy is called; as for `open_staged`, nobody else uses that name.
            replace: As for `open_staged`.

        Returns:
            Whether the copy was made; it is whole and durable then. False where the two are not of
            one store, or it can't copy: there is nothing then, and the bytes have to be written.

        Raises:
            MissingObjectError: There is no such object.
            StorageError: A filesystem failed.
            InvalidInputError: A path is not one inside its root.
        """
        check_path(source_path)
        check_path(path)
        del source, replace
        return False

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List all objects of a folder and of the folders in it, asking the store each time.

        Args:
            prefix: A folder; '' for all.

        Returns:
            The objects in any order, without temporary ones (a part of their path starts with '.').
            A folder that does not exist gives nothing.

        Raises:
            StorageError: The filesystem failed; also in the midst of the iteration.
            InvalidInputError: The prefix is not a path inside the root.
        """

    def temporaries(self) -> Iterator[ObjectInfo]:
        """List what calls that were cut off left behind, and what calls under way have there now.

        No commit can name one: a temporary object gets its name, if ever, by its own process, whose
        call fails where it is gone. So its age, by `modified_us`, says whether it may be deleted.

        Returns:
            The objects in any order; nothing where a store has none.

        Raises:
            StorageError: The filesystem failed; also in the midst of the iteration.
        """
        return iter(())

    def peek(self, prefix: str, limit: int) -> tuple[str, ...] | None:
        """Name the first few of what lies directly in a folder, in one request.

        Names that start with '.' count, too; those of folders end with '/'.

        Args:
            prefix: A folder; '' for the root.
            limit: Most names.

        Returns:
            Up to `limit` names in any order, none where the folder is empty; None where there is no
            such folder.

        Raises:
            StorageError: The filesystem failed.
            InvalidInputError: The root, or a folder above it, is a file; or the prefix is not a
                path inside the root.
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
        """Name the folders directly within a folder, sorted.

        Where the store can tell folders by themselves, no object is listed.

        Args:
            prefix: A folder; '' for the root.

        Returns:
            Their names. A folder that does not exist has none.

        Raises:
            StorageError: The filesystem failed.
            InvalidInputError: The prefix is not a path inside the root.
        """
        start = f"{prefix}/" if prefix else ""
        inner = (info.path.removeprefix(start) for info in self.list(prefix))
        return tuple(sorted({path.partition("/")[0] for path in inner if "/" in path}))

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete an object; silent when it is absent.

        Args:
            path: The object.

        Raises:
            StorageError: The filesystem failed.
            InvalidInputError: The path is not one inside the root.
        """

    def sibling(self, url: str) -> "Storage":
        """Open another root with the options of this one; sends no request.

        Args:
            url: Its canonical location.

        Raises:
            InvalidInputError: It can't be opened.
        """
        raise InvalidInputError("storage opens no others", storage=self.url, url=url)

    def outer(self) -> "Storage | None":
        """Return the folder that this root lies in, opened alike; sends no request.

        Links to a local folder are followed.

        Returns:
            The folder; None for a whole disk or bucket, and where a storage knows none.
        """
        return None

    def share(self, url: str, folders: tuple[str, ...]) -> None:
        """Read objects that are missing here from another root from now on; sends no request.

        Reads alone: what is listed, written and deleted stays here. Safe to repeat.

        Args:
            url: The canonical location of the other root, opened with the options of this one.
            folders: The folders that it stands in for.

        Raises:
            InvalidInputError: It can't be opened.
        """
        raise InvalidInputError(
            "storage shares no objects", storage=self.url, url=url, folders=folders
        )

    @abstractmethod
    def ensure_exclusive(self) -> None:
        """Make sure that `create` has one winner here; cheap when repeated.

        Raises:
            UnsafeFilesystemError: The filesystem, its version or its endpoint has no such promise.
            StorageError: It could not be asked.
        """


def refuse_empty(path: str, size: int) -> None:
    """Refuse to make an object without bytes: stores treat those in ways of their own.

    Args:
        path: The object.
        size: Its length in bytes.

    Raises:
        InvalidInputError: The size is 0.
    """
    if size == 0:
        raise InvalidInputError("an object is never empty", path=path)


def check_path(path: str) -> None:
    """Refuse a path that is not plainly one inside the root.

    Args:
        path: A path from a caller or from metadata.

    Raises:
        InvalidInputError: It is absolute, leaves the root, or holds what a store reads in its own
            way.

    >>> check_path("log/00000000000000000041")
    """
    bad = not isinstance(path, str) or bool(_FORBIDDEN.search(path))
    if bad or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidInputError(
            "path is not one inside the storage's root",
            remedy="paths are relative, with / between names that are not empty, . or ..",
            path=path,
        )
