"""The storage contract on local disk, and what only a disk can show."""

import errno
import fcntl
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest
from process_kit import forkserver
from storage_contract import StorageContract

from segstore_ds.errors import CorruptionError, StorageError, UnsafeFilesystemError
from segstore_ds.log.metadata_log import Codec, MetadataLog
from segstore_ds.storage import Storage, local_files, open_storage

_NOBODY = 65534


class TestLocal(StorageContract):
    copies = True

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_storage(tmp_path / "not" / "yet" / "there")

    def raw_names(self, storage: Storage) -> list[str]:
        root = Path(storage.url.removeprefix("file://"))
        return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def test_failed_write_leaves_no_name(tmp_path):
    """A file size limit makes the write fail half way through."""
    storage = open_storage(tmp_path / "s")
    child = os.fork()
    if child == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            storage.create("log/1", b"x" * 5000)
        except StorageError as error:
            os._exit(0 if isinstance(error.__cause__, OSError) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert [path for path in (tmp_path / "s").rglob("*") if path.is_file()] == []


def test_close_that_fails_after_a_read_is_no_failure(tmp_path, monkeypatch):
    """As on network mounts: the bytes are there."""
    source, target = open_storage(tmp_path / "a"), open_storage(tmp_path / "b")
    source.put("log/1", b"bytes")
    close = os.close

    def failing(descriptor: int) -> None:
        flags, mode = fcntl.fcntl(descriptor, fcntl.F_GETFL), os.fstat(descriptor).st_mode
        close(descriptor)
        if flags & os.O_ACCMODE == os.O_RDONLY and stat.S_ISREG(mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    assert (source.get("log/1"), source.get_range("log/1", 1, 3)) == (b"bytes", b"yt")
    target.copy_from(source, "log/1", "log/1")
    assert target.get("log/1") == b"bytes"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_filesystem_without_links_is_refused(tmp_path, monkeypatch, code):
    """What link(2) answers on vfat and some network mounts, which no test machine has."""

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("segstore_ds.storage.local._PROBED", set())
    storage = open_storage(tmp_path / "s", single_writer=True)
    for use in (storage.ensure_exclusive, lambda: storage.create("log/1", b"x")):
        with pytest.raises(UnsafeFilesystemError, match="hard links"):
            use()
    assert [path for path in (tmp_path / "s").rglob("*") if path.is_file()] == []


def test_link_whose_answer_was_lost_is_won(tmp_path, monkeypatch):
    """NFS repeats a link that succeeded, and the second answer says that the name exists."""
    link = os.link

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    storage = open_storage(tmp_path / "s")
    assert storage.create("log/1", b"x") is True
    assert storage.create("log/1", b"y") is False


@pytest.mark.parametrize("gone", ["s", "s/a"])
@pytest.mark.parametrize("use", ["create", "read"])
def test_folder_seen_before_is_never_recreated(tmp_path, gone, use):
    """Every name would be free in it: a disk that was unmounted must not take a commit."""
    storage = open_storage(tmp_path / "s")
    open_storage(tmp_path / "s").create("a/1", b"x")
    if use == "create":
        storage.create("a/b/1", b"x")
    else:
        storage.get("a/1")
    shutil.rmtree(tmp_path / gone)
    for path in ("a/2", "a/b/2", "a/c/d/3"):
        with pytest.raises(StorageError, match="was here before") as failed:
            storage.create(path, b"y")
        assert not failed.value.retryable  # the remedy is to open the stream anew
        with pytest.raises(StorageError, match="was here before") as failed:
            storage.open_staged(path)
        assert not failed.value.retryable
    assert not (tmp_path / gone).exists()
    assert open_storage(tmp_path / "s").create("a/2", b"y") is True


def test_named_pipe_does_not_block_a_reader(tmp_path):
    storage = open_storage(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptionError, match="regular"):
        storage.get("pipe")


def test_folder_behind_a_link_is_not_listed(tmp_path):
    storage = open_storage(tmp_path / "s")
    storage.create("log/1", b"x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("x")
    (tmp_path / "s" / "link").symlink_to(tmp_path / "other")
    assert "link/secret" not in [found.path for found in storage.list("")]


def test_what_replaces_an_object_is_synced_as_what_is_created(tmp_path, monkeypatch):
    """A status object that was damaged is put again, and then a commit names it."""
    calls = []
    storage = open_storage(tmp_path)
    storage.put("status/0", b"x")
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def note(*args, _name=name, _real=real):
            calls.append(_name)
            return _real(*args)

        monkeypatch.setattr(os, name, note)
    storage.put("status/0", b"y")
    assert calls == ["write", "fsync", "replace", "fsync"]


def test_permission_error_names_the_remedy(tmp_path):
    storage = open_storage(tmp_path)
    storage.create("log/1", b"x")
    (tmp_path / "log").chmod(0)
    mighty = os.geteuid() == 0  # root may read everything, so be nobody for a while
    try:
        if mighty:
            os.seteuid(_NOBODY)
        for use in (lambda: storage.get("log/1"), lambda: list(storage.list(""))):
            with pytest.raises(StorageError, match="permissions"):
                use()
    finally:
        if mighty:
            os.seteuid(0)
        (tmp_path / "log").chmod(0o700)


def test_file_in_place_of_a_folder_is_not_retryable(tmp_path):
    """The file stays until someone removes it, at any level of the path."""
    (tmp_path / "file").write_text("x")
    for url in (tmp_path / "file", tmp_path / "file" / "deep"):
        storage = open_storage(url)
        for use in (
            storage.ensure_exclusive,
            lambda storage=storage: storage.create("log/1", b"x"),
            lambda storage=storage: storage.put("log/1", b"x"),
            lambda storage=storage: storage.open_staged("segments/t/1"),
        ):
            with pytest.raises(StorageError, match="a file is where a folder is needed") as caught:
                use()
            assert not caught.value.retryable
        assert list(storage.list("log")) == []
        assert storage.folders("") == ()


def test_a_gathering_write_that_stops_halfway_is_gone_on_with(tmp_path, monkeypatch):
    """The kernel may take less than it was given: within a piece, and between two."""
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: writev(fd, [views[0][:3]]))
    storage = open_storage(tmp_path)
    with storage.open_staged("s/1") as writer:
        writer.write_all([b"abcdefgh", b"", b"ijk", b"l"])
        assert writer.commit() == 12
    assert storage.get("s/1") == b"abcdefghijkl"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, None])
