"""What the root says of the times of whole parts: lookups fetch only those that may hold one."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from faults import FaultStorage

import segstore_ds as segstore
from segstore_ds.compact.run import run_due_merge
from segstore_ds.errors import CorruptionError
from segstore_ds.format.root import Root
from segstore_ds.status.table import stats_of
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64())])
LAYOUT = segstore.Layout(inline_bytes=0, segment_format="arrow", stats_columns=())
LABEL = "int:n"


@pytest.fixture(autouse=True)
def tiny_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts of four segments."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 3)


def append(stream: Stream, values: list[int | None]) -> None:
    floats = [None if value is None else float(value) for value in values]
    stream.append(pa.table([values, floats], schema=SCHEMA), layout=LAYOUT)


def make(segments: int = 13, column: str | None = "n") -> Stream:
    """Return a stream whose segment n holds the times 10 n + 1 and 10 n - 1."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(storage, SCHEMA, upkeep=None, time_column=column)
    for n in range(segments):
        append(stream, [10 * n + 1, 10 * n - 1])
    return stream


def bounds(stream: Stream) -> list[Any]:
    """Return the bounds of each part that a root names; None where they are not known."""
    refs = (*stream._log.root.lists, *stream._log.root.parts)
    found = [list(stats_of(ref).values()) for ref in refs]
    return [(own[0].min, own[0].max) if own else None for own in found]


def fetched(stream: Stream, ask: Callable[[Stream], Any]) -> tuple[Any, int]:
    """Return an answer, and how many status objects a new handle fetched for it."""
    watched = FaultStorage(stream._log.storage)
    found = ask(open_on(watched))
    return found, sum(call.startswith("get status/") for call in watched.calls)


def test_lookup_fetches_the_parts_that_may_hold_it() -> None:
    stream = make()
    assert bounds(stream) == [(-1, 31), (39, 71), (79, 111)]

    def read(start: int, end: int) -> Callable[[Stream], Any]:
        return lambda s: s.read(event_time=(start, end)).read_all()["n"].to_pylist()

    assert fetched(stream, read(41, 50)) == ([41, 49], 1)
    assert fetched(stream, read(31, 40)) == ([39, 31][::-1], 2)
    assert fetched(stream, read(32, 39)) == ([], 0)
    assert fetched(stream, read(119, 122)) == ([121, 119], 0)  # these are in the root
    assert fetched(stream, lambda s: s.position("eventtime:35").offset) == (8, 1)
    assert fetched(stream, lambda s: s.scan(end="eventtime:41").count()) == (10, 1)
    assert fetched(stream, lambda s: s.position("eventtime:500").offset) == (26, 0)
    assert fetched(stream, lambda s: s.scan(end="eventtime:-5").count()) == (0, 0)
    assert fetched(stream, lambda s: s.scan(filters=[["n", "==", 41]]).count()) == (1, 1)
    assert stream.verify().ok


