"""Memory of this process, through fsspec's own filesystem, so that its other users see the objects.

fsspec's exclusive mode checks and then writes; a lock makes that one step. Objects do not outlive
the process, and a forked child continues with its own copy.
"""

from collections.abc import Iterator
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from segstore_ds.storage.checked import CheckedStorage
from segstore_ds.storage.single_writer import Gate, GatheringStorage

_GATE = Gate()


class MemoryStorage(GatheringStorage):
    """Objects in `fsspec.filesystem("memory")`."""

    # Read the store's content directly: its file objects share one read position among threads.
    def _get(self, full: str, limit: int | None) -> bytes:
        content = self._content(full)
        return content if limit is None else content[: limit + 1]

    def _get_range(self, full: str, start: int, end: int) -> bytes:
        return self._content(full)[start:end]

    def _info(self, full: str) -> tuple[int, int]:
        file = self._file(full)
        return len(file.getvalue()), _microseconds(file)

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
            if file is not None:  # users of plain fsspec do not take the lock
                yield name, len(file.getvalue()), _microseconds(file)

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


def _microseconds(file: Any) -> int:
    return int(file.modified.timestamp() * 1_000_000)
