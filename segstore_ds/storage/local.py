"""Local disk through plain system calls.

To create an object, a temporary file is written and synced, then hard-linked to its name. The link
fails if the name is taken, so a name has one winner and never shows partial content. The order
write, sync, link, sync of the folder must not change: it makes a commit survive a power loss. A
crash in between leaves a file whose name starts with '.'. Only `temporaries` lists it, and
`maintain` deletes it after the grace.
"""

# pathlib has neither fsync nor pread, and is slower on the commit path.
# ruff: noqa: PTH102, PTH105, PTH106, PTH108, PTH112, PTH116, PTH119, PTH120

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from segstore_ds.errors import InvalidInputError, SegstoreError, StorageError
from segstore_ds.storage import local_files
from segstore_ds.storage.base import NEAR, PROBE, ScatteredWriter, StagedWriter, refuse_empty
from segstore_ds.storage.checked import CheckedStorage
from segstore_ds.storage.local_files import (
    NO_COPY,
    TEMPORARY,
    LocalFolders,
    close_read,
    link,
    open_regular,
    read_file,
    temporary_name,
    write,
    write_all,
)
from segstore_ds.storage.locations import Location, resolve_location


class LocalStorage(CheckedStorage):
    """Objects as files of a local (or mounted) folder."""

    profile = NEAR

    def __init__(self, location: Location, *options: Any, **how: Any) -> None:
        super().__init__(location, *options, **how)
        self._folders = LocalFolders(self.location.path, self.url)
        self._probed = False

    def _get(self, full: str, limit: int | None) -> bytes:
        data = read_file(full, 0, None if limit is None else limit + 1)
        self._folders.note_seen(os.path.dirname(full))
        return data

    def _get_range(self, full: str, start: int, end: int) -> bytes:
        return read_file(full, start, end)

    def _info(self, full: str) -> tuple[int, int]:
        status = os.stat(full)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", full)
        return status.st_size, status.st_mtime_ns // 1000

    def _create(self, full: str, data: bytes) -> bool:
        folder = os.path.dirname(full)
        # If the name is taken, skip the write and its sync. Sync the folder anyway: the name may be
        # our own, from an earlier try whose folder sync failed.
        if os.path.lexists(full):
            self._sync_entries(folder)
            return False
        try:
            temporary = self._write_temporary(folder, data, sync=True)
        except OSError as cause:
            raise _NotLinkedError(cause) from None
        except StorageError as error:
            error.untouched = True
            raise
        try:
            try:
                made = link(temporary, full)
            except OSError as cause:  # the link may be there all the same
                raise _NotSyncedError(cause) from None
            self._sync_entries(folder)
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        return made

    def _sync_entries(self, folder: str) -> None:
        try:
            local_files.sync_folder(folder)
        except OSError as cause:
            raise _NotSyncedError(cause) from None

    def _foreign(self) -> tuple[type[BaseException], ...]:
        return (OSError, _CreateError)

    def _translate(self, verb: str, path: str, cause: BaseException) -> SegstoreError:
        raised = cause.cause if isinstance(cause, _CreateError) else cause
        failure = super()._translate(verb, path, raised)
        if not isinstance(failure, StorageError):
            return failure
        failure.untouched = isinstance(cause, _NotLinkedError)
        failure.unsynced = isinstance(cause, _NotSyncedError)
        if isinstance(raised, NotADirectoryError):
            failure.refuse_retry(
                "a file is where a folder is needed: move it, or name another folder"
            )
        return failure

    def _put(self, full: str, data: bytes) -> None:
        folder = os.path.dirname(full)
        temporary = self._write_temporary(folder, data, sync=True)
        try:
            os.replace(temporary, full)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        local_files.sync_folder(folder)

    def sync(self, path: str) -> None:  # noqa: D102
        self.resume("sync", path, _sync, self._full(path))

    def note(self, path: str, data: bytes) -> None:  # noqa: D102
        self.run("put", path, _write_hint, self._full(path), data)

    def _open_staged(self, path: str, full: str) -> "LocalStagedWriter":
        return LocalStagedWriter(self, path, full, self._folders.open_staged(full))

    def _open_replacing(self, path: str, full: str) -> "LocalStagedWriter":
        temporary = temporary_name(os.path.dirname(full))
        descriptor = self._folders.open_new(temporary)
        return LocalStagedWriter(self, path, temporary, descriptor, final=full)

    def _open_scattered(
        self,
        path: str,
        full: str,
        size: int,
        part_bytes: int,  # noqa: ARG002
    ) -> "LocalStagedWriter":
        writer = self._open_replacing(path, full)
        writer.size = size
        return writer

    def _copies_from(self, source: CheckedStorage) -> bool:
        return isinstance(source, LocalStorage) and hasattr(os, "copy_file_range")

    def _copy(self, source: Any, source_path: str, path: str, *, replace: bool) -> bool:
        """Copy in the kernel, which shares blocks where the filesystem has reflinks."""
        full = source._full(source_path)  # noqa: SLF001
        descriptor, size = source.resume("get_range", source_path, open_regular, full)
        try:
            if not size:
                return False
            open_ = self._open_replacing if replace else self._open_staged
            with self.run("copy", path, open_, path, self._full(path)) as writer:
                if not self.resume("copy", path, writer.copy, descriptor, size):
                    return False
                writer.commit()
        finally:
            close_read(descriptor)
        return True

    def _list(self, folder: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        return self._walk(folder, start, lambda name: not name.startswith("."))

    def _names_from(self, folder: str, start: str) -> list[str]:  # noqa: ARG002
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        return []

    def _temporaries(self) -> Iterator[tuple[str, int, int]]:
        return self._walk(self.location.path, "", lambda name: name.startswith((TEMPORARY, PROBE)))

    def _walk(
        self, folder: str, start: str, wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str, int, int]]:
        pending = [(folder, start)]
        while pending:
            folder, start = pending.pop()
            # A folder may be deleted between its listing and its visit: it is then empty. A file
            # in its place counts as an empty folder, as in an object store.
            gone = suppress(FileNotFoundError, NotADirectoryError)
            with gone, os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.startswith(start):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith("."):
                            pending.append((entry.path, ""))
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
        if not self._folders.is_lasting(folder):
            with suppress(OSError):
                os.rmdir(folder)

    def ensure_exclusive(self) -> None:
        """Try the hard link that `create` needs; once per process and device."""
        if not self._probed:
            self.resume("probe", "", self._probe_links)
            self._probed = True

    def _probe_links(self) -> None:
        root = self.location.path
        self._folders.make(root)
        device = os.stat(root).st_dev
        if (os.getpid(), device) in _PROBED:
            return
        self.stats.add("probe")
        temporary = self._write_temporary(root, b"probe", sync=False)
        linked = f"{temporary}-link"
        try:
            link(temporary, linked)
        finally:
            for name in (temporary, linked):
                with suppress(OSError):
                    os.unlink(name)
        _PROBED.add((os.getpid(), device))

    def _write_temporary(self, folder: str, data: bytes, *, sync: bool) -> str:
        temporary = temporary_name(folder)
        descriptor = self._folders.open_new(temporary)
        try:
            try:
                write(descriptor, memoryview(data))
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary


