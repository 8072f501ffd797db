"""Handles that outlive their stream or their log: what they acknowledge, a fresh open shows."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from stream_kit import HOUR, SCHEMA, STAGED, make_stream, numbers, objects, values, wait

import segstore_ds as segstore
from segstore_ds.errors import (
    AlreadyExistsError,
    ConflictError,
    MissingObjectError,
    NotFoundError,
    SegstoreError,
)
from segstore_ds.format.names import HINT_PATH
from segstore_ds.log.late_hints import LATE_HINTS
from segstore_ds.log.seen import hint_of
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.storage import open_storage
from segstore_ds.storage.base import FAR
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.stream.stream import Stream

GONE = "another one was created in its place|stream was dropped"


def recreate(url: str, appends: int) -> Stream:
    """Drop a stream and create another one in its folder, as another process does."""
    segstore.drop(url, confirm=url)
    made = segstore.create(url, SCHEMA)
    for n in range(appends):
        made.append(numbers(100 + n, 101 + n))
    return made


def log_file(folder: Path, version: int) -> Path:
    return folder / f"log/{version:020d}"


# --- drop and create ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("after", [0, 1, 6])
def test_old_handle_hides_no_event_of_a_recreated_stream(
    tmp_path: Path, place: str, before: int, after: int
) -> None:
    """Whatever version it was at, its next commit is refused."""
    name = tmp_path.name
    url = str(tmp_path / "s") if place == "local" else f"memory://{name}-{before}-{after}"
    old = segstore.create(url, SCHEMA)
    for n in range(before):
        old.append(numbers(n, n + 1))
    made = recreate(url, after)
    for change in (
        lambda: old.append(numbers(0, 1)),
        lambda: old.tags.set("t"),
        old.seal,
        lambda: old.append(numbers(0, 1)),
        old.refresh,
    ):
        with pytest.raises(NotFoundError, match=GONE):
            change()
    for _ in range(before + 3):
        made.append(numbers(0, 1))
    fresh = segstore.open(url)
    assert values(fresh) == [100 + n for n in range(after)] + [0] * (before + 3)
    assert fresh.verify().check().ok


def test_versions_of_a_folder_never_go_back(tmp_path: Path) -> None:
    """Each stream begins above the last commit of the one before."""
    url, last = str(tmp_path / "s"), -1
    handles = []
    for n in range(5):
        stream = segstore.create(url, SCHEMA)
        assert stream.version == stream._log.root.log_start == last + 1
        stream.append(numbers(n, n + 1))
        handles.append(stream)
        last = stream.version + 1
        segstore.drop(url, confirm=url)
    newest = segstore.create(url, SCHEMA)
    for stream in handles:
        with pytest.raises(NotFoundError, match=GONE):
            stream.append(numbers(0, 1))
    assert newest.refresh().tail == 0
    assert newest.history().read_all().num_rows == 1


def test_copies_and_clones_begin_in_the_folder_of_a_dropped_stream(tmp_path: Path) -> None:
    """Every kind of first commit is numbered above what is left there."""
    source = segstore.create(tmp_path / "source", SCHEMA)
    source.append(numbers(0, 10))
    for mode in ("segments", "events", "clone"):
        url = str(tmp_path / mode)
        segstore.create(url, SCHEMA).append(numbers(0, 3))
        segstore.drop(url, confirm=url)
        source.copy_to(url, mode=mode, copy_id=mode)
        copied = segstore.open(url)
        assert copied._log.root.log_start == 3
        assert values(copied) == [*range(10)]
        assert copied.verify().check().ok


def test_no_follower_is_made_in_the_folder_of_a_dropped_stream(tmp_path: Path) -> None:
    """It has the versions of its primary, and these names are taken."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    segstore.create(tmp_path / "f", SCHEMA)
    segstore.drop(tmp_path / "f", confirm=tmp_path / "f")
    with pytest.raises(AlreadyExistsError, match="last commits of a dropped stream"):
        stream.followers.add(str(tmp_path / "f"))


