"""Local disk through plain system calls.

To create an object, a temporary file is written and synced, then hard-linked to its name. The link
fails if the name is taken, so a name has one winner and never shows partial content. The order
write, sync, link, sync of the folder must not change: it makes a commit survive a power loss. A
crash in between leaves a file whose name starts with '.'; only `temporaries` lists it, and vacuum
deletes it once it is older than the grace.
"""

# pathlib has neither fsync nor pread, and is slower on the commit path.
# ruff: noqa: PTH102, PTH105, PTH106, PTH108, PTH112, PTH116, PTH120

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Self

from segstore_ds.errors import (
    CorruptionError,
    InvalidInputError,
    SegstoreError,
    StorageError,
    UnsafeFilesystemError,
)
from segstore_ds.storage.base import PROBE, StagedWriter, refuse_empty
from segstore_ds.storage.checked import CheckedStorage, Opener
from segstore_ds.storage.locations import Location, resolve_location

_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV}
)
# Some filesystems cannot sync folders; they answer with one of these.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Without NONBLOCK, opening a named pipe in a stream's folder would block forever.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# Errors of a kernel copy that the system, or this pair of filesystems, does not support.
_NO_COPY = frozenset(
    {
        errno.EXDEV,
        errno.ENOSYS,
        errno.EINVAL,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        errno.EPERM,
        errno.ETXTBSY,
    }
)
_MOST_AT_ONCE = 1 << 30
_MOST_PIECES = 1024  # pieces per writev; every platform allows as many
_TEMPORARY = ".tmp-"
_TRIES = 8


