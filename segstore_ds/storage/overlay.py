"""A view of a storage with some more objects, which lie in memory; it pickles with them."""

from collections.abc import Callable, Iterator, Mapping

from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.storage.base import ObjectInfo, ScatteredWriter, StagedWriter, Storage


class OverlaidStorage(Storage):
    """Answers reads of some names from memory, without a request, and passes all else on.

    `label` says in errors where the objects come from.
    """

    def __init__(self, inner: Storage, objects: Mapping[str, bytes], label: str) -> None:
        self.inner = inner
        self.url = inner.url
        self.stats = inner.stats
        self.least_part_bytes = inner.least_part_bytes
        self.trust_s = inner.trust_s
        self.mirrors = inner.mirrors
        self._objects = dict(objects)
        self._label = label

    def __reduce__(self) -> tuple[type["OverlaidStorage"], tuple[object, ...]]:
        return type(self), (self.inner, self._objects, self._label)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r}, {sorted(self._objects)})"

    def holder(self, path: str) -> Storage:  # noqa: D102
        return self if path in self._objects else self.inner.holder(path)

    def describe(self, path: str) -> str:  # noqa: D102
        if path in self._objects:
            return f"{self.url}/{self._label}: {path}"
        return self.inner.describe(path)

    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:  # noqa: D102
        data = self._objects.get(path)
        if data is None:
            return self.inner.get(path, limit_bytes=limit_bytes)
        if limit_bytes is not None and len(data) > limit_bytes:
            raise CorruptionError(
                "object is larger than allowed", where=self.describe(path), limit_bytes=limit_bytes
            )
        return data

    def get_range(self, path: str, start: int, end: int) -> bytes:  # noqa: D102
        data = self._objects.get(path)
        if data is None:
            return self.inner.get_range(path, start, end)
        if not 0 <= start <= end <= len(data):
            raise TruncatedObjectError(
                "object ends before the requested range",
                where=self.describe(path),
                start=start,
                end=end,
            )
        return data[start:end]

    def info(self, path: str) -> ObjectInfo:  # noqa: D102
        data = self._objects.get(path)
        return self.inner.info(path) if data is None else ObjectInfo(path, len(data), 0)

    def create(self, path: str, data: bytes) -> bool:  # noqa: D102
        return self.inner.create(path, data)

    def put(self, path: str, data: bytes) -> None:  # noqa: D102
        self.inner.put(path, data)

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:  # noqa: D102
        return self.inner.open_staged(path, replace=replace)

    def open_scattered(  # noqa: D102
        self, path: str, size: int, part_bytes: int
    ) -> ScatteredWriter | None:
        return self.inner.open_scattered(path, size, part_bytes)

    def copy_from(  # noqa: D102
        self, source: Storage, source_path: str, path: str, *, replace: bool = False
    ) -> bool:
        return self.inner.copy_from(source, source_path, path, replace=replace)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:  # noqa: D102
        return self.inner.list(prefix)

    def temporaries(self) -> Iterator[ObjectInfo]:  # noqa: D102
        return self.inner.temporaries()

    def peek(self, prefix: str, limit: int) -> tuple[str, ...] | None:  # noqa: D102
        return self.inner.peek(prefix, limit)

    def folders(self, prefix: str) -> tuple[str, ...]:  # noqa: D102
        return self.inner.folders(prefix)

    def delete(self, path: str) -> None:  # noqa: D102
        self.inner.delete(path)

    def sibling(self, url: str) -> Storage:  # noqa: D102
        return self.inner.sibling(url)

    def outer(self) -> Storage | None:  # noqa: D102
        return self.inner.outer()

    def rights(self) -> str | None:  # noqa: D102
        return self.inner.rights()

    def share(  # noqa: D102
        self, url: str, folders: tuple[str, ...], agrees: Callable[[Storage], bool]
    ) -> None:
        self.inner.share(url, folders, agrees)

    def ensure_exclusive(self) -> None:  # noqa: D102
        self.inner.ensure_exclusive()