def test_what_a_drop_leaves_is_deleted_once_it_is_old() -> None:
    """By a purge of the stream that came after, or by another drop, never within the hour."""
    stream, storage = make_stream(3)
    clock = storage.time.clock
    segstore.drop(stream.url, confirm=stream.url)
    dropped = objects(storage, "log/0")
    made = create_on(storage, SCHEMA, clock=clock)
    wait(storage, HOUR / 2)
    run_maintain(made._context, keep_s=0)
    assert objects(storage, "log/0") >= dropped
    wait(storage, HOUR)
    made.append(numbers(0, 1))
    wait(storage, 2 * HOUR)
    made.append(numbers(1, 2))
    run_maintain(made._context, keep_s=0)
    assert not objects(storage, "log/0") & dropped
    assert verify_on(storage, clock=clock).ok


# --- folders that were restored -------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 5])
def test_handle_of_a_folder_that_was_restored_acknowledges_nothing(
    tmp_path: Path, others: int
) -> None:
    """Others append to the backup; the old handle's root would hide their events."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    for n in range(2):
        stream.append(numbers(n, n + 1))
    shutil.copytree(tmp_path / "s", tmp_path / "backup")
    for n in range(2, 5):
        stream.append(numbers(n, n + 1), writer_id="etl", batch_id=n)
    shutil.rmtree(tmp_path / "s")
    shutil.copytree(tmp_path / "backup", tmp_path / "s")
    other = segstore.open(tmp_path / "s")
    for n in range(others):
        other.append(numbers(50 + n, 51 + n))
    for change in (
        lambda: stream.append(numbers(77, 78)),
        lambda: stream.truncate(1),
        lambda: stream.tags.set("t"),
        lambda: stream.append(numbers(4, 5), writer_id="etl", batch_id=4),  # not known any more
    ):
        with pytest.raises(MissingObjectError, match="commits that were in the log are gone"):
            change()
    assert values(segstore.open(tmp_path / "s")) == [0, 1, *(50 + n for n in range(others))]
    assert segstore.open(tmp_path / "s").verify().check().ok


@pytest.mark.parametrize(
    "verb",
    [
        lambda stream: stream.append(numbers(1, 2)),
        lambda stream: stream.retain(max_bytes=0),
        lambda stream: stream.maintain(keep="30d"),
        lambda stream: stream.maintain(grace="7d"),
        lambda stream: stream.maintain(),
        lambda stream: stream.readers.register("r").publish(1),
    ],
    ids=["append", "retain", "purge", "vacuum", "maintain", "reader"],
)
def test_first_verb_of_a_handle_writes_no_hint_into_a_restored_folder(
    tmp_path: Path, verb: Callable[[Stream], object]
) -> None:
    """Many ask the store's time by a hint, which would say that the log has lost commits."""
    made = segstore.create(tmp_path / "s", SCHEMA)
    shutil.copytree(tmp_path / "s", tmp_path / "backup")
    made.append(numbers(0, 1))
    stream = segstore.open(tmp_path / "s")
    shutil.rmtree(tmp_path / "s")
    shutil.copytree(tmp_path / "backup", tmp_path / "s")
    with suppress(MissingObjectError):
        verb(stream)  # refused, or done on what was restored
    restored = segstore.open(tmp_path / "s")
    assert values(restored) == []
    restored.verify().check()


