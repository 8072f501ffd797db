"""What the real storages share.

Paths are checked before anything is touched. Calls are counted. Filesystem exceptions become errors
of segstore, without the values of the storage options. A storage is pickled as its location and
options, and opened again when it is unpickled.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    SegstoreError,
    StorageError,
    TruncatedObjectError,
)
from segstore_ds.storage.base import (
    PROBE,
    Mirrors,
    ObjectInfo,
    ScatteredWriter,
    StagedWriter,
    Storage,
    StorageStats,
    check_path,
    refuse_empty,
)
from segstore_ds.storage.causes import NO_BUCKET, Remedy, find_remedy, is_denied, is_unsupported
from segstore_ds.storage.credentials import (
    Mask,
    digest_credentials,
    read_variables,
    resolve_storage_options,
)
from segstore_ds.storage.locations import Location, find_outer, resolve_location

P = ParamSpec("P")
T = TypeVar("T")

Opener = Callable[..., Storage]

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
FOUND_FOLDERS = 10_000  # most folders remembered of a shared root; with more, all are forgotten


class CheckedStorage(Storage):
    """The base of the real storages.

    `options` are those that the caller gave: `env:NAME` is resolved only on use, so a pickle does
    not contain its value. `single_writer` is the caller's promise that only one process writes.
    `opener` opens another location, as `open_storage` does; it must be a module-level function, to
    be pickled.
    """

    def __init__(
        self,
        location: Location,
        options: Mapping[str, Any] | None = None,
        *,
        single_writer: bool = False,
        opener: Opener | None = None,
    ) -> None:
        self.url = location.url
        self.location = location
        self.stats = StorageStats()
        self.single_writer = single_writer
        self._options = dict(options or {})
        self._opener = opener
        self._mask: Mask | None = None
        self._connected: tuple[tuple[object, ...], Any] | None = None
        self._shared: dict[str, SharedRoot] = {}

    def connected(self, open_: Callable[[Mapping[str, Any]], Any], remedy: str = "") -> Any:
        """Return `open_(options)`, cached; called again in a forked child or with new variables."""
        session = os.getpid(), *read_variables(self._options)
        if self._connected is not None and self._connected[0] == session:
            return self._connected[1]
        options = resolve_storage_options(self._options, self.location)
        refusals: tuple[type[BaseException], ...] = (TypeError, ValueError, KeyError)
        try:
            found = open_(options)
        except InvalidInputError:
            raise
        except refusals + self._foreign() as cause:
            text, chained = self.mask.describe(cause), self.mask.cause(cause)
        else:
            self._connected, self._mask = (session, found), None
            return found
        fact = "storage options are not accepted"
        raise InvalidInputError(fact, remedy=remedy, storage=self.url, cause=text) from chained

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., "CheckedStorage"], tuple[Any, ...]]:
        shared = tuple((url, root.folders, root.agrees) for url, root in self._shared.items())
        again = partial(
            type(self),
            self.location,
            self._options,
            single_writer=self.single_writer,
            opener=self._opener,
        )
        return _reopen, (again, shared, self.mirrors)

    # What a storage implements. `full` is the path in the filesystem's own form.
    @abstractmethod
    def _get(self, full: str, limit: int | None) -> bytes: ...
    @abstractmethod
    def _get_range(self, full: str, start: int, end: int) -> bytes: ...
    @abstractmethod
    def _info(self, full: str) -> tuple[int, int]: ...
    @abstractmethod
    def _create(self, full: str, data: bytes) -> bool: ...
    @abstractmethod
    def _put(self, full: str, data: bytes) -> None: ...
    @abstractmethod
    def _open_staged(self, path: str, full: str) -> StagedWriter: ...
    @abstractmethod
    def _list(self, folder: str, start: str = "") -> Iterator[tuple[str, int, int]]: ...
    @abstractmethod
    def _peek(self, folder: str, limit: int) -> list[str] | None: ...
    @abstractmethod
    def _delete(self, full: str) -> None: ...

    def _open_replacing(self, path: str, full: str) -> StagedWriter:
        # By default a staged object gets its name at commit, which replaces an existing object.
        return self._open_staged(path, full)

    def _open_scattered(
        self,
        path: str,  # noqa: ARG002
        full: str,  # noqa: ARG002
        size: int,  # noqa: ARG002
        part_bytes: int,  # noqa: ARG002
    ) -> ScatteredWriter | None:
        return None

    def _copies_from(self, source: "CheckedStorage") -> bool:  # noqa: ARG002
        return False

    def _copy(self, source: Any, source_path: str, path: str, *, replace: bool) -> bool:
        raise NotImplementedError

    def _foreign(self) -> tuple[type[BaseException], ...]:
        return (OSError,)

    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:  # noqa: D102
        if not self._shared:
            return self._get_here(path, limit_bytes)
        return self._shared_read(
            path,
            lambda: self._get_here(path, limit_bytes),
            lambda other: other.get(path, limit_bytes=limit_bytes),
        )

    def _get_here(self, path: str, limit_bytes: int | None) -> bytes:
        data = self.run("get", path, self._get, self._full(path), limit_bytes)
        return self._within(data, path, limit_bytes)

    def find(self, path: str, *, limit_bytes: int | None = None) -> bytes | None:  # noqa: D102
        if self._shared:
            return super().find(path, limit_bytes=limit_bytes)
        data = self.run("get", path, self._if_there, self._get, self._full(path), limit_bytes)
        return None if data is None else self._within(data, path, limit_bytes)

    def exists(self, path: str) -> bool:  # noqa: D102
        if self._shared:
            return super().exists(path)
        full = self._full(path)
        return self.run("info", path, self._if_there, self._info, full) is not None

    def _if_there(self, work: Callable[P, T], *args: P.args, **kw: P.kwargs) -> T | None:
        """Make a call that returns None if there is no such object."""
        try:
            return work(*args, **kw)
        except _ABSENT:
            if self._root_is_missing():
                raise
            return None

    def _within(self, data: bytes, path: str, limit_bytes: int | None) -> bytes:
        self.stats.add_read(len(data))
        if limit_bytes is not None and len(data) > limit_bytes:
            raise CorruptionError(
                "object is larger than allowed",
                storage=self.url,
                path=path,
                limit_bytes=limit_bytes,
            )
        return data

    def get_range(self, path: str, start: int, end: int) -> bytes:  # noqa: D102
        return self._shared_read(
            path,
            lambda: self._get_range_here(path, start, end),
            lambda other: other.get_range(path, start, end),
        )

    def _get_range_here(self, path: str, start: int, end: int) -> bytes:
        full = self._full(path)
        if not 0 <= start <= end:
            raise InvalidInputError("range is malformed", path=path, start=start, end=end)
        if start == end:
            size, _ = self.run("info", path, self._info, full)
            data, there = b"", size >= end
        else:
            data = self.run("get_range", path, self._get_range, full, start, end)
            there = len(data) == end - start
        self.stats.add_read(len(data))
        if not there:
            raise TruncatedObjectError(
                "object ends before the requested range",
                storage=self.url,
                path=path,
                start=start,
                end=end,
            )
        return data

    def info(self, path: str) -> ObjectInfo:  # noqa: D102
        return self._shared_read(
            path, lambda: self._info_here(path), lambda other: other.info(path)
        )

    def _info_here(self, path: str) -> ObjectInfo:
        size, modified_us = self.run("info", path, self._info, self._full(path))
        return ObjectInfo(path, size, modified_us)

    def create(self, path: str, data: bytes) -> bool:  # noqa: D102
        full = self._full(path)
        refuse_empty(path, len(data))
        made = self.run("create", path, self._create, full, data)
        if made:
            self.stats.add_written(len(data))
        return made

    def put(self, path: str, data: bytes) -> None:  # noqa: D102
        full = self._full(path)
        refuse_empty(path, len(data))
        self.run("put", path, self._put, full, data)
        self.stats.add_written(len(data))

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:  # noqa: D102
        open_ = self._open_replacing if replace else self._open_staged
        return self.run("stage", path, open_, path, self._full(path))

    def open_scattered(  # noqa: D102
        self, path: str, size: int, part_bytes: int
    ) -> ScatteredWriter | None:
        full = self._full(path)
        refuse_empty(path, size)
        writer = self.resume("stage", path, self._open_scattered, path, full, size, part_bytes)
        if writer is not None:
            self.stats.add("stage")
        return writer

    def copy_from(  # noqa: D102
        self, source: Storage, source_path: str, path: str, *, replace: bool = False
    ) -> bool:
        check_path(source_path)
        check_path(path)
        if not isinstance(source, CheckedStorage) or not self._copies_from(source):
            return False
        return source._shared_read(  # noqa: SLF001
            source_path,
            lambda: self._copy(source, source_path, path, replace=replace),
            lambda other: self.copy_from(other, source_path, path, replace=replace),
        )

    def list(self, folder: str, start: str = "") -> Iterator[ObjectInfo]:  # noqa: D102
        folder = folder if folder == "/" else folder.removesuffix("/")
        full = self._full(folder) if folder else self.location.path
        return self._listing(folder, full, start)

    def names_from(self, folder: str, start: str) -> Sequence[str]:  # noqa: D102
        found = self.run("list", folder, self._names_from, self._full(folder), start)
        return sorted([name for name in found if name >= start and name[:1] != "."])

    def _names_from(self, folder: str, start: str) -> Iterable[str]:  # noqa: ARG002
        prefix = f"{folder.rstrip('/')}/"
        inner = [full.removeprefix(prefix) for full, _, _ in self._list(folder)]
        return [name for name in inner if "/" not in name]

    def peek(self, prefix: str, limit: int) -> tuple[str, ...] | None:  # noqa: D102
        folder = self._full(prefix) if prefix else self.location.path
        found = self.run("list", prefix, self._peek, folder, limit)
        return None if found is None else tuple(found[:limit])

    def _refuse_file(self, file: str) -> None:
        raise InvalidInputError(
            "a file is where a folder is needed",
            remedy="name a folder; a single file is read without segstore",
            url=self.url,
            file=file,
        )

    def temporaries(self) -> Iterator[ObjectInfo]:  # noqa: D102
        found = self.run("list", "", lambda: list(self._temporaries()))
        root = self.location.path.rstrip("/") + "/"
        for full, size, modified_us in found:
            yield ObjectInfo(full.removeprefix(root), size, modified_us)

    def _temporaries(self) -> Iterator[tuple[str, int, int]]:
        return self._list(self.location.path, PROBE)

    def _listing(self, folder: str, full: str, start: str) -> Iterator[ObjectInfo]:
        root = self.location.path.rstrip("/") + "/"
        found = self.run("list", folder, self._list, full, start)
        while True:
            entry = self.resume("list", folder, next, found, None)
            if entry is None:
                return
            full, size, modified_us = entry
            path = full.removeprefix(root)
            # Consoles and some stores mark a folder by an empty object whose name ends with "/".
            marker = size == 0 and path[-1:] in ("", "/")
            if not (marker or path.startswith(".") or "/." in path):
                yield ObjectInfo(path, size, modified_us)

    def sibling(self, url: str) -> Storage:  # noqa: D102
        if self._opener is None:
            return super().sibling(url)
        return self._opener(url, self._options, single_writer=self.single_writer)

    def outer(self) -> Storage | None:  # noqa: D102
        url = find_outer(self._real_location())
        if url is None:
            return None
        # Resolve the options here: those keyed by a prefix may not cover the outer folder.
        options = resolve_storage_options(self._options, self.location)
        return type(self)(resolve_location(url), options, single_writer=self.single_writer)

    def _real_location(self) -> Location:
        return self.location

    def rights(self) -> str | None:  # noqa: D102
        options = resolve_storage_options(self._options, self.location)
        shared = [root.storage.rights() for root in self._shared.values()]
        return None if None in shared else digest_credentials([self.url, options, shared])

    def share(  # noqa: D102
        self, url: str, folders: tuple[str, ...], agrees: Callable[[Storage], bool]
    ) -> None:
        if url not in self._shared:
            other = self.sibling(url)
            other.stats = self.stats
            self._shared[url] = SharedRoot(other, folders, agrees)

    def _shared_read(self, path: str, here: Callable[[], T], there: Callable[[Storage], T]) -> T:
        """Read an object here, else from a shared root.

        After an object was found in a shared root, its folder is looked up there first. Names are
        never reused for other bytes, so this only saves requests.
        """
        roots = [root for root in self._shared.values() if path.startswith(root.folders)]
        if not roots:
            return here()
        folder = path.rpartition("/")[0]
        for root in roots:
            if folder in root.found:
                try:
                    return there(root.storage)
                except MissingObjectError:
                    root.found.discard(folder)
        try:
            return here()
        except MissingObjectError:
            pass
        refused = []
        for root in roots:
            if not root.has_agreed():
                refused.append(root.storage.url)
                continue
            try:
                result = there(root.storage)
            except MissingObjectError:
                continue
            root.remember(folder)
            return result
        raise MissingObjectError(
            "no such object, neither here nor in the stream that shares it",
            remedy="if that stream was moved, move it back; it is not read without a pin of this "
            f"stream; else {FormatError.default_remedy}",
            storage=self.url,
            path=path,
            shared=[root.storage.url for root in roots],
            refused=refused,
        )

    def delete(self, path: str) -> None:  # noqa: D102
        self.run("delete", path, self._delete, self._full(path))

    def run(self, verb: str, path: str, work: Callable[P, T], *args: P.args, **kw: P.kwargs) -> T:
        """Count a filesystem call under `verb` and make it as `resume` does."""
        self.stats.add(verb)
        return self.resume(verb, path, work, *args, **kw)

    def resume(
        self, verb: str, path: str, work: Callable[P, T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """Make a call, or continue one that was counted, and translate its exceptions.

        `verb` and `path` are for the error text. Raises MissingObjectError if a read object is
        absent, and StorageError for any other failure.
        """
        try:
            return work(*args, **kw)
        except SegstoreError:
            raise
        except self._foreign() as cause:
            failure = self._translate(verb, path, cause)
        try:
            # Raise outside `except`, so that no context shows the unmasked cause.
            raise failure
        finally:
            del failure  # breaks the reference cycle of the failure and this frame

    def _translate(self, verb: str, path: str, cause: BaseException) -> SegstoreError:
        failure: SegstoreError
        absent = isinstance(cause, _ABSENT)
        lost = absent and self._root_is_missing()
        if absent and not lost and verb in ("get", "get_range", "info"):
            failure = MissingObjectError("no such object", storage=self.url, path=path)
        else:
            remedy = Remedy(NO_BUCKET, lasting=True) if lost else find_remedy(cause)
            failure = StorageError(
                "filesystem failed",
                remedy=remedy.text,
                verb=verb,
                storage=self.url,
                path=path,
                cause=self.mask.describe(cause),
            )
            failure.retryable = not remedy.lasting
            failure.denied = is_denied(cause)
            failure.untouched = is_unsupported(cause)
        failure.__cause__ = self.mask.cause(cause)
        return failure

    def _root_is_missing(self) -> bool:
        """Tell whether the container of all objects, such as the bucket, is known to be missing."""
        return False

    @property
    def mask(self) -> Mask:
        """Removes the values of this storage's options from texts."""
        if self._mask is None:
            self._mask = Mask(resolve_storage_options(self._options, self.location))
        return self._mask

    def _full(self, path: str) -> str:
        check_path(path)
        return f"{self.location.path.rstrip('/')}/{path}"


class SharedRoot:
    """Another root, from which missing objects of `folders` (each with its `/`) are read."""

    def __init__(
        self, storage: Storage, folders: tuple[str, ...], agrees: Callable[[Storage], bool]
    ) -> None:
        self.storage = storage
        self.folders = folders
        self.agrees = agrees
        self.found: set[str] = set()
        self._agreed = False

    def remember(self, folder: str) -> None:
        """Look up a folder's objects in this root first from now on, if it is a job's folder."""
        if "/" in folder:
            if len(self.found) >= FOUND_FOLDERS:
                self.found.clear()
            self.found.add(folder)

    def has_agreed(self) -> bool:
        """Tell whether the other root may be read; `agrees` is called until it is True."""
        self._agreed = self._agreed or self.agrees(self.storage)
        return self._agreed


def _reopen(
    again: Callable[[], CheckedStorage],
    shared: tuple[tuple[str, tuple[str, ...], Callable[[Storage], bool]], ...],
    mirrors: Mirrors | None,
) -> CheckedStorage:
    storage = again()
    storage.mirrors = mirrors
    for url, folders, agrees in shared:
        storage.share(url, folders, agrees)
    return storage
