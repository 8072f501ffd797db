"""Damaged inline events come back from another commit file, or from a follower."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest
from stream_kit import fresh_url, make_stream, numbers, values, wait
from virtual_time import TimedStorage
from wrapped_storage import WrappedStorage

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.repair.repair import RepairReport
from segstore_ds.repair.salvage import SalvageReport
from segstore_ds.status import table_status
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on
from segstore_ds.stream.stream import Stream

T = TypeVar("T")


def _log(version: int) -> str:
    return f"log/{names.build_log_name(version)}"


def _damage(storage: Storage, version: int, segment: int) -> bytes:
    """Flip a byte of one inline frame in a commit file; return the file as it was."""
    data = storage.get(_log(version))
    root = ROOT_CODEC.decode_file(data, "x")
    place = len(data) - root.inline_bytes + 100
    for entry in root.entries:
        if entry.segment_id == segment:
            break
        place += len(entry.frame.data) if entry.frame else 0
    storage.put(_log(version), data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    return data


def _opened(storage: TimedStorage) -> Stream:
    return open_on(storage, clock=storage.time.clock)


def _repair(storage: TimedStorage) -> RepairReport:
    report = repair_on(storage, clock=storage.time.clock)
    report.repaired = [text for text in report.repaired if text != "the hint"]
    return report


def _salvaged(storage: Storage) -> tuple[Stream, SalvageReport]:
    new = open_storage(fresh_url())
    report = salvage_on(storage, new, skip_damaged=True)
    return open_on(new), report


class _FlippedRead(WrappedStorage):
    """A storage whose reads of version 2 with these numbers have a wrong bit in an inline frame."""

    reads = 0

    def __init__(self, inner: Storage, wrong: list[int]) -> None:
        super().__init__(inner)
        self.wrong = wrong

    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:
        data = super().get(path, limit_bytes=limit_bytes)
        self.reads += path == _log(2)
        if path != _log(2) or self.reads not in self.wrong:
            return data
        return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


class _FlippedBody(WrappedStorage):
    """A storage whose n-th read of a file has a wrong bit in the envelope's body."""

    reads = 0

    def __init__(self, inner: Storage, path: str, nth: int) -> None:
        super().__init__(inner)
        self.path, self.nth = path, nth

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:  # noqa: ARG002
        answer = work()
        if path != self.path or not isinstance(answer, bytes):
            return answer
        self.reads += 1
        if self.reads != self.nth:
            return answer
        return answer[:90] + bytes([answer[90] ^ 1]) + answer[91:]  # type: ignore[return-value]


@pytest.mark.parametrize(("raced", "wrong"), [(False, [1]), (False, [1, 2]), (True, [2])])
def test_bit_that_flips_in_a_read_is_not_written_on(*, raced: bool, wrong: list[int]) -> None:
    """A writer repeats the frames that it read, so it reads the commit file again."""
    stream, storage = make_stream(1 if raced else 2)
    flipping = _FlippedRead(storage, wrong)  # after a lost race it reads twice
    writer = open_on(flipping, clock=storage.time.clock)
    if raced:
        stream.append(numbers(10, 20))
    writer.append(numbers(20, 30))
    assert flipping.reads > wrong[-1]
    assert values(_opened(storage)) == list(range(30))
    assert stream.verify().ok


@pytest.mark.parametrize("segment", [0, 3])
def test_repair_takes_a_frame_from_an_older_commit_file(segment: int) -> None:
    """The newest commit file is then byte for byte what it was."""
    stream, storage = make_stream(4)
    stream.tags.set("here", 5)  # so each frame also lies in an older file
    right = _damage(storage, 5, segment)
    (problem,) = _opened(storage).verify().problems
    assert problem.where.startswith(f"{_log(5)}: segments/inline/{segment:016x}.arrow")
    report = _repair(storage)
    assert (report.repaired, report.damaged) == (
        [f"{_log(5)}: segments/inline/{segment:016x}.arrow from {_log(4)}"],
        [],
    )
    assert storage.get(_log(5)) == right
    stream = _opened(storage)
    assert values(stream) == list(range(40))
    assert stream.verify().ok
    assert _repair(storage).repaired == []


def test_bit_that_flips_while_a_frame_is_repaired_is_not_stored() -> None:
    """In whichever read of the damaged file: it is repaired, or stays as it is."""
    _, storage = make_stream(4)
    right = storage.get(_log(4))
    for nth in range(1, 30):
        _damage(storage, 4, 1)
        wrong = storage.get(_log(4))
        flipping = _FlippedBody(storage, _log(4), nth)
        with suppress(CorruptionError):
            repair_on(flipping, clock=storage.time.clock)
        assert storage.get(_log(4)) in (right, wrong)
        storage.put(_log(4), right)
    assert flipping.reads < nth  # all of its reads were tried


