"""What a power loss leaves of a commit: all that its root names, from the moment it has its name.

What a disk has to keep is followed call by call: a file's bytes once the file was synced, a name
once its folder was synced with it.
"""

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.status.references import read_references
from segstore_ds.storage import local, local_files
from segstore_ds.write.layout import Layout

STAGED = Layout(inline_bytes=0, segment_rows=4, frame_rows=2)


class Disk:
    """What survives a power loss, and what did at the moment each commit was to get its name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.at_commit: dict[Path, set[Path]] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._sizes: dict[int, int] = {}

    def synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._sizes[status.st_ino] = status.st_size

    def naming(self, target: Path) -> None:
        if target.parent.name == "log" and target.name.isdigit():
            self.at_commit[target] = self.survivors()

    def survivors(self) -> set[Path]:
        return {path for path in self.root.rglob("*") if path.is_file() and self._survives(path)}

    def _survives(self, path: Path) -> bool:
        status = path.stat()
        places = [path, *path.relative_to(self.root).parents][:-1]
        above = [path, *(self.root / place for place in places[1:])]
        named = all(
            self._names.get(folder.parent, {}).get(folder.name) == folder.stat().st_ino
            for folder in above
        )
        return named and self._sizes.get(status.st_ino) == status.st_size


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Return what is known of the disk; all that lies beside the tests' folder is durable."""
    followed = Disk(tmp_path)
    kept = {name: getattr(os, name) for name in ("fsync", "link", "replace")}

    def fsync(descriptor):
        kept["fsync"](descriptor)
        followed.synced(descriptor)

    def link(source, target):
        followed.naming(Path(target))
        kept["link"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    return followed


@pytest.fixture(autouse=True)
def spill(monkeypatch):
    """Let commits move segments and history to objects of their own at once."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 2)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 2)


def events(start: int, end: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, end), pa.int64())})


def work(folder: Path) -> None:
    """Make a stream, append staged and inline events, compact, truncate, restore and copy it."""
    stream = segstore.create(folder / "stream", events(0, 0).schema)
    for n in range(3):
        stream.append(events(10 * n, 10 * n + 10), layout=STAGED)
        stream.append(events(0, 1))
    assert stream._log.root.parts
    assert stream._log.root.history_parts
    stream.compact()
    assert stream._log.root.operation == "compact"
    stream.truncate(20)
    stream.restore(stream.version - 1)
    stream.copy_to(folder / "copy", copy_id="c")


def check(disk: Disk) -> None:
    """Check every commit, and that all of them last."""
    assert len(disk.at_commit) > 10
    lasting = disk.survivors()
    for commit, survivors in disk.at_commit.items():
        stream = segstore.open(commit.parent.parent)
        root = stream._log.read_version(int(commit.name))
        named = {
            commit.parent.parent / path
            for path in read_references(stream._context.status, root).live
        }
        assert named <= survivors, commit
        assert commit in lasting


def test_commit_is_linked_after_its_objects_are_synced(disk, tmp_path):
    """Segments, parts and lists of any operation, with the folders that they lie in."""
    work(tmp_path)
    check(disk)


def no_sync_of_staged_files(monkeypatch, fsync):
    real = local.LocalStagedWriter._finish

    def finish(self, descriptor):
        monkeypatch.setattr(os, "fsync", lambda _: None)
        real(self, descriptor)
        monkeypatch.setattr(os, "fsync", fsync)
        local_files.sync_folder(str(Path(self._full).parent))

    monkeypatch.setattr(local.LocalStagedWriter, "_finish", finish)


def no_sync_of_folders(monkeypatch, _fsync):
    monkeypatch.setattr(local_files, "sync_folder", lambda _: None)


def no_sync_of_new_folders(monkeypatch, _fsync):
    real = local_files.sync_folder
    monkeypatch.setattr(
        local_files, "sync_folder", lambda folder: real(folder) if "stream/" in folder else None
    )


def no_sync_of_created_files(monkeypatch, _fsync):
    real = local.LocalStorage._write_temporary
    monkeypatch.setattr(
        local.LocalStorage,
        "_write_temporary",
        lambda self, folder, data, **_: real(self, folder, data, sync=False),
    )


MUTANTS = [
    no_sync_of_staged_files,
    no_sync_of_folders,
    no_sync_of_new_folders,
    no_sync_of_created_files,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_disk_without_sync_loses_a_commit(mutant, disk, tmp_path, monkeypatch):
    """The check sees each sync that is left out."""
    mutant(monkeypatch, os.fsync)
    work(tmp_path)
    with pytest.raises(AssertionError):
        check(disk)
