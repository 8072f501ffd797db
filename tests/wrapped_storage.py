"""A storage around any other: subclasses see every request on its way, or delay it."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from segstore_ds.storage.base import ObjectInfo, ScatteredWriter, StagedWriter, Storage

T = TypeVar("T")


class WrappedStorage(Storage):
    """Passes every call on to another storage, through `around`, which subclasses extend."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url
        self.stats = inner.stats
        self.profile = inner.profile

    def __reduce__(self) -> tuple[Callable[..., Storage], tuple[Any, ...]]:
        return type(self), (self.inner,)

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:  # noqa: ARG002
        """Call `work`; `verb` is its method, or a staged object's ``write`` or ``commit``."""
        return work()

    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:
        return self.around("get", path, lambda: self.inner.get(path, limit_bytes=limit_bytes))

    def get_range(self, path: str, start: int, end: int) -> bytes:
        return self.around("get_range", path, lambda: self.inner.get_range(path, start, end))

    def info(self, path: str) -> ObjectInfo:
        return self.around("info", path, lambda: self.inner.info(path))

    def create(self, path: str, data: bytes) -> bool:
        return self.around("create", path, lambda: self.inner.create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self.around("put", path, lambda: self.inner.put(path, data))

    def sync(self, path: str) -> None:
        self.inner.sync(path)

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:
        inner = self.around(
            "open_staged", path, lambda: self.inner.open_staged(path, replace=replace)
        )
        return WrappedWriter(self, path, inner)

    def open_scattered(self, path: str, size: int, part_bytes: int) -> ScatteredWriter | None:
        inner = self.around(
            "open_scattered", path, lambda: self.inner.open_scattered(path, size, part_bytes)
        )
        return inner and WrappedParts(self, path, inner)

    def copy_from(
        self, source: Storage, source_path: str, path: str, *, replace: bool = False
    ) -> bool:
        # A store only copies from its own kind, so it has to see what the source wraps.
        while isinstance(source, WrappedStorage):
            source = source.inner
        return self.around(
            "copy_from",
            path,
            lambda: self.inner.copy_from(source, source_path, path, replace=replace),
        )

    def list(self, folder: str, start: str = "") -> Iterator[ObjectInfo]:
        path = f"{folder}/{start}" if start else folder
        yield from self.around("list", path, lambda: list(self.inner.list(folder, start)))

    def names_from(self, folder: str, start: str) -> Sequence[str]:
        return self.around("list", folder, lambda: self.inner.names_from(folder, start))

    def peek(self, prefix: str, limit: int) -> tuple[str, ...] | None:
        return self.around("list", prefix, lambda: self.inner.peek(prefix, limit))

    def temporaries(self) -> Iterator[ObjectInfo]:
        yield from self.around("list", "", lambda: list(self.inner.temporaries()))

    def sibling(self, url: str) -> Storage:
        return self.inner.sibling(url)

    def outer(self) -> Storage | None:
        return self.inner.outer()

    def rights(self) -> str | None:
        return self.inner.rights()

    def share(self, url: str, folders: tuple[str, ...], agrees: Callable[[Storage], bool]) -> None:
        self.inner.share(url, folders, agrees)

    def delete(self, path: str) -> None:
        self.around("delete", path, lambda: self.inner.delete(path))

    def ensure_exclusive(self) -> None:
        self.around("ensure_exclusive", "", self.inner.ensure_exclusive)


class WrappedWriter(StagedWriter):
    """The staged writer of a wrapped storage; its calls pass through the storage's `around`."""

    def __init__(self, storage: WrappedStorage, path: str, inner: StagedWriter) -> None:
        self.size = 0
        self._storage = storage
        self._path = path
        self._inner = inner

    def write(self, data: Any) -> None:
        self._storage.around("write", self._path, lambda: self._inner.write(data))
        self.size = self._inner.size

    def commit(self) -> int:
        return self._storage.around("commit", self._path, self._inner.commit)

    def abort(self) -> None:
        self._inner.abort()


class WrappedParts(ScatteredWriter):
    """The scattered writer of a wrapped storage; its calls pass through the storage's `around`."""

    def __init__(self, storage: WrappedStorage, path: str, inner: ScatteredWriter) -> None:
        self._storage = storage
        self._path = path
        self._inner = inner

    def write_at(self, start: int, pieces: Sequence[Any]) -> None:
        path = f"{self._path}@{start}"
        self._storage.around("write_at", path, lambda: self._inner.write_at(start, pieces))

    def commit(self) -> int:
        return self._storage.around("commit", self._path, self._inner.commit)

    def abort(self) -> None:
        self._inner.abort()


class LatencyStorage(WrappedStorage):
    """Waits `latency_s` seconds before every call, as for a remote store."""

    def __init__(
        self, inner: Storage, latency_s: float, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner)
        self._latency_s = latency_s
        self._sleep = sleep

    def __reduce__(self) -> tuple[Callable[..., Storage], tuple[Any, ...]]:
        return LatencyStorage, (self.inner, self._latency_s)

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        # All bytes of a staged object are sent together: one request, at its commit.
        if verb not in ("open_staged", "open_scattered", "write", "ensure_exclusive"):
            self._sleep(self._latency_s)
        return super().around(verb, path, work)