def test_repair_takes_a_frame_from_a_newer_commit_file() -> None:
    """As it does for a version that only time travel reads."""
    stream, storage = make_stream(4)
    right = _damage(storage, 3, 2)
    assert _repair(storage).repaired == [
        f"{_log(3)}: segments/inline/{2:016x}.arrow from {_log(4)}"
    ]
    assert storage.get(_log(3)) == right
    assert stream.verify().ok


def test_repair_passes_files_that_cannot_be_read_and_other_damage() -> None:
    """Each frame of each file is found by itself, however many are damaged."""
    stream, storage = make_stream(6)
    right = {version: storage.get(_log(version)) for version in range(1, 7)}
    _damage(storage, 6, 0)
    _damage(storage, 6, 1)
    _damage(storage, 5, 0)
    storage.put(_log(4), b"no commit")
    report = _repair(storage)
    assert [text.rpartition(" from ")[2] for text in report.repaired] == [_log(3), _log(5), _log(3)]
    assert {version: storage.get(_log(version)) for version in (5, 6)} == {
        version: right[version] for version in (5, 6)
    }
    assert values(stream) == list(range(60))


def test_follower_restores_a_frame_that_no_other_file_has() -> None:
    """The newest events lie in one commit file here, and in the follower's."""
    stream, storage = make_stream(3)
    url = f"{storage.url}-follower"
    stream.followers.add(url)
    stream.append(numbers(30, 40))
    version = stream.version
    right = _damage(storage, version, 3)
    _damage(open_storage(url), version, 0)
    _damage(storage, version, 0)
    report = _repair(storage)
    own = [text for text in report.repaired if not text.startswith(url)]
    assert [text.rpartition(" from ")[2] for text in own] == [_log(version - 1), url]
    assert storage.get(_log(version)) == open_storage(url).get(_log(version)) == right


def test_salvage_takes_a_frame_from_another_version() -> None:
    """It needs no repair before."""
    _, storage = make_stream(4)
    _damage(storage, 4, 1)
    copy, report = _salvaged(storage)
    assert (values(copy), report.lost) == (list(range(40)), [])


def test_salvage_reports_what_is_damaged_everywhere() -> None:
    """The other events are there, and the report has the old offsets of those that are not."""
    _, storage = make_stream(5)
    for version in range(2, 6):
        _damage(storage, version, 1)
    stream = _opened(storage)
    assert len(stream.verify().problems) == 4
    report = _repair(storage)
    assert (report.repaired, len(report.damaged), report.ok) == ([], 4, False)
    with pytest.raises(CorruptionError, match=r"lost='\[10, 20\)'"):
        salvage_on(storage, open_storage(fresh_url()))
    copy, salvaged = _salvaged(storage)
    assert values(copy) == [*range(10), *range(20, 50)]
    (lost,) = salvaged.lost
    assert (lost.start, lost.end) == (10, 20)
    assert lost.where.startswith("segments/inline/0000000000000001.arrow")
    assert [(run.start, run.end, run.now) for run in salvaged.moved] == [(0, 10, 0), (20, 50, 10)]


def test_salvage_reads_events_of_a_lost_segment_from_older_commit_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit that made the segment added the last of its events; all others were inline."""
    stream, storage = make_stream(3)
    monkeypatch.setattr(table_status, "SHARE_BYTES", 2200)
    monkeypatch.setattr(table_status, "JOINED_SHARE", 0)
    wait(storage, 60)
    stream.append(numbers(30, 40))
    stream.append(numbers(40, 50))
    (segment,) = [info.path for info in storage.list("segments")]
    storage.delete(segment)
    copy, report = _salvaged(storage)
    assert values(copy) == [*range(30), *range(40, 50)]
    assert [(lost.start, lost.end) for lost in report.lost] == [(30, 40)]


def test_damaged_frame_does_not_stop_a_follower_from_restoring_a_segment() -> None:
    """Where nobody has the frame, all else comes back, and repair says what is lost."""
    stream, storage = make_stream(2)
    url = f"{storage.url}-follower"
    stream.followers.add(url)
    stream.append(numbers(20, 3000))
    stream.append(numbers(3000, 3010))
    version = stream.version
    for folder in (storage, open_storage(url)):
        _damage(folder, version, 3)
    (segment,) = [info.path for info in storage.list("segments")]
    storage.delete(segment)
    report = _repair(storage)
    assert [text for text in report.repaired if "hint" not in text] == [f"{segment} from {url}"]
    damaged, theirs = report.damaged
    assert theirs.startswith(f"{url}: {_log(version)}: segments/inline")
    assert damaged.startswith(f"{_log(version)}: segments/inline/{3:016x}.arrow: ")
    assert "no kept version has a sound copy of [3000, 3010); " in damaged
    assert values(_opened(storage), 0, 3000) == list(range(3000))