@pytest.mark.parametrize("again", [True, False])
def test_repeated_batch_of_a_dropped_stream_is_not_acknowledged(
    tmp_path: Path, *, again: bool
) -> None:
    """Nor is any other call that has nothing to change."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    stream.append(numbers(0, 5), writer_id="etl", batch_id=7)
    stream.tags.set("a", 3)
    old = [segstore.open(tmp_path / "s") for _ in range(3)]
    segstore.drop(stream.url, confirm=stream.url)
    if again:
        segstore.create(tmp_path / "s", SCHEMA).append(numbers(0, 9))
    for handle, call in zip(
        old,
        (
            lambda it: it.append(numbers(0, 5), writer_id="etl", batch_id=7),
            lambda it: it.tags.set("a", 3),
            lambda it: it.truncate(0),
        ),
        strict=True,
    ):
        with pytest.raises(NotFoundError, match=GONE):
            call(handle)


# --- what is missing ------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [None, 2, 5])
@pytest.mark.parametrize("lost", [(3, 4), (1, 3)])
def test_versions_that_are_missing_in_the_log_are_an_error(
    tmp_path: Path, lost: tuple[int, ...], hint: int | None
) -> None:
    """An open never answers with what was before the gap."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    hints = [(tmp_path / "s" / HINT_PATH).read_bytes()]
    for n in range(5):
        stream.append(numbers(n, n + 1))
        stream._log.write_hint(stream._log.root)
        hints.append((tmp_path / "s" / HINT_PATH).read_bytes())
    (tmp_path / "s" / HINT_PATH).unlink()
    if hint is not None:
        (tmp_path / "s" / HINT_PATH).write_bytes(hints[hint])
    for version in lost:
        log_file(tmp_path / "s", version).unlink()
    for ask in (
        lambda: segstore.open(tmp_path / "s"),
        lambda: segstore.open(tmp_path / "s").append(numbers(9, 10)),
    ):
        with pytest.raises(MissingObjectError, match=r"versions are missing in the log.*newest=5"):
            ask()
    assert not log_file(tmp_path / "s", 6).exists()
    assert any("missing" in found.what for found in segstore.verify(tmp_path / "s").problems)
    report = segstore.repair(tmp_path / "s")
    assert any("missing" in text and "--allow-loss" in text for text in report.damaged)
    report = segstore.repair(tmp_path / "s", allow_loss=True)
    assert (report.damaged, report.generation) == ([], 0)
    assert f"versions before {max(lost) + 1} are forgotten" in report.repaired[0]
    mended = segstore.open(tmp_path / "s")
    assert values(mended) == [0, 1, 2, 3, 4]
    mended.append(numbers(5, 6))
    assert mended.verify().check().ok


def test_handle_that_lists_again_sees_the_gap_before_it_commits() -> None:
    """After a minute it looks by name no longer."""
    stream, storage = make_stream(3)
    other = open_on(storage, clock=storage.time.clock)
    for n in range(3):
        other.append(numbers(30 + n, 31 + n))
    storage.delete(f"log/{4:020d}")
    wait(storage, 120)
    with pytest.raises(MissingObjectError, match="first=4, last=4"):
        stream.append(numbers(0, 1))


# --- hints ----------------------------------------------------------------------------------------


@pytest.mark.late_hints
def test_late_hint_is_not_written_into_a_restored_folder(tmp_path: Path) -> None:
    """It would say of the restored log that commits are gone, and nobody could open it."""
    storage = open_storage(tmp_path / "s")
    storage.profile = FAR  # as on an object store
    stream = create_on(storage, SCHEMA)
    shutil.copytree(tmp_path / "s", tmp_path / "backup")
    for n in range(3):
        stream.append(numbers(n, n + 1))
    shutil.rmtree(tmp_path / "s")
    shutil.copytree(tmp_path / "backup", tmp_path / "s")
    LATE_HINTS.flush()
    assert segstore.open(tmp_path / "s").version == 0


@pytest.mark.late_hints
def test_commit_is_acknowledged_where_no_thread_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a process none can: not for the hint of a burst, nor for two followers."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    storage = open_storage(tmp_path / "s")
    storage.profile = FAR  # as on an object store
    stream = create_on(storage, SCHEMA, upkeep=None)
    for name in ("f", "g"):
        stream.followers.add(str(tmp_path / name))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert [stream.append(numbers(n, n + 1)).end for n in range(3)] == [1, 2, 3]
        assert stream.append(numbers(3, 90), layout=STAGED).end == 90
    LATE_HINTS.flush()
    assert stream._log.files.read_hint() == hint_of(stream._log.root)


def test_backup_of_hard_links_keeps_its_hint(tmp_path: Path) -> None:
    """A hint is written anew: in place it would change in the backup, too."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    stream.append(numbers(0, 1))
    shutil.copytree(tmp_path / "s", tmp_path / "backup", copy_function=os.link)
    stream.append(numbers(1, 2))
    assert segstore.open(tmp_path / "backup").version == 1


def test_hint_on_local_disk_is_that_of_the_newest_commit(tmp_path: Path) -> None:
    """Also when the process is killed right after it."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    for n in range(5):
        stream.append(numbers(n, n + 1))
        assert stream._log.files.read_hint() == hint_of(stream._log.root)