def test_unsupported_kernel_copy_falls_back(tmp_path, monkeypatch, code):
    """For any error of the kernel, also after a first piece; nothing is left behind."""
    storage = open_storage(tmp_path)
    storage.create("segments/1", b"x" * 10_000)
    real = os.copy_file_range

    def refuse(source, target, _, *, offset_src):
        if offset_src == 0:
            return real(source, target, 100, offset_src=0)
        if code is None:
            return 0
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert not storage.copy_from(storage, "segments/1", "segments/2")
    assert [info.path for info in storage.list("")] == ["segments/1"]


def test_copy_whose_disk_is_full_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    storage = open_storage(tmp_path)
    storage.create("segments/1", b"x" * 10_000)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    with pytest.raises(StorageError, match="full"):
        storage.copy_from(storage, "segments/1", "segments/2")
    assert [info.path for info in storage.list("")] == ["segments/1"]


def test_deleted_temporary_fails_only_its_own_call(tmp_path, monkeypatch):
    """Its own link or replace finds nothing: in doubt, so a commit is tried again."""
    storage = open_storage(tmp_path / "s")

    def sweep():
        for info in list(storage.temporaries()):
            storage.delete(info.path)

    with storage.open_staged("segments/t/1", replace=True) as writer:
        writer.write(b"1")
        assert [info.size for info in storage.temporaries()] == [1]
        sweep()
        with pytest.raises(StorageError):
            writer.commit()
    assert list(storage.list("")) == []
    link, links = os.link, []

    def sweep_once(source, target):
        if not links:
            sweep()
        links.append(target)
        link(source, target)

    monkeypatch.setattr(os, "link", sweep_once)
    log = MetadataLog(storage, "log", Codec(lambda text: text, lambda data, _: data))
    assert log.add(0, b"batch") is True
    assert len(links) == 2
    assert list(storage.temporaries()) == []


def test_folder_deleted_between_calls_is_recreated(tmp_path, monkeypatch):
    """Whoever deletes the last object of a job takes the folder along, at any moment."""
    storage, opened = open_storage(tmp_path / "s"), []
    open_ = os.open

    def vanish_twice(path, *arguments):
        opened.append(path)
        if len([one for one in opened if one == path]) < 3 and str(path).endswith("t/1"):
            (tmp_path / "s/segments/t").rmdir()
        return open_(path, *arguments)

    monkeypatch.setattr(os, "open", vanish_twice)
    with storage.open_staged("segments/t/1") as writer:
        writer.write(b"1")
        writer.commit()
    assert storage.get("segments/t/1") == b"1"
    storage.delete("segments/t/1")
    assert [path.name for path in (tmp_path / "s").rglob("*")] == ["segments"]


def test_an_aborted_object_leaves_no_folder(tmp_path):
    storage = open_storage(tmp_path / "s")
    with storage.open_staged("segments/t/1") as writer:
        writer.write(b"1")
    assert [path.name for path in (tmp_path / "s").rglob("*")] == ["segments"]


@pytest.fixture
def synced(monkeypatch):
    """The folders that were synced, in order."""
    found = []
    real = local_files.sync_folder

    def note(folder):
        found.append(Path(folder))
        real(folder)

    monkeypatch.setattr(local_files, "sync_folder", note)
    return found


