"""System calls on single files: read, write, link and sync. It knows nothing of objects."""

# pathlib has neither fsync nor pread, and is slower on the commit path.
# ruff: noqa: PTH116

import errno
import os
import secrets
import stat
from typing import Self

from segstore_ds.errors import CorruptionError, UnsafeFilesystemError

_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV}
)
# Some filesystems cannot sync folders; they answer with one of these.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Without NONBLOCK, opening a named pipe in a stream's folder would block forever.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# Errors of a kernel copy that the system, or this pair of filesystems, does not support.
NO_COPY = frozenset(
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
TEMPORARY = ".tmp-"


class Reader:
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


def temporary_name(folder: str) -> str:
    """Return a new name in a folder that no listing of objects shows."""
    return f"{folder}/{TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"


def write(descriptor: int, view: memoryview) -> None:
    """Write all bytes, in as many calls as it takes."""
    place = 0
    while place < view.nbytes:
        place += os.write(descriptor, view[place : place + _MOST_AT_ONCE])


def write_all(descriptor: int, views: list[memoryview], start: int | None = None) -> None:
    """Write all pieces, in as many calls as it takes: to `start`, or to the file's position."""
    waiting = [view for view in views if view.nbytes]
    while waiting:
        if start is None:
            written = os.writev(descriptor, waiting[:_MOST_PIECES])
        else:
            written = os.pwritev(descriptor, waiting[:_MOST_PIECES], start)
            start += written
        while waiting and written >= waiting[0].nbytes:
            written -= waiting.pop(0).nbytes
        if written:
            waiting[0] = waiting[0][written:]


def link(temporary: str, full: str) -> bool:
    """Give a file a second name; False if another file has that name."""
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


def sync_folder(folder: str) -> None:
    """Make the entries of a folder durable, where the filesystem can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as cause:
        if cause.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
