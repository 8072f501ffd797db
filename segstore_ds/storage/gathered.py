"""Storages that write an object in one call: memory, and other filesystems of fsspec.

Other filesystems have no known exclusive create, so `create` checks and then writes. That is safe
only if no other process writes, which the caller has to promise.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations, registry

from segstore_ds.errors import InvalidInputError, UnsafeFilesystemError
from segstore_ds.storage.base import ScatteredWriter, StagedWriter, refuse_empty
from segstore_ds.storage.checked import CheckedStorage


class Gate:
    """A lock; a forked child gets a new, free one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_ALONE = Gate()


def create_alone(storage: CheckedStorage, full: str, data: bytes) -> bool:
    """Check for an object, then write it: exclusive only among the threads of one process."""
    with _ALONE.lock:
        with suppress(FileNotFoundError):
            storage._info(full)  # noqa: SLF001
            return False
        storage._put(full, data)  # noqa: SLF001
    return True


class GatheringStorage(CheckedStorage):
    """Writes a large object by one `_put`."""

    def _open_staged(self, path: str, full: str) -> "GatheredWriter":
        return GatheredWriter(self, path, full, 0)

    def _open_scattered(
        self,
        path: str,
        full: str,
        size: int,
        part_bytes: int,  # noqa: ARG002
    ) -> "GatheredWriter":
        return GatheredWriter(self, path, full, size)


class GatheredWriter(StagedWriter, ScatteredWriter):
    """Gathers an object in memory: in order, or parts of an object of `size` bytes."""

    def __init__(self, storage: GatheringStorage, path: str, full: str, size: int) -> None:
        self.size = size
        self._storage = storage
        self._path = path
        self._full = full
        self._content: bytearray | None = bytearray(size)
        self._lock = threading.Lock()

    def write(self, data: Any) -> None:  # noqa: D102
        view = memoryview(data).cast("B")
        self._open().extend(view)
        self.size += view.nbytes
        self._storage.stats.add_written(view.nbytes)

    def write_at(self, start: int, pieces: Sequence[Any]) -> None:  # noqa: D102
        content = self._open()
        data = b"".join(pieces)
        with self._lock:
            content[start : start + len(data)] = data
        self._storage.stats.add_written(len(data))

    def commit(self) -> int:  # noqa: D102
        content = self._open()
        refuse_empty(self._path, self.size)
        self._storage.resume("stage", self._path, self._storage._put, self._full, bytes(content))  # noqa: SLF001
        self._content = None
        return self.size

    def abort(self) -> None:  # noqa: D102
        self._content = None

    def _open(self) -> bytearray:
        if self._content is None:
            raise InvalidInputError("staged object was committed or aborted", path=self._path)
        return self._content


