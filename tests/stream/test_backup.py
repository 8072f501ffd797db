"""Backups: a folder once more, byte for byte, while writers go on, and brought up to date."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from faults import Crash, Fault, FaultStorage
from stream_kit import (
    SCHEMA,
    STAGED,
    TIGHT,
    Meddling,
    fresh_url,
    make_stream,
    numbers,
    objects,
    values,
    wait,
)
from virtual_time import TimedStorage
from wrapped_storage import WrappedStorage

from segstore_ds.copy.backup import BackedUp, run_backup
from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.stream.stream import Stream

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for what, most in TIGHT.items():
        monkeypatch.setattr(what, most)


def _place(storage: TimedStorage) -> TimedStorage:
    return TimedStorage(open_storage(fresh_url()), storage.time)


def _back_up(stream: Stream, target: Storage) -> BackedUp:
    return run_backup(stream._context, target)


def _content(storage: Storage) -> dict[str, bytes]:
    hints = (names.HINT_PATH, names.READER_HINTS_FOLDER)
    return {path: storage.get(path) for path in objects(storage) if not path.startswith(hints)}


def _busy(commits: int = 8) -> tuple[Stream, TimedStorage]:
    """Return a stream with parts, dropped segments, inline events, a writer, a reader, a tag."""
    stream, storage = make_stream(0)
    for n in range(commits):
        stream.append(
            numbers(10 * n, 10 * n + 10),
            writer_id="etl",
            batch_id=n,
            layout=STAGED if n % 3 else None,
        )
    stream.compact(end=40)
    stream.readers.register("billing", start=7)
    stream.tags.set("eod", 30)
    return stream, storage


def test_backup_is_the_stream_and_continues() -> None:
    """Only what is new is copied; then it is restored, and goes on where the stream was."""
    stream, storage = _busy()
    target = _place(storage)
    first = _back_up(stream, target)
    assert _content(target) == _content(storage)
    assert _back_up(stream, target).objects == 0
    cut = min(objects(target, "segments"))
    target.put(cut, target.get(cut)[:-7])  # as a tool that was stopped leaves it
    assert _back_up(stream, target).objects == 1
    stream.append(numbers(80, 90), layout=STAGED)
    stream.truncate(5)
    done = _back_up(stream, target)
    assert (done.tail, done.commits, done.version) == (90, 2, first.version + 2)
    assert 0 < done.objects < first.objects
    assert _content(target) == _content(storage)
    verify_on(target, clock=stream._log.clock).check()
    # Restore it, and go on with the same writer, reader and tag.
    place = _place(storage)
    _back_up(open_on(target, clock=stream._log.clock), place)
    restored = open_on(place, clock=stream._log.clock)
    assert values(restored) == list(range(5, 90))
    assert restored.append(numbers(0, 10), writer_id="etl", batch_id=7, on_repeat="skip").repeated
    assert restored.readers.register("billing").offset == 7
    assert restored.tags["eod"].offset == 30
    assert restored.append(numbers(90, 91)).start == 90
    restored.verify().check()


def test_backup_goes_on_after_versions_were_forgotten() -> None:
    """The source's log no longer reaches back to the backup's newest version."""
    stream, storage = _busy()
    target = _place(storage)
    _back_up(stream, target)
    for n in range(3):
        wait(storage, 10 * 86_400)
        stream.append(numbers(80 + n, 81 + n))
        stream.maintain()
    assert stream._log.root.log_start > 11
    _back_up(stream, target)
    verify_on(target, clock=stream._log.clock).check()
    assert values(open_on(target, clock=stream._log.clock)) == list(range(83))


@pytest.mark.parametrize("call", ["list readers", "get segments/", "get log/", "list status"])
def test_what_is_committed_meanwhile_is_left_to_the_next_call(call: str) -> None:
    """Appends, a compaction and a reader's position come between any two steps."""
    stream, storage = _busy()

    def others() -> None:
        stream.append(numbers(80, 90), layout=STAGED)
        stream.compact()
        stream.readers.register("billing").publish(85)

    meddling, target = Meddling(storage, call, others), _place(storage)
    _back_up(open_on(meddling, clock=stream._log.clock), target)
    copy = open_on(target, clock=stream._log.clock)
    assert values(copy) == list(range(copy.tail))
    copy.verify().check()
    assert copy.readers.register("billing").offset <= copy.tail
    target = _place(storage)
    _back_up(stream, target)
    assert _content(target) == _content(storage)


def test_backup_that_is_interrupted_anywhere_continues() -> None:
    """After each call that changes the folder; a first backup, and one that brings up to date."""
    stream, storage = _busy(4)
    older = _place(storage)
    _back_up(stream, older)
    stream.append(numbers(40, 50), layout=STAGED)
    for base in ({}, _content(older)):
        for number in range(1, 100):
            target = _place(storage)
            for path, data in base.items():
                target.put(path, data)
            try:
                _back_up(stream, FaultStorage(target, Fault(number, "crash", "after")))
            except Crash:
                if base:  # what was backed up before is there at any time
                    verify_on(target, clock=stream._log.clock).check()
                _back_up(stream, target)
                assert _content(target) == _content(storage)
            else:
                break
        assert number > 2


