"""Rounds of upkeep in processes that end meanwhile: a process waits for them, and not for long."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from stream_kit import HOUR, STAGED, age_files, days_later, make_old, numbers, wait

from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

CHILD = Path(__file__).with_name("upkeep_child.py")
COMMITS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a stream that was written for two days, the last time more than a day ago."""
    stream, storage = make_old(tmp_path / "s", 4)
    for n in range(COMMITS):
        wait(storage, HOUR)
        stream.append(numbers(n, n + 1))
    stream.settings.update(upkeep=UpkeepPolicy())
    age_files(storage, tmp_path / "s")
    return tmp_path / "s"


def run(folder: Path, what: str) -> str:
    """Run a process that appends once; return what it printed."""
    command = [sys.executable, CHILD, folder, what]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def opened(folder: Path) -> Stream:
    """Check that a stream is whole and that nothing temporary lies in it; return it."""
    stream = open_on(open_storage(folder))
    stream.verify().check()
    assert stream.tail == COMMITS + 1
    assert [path for path in folder.rglob("*") if path.name.startswith(".")] == []
    return stream


def test_process_ends_when_its_round_has_ended(folder: Path) -> None:
    assert run(folder, "nothing") == ""
    stream = opened(folder)
    assert stream._log.root.operation == "upkeep"
    assert stream._log.files.numbers() == [*range(stream._log.root.log_start, stream.version + 1)]
    assert stream._log.root.log_start > COMMITS // 2


def test_round_is_brief_once_its_process_has_nothing_else_to_do(folder: Path) -> None:
    """What it leaves is the next one's."""
    assert run(folder, "ends") == ""
    stream = opened(folder)
    assert (stream._log.root.operation, stream._log.files.numbers()[0]) == ("upkeep", 1)
    later = days_later(folder)
    later.append(numbers(0, 1))
    assert later.refresh()._log.files.numbers()[0] == later._log.root.log_start > COMMITS


@pytest.mark.slow
def test_round_expires_values_once_its_process_has_nothing_else_to_do(folder: Path) -> None:
    """Without the threads that decode and encode elsewhere, which such a process can't start."""
    stream = open_on(open_storage(folder))
    stream.settings.update(upkeep=None)
    stream.compact(layout=STAGED)
    stream.settings.update(expiry={"s": "1d"})
    assert run(folder, "expires") == ""
    stream = opened(folder)
    assert stream.read().read_all()["s"].to_pylist() == [None] * COMMITS + ["s0"]


@pytest.mark.background_upkeep
def test_round_that_can_not_begin_any_more_is_silent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Since Python 3.12 no thread starts while a process ends."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    stream = open_on(open_storage(folder))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    stream.append(numbers(0, 1))
    assert opened(folder)._log.root.operation == "append"
    assert caplog.messages == []


@pytest.mark.slow
def test_round_on_a_removed_folder_brings_nothing_back(folder: Path) -> None:
    """It says so in a line, without a traceback."""
    printed = run(folder, "removed")
    assert "Traceback" not in printed
    assert not folder.exists()
