"""Filters of whole segments in the table status: lookups open few segments, and lose nothing."""

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faults import FaultStorage

import segstore_ds as segstore
from segstore_ds.compact import run
from segstore_ds.compact.run import run_due_merge
from segstore_ds.format.parquet.filters import CAN_WRITE
from segstore_ds.format.parts.segments import SegmentFilters
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("noise", pa.binary())])
ROWS, SEGMENTS = 40, 20
WANTED = ["user", "==", "user-0500"]
FORMATS = pytest.mark.parametrize(
    "form",
    [
        "arrow",
        pytest.param(
            "parquet", marks=pytest.mark.skipif(not CAN_WRITE, reason="from pyarrow 24 on")
        ),
    ],
)


def events(first: int, *, segments: int = SEGMENTS) -> pa.Table:
    """Return events of which every segment spans all names, and every 20th has the wanted one."""
    chance = np.random.default_rng(first)
    users: list[str] = []
    for segment in range(first, first + segments):
        names = [f"user-{n:04d}" for n in chance.integers(1, 9999, ROWS) if n != 500]
        names[:2] = ["user-0000", "user-9999"]
        names[3] = "user-0500" if segment % 5 == 3 else names[3]
        users += (names * 2)[:ROWS]
    noise = [chance.bytes(400) for _ in users]
    rows = range(first * ROWS, (first + segments) * ROWS)
    return pa.table([users, list(rows), noise], schema=SCHEMA)


def layout(form: str = "arrow") -> segstore.Layout:
    return segstore.Layout(inline_bytes=0, segment_rows=ROWS, frame_rows=ROWS, segment_format=form)


@pytest.fixture(autouse=True)
def small_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 8)


@pytest.fixture
def stream() -> Stream:
    return fill("arrow")


def fill(form: str) -> Stream:
    """Return a stream whose one commit spilled its segments to a part, with filters."""
    url = f"memory://{uuid.uuid4().hex}"
    made = segstore.create(url, SCHEMA, key_columns=["user"], upkeep=None)
    made.append(events(0), layout=layout(form))
    return made


def known(stream: Stream) -> list[SegmentFilters]:
    """Return the filters of all segments in parts."""
    parts = stream._context.status.table.parts(stream._log.root)
    return [found for part in parts for found in stream._context.status.table.filters(part)]


def look_up(stream: Stream, url: Any, *asked: Any) -> tuple[list[int], int]:
    """Return what a new handle finds, and how many segments it opens for that."""
    fresh = segstore.open(url)
    before = fresh._log.storage.stats.requests.get("get_range", 0)
    table = fresh.read(filters=list(asked), read_cache_bytes=0).read_all()
    everything = stream.read(filters=list(asked), read_cache_bytes=0).read_all()
    assert table == everything
    return table["n"].to_pylist(), fresh._log.storage.stats.requests.get("get_range", 0) - before


@FORMATS
def test_lookup_opens_only_segments_that_may_hold_the_key(form: str) -> None:
    stream = fill(form)
    assert all(found and "user" in found for found in known(stream))
    assert stream._log.root.operation == "merge"
    found, ranges = look_up(stream, stream.url, WANTED)
    assert found == [segment * ROWS + 3 for segment in (3, 8, 13, 18)]
    assert ranges <= 2 * 4 + 2  # a footer and a frame each; one absent value in 300 may pass
    assert look_up(stream, stream.url, ["user", "in", ["user-nobody", "user-none"]])[1] <= 2
    assert stream.verify().ok


def test_plain_reads_fetch_no_filters(stream: Stream) -> None:
    (part,) = stream._log.root.parts
    filters = stream._context.status.table._part(part).filters.bytes
    size = stream._log.storage.info(part.path).size
    fresh = segstore.open(stream.url)
    before = fresh._log.storage.stats.bytes_read
    assert fresh.read(filters=[["n", "<", 0]]).read_all().num_rows == 0
    assert fresh._log.storage.stats.bytes_read - before < size - filters + 1000  # a commit file


def test_segments_without_a_look_are_opened(monkeypatch: Any) -> None:
    monkeypatch.setattr(run, "MOST_LOOKED", 12)
    stream = fill("arrow")
    assert [found is not None for found in known(stream)] == [True] * 12 + [False] * 8
    found, ranges = look_up(stream, stream.url, WANTED)
    assert len(found) == 4
    assert 8 <= ranges < 20
    run_due_merge(stream._context)
    assert None not in known(stream)
    version = stream.version
    run_due_merge(stream._context)
    assert stream.refresh().version == version


def test_other_processes_leave_the_look_to_maintenance(monkeypatch: Any) -> None:
    monkeypatch.setattr(run, "MOST_LOOKED", 12)
    stream = fill("arrow")
    fresh = segstore.open(stream.url)
    before = fresh._log.storage.stats.total
    run_due_merge(fresh._context)
    assert fresh._log.storage.stats.total == before
    fresh.maintain()
    assert None not in known(fresh)


