"""A log of a user's own values: one value a number, no gaps, nothing damaged is passed over."""

import pickle

import pytest
from faults import Fault, FaultStorage

import segstore_ds as segstore
from segstore_ds.errors import (
    CommitUnknownError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
)
from segstore_ds.log import metadata_log

VALUES = [{"rows": 3, "paths": ["a", None]}, [], "ü", 2**70, 0.1]


@pytest.fixture
def log(tmp_path):
    made = segstore.BatchLog(tmp_path / "of-my-own")
    for number, value in enumerate(VALUES):
        assert made.add(number, value) is True
    return made


def test_values_come_back_by_number_and_by_range(log):
    again = pickle.loads(pickle.dumps(log))  # noqa: S301 - our own
    assert [again.get(number) for number in range(5)] == VALUES
    assert again.latest() == (4, 0.1)
    assert again.get_range() == [*enumerate(VALUES)]
    assert again.get_range(1, 3) == [(1, []), (2, "ü")]
    assert again.get_range(end=1) == again.get_range(0, 1)
    assert again.get_range(start=5) == []
    assert again.get(5) is None


def test_a_number_takes_one_value(log):
    assert log.add(4, 0.1) is True
    assert log.add(4, 0.2) is False
    assert log.add(0, {"paths": ["a", None], "rows": 3}) is True
    assert log.get(4) == 0.1


def test_numbers_have_no_gaps_and_purged_ones_stay_gone(log):
    assert log.purge(3) == 0  # the last hour stays
    assert log.purge(9, grace="0s") == 4
    assert log.get_range() == [(4, 0.1)]
    for number, told in ((2, "purged"), (3, "purged"), (6, "gap")):
        with pytest.raises(InvalidInputError, match=f"{told}.*next number is 5"):
            log.add(number, 1)
    assert log.add(5, 1)
    for wanted in ((3, None), (4, 7)):
        with pytest.raises(MissingObjectError, match=r"version=[36]; leave start or end out"):
            log.get_range(*wanted)


def test_an_empty_log_starts_anywhere(tmp_path):
    log = segstore.BatchLog(tmp_path / "new")
    assert (log.latest(), log.get_range(), log.purge(3), log.get(0)) == (None, [], 0, None)
    assert log.add(17, False) is True
    assert segstore.list_streams(tmp_path) == []


def test_a_damaged_value_is_an_error(log, tmp_path):
    path = tmp_path / "of-my-own" / "batches" / f"{4:020d}"
    path.write_bytes(path.read_bytes()[:-1])
    for call in (log.latest, log.get_range, lambda: log.get(4)):
        with pytest.raises(FormatError, match=r"; restore the file from a backup"):
            call()


def test_a_value_without_an_answer_is_to_be_added_again(log, monkeypatch):
    """Neither `stream.outcome` nor `segstore.verify` knows the folder, which is no stream."""
    monkeypatch.setattr(metadata_log, "ADD_ATTEMPTS", 2)
    log._log = log._log.at(FaultStorage(log._log.storage, Fault(2, calls=9)))
    with pytest.raises(CommitUnknownError, match=r"; add the value again$"):
        log.add(5, 1)
    log._log.storage.fault = None
    assert log.add(5, 1)


@pytest.mark.parametrize(
    "value", [None, {1: 2}, (1,), {1}, float("nan"), b"a", "\ud800", "a" * 10**6]
)
def test_what_json_can_not_hold_is_refused(log, value):
    with pytest.raises(InvalidInputError, match=r"JSON can't hold|too large"):
        log.add(5, value)
    assert log.latest() == (4, 0.1)