def test_another_folder_is_refused() -> None:
    """Another stream's, a foreign one, a backup that was written to, and a clone."""
    stream, storage = _busy(4)
    other, foreign, backup = (_place(storage) for _ in range(3))
    create_on(other, stream.schema, clock=stream._log.clock)
    foreign.put("segments/00000000000000000000-0123456789ab/0-0-0.arrow", b"x")
    _back_up(stream, backup)
    open_on(backup, clock=stream._log.clock).append(numbers(40, 41))
    stream.append(numbers(40, 41))
    for target in (other, foreign, backup):
        before = _content(target)
        with pytest.raises(InvalidInputError, match="earlier state of this stream"):
            _back_up(stream, target)
        assert _content(target) == before


def test_backup_of_a_repaired_stream() -> None:
    """A version that the repair left behind can't be read, and is not asked for."""
    stream, storage = _busy(4)
    newest = f"log/{stream.version:020}"
    storage.put(newest, storage.get(newest)[:-9])
    repair_on(storage, allow_loss=True, clock=stream._log.clock)
    target = _place(storage)
    _back_up(open_on(storage, clock=stream._log.clock), target)
    assert _content(target) == {p: d for p, d in _content(storage).items() if p != newest}
    verify_on(target, clock=stream._log.clock).check()


def test_damaged_object_is_not_backed_up() -> None:
    stream, storage = _busy(4)
    for folder in ("segments", "status"):
        path = max(path for path in objects(storage, folder))
        sound = storage.get(path)
        storage.put(path, sound[:-30] + bytes([sound[-30] ^ 1]) + sound[-29:])
        if folder == "status":  # what a twin still tells is
            target = _place(storage)
            _back_up(open_on(storage, clock=stream._log.clock), target)
            assert target.get(path) == sound
            storage.delete(names.twin_of(path))
        with pytest.raises(CorruptionError):
            _back_up(open_on(storage, clock=stream._log.clock), _place(storage))
        storage.put(path, sound)


class _Flipping(WrappedStorage):
    """The first read of each object below some folder has a wrong bit."""

    def __init__(self, inner: Storage, folder: str) -> None:
        super().__init__(inner)
        self.folder, self.seen = folder, set[str]()

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        if verb == "copy_from":
            return False  # type: ignore[return-value]  # as a store that copies nothing by itself
        answer = work()
        first = path.startswith(self.folder) and path not in self.seen
        if not first or not isinstance(answer, bytes):
            return answer
        self.seen.add(path)
        return answer[:-20] + bytes([answer[-20] ^ 1]) + answer[-19:]  # type: ignore[return-value]


@pytest.mark.parametrize("folder", ["readers/billing", "log/0", "status/", "segments/"])
def test_wrong_bit_in_a_read_is_not_backed_up(folder: str) -> None:
    """Each object is compared with its checksum before it is put, readers' records too."""
    stream, storage = _busy()
    stream.readers.register("billing").publish(9)
    flipping, target = _Flipping(storage, folder), _Flipping(_place(storage), "nothing")
    for _ in range(20):  # new handles, until it succeeds
        with suppress(FormatError):
            _back_up(open_on(flipping, clock=stream._log.clock), target)
            break
    assert flipping.seen
    assert _content(target) == _content(storage)


def test_files_that_other_tools_copy_in_order_are_a_backup(tmp_path: Path) -> None:
    """A writer, a compaction and a reader go on between any two steps; twice, so also on top."""
    folder, copy, beside = tmp_path / "s", tmp_path / "copy", tmp_path / "beside"
    stream = create_on(folder, SCHEMA)
    reader = stream.readers.register("billing")
    ignore = shutil.ignore_patterns("_latest", ".*")
    for _ in range(2):
        for name, to in [
            ("readers", copy / "readers"),
            ("log", beside),
            ("segments", copy / "segments"),
            ("status", copy / "status"),
            ("twins", copy / "twins"),
            (beside, copy / "log"),
        ]:
            for n in range(3):
                start = stream.tail
                stream.append(numbers(start, start + 10), layout=STAGED if n else None)
            stream.compact()
            reader.publish(stream.tail)
            if (folder / name).exists():
                shutil.copytree(folder / name, to, ignore=ignore, dirs_exist_ok=True)
        found = open_on(copy)
        assert 0 < found.tail < stream.tail
        assert values(found) == list(range(found.tail))
        assert found.readers.register("billing").offset <= found.tail
        # Files of later commits were copied, too, and tell of these; nothing else is wrong.
        assert {problem.where for problem in found.verify().problems} <= {"log"}
        shutil.rmtree(copy / "readers")  # registering wrote there
        shutil.rmtree(copy / "log")