def test_whole_numbers_that_became_doubles_are_pruned_as_before() -> None:
    """By the bounds of parts and of segments, in the types in which they were written."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    narrow, wide = (pa.schema([("n", kind), ("x", kind)]) for kind in (pa.int32(), pa.float64()))
    stream = create_on(storage, narrow, upkeep=None, time_column="n")
    layout = replace(LAYOUT, stats_columns=None)
    for n in range(13):
        values = [10 * n + 1, 10 * n - 1]
        schema = wide if n == 10 else narrow
        stream.append(pa.table([values, values], schema), layout=layout, merge_schema=True)
    assert bounds(stream)[:2] == [(-1, 31), (39, 71)]
    for filters, found, parts in (
        ("n > 40.5 and n < 50", 2, 1),
        ("n == 41.5", 0, 1),
        ("n > 31.5 and n < 38.5", 0, 0),
        ([["n", "in", [41.0, 45.5]]], 1, 1),
    ):
        assert fetched(stream, lambda s, f=filters: s.scan(filters=f).count()) == (found, parts), (
            filters
        )
    assert fetched(stream, lambda s: s.position("eventtime:35").offset) == (8, 1)
    for filters, segments in (("x > 40.5 and x < 50", 2), ("x == 41.5", 0), ("x >= 121.0", 1)):
        watched = FaultStorage(stream._log.storage)
        open_on(watched).scan(filters=filters, read_cache_bytes=0).count()
        opened = {call for call in watched.calls if "segments/" in call}
        assert len(opened) == segments, filters
    assert stream.verify().ok


def test_column_that_is_chosen_later_is_looked_at_once() -> None:
    stream = make(column="x")
    stream.settings.update(time_column=None)
    stream.settings.update(time_column="n")
    assert bounds(open_on(stream._log.storage)) == [None] * 3  # the layout kept those of x alone
    stream.compact(start=2)
    assert bounds(stream) == [None]  # the first segment is as it was
    stream.compact()
    assert bounds(stream) == [(-1, 121)]
    assert stream.verify().ok
    other = make(column=None)
    for _ in range(2):
        other.settings.update(time_column="x")
        assert bounds(other) == [None] * 3
    assert other.version == 13 + 1


@pytest.mark.parametrize("how", ["merge", "compact", "truncate", "redact", "clone", "restore"])
def test_times_survive_whatever_writes_parts_anew(how: str) -> None:
    stream = make()
    match how:
        case "merge":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 3)
                run_due_merge(stream._context)
            assert bounds(stream) == [(-1, 111)]
        case "compact":
            stream.compact(start=0, end=12)
        case "truncate":
            stream.truncate(3)
        case "redact":
            stream.redact([["n", "==", 41]], columns=["x"], reason="r", redact_id="1")
        case "clone":
            url = f"memory://{uuid.uuid4().hex}"
            stream.copy_to(url, mode="clone", copy_id="1")
            stream = segstore.open(url)
        case "restore":
            version = stream.version
            stream.overwrite(pa.table([[7], [7.0]], schema=SCHEMA), layout=LAYOUT)
            stream.restore(version)
    assert None not in bounds(stream)
    assert len(bounds(stream)) > 0
    assert stream.scan(event_time=(39, 62)).count() == 6
    assert open_on(stream._log.storage).verify().ok


def test_lists_of_parts_have_times_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.listed", 2)
    stream = make(25)
    assert len(stream._log.root.lists) > 1
    assert bounds(stream)[:2] == [(-1, 71), (79, 151)]
    # A list, and the one of its parts that may hold it.
    assert fetched(stream, lambda s: s.scan(event_time=(41, 42)).count()) == (1, 2)
    assert fetched(stream, lambda s: s.position("eventtime:92").offset) == (20, 2)
    assert open_on(stream._log.storage).verify().ok


def test_list_whose_bounds_contradict_its_parts_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.listed", 2)
    stream = make(25)
    first = stream._log.root.lists[0]
    levels = stream._context.status.table
    assert levels.members(replace(first, stats=None)) == levels.members(first)
    with pytest.raises(CorruptionError, match="contradicts"):
        levels.members(replace(first, stats='{"int:n":[0,1,0]}'))


def test_times_that_are_not_the_events_are_reported() -> None:
    stream = make(4)
    (part,) = stream._log.root.parts
    wrong = replace(part, stats=f'{{"{LABEL}":[0,31,0]}}')

    def plan(root: Root, _slot: Any) -> Any:
        from segstore_ds.format.operation import Operation
        from segstore_ds.log.commit import Change

        return Change(replace(root, parts=(wrong,), operation=Operation.MERGE))

    stream._log.commit(plan)
    (problem,) = open_on(stream._log.storage).verify().problems
    assert "other times than the root says" in str(problem)


def test_repaired_part_is_looked_at_again() -> None:
    stream = make()
    stream._log.storage.delete(stream._log.root.parts[0].path)
    assert repair_on(stream._log.storage, clock=stream._log.clock).ok
    found = open_on(stream._log.storage)
    assert found.scan(event_time=(-5, 12)).count() == 4
    found.maintain()
    assert bounds(found)[0] == (-1, 31)
