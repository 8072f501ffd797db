"""The history as an audit: who did what to which events, and when; found by what is asked."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import fresh_url
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.read.metadata_rows import history_rows
from segstore_ds.retention.readers import register_reader
from segstore_ds.status.table import HISTORY
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

SCHEMA = pa.schema([("n", pa.int64()), ("user", pa.string())])


def rows(first, last):
    return pa.table({"n": [*range(first, last)], "user": [f"u{n}" for n in range(first, last)]})


@pytest.fixture
def stream(monkeypatch):
    monkeypatch.setenv("SEGSTORE_CLIENT", "user/etl app/nightly")
    time = VirtualTime(1)
    storage = TimedStorage(open_storage(fresh_url()), time)
    return create_on(storage, SCHEMA, clock=time.clock, upkeep=None)


def told(stream, *columns, **how):
    found = stream.history(**how).read_all().select(columns).to_pylist()
    return [tuple(row.values()) for row in found]


def test_each_commit_says_which_events_it_touched(stream):
    stream.append(rows(0, 4))
    stream.append(rows(4, 10))
    stream.truncate(3)
    stream.compact()
    stream.redact([["n", "==", 5]], columns=["user"], reason="ticket 7", redact_id="r1")
    stream.overwrite(rows(10, 12))
    stream.restore(2, allow_redacted=True)
    found = told(stream, "operation", "start", "end", "changed", "reason")
    assert [row for row in found if row[0] != "set-properties"] == [
        ("create", None, None, None, None),
        ("append", 0, 4, None, None),
        ("append", 4, 10, None, None),
        ("truncate", 0, 3, None, None),
        ("compact", 3, 10, None, None),
        ("redact", 3, 10, None, "ticket 7"),
        ("redact", None, None, None, "ticket 7"),  # it has ended
        ("overwrite", 3, 12, None, None),
        ("restore", 10, 22, '{"restored":2}', None),
    ]


def test_each_commit_says_what_else_it_changed(stream):
    stream.append(rows(0, 4))
    stream.tags.set("eod", "tail")
    stream.tags.delete("eod")
    stream.settings.update(retention={"max_bytes": 1}, key_columns=["user"])
    stream.change_schema(rename={"user": "account"}, drop=["n"])
    stream.change_schema(rename={"account": "user"})
    stream.append(pa.table({"user": ["x"], "more": [1]}), merge_schema=True)
    register_reader(stream._context, "billing", owner="", start=None)
    stream.maintain()
    found = [(row[0], json.loads(row[1])) for row in told(stream, "operation", "changed") if row[1]]
    assert found[:2] == [("tag", {"tags": ["eod"]}), ("untag", {"tags": ["eod"]})]
    assert ("set-properties", {"properties": ["key_columns", "retention"]}) in found
    schemas = [changed for operation, changed in found if operation == "change-schema"]
    assert schemas == [
        {"columns": {"n": None, "user": "account"}, "epoch": 1},
        {"columns": {"account": "user"}, "epoch": 2},
    ]
    assert ("append", {"epoch": 3}) in found
    assert ("reader", {"reader": "billing"}) in found


def test_retention_is_told_from_a_truncation(stream):
    stream.append(rows(0, 4))
    stream.append(rows(4, 8))
    stream.truncate(2)
    stream.retain(max_bytes=1)
    found = told(stream, "operation", "start", "end", "changed", operation="truncate")
    assert found[0] == ("truncate", 0, 2, None)
    assert found[1][3] == '{"retention":true}'
    assert found[1][1] == 2


def test_too_many_names_are_counted(stream):
    names = {f"name-{n:03}-{'x' * 40}": None for n in range(30)}
    for name in names:
        stream.tags.set(name, 0)
    stream.truncate(0)
    root = stream._log.root
    stream._context.commit(lambda root, _: root.changed(tags={}, operation="untag"))
    assert len(root.tags) == 30
    assert told(stream, "operation", "changed")[-1] == ("untag", '{"tags":30}')


@pytest.fixture
def tiny(monkeypatch):
    """Let a few commits spill the history."""
    for name, value in {"rows": 2, "hard": 4, "fan_in": 2, "parts": 4}.items():
        monkeypatch.setattr(HISTORY, name, value)


@pytest.mark.parametrize("spilled", [False, True])
def test_commits_are_found_by_time_operation_and_client(stream, monkeypatch, request, spilled):
    if spilled:
        request.getfixturevalue("tiny")
    clock, times = stream._log.storage.time, []
    for n in range(6):
        clock.advance(60)
        monkeypatch.setenv("SEGSTORE_CLIENT", f"user/u{n % 2}")
        open_on(stream._log.storage, clock=clock.clock).append(rows(2 * n, 2 * n + 2))
        times.append(stream.history().read_all()["time"][-1].as_py())
    clock.advance(60)
    stream.tags.set("eod", "tail")
    appends = [(2 * n, 2 * n + 2) for n in range(6)]

    def found(**how):
        return told(stream, "start", "end", operation=["append"], **how)

    assert found() == appends
    assert found(since=times[2]) == appends[2:]
    assert found(until=times[2]) == appends[:2]
    assert found(since=times[1].isoformat(), until=times[4]) == appends[1:4]
    assert found(since=times[4], until=times[1]) == []
    assert found(client="user/u1") == appends[1::2]
    assert found(client="nobody") == []
    assert found(start=3)[-1] == appends[-1]
    assert told(stream, "changed", operation="tag") == [('{"tags":["eod"]}',)]
    with pytest.raises(InvalidInputError, match="no such operation"):
        stream.history(operation="deleted")
    with pytest.raises(InvalidInputError, match="not a time"):
        stream.history(since="yesterday").read_all()


def test_a_part_of_the_history_says_the_same(stream):
    stream.append(rows(0, 4))
    stream.truncate(1)
    stream.truncate(3)
    stream.overwrite(rows(4, 6))
    whole = stream.history().read_all().to_pylist()
    for start in range(5):
        assert stream.history(start).read_all().to_pylist() == whole[start:]
    assert stream.metadata("history").read_all().to_pylist() == whole


@pytest.mark.parametrize("text", ["[", "[[1]]", '[["a", 2, 1, 1]]', "[1, 2]"])
def test_what_a_damaged_row_replaced_is_corruption(stream, text):
    row = stream._log.root.history[-1]
    root = stream._log.root.changed(history=(replace(row, merged=text),))
    with pytest.raises(CorruptionError):
        list(history_rows(stream._context, root))
