"""The batch metadata log: ranges, damage, lost answers, hints; `test_batch_log` has the rest."""

import errno
import json
import secrets
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faults import Fault, FaultStorage

from segstore_ds.errors import (
    CommitUnknownError,
    CorruptionError,
    InternalError,
    InvalidInputError,
    MissingObjectError,
    StorageError,
    TruncatedObjectError,
    UnsupportedVersionError,
)
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.names import Hint
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import FILE_LIMIT_BYTES, Codec, MetadataLog
from segstore_ds.storage import Storage, local_files, open_storage


def decode(body: bytes, where: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise CorruptionError("not JSON", where=where) from error


JSON: Codec[Any] = Codec(lambda value: json.dumps(value).encode(), decode)
PATIENT = Clock(sleep=lambda _: None)


def a_log(storage: Storage) -> MetadataLog[Any]:
    return MetadataLog(storage, "log", JSON, clock=PATIENT)


@pytest.fixture
def log() -> MetadataLog[Any]:
    return a_log(open_storage(f"memory://{uuid.uuid4().hex}"))


def fill(log: MetadataLog[Any], numbers: range) -> None:
    for number in numbers:
        assert log.add(number, f"batch {number}")


def test_unreadable_root_is_not_written(log):
    """Readers refuse files beyond their limits, so a writer must not make one."""
    small = MetadataLog(log.storage, "log", replace(JSON, limit_bytes=50), clock=PATIENT)
    assert small.add(0, "x" * 40)
    with pytest.raises(InternalError, match="too large for its log"):
        small.add(1, "x" * 60)
    with pytest.raises(InternalError, match="too large for its log"):
        log.add(1, secrets.token_hex(2 * FILE_LIMIT_BYTES))
    assert log.numbers() == [0]
    assert log.add(1, "y")


def test_get_range_returns_every_batch_or_fails(log):
    fill(log, range(6))
    assert list(log.get_range(2, 5)) == [(n, f"batch {n}") for n in (2, 3, 4)]
    assert [n for n, _ in log.get_range(5, None)] == [5]
    assert [n for n, _ in log.get_range(None, 2)] == [0, 1]
    assert [n for n, _ in log.get_range(None, None)] == [*range(6)]
    assert list(log.get_range(6, None)) == []
    assert list(log.get_range(3, 3)) == list(log.get_range(4, 2)) == []
    with pytest.raises(MissingObjectError, match="version=6"):
        list(log.get_range(4, 8))
    log.storage.delete(log.path(3))
    found = log.get_range(2, 6)
    assert next(found) == (2, "batch 2")
    with pytest.raises(MissingObjectError, match="version=3"):
        next(found)
    log.storage.put(log.path(2), log.storage.get(log.path(2))[:-1])
    with pytest.raises(TruncatedObjectError):
        next(log.get_range(2, 6))


class PurgedStorage(FaultStorage):
    """Deletes a file right before it is read."""

    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:
        self.inner.delete(path)
        return super().get(path, limit_bytes=limit_bytes)


def test_latest_lists_again_when_its_batch_was_purged(log):
    fill(log, range(2))
    purged = a_log(PurgedStorage(log.storage, Fault(10**9, "fail", "before")))
    assert purged.latest() is None
    fill(log, range(9))
    with pytest.raises(MissingObjectError, match="version=6"):
        purged.latest()


def test_other_files_are_no_batches(log):
    fill(log, range(2))
    for name in ("2", "1234a", "_latest", "0" * 21, "x" * 20, f"{7:020d}.tmp", f"sub/{9:020d}"):
        log.storage.put(f"log/{name}", b"?")
    assert log.numbers() == [0, 1]
    assert log.latest() == (1, "batch 1")


@pytest.mark.parametrize("number", [-1, 10**18, 10**30])
def test_a_number_that_is_none_is_refused(log, number):
    with pytest.raises(InvalidInputError, match="not a batch id"):
        log.add(number, "x")


def test_latest_never_falls_back_past_an_unreadable_head(log):
    fill(log, range(3))
    whole = log.storage.get(log.path(2))
    for data, error in [
        (whole[:-1], TruncatedObjectError),
        (whole[:-1] + b"X", CorruptionError),
        (b"v2" + whole[2:], UnsupportedVersionError),
        (encode_envelope(b"not json"), CorruptionError),
    ]:
        log.storage.put(log.path(2), data)
        with pytest.raises(error, match=f"{2:020d}"):
            log.latest()
    assert log.get(1) == "batch 1"
    assert log.newest_listed() == 2


def test_a_file_beyond_the_limit_is_not_read(log):
    log.storage.put(log.path(0), bytes(3 << 20))
    with pytest.raises(CorruptionError, match="larger"):
        log.get(0)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("calls", [1, 2, 9])
def test_add_with_lost_answers_is_decided_by_reading(log, when, calls):
    """Up to nine failed calls in a row, with or without their effect, cost no batch."""
    shaky = a_log(FaultStorage(log.storage, Fault(1, "fail", when, calls)))
    assert shaky.add(0, "mine") is True
    assert log.get(0) == "mine"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("calls", [1, 2, 9])
def test_an_add_to_a_taken_slot_loses_however_often_it_was_tried(log, when, calls):
    log.add(0, "theirs")
    shaky = a_log(FaultStorage(log.storage, Fault(1, "fail", when, calls)))
    assert shaky.add(0, "mine") is False
    assert log.get(0) == "theirs"


def test_an_add_that_is_never_answered_is_unknown(log):
    shaky = a_log(FaultStorage(log.storage, Fault(1, "fail", "before", 1000)))
    with pytest.raises(CommitUnknownError, match="version=3") as caught:
        shaky.add(3, "mine")
    assert isinstance(caught.value.__cause__, StorageError)
    assert "fault was injected" in str(caught.value)
    assert log.get(3) is None


def test_an_add_that_surely_made_nothing_is_a_plain_failure(log):
    full = Fault(1, calls=1000, untouched=True)
    with pytest.raises(StorageError, match="injected"):
        a_log(FaultStorage(log.storage, full)).add(0, "mine")
    # Even so another may have come first, and told to be.
    log.add(0, "theirs")
    creates = FaultStorage(log.storage, Fault(1, untouched=True))
    assert a_log(creates).add(0, "mine") is False


@pytest.mark.parametrize("doubtful", [1, 3, 11])
def test_one_try_in_doubt_leaves_all_of_an_add_in_doubt(log, doubtful):
    """Whichever it was: what a server does late it does after the others have failed."""

    class Doubtful(FaultStorage):
        def around(self, verb, path, work):
            self.fault = replace(self.fault, untouched=len(self.calls) + 1 != doubtful)
            return super().around(verb, path, work)

    shaky = a_log(Doubtful(log.storage, Fault(1, calls=1000)))
    with pytest.raises(CommitUnknownError):
        shaky.add(0, "mine")


@pytest.mark.parametrize("hint", [b"", b"9", b"x" * 20, b"\xff" * 20, b"0" * 500])
def test_malformed_hint_is_ignored(log, hint):
    if hint:
        log.storage.put(log.hint_path, hint)
    assert log.read_hint() is None


def test_a_hint_that_can_t_be_written_changes_nothing(log):
    shaky = a_log(FaultStorage(log.storage, Fault(1, "fail", "before")))
    shaky.write_hint(Hint(3))
    assert log.read_hint() is None


def test_a_storage_that_fails_is_no_empty_log(log):
    fill(log, range(2))
    for call in (1, 2):
        shaky = a_log(FaultStorage(log.storage, Fault(call, "fail", "before", 100)))
        with pytest.raises(StorageError):
            shaky.latest()


@pytest.mark.parametrize("failing", [1, 2, 1000])
def test_an_add_wins_only_when_its_folder_is_synced(failing, tmp_path: Path, monkeypatch):
    """Its bytes are there after the first try, but power loss could take the name."""
    log, synced = a_log(open_storage(tmp_path / "s")), []
    log.add(0, "first")
    real = local_files.sync_folder

    def refuse(folder):
        synced.append(len(synced) >= failing)
        if not synced[-1]:
            raise OSError(errno.EIO, "made by the test", folder)
        real(folder)

    monkeypatch.setattr(local_files, "sync_folder", refuse)
    if failing < 1000:
        assert log.add(1, "mine") is True
        assert synced[-1]
    else:
        with pytest.raises(CommitUnknownError, match="version=1"):
            log.add(1, "mine")
    monkeypatch.undo()
    assert log.add(1, "mine") is True  # the same bytes: no other batch has taken the number
