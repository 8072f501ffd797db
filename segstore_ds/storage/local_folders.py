"""Folders of a local stream: created when a file needs them, and durable before the file is.

The root and the folders directly in it are *lasting*. Once seen, they are never created again: if
one disappears its content is gone too, and in an empty folder every name is free.
"""

# pathlib has neither fsync nor pread, and is slower on the commit path.
# ruff: noqa: PTH102, PTH112, PTH120

import errno
import os
from contextlib import suppress

from segstore_ds.errors import StorageError
from segstore_ds.storage import local_files

_TRIES = 8
# Folders of jobs in which this process has staged objects, through handles that had synced the
# lasting folders above. Each task of a job has a handle of its own, a folder's name is one job's
# alone, and a sync takes milliseconds even where nothing has changed.
_JOBS: dict[str, None] = {}
_MOST_JOBS = 64


class LocalFolders:
    """The folders below a root; `url` is for errors."""

    def __init__(self, root: str, url: str) -> None:
        self._root = root
        self._url = url
        self._lasting: set[str] = set()
        # The lasting folders whose entry is synced in their parent. Deeper folders come and go. One
        # that reappears may be another process's and unsynced, so they are not remembered.
        self._synced: set[str] = set()

    def open_staged(self, full: str) -> int:
        """Open a new file of a job, whose other tasks may have made its folder in this process."""
        folder = os.path.dirname(full)
        if folder in _JOBS:
            self._synced |= {self._root, self._lasting_of(folder)} - {folder}
        descriptor = self.open_new(full)
        _note_job(folder)
        return descriptor

    def open_new(self, full: str) -> int:
        """Open a new file for writing, and make its folder first."""
        folder = os.path.dirname(full)
        for _ in range(_TRIES):
            self.make(folder)
            with suppress(FileNotFoundError):
                return os.open(full, local_files.NEW, 0o666)
            # Deleting the last object of a folder also deletes the folder.
            self._synced.discard(folder)
        raise FileNotFoundError(errno.ENOENT, "folder disappears repeatedly", folder)

    def make(self, folder: str) -> None:
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
            local_files.sync_folder(os.path.dirname(name))
        # A folder that another process just created may be unsynced: sync it up to the root.
        synced = [folder]
        root = self._root
        while above not in self._synced and f"{above}/".startswith(f"{root.rstrip('/')}/"):
            synced.append(above)
            above = os.path.dirname(above)
            with suppress(PermissionError):
                local_files.sync_folder(above)
            if above == "/":
                break
        # Only now: what is noted is never synced again, and a sync may have failed.
        for each in synced:
            self._note_synced(each)

    def is_lasting(self, folder: str) -> bool:
        """Tell whether a folder is the root or one directly in it."""
        root = self._root.rstrip("/")
        return folder.rstrip("/") == root or os.path.dirname(folder).rstrip("/") == root

    def note_seen(self, folder: str) -> None:
        """Note that a folder is there."""
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