PROCESS = """
import sys
import pyarrow as pa
from segstore_ds.storage import open_storage
from segstore_ds.storage.base import FAR
from segstore_ds.stream.opening import create as create_on
storage = open_storage(sys.argv[1])
storage.profile = FAR
stream = create_on(storage, pa.schema([("n", pa.int64())]))
for n in range(20):
    stream.append(pa.table({"n": [n]}))
print(stream.version)
"""


def test_hint_of_a_burst_is_written_at_the_end_of_the_process(tmp_path: Path) -> None:
    """Also by one that ends within the second."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tmp_path / "s")], check=True, capture_output=True
    )
    stream = segstore.open(tmp_path / "s")
    assert int(done.stdout) == stream.version == 20
    assert stream._log.files.read_hint() == hint_of(stream._log.root)


def test_hint_that_another_commit_contradicts_is_an_error(tmp_path: Path) -> None:
    """It names the transaction, so a commit in the place of the one it has seen shows."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    other = segstore.open(tmp_path / "s")
    other.append(numbers(0, 1))
    stream.append(numbers(1, 2))
    stream._log.write_hint(stream._log.root)
    log_file(tmp_path / "s", 2).unlink()
    hint = (tmp_path / "s" / HINT_PATH).read_bytes()
    for n in range(3):
        other.append(numbers(n, n + 1))
        (tmp_path / "s" / HINT_PATH).write_bytes(hint)  # as on an object store
        with pytest.raises(MissingObjectError, match=r"are gone.*seen=2.*_latest"):
            segstore.open(tmp_path / "s")


def test_appender_of_a_dropped_stream_acknowledges_nothing(tmp_path: Path) -> None:
    """Before, its commits went into an empty folder."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    stream.append(numbers(0, 5))
    appender = stream.appender()
    segstore.drop(stream.url, confirm=stream.url)

    def write() -> None:
        appender.append({"n": 1})
        appender.flush()

    with pytest.raises(NotFoundError, match="dropped"):
        write()
    assert not segstore.exists(stream.url)


def test_one_of_many_creators_makes_the_stream(tmp_path: Path) -> None:
    """In the folder of a dropped stream, as several jobs with createIfMissing do."""
    url = str(tmp_path / "s")
    segstore.create(url, SCHEMA).append(numbers(0, 3))
    segstore.drop(url, confirm=url)
    made, refused, go = [], [], threading.Barrier(8)

    def create() -> None:
        go.wait()
        try:
            made.append(segstore.create(url, SCHEMA))
        except AlreadyExistsError:
            refused.append(1)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)
    assert segstore.open(url)._log.root.stream_id == made[0]._log.root.stream_id


def test_repeated_batch_is_not_known_after_a_restore(tmp_path: Path) -> None:
    """A handle that still has the root with the batch must not acknowledge it."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    shutil.copytree(tmp_path / "s", tmp_path / "backup")
    stream.append(numbers(0, 5), writer_id="etl", batch_id=7)
    shutil.rmtree(tmp_path / "s")
    shutil.copytree(tmp_path / "backup", tmp_path / "s")
    with pytest.raises(MissingObjectError):
        stream.append(numbers(0, 5), writer_id="etl", batch_id=7)


def test_threads_that_commit_through_one_handle_never_race_each_other(tmp_path: Path) -> None:
    """They take turns, and none of them sees the log go back."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    stop, failures = threading.Event(), []

    def work(call) -> None:
        try:
            while not stop.is_set():
                call()
        except (SegstoreError, ConflictError) as error:
            failures.append(error)
            stop.set()

    calls = [lambda: stream.append(numbers(0, 1))] * 3
    calls += [stream.refresh, lambda: stream.read(0, "tail"), lambda: stream.refresh().tail]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    while stream.version < 60 and not stop.is_set():
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    fresh = open_on(open_storage(stream.url))
    assert fresh.tail == fresh.version == stream.refresh().version
    assert set(fresh.history().read_all()["races_lost"].to_pylist()) == {0}
