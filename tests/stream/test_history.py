"""History: a row for every commit, that outlives purge and grows by levels."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import ROOT_BYTES, fresh_url
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.compact.commit import Replacement, describe_runs
from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.parts.kinds import HISTORY_SCHEMA
from segstore_ds.format.root import encode_root
from segstore_ds.log.transition import broken_invariants
from segstore_ds.status.history import History
from segstore_ds.status.table import HISTORY
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

SCHEMA = pa.schema([("n", pa.int64())])


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


@pytest.fixture
def tiny(monkeypatch):
    """Thresholds so small that a dozen commits spill, merge and fill lists."""
    small = {"rows": 2, "hard": 4, "fan_in": 2, "final": 6, "parts": 4, "listed": 3}
    for name, value in small.items():
        monkeypatch.setattr(HISTORY, name, value)


@pytest.fixture
def time():
    return VirtualTime(1)


@pytest.fixture
def stream(time):
    storage = TimedStorage(open_storage(fresh_url()), time)
    return create_on(storage, SCHEMA, clock=time.clock)


def rows(stream) -> list[dict]:
    return stream.history().read_all().to_pylist()


@pytest.mark.usefixtures("no_inline")
def test_history_row_holds_operation_counts_and_attempts(stream):
    stream.append(numbers(1, 2), writer_id="etl", batch_id=7)
    stream.overwrite(numbers(3))
    stream.truncate(3)
    stream.tags.set("eod", "tail")
    found = rows(stream)
    added = ["start", "end", "changed", "reason"]
    assert stream.history().schema.names == [*HISTORY_SCHEMA.names, *added]
    assert [row["operation"] for row in found][:3] == ["create", "append", "overwrite"]
    assert [row["version"] for row in found] == list(range(stream.version + 1))
    appended = found[1]
    assert (appended["writer_id"], appended["batch_id"]) == ("etl", 7)
    assert (appended["rows"], appended["segments"], appended["tail"]) == (2, 1, 2)
    assert appended["bytes"] == stream._log.storage.info("segments/" + _first(stream)).size
    assert appended["client"].startswith("segstore/")
    assert (appended["attempts"], appended["races_lost"]) == (1, 0)
    assert 1 <= appended["requests"] <= 4
    assert (found[2]["head"], found[2]["tail"], found[2]["writer_id"]) == (2, 3, None)


def _first(stream) -> str:
    return stream._log.root.retired[0].path


def test_a_lost_race_is_counted(stream):
    other = open_on(stream._log.storage, clock=stream._log.clock)
    stream.append(numbers(1))
    other.append(numbers(2))
    row = rows(other)[-1]
    assert (row["attempts"], row["races_lost"]) == (2, 1)


@pytest.mark.usefixtures("tiny")
def test_history_spills_merges_and_fills_lists_and_loses_no_row(stream, time):
    written = []
    for number in range(60):
        time.advance(1)
        stream.append(numbers(number))
        written.append((stream.version, stream.tail))
        assert not list(broken_invariants(stream._log.root))
    root = stream._log.root
    assert root.history_lists
    assert len(root.history_parts) <= 5
    assert {row["operation"] for row in rows(stream)} == {"create", "append", "merge"}
    found = rows(open_on(stream._log.storage))
    assert [row["version"] for row in found] == list(range(root.version + 1))
    assert [row["tail"] for row in found if row["operation"] == "append"] == list(range(1, 61))
    assert len(encode_root(root)) < ROOT_BYTES
    stream.verify().check()


@pytest.mark.usefixtures("tiny")
def test_any_version_and_time_is_found_wherever_it_lies(stream, time):
    for number in range(40):
        time.advance(10)
        stream.append(numbers(number))
    root, history = stream._log.root, History(stream._log.storage)
    found = rows(stream)
    for row in found:
        moment = history.moment(root, row["version"])
        assert (moment.version, moment.tail) == (row["version"], row["tail"])
        assert history.latest(root, moment.time_us).tail >= row["tail"]
        assert history.latest(root, moment.time_us - 1) != moment
    times = {round(row["time"].timestamp() * 1e6): row for row in found}
    for time_us, row in times.items():
        assert history.latest(root, time_us + 1).version == row["version"]
    assert history.latest(root, min(times) - 1) is None
    assert history.moment(root, root.version + 1) is None


def test_history_outlives_purge(stream, time):
    for number in range(5):
        time.advance(7200)
        stream.append(numbers(number))
    before = rows(stream)
    assert stream.maintain(keep=3600).log_start > 1
    assert rows(stream)[:-1] == before
    assert rows(stream)[-1]["operation"] == "upkeep"


def test_versions_are_dropped_when_both_count_and_age_allow_it(stream, time):
    for number in range(9):
        time.advance(7200)
        stream.append(numbers(number))
    assert stream.maintain(keep=3600, min_versions=6).log_start == 4
    assert stream.maintain(keep=3600 * 9, min_versions=1).log_start == 4
    with pytest.raises(InvalidInputError, match="give min_versions as an int of at least 1"):
        stream.maintain(keep="30d", min_versions=0)


def test_a_compaction_changes_no_cut(stream, time):
    for number in range(6):
        time.advance(60)
        stream.append(numbers(number))
    cuts = [f"version:{n}" for n in range(7)] + ["1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z"]
    before = [stream.position(cut).offset for cut in cuts]
    time.advance(7200)
    stream.compact()
    stream.maintain(keep=3600)
    assert [stream.position(cut).offset for cut in cuts] == before


@pytest.mark.usefixtures("tiny")
def test_damaged_history_is_named_and_never_empty(stream):
    for number in range(12):
        stream.append(numbers(number))
    root, storage = stream._log.root, stream._log.storage
    ref = next(History(storage).parts(root))
    whole = storage.get(ref.path)
    for wrong in (replace(ref, start=ref.start + 1), replace(ref, last_us=ref.last_us + 1)):
        with pytest.raises(CorruptionError):
            History(storage).part(wrong)
    for bad in (whole[:-1], whole[:-1] + b"?"):
        for path in names.both_names(ref.path):
            storage.put(path, bad)
        with pytest.raises(FormatError):
            rows(open_on(storage))
        assert any(ref.path in problem.where for problem in stream.verify().problems)
    for path in names.both_names(ref.path):
        storage.delete(path)
    with pytest.raises(FormatError):
        rows(open_on(storage))


@pytest.mark.usefixtures("tiny")
def test_outcome_of_a_recent_commit_needs_no_old_history(stream):
    for number in range(12):
        stream.append(numbers(number))
    recent, root = stream.append(numbers(12)), stream._log.root
    old = stream._log.read_version(1).transaction
    for path in names.both_names(next(History(stream._log.storage).parts(root)).path):
        stream._log.storage.delete(path)
    assert open_on(stream._log.storage).outcome(recent.transaction).version == recent.version
    with pytest.raises(FormatError):
        open_on(stream._log.storage).outcome(old)


def test_history_says_what_was_merged_into_what(stream):
    """Ranges of a compaction and a redaction, in bounded size."""
    for n in range(7):
        stream.append(numbers(n))
    stream.compact(1, 4)
    stream.redact("n == 5", columns=["n"], redact_id="r")
    told = [(row["operation"], json.loads(row["merged"])) for row in rows(stream) if row["merged"]]
    assert told == [("compact", [[1, 4, 3, 1]]), ("redact", [[5, 6, 1, 1]])]
    runs = [Replacement(9 * n, ((0, "a"), (1, "b")), 5, 0, ("out",)) for n in range(40)]
    *apart, rest = json.loads(describe_runs(runs))
    assert apart == [[9 * n, 9 * n + 5, 2, 1] for n in range(15)]
    assert rest == [135, 356, 50, 25]
