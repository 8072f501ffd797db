"""Writers for filesystems that take an object in one call: it is gathered in memory."""

import threading
from collections.abc import Sequence
from typing import Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.storage.base import ScatteredWriter, StagedWriter, refuse_empty
from segstore_ds.storage.checked import CheckedStorage


class GatheredWriter(StagedWriter):
    """Gathers the object in memory and writes it in one call at commit."""

    def __init__(self, storage: CheckedStorage, path: str, full: str) -> None:
        self.size = 0
        self._storage = storage
        self._path = path
        self._full = full
        self._content: bytearray | None = bytearray()

    def write(self, data: Any) -> None:  # noqa: D102
        view = memoryview(data).cast("B")
        self._open().extend(view)
        self.size += view.nbytes
        self._storage.stats.add_written(view.nbytes)

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


class GatheredParts(ScatteredWriter):
    """Gathers the parts of an object in memory and writes it in one call at commit."""

    def __init__(self, storage: CheckedStorage, path: str, full: str, size: int) -> None:
        self._storage = storage
        self._path = path
        self._full = full
        self._content: bytearray | None = bytearray(size)
        self._lock = threading.Lock()

    def write_at(self, start: int, pieces: Sequence[Any]) -> None:  # noqa: D102
        content = self._open()
        data = b"".join(pieces)
        with self._lock:
            content[start : start + len(data)] = data
        self._storage.stats.add_written(len(data))

    def commit(self) -> int:  # noqa: D102
        content = self._open()
        self._storage.resume("stage", self._path, self._storage._put, self._full, bytes(content))  # noqa: SLF001
        self._content = None
        return len(content)

    def abort(self) -> None:  # noqa: D102
        self._content = None

    def _open(self) -> bytearray:
        if self._content is None:
            raise InvalidInputError("staged object was committed or aborted", path=self._path)
        return self._content
