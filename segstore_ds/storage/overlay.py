"""A view of a storage with some more objects, which lie in memory; it pickles with them."""

from collections.abc import Mapping
from typing import Any

from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.storage.base import ObjectInfo, Storage


def _passed_on(name: str) -> Any:
    def call(self: "OverlaidStorage", *args: Any, **given: Any) -> Any:
        return getattr(self.inner, name)(*args, **given)

    return call


class OverlaidStorage(Storage):
    """Answers reads of some names from memory, without a request, and passes all else on.

    `label` says in errors where the objects come from.
    """

    def __init__(self, inner: Storage, objects: Mapping[str, bytes], label: str) -> None:
        self.inner = inner
        self.url = inner.url
        self.stats = inner.stats
        self.profile = inner.profile
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

    # Everything else goes to the storage.
    create = _passed_on("create")
    put = _passed_on("put")
    note = _passed_on("note")
    open_staged = _passed_on("open_staged")
    open_scattered = _passed_on("open_scattered")
    copy_from = _passed_on("copy_from")
    list = _passed_on("list")
    names_from = _passed_on("names_from")
    temporaries = _passed_on("temporaries")
    peek = _passed_on("peek")
    folders = _passed_on("folders")
    delete = _passed_on("delete")
    sibling = _passed_on("sibling")
    outer = _passed_on("outer")
    share = _passed_on("share")
    rights = _passed_on("rights")
    ensure_exclusive = _passed_on("ensure_exclusive")