def test_folder_recreated_by_another_process_is_synced_again(tmp_path, synced):
    """The process that recreated it may be killed before the sync."""
    storage = open_storage(tmp_path / "s")
    storage.create("segments/job/1", b"x")
    storage.delete("segments/job/1")
    (tmp_path / "s/segments/job").mkdir()
    synced.clear()
    storage.create("segments/job/2", b"x")
    assert tmp_path / "s/segments" in synced


@pytest.mark.parametrize("failing", range(3))
def test_folders_whose_sync_failed_are_synced_again(tmp_path, monkeypatch, failing):
    """A disk may refuse any of the syncs; the next try must not take them for done."""
    root = tmp_path / "s"
    root.mkdir()
    storage = open_storage(root)
    real, tried, synced = local_files.sync_folder, [], []

    def refuse_once(folder):
        tried.append(folder)
        if len(tried) == failing + 1:
            raise OSError(errno.EIO, "made by the test", folder)
        real(folder)
        synced.append(Path(folder))

    monkeypatch.setattr(local_files, "sync_folder", refuse_once)
    with pytest.raises(StorageError):
        storage.create("log/1", b"x")
    storage.create("log/2", b"x")
    assert {root.parent, root, root / "log"} <= {*synced}


def stage(folder, path):
    """Stage an object through a handle of its own, as each task does."""
    with open_storage(folder).open_staged(path) as writer:
        writer.write(b"x")
        writer.commit()


def test_tasks_of_a_job_sync_the_folders_above_once_in_a_process(tmp_path, synced):
    """But always their own folder, and its entry: another process may have made it again."""
    root = tmp_path / "s"
    stage(root, "segments/job/1")
    assert {root, root.parent, root / "segments", root / "segments/job"} <= {*synced}
    synced.clear()
    stage(root, "segments/job/2")
    assert sorted(synced) == [root / "segments", root / "segments/job"]
    synced.clear()
    stage(root, "segments/another/1")
    assert {root, root.parent} <= {*synced}
    shutil.rmtree(root)
    synced.clear()
    stage(root, "segments/job/3")  # what is made is synced, whatever was before
    assert {root, root.parent, root / "segments", root / "segments/job"} <= {*synced}


def test_a_handle_that_lives_long_remembers_few_folders(tmp_path):
    storage = open_storage(tmp_path / "s")
    for number in range(100):
        storage.create(f"segments/{number}/1", b"x")
    assert len(storage._folders._synced) + len(storage._folders._lasting) < 30


def test_a_process_remembers_few_jobs(tmp_path):
    """The newest ones."""
    for number in range(local_files._MOST_JOBS + 1):
        local_files._note_job(f"{tmp_path}/segments/{number}")
    assert len(local_files._JOBS) == local_files._MOST_JOBS


def _create_for_ever(storage, started):
    number = 0
    while True:
        storage.create(f"log/{number}", f"{number};".encode() * 5000)
        number += 1
        if number == 3:
            started.set()


def test_killed_creator_leaves_only_whole_objects(tmp_path):
    """SIGKILL at any moment: a name that shows has its whole content."""
    context = forkserver()
    for attempt in range(5):
        storage = open_storage(tmp_path / str(attempt))
        started = context.Event()
        process = context.Process(target=_create_for_ever, args=(storage, started))
        process.start()
        assert started.wait(300)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = list(storage.list(""))
        assert len(found) >= 3
        for entry in found:
            number = entry.path.removeprefix("log/")
            assert storage.get(entry.path) == f"{number};".encode() * 5000


def test_sync_comes_before_the_name_and_the_folder_after(tmp_path, monkeypatch):
    """The order that makes a commit survive a power loss."""
    calls = []
    storage = open_storage(tmp_path)
    storage.create("log/0", b"x")
    for name in ("write", "fsync", "link", "unlink"):
        real = getattr(os, name)

        def note(*args, _name=name, _real=real):
            calls.append(_name)
            return _real(*args)

        monkeypatch.setattr(os, name, note)
    storage.create("log/1", b"x")
    assert calls == ["write", "fsync", "link", "fsync", "unlink"]


def test_new_folders_are_synced_in_the_folders_that_hold_them(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def note(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    storage = open_storage(tmp_path / "a" / "s")
    with storage.open_staged("x/y/1") as writer:
        writer.write(b"1")
        writer.commit()
    folders = {tmp_path, tmp_path / "a", tmp_path / "a/s", tmp_path / "a/s/x", tmp_path / "a/s/x/y"}
    assert folders <= set(synced)
    assert tmp_path / "a/s/x/y/1" in synced


def test_a_copy_is_synced_before_its_folder(tmp_path, monkeypatch):
    """As a staged object: whole on the disk, then its name."""
    storage = open_storage(tmp_path)
    storage.create("segments/1", b"x" * 10_000)
    events, synced = [], os.fsync
    copy = os.copy_file_range

    def note(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        synced(descriptor)

    def copying(*arguments, **options):
        events.append("copy")
        return copy(*arguments, **options)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "copy_file_range", copying)
    assert storage.copy_from(storage, "segments/1", "segments/2")
    assert events == ["copy", "file", "folder"]