class _CreateError(Exception):
    """A create failed at a known step."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


class _NotLinkedError(_CreateError):
    """It failed before its link (usually a full disk), so the name is not taken."""


class _NotSyncedError(_CreateError):
    """It could not sync the folder: the name may be taken, but not durably."""


class LocalStagedWriter(StagedWriter, ScatteredWriter):
    """Writes to the final name, or to a temporary one that `commit` renames to `final`.

    It writes in order, or at any position if `size` was set. `full` is the file that is open for
    writing as `descriptor`. `path` is relative to the root, for errors.
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
        self.write_all([data])

    def write_all(self, pieces: Sequence[Any]) -> None:  # noqa: D102
        self.size += self._write(pieces, None)

    def write_at(self, start: int, pieces: Sequence[Any]) -> None:  # noqa: D102
        self._write(pieces, start)

    def _write(self, pieces: Sequence[Any], start: int | None) -> int:
        views = [memoryview(piece).cast("B") for piece in pieces]
        self._storage.resume("stage", self._path, write_all, self._open(), views, start)
        size = sum(view.nbytes for view in views)
        self._storage.stats.add_written(size)
        return size

    def copy(self, source: int, size: int) -> bool:
        """Append `size` bytes of an open file in the kernel; False if the kernel cannot copy it."""
        while self.size < size:
            most = min(size - self.size, local_files.AT_ONCE_BYTES)
            try:
                copied = os.copy_file_range(source, self._open(), most, offset_src=self.size)
            except OSError as cause:
                if cause.errno in NO_COPY:
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
        local_files.sync_folder(os.path.dirname(self._full))

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


def _sync(full: str) -> None:
    with suppress(FileNotFoundError):  # deleted meanwhile
        descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        local_files.sync_folder(os.path.dirname(full))


def _write_hint(full: str, data: bytes) -> None:
    if _overwrite(full, data):
        return
    with suppress(FileNotFoundError):
        os.unlink(full)
    folder = os.path.dirname(full)
    if os.path.basename(folder).startswith("_"):  # a folder of hints alone, created by them
        with suppress(FileExistsError):
            os.mkdir(folder)
    descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _overwrite(full: str, data: bytes) -> bool:
    """Write a hint in place, which is faster than a new file; False if that is not possible.

    A file with further hard links, such as of a backup, is not overwritten.
    """
    try:
        descriptor = os.open(full, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            return own and status.st_size == len(data) == os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError:
        return False
