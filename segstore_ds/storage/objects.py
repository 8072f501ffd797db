"""Object stores through fsspec: S3, Google Cloud Storage, Azure.

Exclusive create is the store's own conditional put. A custom endpoint may ignore the condition, so
a process tries it before its first write, once per endpoint.

The clients repeat refused connections for up to minutes, each in its own way. That is right for a
store that has answered before, and wrong for one that may be misspelt or down. So a process first
opens a connection to an endpoint itself, and waits for it at most ten seconds.
"""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fsspec.asyn import sync

from segstore_ds.errors import (
    InvalidInputError,
    MissingObjectError,
    StorageError,
    UnsafeFilesystemError,
)
from segstore_ds.storage.base import FAR, PROBE, ScatteredWriter, StagedWriter, refuse_empty
from segstore_ds.storage.causes import is_unsupported
from segstore_ds.storage.checked import CheckedStorage
from segstore_ds.storage.credentials import resolve_storage_options
from segstore_ds.storage.gathered import create_alone
from segstore_ds.storage.locations import Location
from segstore_ds.storage.stores import STORES
from segstore_ds.storage.uploads import LEAST_PART_BYTES, MOST_PARTS, UPLOADS, PartsWriter

_LOG = logging.getLogger(__name__)
NOTICE_S = 2.0
PATIENCE_S = 10.0
_AGAIN_S = 0.25  # pause between two attempts, and between two addresses of one host
_answered: set[str] = set()  # endpoints that have answered in this process
_gave_up: dict[str, float] = {}  # when this process last failed to connect to an endpoint
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PROBED: set[str] = set()
_ANSWERED = ("get", "get_range", "info", "create", "put")
P = ParamSpec("P")
T = TypeVar("T")


class FirstContact:
    """Surrounds the first call to an endpoint, and logs a warning if it takes over two seconds.

    `answers` says that success of the call means an answer of the endpoint.
    """

    def __init__(self, endpoint: str, *, answers: bool) -> None:
        self._endpoint, self._answers = endpoint, answers
        self._parts = urlsplit(endpoint)
        self._shown = f"{self._parts.scheme}://{self._parts.netloc.rpartition('@')[2]}"  # no secret
        self._waits_for = "an answer of"
        self._timer = threading.Timer(NOTICE_S, self._notice)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._answers and (kind is None or issubclass(kind, MissingObjectError)):
            _answered.add(self._endpoint)

    def connect(self, loop: Any) -> None:
        """Wait until the endpoint accepts a connection, unless there is a proxy."""
        scheme, host = self._parts.scheme, self._parts.hostname or ""
        port = self._parts.port or (80 if scheme == "http" else 443)
        if {scheme, "all"} & getproxies().keys() and not proxy_bypass(host):
            return
        since = time.monotonic() - _gave_up.get(self._endpoint, -PATIENCE_S)
        patience = PATIENCE_S if since >= PATIENCE_S else _AGAIN_S
        self._waits_for = "a connection to"
        try:
            sync(loop, _connect, host, port, patience)
        except OSError as cause:
            _gave_up[self._endpoint] = time.monotonic()
            text = str(cause) or "no answer"
            raise ConnectionError(f"no connection to {self._shown}: {text}") from cause
        self._waits_for = "an answer of"

    def _notice(self) -> None:
        _LOG.warning("waiting for %s %s", self._waits_for, self._shown)