def test_merges_of_parts_keep_filters(monkeypatch: Any) -> None:
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 2)
    stream = fill("arrow")
    stream.append(events(SEGMENTS), layout=layout())
    before = known(stream)[:SEGMENTS]
    for _ in range(3):
        run_due_merge(stream._context)
    assert len(stream._log.root.parts) == 1
    assert known(stream)[:SEGMENTS] == before
    assert None not in known(stream)
    assert len(look_up(stream, stream.url, WANTED)[0]) == 8


def test_a_missing_segment_is_looked_at_once_it_is_back(monkeypatch: Any) -> None:
    """No filter is recorded of what was not there; nor does asking in vain make commits."""
    with monkeypatch.context() as patch:
        patch.setattr(run, "MOST_LOOKED", 3)
        stream = fill("arrow")
    lost = stream.segments().read_all()["path"][5].as_py()
    data = stream._log.storage.get(lost)
    stream._log.storage.delete(lost)
    run_due_merge(stream._context)
    assert [place for place, found in enumerate(known(stream)) if found is None] == [5]
    version = stream.version
    run_due_merge(stream._context)
    assert stream.refresh().version == version
    stream._log.storage.put(lost, data)
    run_due_merge(stream._context)
    assert all(found and "user" in found for found in known(stream))


def test_redacted_keys_leave_no_filter(stream: Stream) -> None:
    before = known(stream)
    stream.redact([WANTED], columns=["user"], reason="test")
    run_due_merge(stream._context)
    found = known(stream)
    changed = [row for row, (old, new) in enumerate(zip(before, found, strict=True)) if old != new]
    assert changed == [3, 8, 13, 18]
    assert look_up(stream, stream.url, WANTED)[0] == []
    assert stream.verify().ok


def test_a_redaction_opens_the_segments_that_may_hold_the_key(stream: Stream) -> None:
    storage = FaultStorage(open_storage(stream.url))
    done = open_on(storage).redact([WANTED], columns=["noise"])
    read = {call.split()[1] for call in storage.calls if call.startswith("get")}
    opened = {path for path in read if path.startswith("segments/")}
    assert (done.rows, done.segments, len(opened)) == (4, 4, 4)


def test_no_damage_of_a_part_with_filters_loses_a_row(stream: Stream) -> None:
    (part,) = stream._log.root.parts
    whole = stream._log.storage.get(part.path)
    filters = stream._context.status.table._part(part).filters.bytes
    places = [*range(0, len(whole) - filters, 97), *range(len(whole) - filters, len(whole), 41)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        stream._log.storage.put(part.path, bytes(damaged))
        assert look_up(stream, stream.url, WANTED)[0] == [n * ROWS + 3 for n in (3, 8, 13, 18)]
    for kept in (len(whole) - 1, len(whole) - filters, 10, 1):
        stream._log.storage.put(part.path, whole[:kept])
        assert look_up(stream, stream.url, WANTED)[0] == [n * ROWS + 3 for n in (3, 8, 13, 18)]
        assert not segstore.open(stream.url).verify().ok


def test_lost_part_with_filters_is_built_again(stream: Stream) -> None:
    (part,) = stream._log.root.parts
    whole = stream._log.storage.get(part.path)
    stream._log.storage.delete(part.path)
    segstore.repair(stream.url)
    assert stream._log.storage.get(part.path) == whole


def test_verify_reports_a_filter_that_lacks_a_value(monkeypatch: Any) -> None:
    empty = {"user": (bytes(64),)}
    monkeypatch.setattr(run, "find_filters", lambda _storage, entries: [empty] * len(entries))
    problems = fill("arrow").verify().problems
    assert len(problems) == SEGMENTS
    assert "the status' filter of column 'user' lacks a value" in problems[0].what


def test_truncation_keeps_filters(stream: Stream) -> None:
    before = known(stream)
    stream.truncate(12 * ROWS)
    assert known(stream) == before[12:]
    assert look_up(stream, stream.url, WANTED)[0] == [13 * ROWS + 3, 18 * ROWS + 3]


def test_clone_and_follower_have_the_filters_and_the_key_columns(
    stream: Stream,
) -> None:
    for mode in ("clone", "segments"):
        url = f"memory://{uuid.uuid4().hex}"
        stream.copy_to(url, mode=mode, copy_id=mode)
        copied = segstore.open(url)
        found, ranges = look_up(copied, url, WANTED)
        assert len(found) == 4
        assert copied.verify().ok
        assert copied.settings.key_columns == ("user",)
        assert ranges < 15 or mode == "segments"