class SingleWriterStorage(GatheringStorage):
    """Objects of a filesystem without exclusive create."""

    @property
    def fs(self) -> Any:
        """The filesystem of this process; connects again in a forked child and with other keys."""
        return self.connected(self._open_fs)[0]

    def _open_fs(self, options: Mapping[str, Any]) -> tuple[Any, str]:
        try:
            fs, root = url_to_fs(self.url, **options)
        except ImportError as cause:
            raise InvalidInputError(
                "a package for this location is not installed", remedy=str(cause), storage=self.url
            ) from cause
        return fs, root

    def _name(self, full: str) -> str:
        _, root = self.connected(self._open_fs)
        relative = full.removeprefix(self.location.path.rstrip("/")).lstrip("/")
        return f"{root.rstrip('/')}/{relative}" if relative else root

    def _foreign(self) -> tuple[type[BaseException], ...]:
        return (OSError, TimeoutError, NotImplementedError, ValueError, RuntimeError)

    def _get(self, full: str, limit: int | None) -> bytes:
        if limit is None or self._info(full)[0] <= limit:
            content: bytes = self.fs.cat_file(self._name(full))
            return content
        return self._get_range(full, 0, limit + 1)

    def _get_range(self, full: str, start: int, end: int) -> bytes:
        # Ask for the size first: filesystems differ in how they answer a range after the end.
        end = min(end, self._info(full)[0])
        if start >= end:
            return b""
        content: bytes = self.fs.cat_file(self._name(full), start=start, end=end)
        return content

    def _info(self, full: str) -> tuple[int, int]:
        self.fs.invalidate_cache()
        entry = self.fs.info(self._name(full))
        if entry["type"] != "file":
            raise FileNotFoundError(full)
        return entry["size"], _microseconds(entry)

    def _create(self, full: str, data: bytes) -> bool:
        return create_alone(self, full, data)

    def _put(self, full: str, data: bytes) -> None:
        name = self._name(full)
        self.fs.makedirs(name.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(name, bytes(data))

    def _list(self, folder: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        self.fs.invalidate_cache()
        root = self._name(self.location.path)
        found: Mapping[str, Any] = self.fs.find(self._name(folder), detail=True)
        for name, entry in found.items():
            relative = name.removeprefix(root).lstrip("/")
            full = f"{self.location.path.rstrip('/')}/{relative}"
            if full.startswith(f"{folder.rstrip('/')}/{start}"):
                yield full, entry["size"], _microseconds(entry)

    def _peek(self, folder: str, limit: int) -> list[str] | None:
        self.fs.invalidate_cache()
        place = self._name(folder)
        try:
            found = self.fs.ls(place, detail=True)
        except NotADirectoryError:
            found = [{"name": place, "type": "file"}]
        except FileNotFoundError:
            return None
        inner = []
        for entry in found:
            name = entry["name"].rstrip("/")
            if name.strip("/") != place.strip("/"):
                slash = "/" if entry["type"] == "directory" else ""
                inner.append(f"{name.rpartition('/')[2]}{slash}")
            elif entry["type"] == "file":
                self._refuse_file(folder)
        return inner[:limit]

    def _delete(self, full: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm_file(self._name(full))

    def ensure_exclusive(self) -> None:
        """Raise UnsafeFilesystemError unless the caller promised to be the only writer."""
        if not self.single_writer:
            refuse_unknown_class(self.location.scheme, self.url)


def refuse_unknown_class(scheme: str, url: str) -> None:
    """Raise UnsafeFilesystemError for a filesystem not known to have exclusive create."""
    raise UnsafeFilesystemError(
        "filesystem has no exclusive create that segstore knows",
        remedy="use local disk, s3://, gs:// or abfs://, or pass single_writer=True when only one "
        "process ever writes to the stream",
        filesystem=_class_name(scheme),
        storage=url,
    )


def _class_name(scheme: str) -> str:
    if scheme in registry:
        return f"{registry[scheme].__module__}.{registry[scheme].__qualname__}"
    return str(known_implementations.get(scheme, {}).get("class", scheme))


def _microseconds(entry: Mapping[str, Any]) -> int:
    for name in ("mtime", "modified", "LastModified", "last_modified", "updated", "created"):
        when = entry.get(name)
        if isinstance(when, datetime):
            return int(when.replace(tzinfo=when.tzinfo or UTC).timestamp() * 1_000_000)
        if isinstance(when, (int, float)):
            return int(when * 1_000_000)
    return 0


_GATE = Gate()


class MemoryStorage(GatheringStorage):
    """Objects in `fsspec.filesystem("memory")`, which its other users see, too.

    fsspec's exclusive mode checks and then writes; a lock makes that one step. Objects do not
    outlive the process, and a forked child has its own copy.
    """

    # Read the content directly: threads would share the read position of a file object.
    def _get(self, full: str, limit: int | None) -> bytes:
        content = self._content(full)
        return content if limit is None else content[: limit + 1]

    def _get_range(self, full: str, start: int, end: int) -> bytes:
        return self._content(full)[start:end]

    def _info(self, full: str) -> tuple[int, int]:
        file = self._file(full)
        return len(file.getvalue()), _modified_us(file)

    def _create(self, full: str, data: bytes) -> bool:
        with _GATE.lock:
            if full in MemoryFileSystem.store:
                return False
            MemoryFileSystem().pipe_file(full, bytes(data), mode="overwrite")
        return True

    def _put(self, full: str, data: bytes) -> None:
        with _GATE.lock:
            MemoryFileSystem().pipe_file(full, bytes(data), mode="overwrite")

    def _copies_from(self, source: CheckedStorage) -> bool:
        return isinstance(source, MemoryStorage)

    def _copy(self, source: Any, source_path: str, path: str, *, replace: bool) -> bool:  # noqa: ARG002
        content = source.resume("get", source_path, source._get, source._full(source_path), None)  # noqa: SLF001
        if content:
            self.run("copy", path, self._put, self._full(path), content)
        return bool(content)

    def _list(self, folder: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        store, prefix = MemoryFileSystem.store, f"{folder.rstrip('/')}/{start}"
        with _GATE.lock:  # no `create` or `put` may add names meanwhile
            found = [name for name in tuple(store) if name.startswith(prefix)]
            files = [(name, store.get(name)) for name in found]
        for name, file in files:
            if file is not None:  # users of plain fsspec delete without the lock
                yield name, len(file.getvalue()), _modified_us(file)

    def _peek(self, folder: str, limit: int) -> list[str] | None:
        start = folder.rstrip("/") + "/"
        found: dict[str, None] = {}
        for full, _, _ in self._list(folder):
            name, slash, _ = full.removeprefix(start).partition("/")
            found[f"{name}{slash}"] = None
            if len(found) == limit:
                break
        if not found and folder in MemoryFileSystem.store:
            self._refuse_file(folder)
        return [*found] or None

    def _delete(self, full: str) -> None:
        with _GATE.lock:
            MemoryFileSystem.store.pop(full, None)

    def ensure_exclusive(self) -> None:
        """Do nothing: inside one process the lock is enough."""

    def _content(self, full: str) -> bytes:
        content: bytes = self._file(full).getvalue()
        return content

    def _file(self, full: str) -> Any:
        try:
            return MemoryFileSystem.store[full]
        except KeyError:
            raise FileNotFoundError(full) from None


def _modified_us(file: Any) -> int:
    return int(file.modified.timestamp() * 1_000_000)