async def _connect(host: str, port: int, patience_s: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_s
    while True:
        try:
            async with asyncio.timeout_at(end):
                made, _ = await loop.create_connection(
                    asyncio.Protocol, host, port, happy_eyeballs_delay=_AGAIN_S
                )
        except OSError:
            if loop.time() + _AGAIN_S >= end:
                raise
        else:
            made.close()
            return
        await asyncio.sleep(_AGAIN_S)


class ObjectStorage(CheckedStorage):
    """Objects of a bucket or container, under a prefix."""

    profile = replace(FAR, part_bytes=LEAST_PART_BYTES)

    def __init__(self, location: Location, *options: Any, **how: Any) -> None:
        super().__init__(location, *options, **how)
        self._store = STORES[location.scheme]
        self._bucket_found = False

    @property
    def fs(self) -> Any:
        """The filesystem of this process; connects again in a forked child and with other keys."""
        remedy = f"see the options of {self._store.class_name}"
        return self.connected(partial(self._store.connect, self.location), remedy)

    def _foreign(self) -> tuple[type[BaseException], ...]:
        return self._store.foreign()

    def run(self, verb: str, path: str, work: Callable[P, T], *args: P.args, **kw: P.kwargs) -> T:  # noqa: D102
        endpoint = self.resume(verb, path, self._store.endpoint, self.fs)
        if endpoint in _answered:
            result = super().run(verb, path, work, *args, **kw)
        else:
            with FirstContact(endpoint, answers=verb in _ANSWERED) as contact:
                if not self._store.has_own_patience(self._resolved()):
                    self.resume(verb, path, contact.connect, self.fs.loop)
                result = super().run(verb, path, work, *args, **kw)
        self._bucket_found = self._bucket_found or verb in _ANSWERED
        return result

    def _root_is_missing(self) -> bool:
        # Most "not found" answers do not say whether the object or the bucket is missing: those to
        # a HEAD, and all of gcsfs. So list the bucket, unless it has been found before.
        try:
            return not (self._bucket_found or self._first_keys(self.location.path, 1) is not None)
        except FileNotFoundError:
            return True
        except self._foreign():
            return False  # not known

    def _first_keys(self, folder: str, limit: int) -> list[str]:
        bucket, _, key = folder.partition("/")
        keys = self._store.first_keys(self.fs, bucket, f"{key}/" if key else "", limit)
        self._bucket_found = True
        return keys

    def _get(self, full: str, limit: int | None) -> bytes:
        if limit is None:
            return self._store.read_whole(self.fs, full)
        return self._get_range(full, 0, limit + 1)

    def _get_range(self, full: str, start: int, end: int) -> bytes:
        try:
            data: bytes = self.fs.cat_file(full, start=start, end=end)
        except FileNotFoundError:
            raise
        except self._foreign():
            # Each store has its own error for a range after the end.
            if self._info(full)[0] > start:
                raise
            return b""
        return data

    def _info(self, full: str) -> tuple[int, int]:
        size, when = self._store.head(self.fs, full)
        return size, _microseconds(when)

    def _create(self, full: str, data: bytes) -> bool:
        try:
            return self._try_create(full, data)
        except self._foreign() as cause:
            if is_unsupported(cause):
                self.ensure_exclusive()  # raises if it is the condition that the store lacks
            raise

    def _try_create(self, full: str, data: bytes) -> bool:
        if self.single_writer:  # the store may lack conditional puts, or ignore the condition
            return create_alone(self, full, data)
        try:
            self.fs.pipe_file(full, bytes(data), mode="create")
        except self._foreign() as cause:
            if self._store.is_taken(cause):
                return False
            raise
        return True

    def _put(self, full: str, data: bytes) -> None:
        self.fs.pipe_file(full, bytes(data))

    def _open_staged(self, path: str, full: str) -> StagedWriter:
        # The least size: a larger piece that is written at once becomes one part.
        return ObjectStagedWriter(self, path, self.fs.open(full, "wb", block_size=LEAST_PART_BYTES))

    def _open_scattered(
        self, path: str, full: str, size: int, part_bytes: int
    ) -> ScatteredWriter | None:
        fits = part_bytes >= LEAST_PART_BYTES and size <= MOST_PARTS * part_bytes
        if not (self.location.scheme in UPLOADS and fits):
            return None
        return PartsWriter(self, path, full, self.fs, (size, part_bytes))

    def _copies_from(self, source: CheckedStorage) -> bool:
        # One endpoint, with credentials that can read there and write here.
        return (
            self._store.copies
            and isinstance(source, ObjectStorage)
            and source.location.scheme == self.location.scheme
            and self._resolved() == source._resolved()  # noqa: SLF001
        )

    def _resolved(self) -> Mapping[str, Any]:
        return resolve_storage_options(self._options, self.location)

    def _copy(self, source: Any, source_path: str, path: str, *, replace: bool) -> bool:  # noqa: ARG002
        full = source._full(source_path)  # noqa: SLF001
        try:
            self.run("copy", path, self.fs.cp_file, full, self._full(path))
        except StorageError:
            source.info(source_path)  # raises MissingObjectError if the object is missing
            raise
        return True

    def _list(self, folder: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        self.fs.invalidate_cache()
        found = self._store.find(self.fs, folder, start)
        if not found:
            self._refuse_missing_root()
        prefix = folder.rstrip("/") + "/"
        for name, size, when in found:
            if name.startswith(prefix):
                yield name, size, _microseconds(when)

    def _names_from(self, folder: str, start: str) -> list[str]:
        bucket, _, key = folder.partition("/")
        prefix = f"{key}/"
        keys = self._store.keys_from(self.fs, bucket, prefix, f"{prefix}{start}")
        if not keys:
            self._refuse_missing_root()
        inner = (name.removeprefix(prefix) for name in keys)
        return [name for name in inner if name and "/" not in name]

    def folders(self, prefix: str) -> tuple[str, ...]:  # noqa: D102
        folder = self._full(prefix) if prefix else self.location.path
        return self.run("list", prefix, self._folders_in, folder)

    def _folders_in(self, folder: str) -> tuple[str, ...]:
        self.fs.invalidate_cache()
        try:
            found = self._store.folders(self.fs, folder)
        except FileNotFoundError:
            self._refuse_missing_root()
            return ()
        inner = (name.rstrip("/") for name in found)
        named = (name.rpartition("/")[2] for name in inner if name != folder.rstrip("/"))
        return tuple(sorted(name for name in named if name and not name.startswith(".")))

    def _peek(self, folder: str, limit: int) -> list[str] | None:
        key = folder.partition("/")[2]
        prefix = f"{key}/" if key else ""
        # One more than `limit`, as the empty object that marks a folder is left out.
        found = self._first_keys(folder, limit + 1)
        if found or not key:
            return [name.removeprefix(prefix) for name in found if name != prefix]
        if folder == self.location.path:
            with suppress(FileNotFoundError):
                self._info(folder)
                self._refuse_file(folder)
        return None

    def _refuse_missing_root(self) -> None:
        if self._root_is_missing():
            # adlfs and fsspec answer that nothing was found.
            raise FileNotFoundError(self.location.path.partition("/")[0])

    def _delete(self, full: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm_file(full)

    def ensure_exclusive(self) -> None:
        """Check the packages' versions; try a custom endpoint once per process."""
        if self.single_writer:
            return
        self._store.check_versions()
        endpoint = self.resume("probe", "", self._store.custom_endpoint, self.fs)
        if endpoint is not None and endpoint not in _PROBED:
            self.run("probe", "", self._probe, endpoint)
            _PROBED.add(endpoint)

    def _probe(self, endpoint: str) -> None:
        full = f"{self.location.path}/{PROBE}{secrets.token_hex(16)}"
        first, second = secrets.token_bytes(16), secrets.token_bytes(16)
        try:
            # Ignore the first answer: it is False if the client had to repeat the request.
            self._try_create(full, first)
            again = self._try_create(full, second)
            kept = self._store.read_whole(self.fs, full) == first
        except self._foreign() as cause:
            if not is_unsupported(cause):
                raise
            self._put(full, first)  # fails if the store refuses another header than the condition
            again, kept = True, False
        finally:
            with suppress(*self._foreign()):
                self._delete(full)
        if again or not kept:
            raise UnsafeFilesystemError(
                "endpoint does not honour conditional puts, so two writers could both win",
                remedy="use a store that answers If-None-Match: * with 412, or single_writer=True "
                "when only one process ever writes",
                storage=self.url,
                endpoint=endpoint,
            )


class ObjectStagedWriter(StagedWriter):
    """A multipart upload through an fsspec file, or one put if the object stays small."""

    def __init__(self, storage: ObjectStorage, path: str, file: Any) -> None:
        self.size = 0
        self._storage = storage
        self._path = path
        self._file: Any = file

    def write(self, data: Any) -> None:  # noqa: D102
        view = memoryview(data).cast("B")
        self._storage.resume("stage", self._path, self._open().write, view)
        self.size += view.nbytes
        self._storage.stats.add_written(view.nbytes)

    def write_all(self, pieces: Sequence[Any]) -> None:  # noqa: D102
        # One by one, the pieces would become parts of the least size.
        self.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def commit(self) -> int:  # noqa: D102
        file = self._open()
        refuse_empty(self._path, self.size)
        try:
            self._storage.resume("stage", self._path, file.close)
        except StorageError:
            self.abort()
            raise
        self._file = None
        return self.size

    def abort(self) -> None:  # noqa: D102
        file, self._file = self._file, None
        if file is None:
            return
        # Closing or garbage-collecting an fsspec file commits it, so mark it as closed first.
        file.closed = True
        with suppress(*self._storage._foreign(), AttributeError):  # noqa: SLF001
            file.discard()

    def _open(self) -> Any:
        if self._file is None:
            raise InvalidInputError("staged object was committed or aborted", path=self._path)
        return self._file


def _microseconds(when: datetime) -> int:
    elapsed = when.astimezone(UTC) - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
