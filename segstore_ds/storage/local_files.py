"""System calls on the files and folders of a local stream. It knows nothing of objects.

Folders are created when a file needs them, and are durable before the file is. The root and the
folders directly in it are *lasting*. Once seen, they are never created again: if one disappears,
its content is gone, too, and in a new folder every name would be free.
"""

# pathlib has neither fsync nor pread, and is slower on the commit path.
# ruff: noqa: PTH102, PTH112, PTH116, PTH120

import errno
import os
import secrets
import stat
from contextlib import suppress

from segstore_ds.errors import CorruptionError, StorageError, UnsafeFilesystemError

_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV}
)
# Some filesystems cannot sync folders; they answer with one of these.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Without NONBLOCK, opening a named pipe in a stream's folder would block forever.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# Errors if the system, or this pair of filesystems, does not support a copy in the kernel.
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
AT_ONCE_BYTES = 1 << 30
_MOST_PIECES = 1024  # pieces per writev; every platform allows as many
TEMPORARY = ".tmp-"


def open_regular(full: str) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and its size."""
    descriptor = os.open(full, _READ)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status.st_size
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", full)
    raise CorruptionError("object is not a regular file", path=full)


def close_read(descriptor: int) -> None:
    """Close a file that was read; ignore a failure."""
    with suppress(OSError):
        os.close(descriptor)


def read_file(full: str, start: int, end: int | None) -> bytes:
    """Read `[start, end)` of a regular file, or less if it is shorter; None for its end."""
    descriptor, size = open_regular(full)
    try:
        end = size if end is None else min(end, size)
        pieces, place = list[bytes](), start
        while place < end:
            data = os.pread(descriptor, min(end - place, AT_ONCE_BYTES), place)
            if not data:
                break
            pieces.append(data)
            place += len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    finally:
        close_read(descriptor)


def temporary_name(folder: str) -> str:
    """Return a new name for a temporary file, which no listing of objects shows."""
    return f"{folder}/{TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"


def write(descriptor: int, view: memoryview) -> None:
    """Write all bytes, in as many calls as it takes."""
    place = 0
    while place < view.nbytes:
        place += os.write(descriptor, view[place : place + AT_ONCE_BYTES])


def write_all(descriptor: int, views: list[memoryview], start: int | None = None) -> None:
    """Write all pieces, in as many calls as it takes, at `start` or at the file's position."""
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
        # NFS repeats a request if the answer was lost: the name may already be this file.
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
    """Make the entries of a folder durable if the filesystem can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as cause:
        if cause.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


_TRIES = 8
# Folders of jobs in which this process has staged objects, after it had synced the lasting folders
# above. So the handles of a job's other tasks need not sync these again: a sync takes milliseconds
# even if nothing has changed. No two jobs have the same folder.
_JOBS: dict[str, None] = {}
_MOST_JOBS = 64


class LocalFolders:
    """The folders below a root; `url` is for errors."""

    def __init__(self, root: str, url: str) -> None:
        self._root = root
        self._url = url
        self._lasting: set[str] = set()
        # The lasting folders whose entry is synced in their parent. Deeper folders are not kept:
        # they may be deleted, and created again by another process without a sync.
        self._synced: set[str] = set()

    def open_staged(self, full: str) -> int:
        """Open a new file in the folder of a job, whose other tasks may have created it."""
        folder = os.path.dirname(full)
        if folder in _JOBS:
            self._synced |= {self._root, self._lasting_of(folder)} - {folder}
        descriptor = self.open_new(full)
        _note_job(folder)
        return descriptor

    def open_new(self, full: str) -> int:
        """Create a new file, and its folder if necessary, and open it for writing."""
        folder = os.path.dirname(full)
        for _ in range(_TRIES):
            self.make(folder)
            try:
                return os.open(full, NEW, 0o666)
            except FileNotFoundError:  # the deletion of its last object removes a folder
                self._synced.discard(folder)
        raise FileNotFoundError(errno.ENOENT, "folder disappears repeatedly", folder)

    def make(self, folder: str) -> None:
        """Create a folder and those above it, and sync each entry in its parent.

        Raises StorageError if a lasting folder (the root or one directly in it) has disappeared.
        """
        if folder in self._synced:
            return
        missing = []
        above = folder
        while True:
            seen = above in self._lasting  # before `isdir`, as another thread may be creating it
            if os.path.isdir(above):
                break
            if seen:
                failure = StorageError(
                    "a folder that was here before is gone, with all its files",
                    remedy="mount or restore it, then open the stream again",
                    storage=self._url,
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
            sync_folder(os.path.dirname(name))
        # Another process may have just created a folder without a sync: sync all up to the root.
        synced = [folder]
        root = self._root
        while above not in self._synced and f"{above}/".startswith(f"{root.rstrip('/')}/"):
            synced.append(above)
            above = os.path.dirname(above)
            with suppress(PermissionError):
                sync_folder(above)
            if above == "/":
                break
        # Note them only after all syncs have succeeded: they are never synced again.
        for each in synced:
            self._note_synced(each)

    def is_lasting(self, folder: str) -> bool:
        """Tell whether a folder is the root or one directly in it."""
        root = self._root.rstrip("/")
        return folder.rstrip("/") == root or os.path.dirname(folder).rstrip("/") == root

    def note_seen(self, folder: str) -> None:
        """Note that a folder exists."""
        if folder in self._lasting or not self.is_lasting(folder):
            return
        self._lasting |= {self._root, folder}

    def _lasting_of(self, folder: str) -> str:
        while not self.is_lasting(folder):
            folder = os.path.dirname(folder)
        return folder

    def _note_synced(self, folder: str) -> None:
        if self.is_lasting(folder):
            self._synced.add(folder)
        self.note_seen(self._lasting_of(folder))


def _note_job(folder: str) -> None:
    _JOBS.pop(folder, None)
    _JOBS[folder] = None
    for oldest in list(_JOBS)[: max(len(_JOBS) - _MOST_JOBS, 0)]:
        _JOBS.pop(oldest, None)
