"""Storages whose filesystem takes an object in one call: it is gathered in memory."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.storage.base import ScatteredWriter, StagedWriter, refuse_empty
from segstore_ds.storage.checked import CheckedStorage


class Gate:
    """A lock of this process; a child forked while it was held gets a new, free one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_ALONE = Gate()


def create_alone(storage: CheckedStorage, full: str, data: bytes) -> bool:
    """Look for an object, then write it: exclusive among the threads of one process only."""
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