class LocalStorage(CheckedStorage):
    """Objects as files of a local (or mounted) folder."""

    def __init__(
        self,
        location: Location,
        options: Mapping[str, Any] | None = None,
        *,
        single_writer: bool = False,
        opener: Opener | None = None,
    ) -> None:
        super().__init__(location, options, single_writer=single_writer, opener=opener)
        # The root and the folders directly in it. Once seen, they are never created again: if one
        # disappears its content is gone too, and in an empty folder every name is free.
        self._lasting: set[str] = set()
        # The lasting folders whose entry is synced in their parent. Deeper folders come and go. One
        # that reappears may be another process's and unsynced, so they are not remembered.
        self._synced: set[str] = set()

    def _get(self, full: str, limit: int | None) -> bytes:
        with _Reader(full) as file:
            data = file.read(0, file.size if limit is None else min(file.size, limit + 1))
        self._note_seen(os.path.dirname(full))
        return data

    def _get_range(self, full: str, start: int, end: int) -> bytes:
        with _Reader(full) as file:
            return file.read(start, min(end, file.size))

    def _info(self, full: str) -> tuple[int, int]:
        status = os.stat(full)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", full)
        return status.st_size, status.st_mtime_ns // 1000

    def _create(self, full: str, data: bytes) -> bool:
        folder = os.path.dirname(full)
        # If the name is visibly taken, skip the write and its sync. Sync the folder anyway: the
        # name may be our own, from an earlier try whose folder sync failed.
        if os.path.lexists(full):
            _sync_folder(folder)
            return False
        try:
            temporary = self._write_temporary(folder, data, sync=True)
        except OSError as cause:
            raise _NotLinkedError(cause) from None
        except StorageError as error:
            error.untouched = True
            raise
        try:
            made = _link(temporary, full)
            _sync_folder(folder)
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        return made

    def _foreign(self) -> tuple[type[BaseException], ...]:
        return (OSError, _NotLinkedError)

    def _translate(self, verb: str, path: str, cause: BaseException) -> SegstoreError:
        raised = cause.cause if isinstance(cause, _NotLinkedError) else cause
        failure = super()._translate(verb, path, raised)
        if not isinstance(failure, StorageError):
            return failure
        failure.untouched = raised is not cause
        if isinstance(raised, NotADirectoryError):
            failure.refuse_retry(
                "a file is where a folder is needed: move it, or name another folder"
            )
        return failure

    def _put(self, full: str, data: bytes) -> None:
        temporary = self._write_temporary(os.path.dirname(full), data, sync=False)
        try:
            os.replace(temporary, full)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _open_staged(self, path: str, full: str) -> "LocalStagedWriter":
        return LocalStagedWriter(self, path, full, self._open_new(full))

    def _open_replacing(self, path: str, full: str) -> "LocalStagedWriter":
        temporary = _temporary_name(os.path.dirname(full))
        descriptor = self._open_new(temporary)
        return LocalStagedWriter(self, path, temporary, descriptor, final=full)

    def _copies_from(self, source: CheckedStorage) -> bool:
        return isinstance(source, LocalStorage) and hasattr(os, "copy_file_range")

    def _copy(self, source: Any, source_path: str, path: str, *, replace: bool) -> bool:
        """Copy in the kernel, which shares blocks where the filesystem has reflinks."""
        full = source._full(source_path)  # noqa: SLF001
        with source.resume("get_range", source_path, _Reader, full) as file:
            if not file.size:
                return False
            open_ = self._open_replacing if replace else self._open_staged
            with self.run("copy", path, open_, path, self._full(path)) as writer:
                if not self.resume("copy", path, writer.copy, file):
                    return False
                writer.commit()
        return True

    def _list(self, folder: str) -> Iterator[tuple[str, int, int]]:
        return self._walk(folder, lambda name: not name.startswith("."))

    def _list_named(self, folder: str, start: str) -> Iterator[tuple[str, int, int]]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(start) or entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._list(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    yield entry.path, status.st_size, status.st_mtime_ns // 1000

    def _temporaries(self) -> Iterator[tuple[str, int, int]]:
        return self._walk(self.location.path, lambda name: name.startswith((_TEMPORARY, PROBE)))

    def _walk(self, folder: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, int, int]]:
        pending = [folder]
        while pending:
            # A folder may vanish between its listing and its visit: it then lists as empty. So
            # does a file in its place, as in an object store.
            gone = suppress(FileNotFoundError, NotADirectoryError)
            with gone, os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith("."):
                            pending.append(entry.path)
                        continue
                    if not wanted(entry.name):
                        continue
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        yield entry.path, status.st_size, status.st_mtime_ns // 1000

    def folders(self, prefix: str) -> tuple[str, ...]:  # noqa: D102
        folder = self._full(prefix) if prefix else self.location.path
        return self.run("list", prefix, self._folders_in, folder)

    def _folders_in(self, folder: str) -> tuple[str, ...]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            found = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return tuple(sorted(name for name in found if not name.startswith(".")))
        return ()

    def _peek(self, folder: str, limit: int) -> list[str] | None:
        try:
            with os.scandir(folder) as entries:
                return [
                    f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                    for entry in islice(entries, limit)
                ]
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            if os.path.isdir(self.location.path):
                return None  # the folder is a file, or below one, inside the root
        file = self.location.path
        while not os.path.lexists(file):
            file = os.path.dirname(file)
        self._refuse_file(file)
        return None

    def _real_location(self) -> Location:
        return resolve_location(os.path.realpath(self.location.path))

    def _delete(self, full: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(full)
        self.leave(full)

    def leave(self, full: str) -> None:
        """Remove the folder of a deleted file if it is empty; writers create it again."""
        folder = os.path.dirname(full)
        if not self._is_lasting(folder):
            with suppress(OSError):
                os.rmdir(folder)

    def ensure_exclusive(self) -> None:
        """Try the hard link that `create` needs, once per process and device.

        Raises:
            UnsafeFilesystemError: The filesystem has no hard links.
        """
        self.resume("probe", "", self._probe_links)

    def _probe_links(self) -> None:
        root = self.location.path
        self._make_folder(root)
        device = os.stat(root).st_dev
        if (os.getpid(), device) in _PROBED:
            return
        self.stats.add("probe")
        temporary = self._write_temporary(root, b"probe", sync=False)
        linked = f"{temporary}-link"
        try:
            _link(temporary, linked)
        finally:
            for name in (temporary, linked):
                with suppress(OSError):
                    os.unlink(name)
        _PROBED.add((os.getpid(), device))

    def _write_temporary(self, folder: str, data: bytes, *, sync: bool) -> str:
        temporary = _temporary_name(folder)
        descriptor = self._open_new(temporary)
        try:
            try:
                _write(descriptor, memoryview(data))
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    def _open_new(self, full: str) -> int:
        folder = os.path.dirname(full)
        for _ in range(_TRIES):
            self._make_folder(folder)
            with suppress(FileNotFoundError):
                return os.open(full, _NEW, 0o666)
            # Deleting the last object of a folder also deletes the folder.
            self._synced.discard(folder)
        raise FileNotFoundError(errno.ENOENT, "folder disappears repeatedly", folder)

    def _make_folder(self, folder: str) -> None:
        """Create a folder and those above it, and sync each entry in its parent.

        Raises StorageError if a lasting folder (the root or one directly in it) has disappeared:
        its content is gone too, and in an empty folder every name would be free again.
        """
        if folder in self._synced:
            return
        missing = []
        above = folder
        while True:
            seen = above in self._lasting  # before isdir: another thread may be creating it
            if os.path.isdir(above):
                break
            if seen:
                failure = StorageError(
                    "a folder that was here before is gone, with all its files",
                    remedy="mount or restore it, then open the stream again",
                    storage=self.url,
                    folder=above,
                )
                failure.retryable = False
                raise failure
            missing.append(above)
            above = os.path.dirname(above)
        for name in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(name)
            if os.path.lexists(name) and not os.path.isdir(name):
                raise NotADirectoryError(errno.ENOTDIR, "is a file", name)
            _sync_folder(os.path.dirname(name))
        # A folder that another process just created may be unsynced: sync it up to the root.
        root = self.location.path
        while above not in self._synced and f"{above}/".startswith(f"{root.rstrip('/')}/"):
            self._note_synced(above)
            above = os.path.dirname(above)
            with suppress(PermissionError):
                _sync_folder(above)
            if above == "/":
                break
        self._note_synced(folder)

    def _is_lasting(self, folder: str) -> bool:
        root = self.location.path.rstrip("/")
        return folder.rstrip("/") == root or os.path.dirname(folder).rstrip("/") == root

    def _note_seen(self, folder: str) -> None:
        if folder in self._lasting or not self._is_lasting(folder):
            return
        self._lasting |= {self.location.path, folder}

    def _note_synced(self, folder: str) -> None:
        if self._is_lasting(folder):
            self._synced.add(folder)
        while not self._is_lasting(folder):
            folder = os.path.dirname(folder)
        self._note_seen(folder)


class _NotLinkedError(Exception):
    """A create failed before its link (usually a full disk), so it did not take the name."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


class LocalStagedWriter(StagedWriter):
    """Writes to the final name, or to a temporary one that is renamed at commit to `final`.

    `full` is the file that `descriptor` has open for writing. `path` is relative to the root, for
    errors.
    """

    def __init__(
        self,
        storage: LocalStorage,
        path: str,
        full: str,
        descriptor: int,
        *,
        final: str | None = None,
    ) -> None:
        self.size = 0
        self._storage = storage
        self._path = path
        self._full = full
        self._final = final
        self._descriptor: int | None = descriptor

    def write(self, data: Any) -> None:  # noqa: D102
        view = memoryview(data).cast("B")
        self._storage.resume("stage", self._path, _write, self._open(), view)
        self.size += view.nbytes
        self._storage.stats.add("bytes_written", view.nbytes)

    def write_all(self, pieces: Sequence[Any]) -> None:  # noqa: D102
        views = [memoryview(piece).cast("B") for piece in pieces]
        self._storage.resume("stage", self._path, _write_all, self._open(), views)
        size = sum(view.nbytes for view in views)
        self.size += size
        self._storage.stats.add("bytes_written", size)

    def copy(self, file: "_Reader") -> bool:
        """Append a whole file in the kernel; False if the kernel cannot copy it."""
        while self.size < file.size:
            try:
                copied = file.copy(self.size, self._open())
            except OSError as cause:
                if cause.errno in _NO_COPY:
                    return False
                raise
            if not copied:
                return False  # some filesystems copy nothing instead of failing
            self.size += copied
        return True

    def commit(self) -> int:  # noqa: D102
        descriptor = self._open()
        refuse_empty(self._path, self.size)
        self._storage.resume("stage", self._path, self._finish, descriptor)
        return self.size

    def _finish(self, descriptor: int) -> None:
        os.fsync(descriptor)
        if self._final is not None:
            os.replace(self._full, self._final)
        self._descriptor = None
        os.close(descriptor)
        _sync_folder(os.path.dirname(self._full))

    def abort(self) -> None:  # noqa: D102
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
            with suppress(OSError):
                os.unlink(self._full)
            self._storage.leave(self._full)

    def _open(self) -> int:
        if self._descriptor is None:
            raise InvalidInputError("staged object was committed or aborted", path=self._path)
        return self._descriptor


_PROBED: set[tuple[int, int]] = set()


class _Reader:
    """An open regular file, read by position."""

    def __init__(self, full: str) -> None:
        self._descriptor = os.open(full, _READ)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        if stat.S_ISREG(status.st_mode):
            return
        os.close(self._descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", full)
        raise CorruptionError("object is not a regular file", path=full)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def copy(self, start: int, descriptor: int) -> int:
        """Copy from `start` to the target's current position; return the bytes copied."""
        most = min(self.size - start, _MOST_AT_ONCE)
        return os.copy_file_range(self._descriptor, descriptor, most, offset_src=start)

    def read(self, start: int, end: int) -> bytes:
        """Read `[start, end)`, or less if the file ends before."""
        data = os.pread(self._descriptor, max(0, min(end - start, _MOST_AT_ONCE)), start)
        if len(data) >= end - start or not data:
            return data
        pieces = [data]
        place = start + len(data)
        while place < end:
            data = os.pread(self._descriptor, min(end - place, _MOST_AT_ONCE), place)
            if not data:
                break
            pieces.append(data)
            place += len(data)
        return b"".join(pieces)


def _temporary_name(folder: str) -> str:
    return f"{folder}/{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"


def _write(descriptor: int, view: memoryview) -> None:
    place = 0
    while place < view.nbytes:
        place += os.write(descriptor, view[place : place + _MOST_AT_ONCE])


def _write_all(descriptor: int, views: list[memoryview]) -> None:
    waiting = [view for view in views if view.nbytes]
    while waiting:
        written = os.writev(descriptor, waiting[:_MOST_PIECES])
        while waiting and written >= waiting[0].nbytes:
            written -= waiting.pop(0).nbytes
        if written:
            waiting[0] = waiting[0][written:]


def _link(temporary: str, full: str) -> bool:
    try:
        os.link(temporary, full)
    except FileExistsError:
        # NFS repeats a request whose answer was lost: the name may already be this same file.
        return _is_same(temporary, full)
    except OSError as cause:
        if cause.errno in _NO_LINKS:
            raise UnsafeFilesystemError(
                "filesystem has no hard links, so an object can't be created exclusively",
                remedy="keep the stream on a disk with hard links (ext4, xfs, btrfs, apfs, nfs) or "
                "in an object store",
                path=full,
            ) from cause
        raise
    return True


def _is_same(temporary: str, full: str) -> bool:
    try:
        first, second = os.stat(temporary), os.lstat(full)
    except FileNotFoundError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as cause:
        if cause.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
