"""The time column: its bounds are kept, and events are found by it, whatever their order."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from stream_kit import TIGHT, make_stream, numbers
from virtual_time import TimedStorage, VirtualTime

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.bounds import Bounds
from segstore_ds.format.statistics import parse_piece
from segstore_ds.read import segments
from segstore_ds.read.segments import frame_stats, open_segment
from segstore_ds.status.inline import join_inline
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("name", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
FORMATS = pytest.mark.parametrize("form", ["arrow", "parquet"])


def at(second: int) -> dt.datetime:
    return dt.datetime(2026, 11, 20, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


def events(seconds: list[int | None]) -> pa.Table:
    times = [None if second is None else at(second) for second in seconds]
    return pa.table([[f"e{second}" for second in seconds], times], schema=SCHEMA)


def bounded(stream: Stream) -> list[tuple[list[str], list[list[str]]]]:
    """Return the columns with statistics of each segment, and of its frames."""
    found = []
    for placed in stream._context.status.segments(stream._log.root, stream.head, stream.tail):
        entry = placed.entry
        segment = open_segment(stream._log.storage, entry, whole=False)
        pieces = (parse_piece(entry.stats, where=""), *frame_stats(segment, entry))
        own, *frames = ([label.partition(":")[2] for label in piece] for piece in pieces)
        found.append((own, frames))
    return found


@FORMATS
def test_bounds_are_kept_whatever_the_layout_says(tmp_path: Any, form: str) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    assert stream.settings.time_column == "ts"
    layout = segstore.Layout(inline_bytes=0, stats_columns=(), segment_format=form)
    stream.append(events([1, 2]), layout=layout)
    assert bounded(stream) == [(["ts"], [["ts"]])]
    assert stream.verify().ok


def test_compaction_gives_old_frames_bounds(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    for first in (0, 10):
        layout = segstore.Layout(
            inline_bytes=0, stats_columns=(), segment_format="arrow", frame_rows=10
        )
        stream.append(events([*range(first, first + 10)]), layout=layout)
    assert bounded(stream) == [([], [[]])] * 2
    stream.settings.update(time_column="ts")
    stream.compact(layout=layout)
    assert bounded(stream) == [(["ts"], [["ts"], ["ts"]])]
    assert stream.verify().ok


@pytest.mark.parametrize("column", ["name", "none", 7])
def test_only_a_column_with_an_order_in_time_is_taken(tmp_path: Any, column: Any) -> None:
    with pytest.raises(InvalidInputError, match="time column"):
        segstore.create(tmp_path / "s", SCHEMA, time_column=column)
    assert not segstore.exists(tmp_path / "s")
    stream = segstore.create(tmp_path / "s", SCHEMA)
    with pytest.raises(InvalidInputError, match="time column"):
        stream.settings.update(time_column=column)


def test_overwrite_may_take_the_time_column_away(tmp_path: Any) -> None:
    """The column is gone or no time any more: nothing names it, until a schema has it again."""
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    stream.append(events([1]))
    for other in (pa.table({"n": [1]}), pa.table({"ts": ["noon"]})):
        stream.overwrite(other, overwrite_schema=True)
        assert stream.settings.time_column is None
        with pytest.raises(InvalidInputError, match=r"column='ts'.*settings.update"):
            stream.read(event_time=(at(1), None))
    stream.overwrite(events([2]), overwrite_schema=True)
    assert stream.settings.time_column == "ts"
    assert stream.read(event_time=(at(1), None)).read_all().num_rows == 1


def test_time_column_is_never_redacted(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    stream.append(events([1]))
    with pytest.raises(InvalidInputError, match="time column"):
        stream.redact([["name", "==", "e1"]], columns=["ts"], reason="r", redact_id="1")
    assert stream.read().read_all() == events([1])
    assert "redact" not in stream.history().read_all()["operation"].to_pylist()


def test_wide_bounds_of_other_columns_never_crowd_the_times_out(tmp_path: Any) -> None:
    names = [f"a{n}" for n in range(12)]
    schema = pa.schema([*((name, pa.string()) for name in names), ("ts", pa.timestamp("us"))])
    stream = segstore.create(tmp_path / "s", schema, time_column="ts", upkeep=None)
    for width in (1, 40):
        row = {**dict.fromkeys(names, "x" * width), "ts": dt.datetime(2026, 11, 20)}  # noqa: DTZ001
        stream.append(pa.Table.from_pylist([row], schema=schema))
    joined = join_inline(stream._log.root, lambda _: schema)
    assert [entry.rows for entry in joined.entries] == [2]
    entries = (*stream._log.root.entries, *joined.entries)
    kept = [parse_piece(entry.stats, where="") for entry in entries]
    assert all("timestamp:ts" in own or "timestamp_ntz:ts" in own for own in kept)
    assert [len(own) < len(schema) for own in kept] == [False, True, True]


def test_events_of_several_tasks_have_bounds_in_the_commit(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    job = stream.plan_write(SCHEMA, layout=segstore.Layout(stats_columns=()))
    tasks = [job.stage(task, "0", events([task, 9]).to_batches()) for task in (1, 2)]
    stream.commit(job, tasks)
    assert [entry.frame is not None for entry in stream._log.root.entries] == [True]
    assert [own for own, _ in bounded(stream)] == [["ts"]]


def names_in(stream: Stream, *cuts: Any, **how: Any) -> list[str]:
    found: list[str] = stream.read(*cuts, **how).read_all()["name"].to_pylist()
    return found


def filled(tmp_path: Any, *parts: list[int | None], **how: Any) -> Stream:
    """Return a stream with a segment for each list of seconds."""
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    for seconds in parts:
        stream.append(events(seconds), layout=segstore.Layout(inline_bytes=0, **how))
    return stream


def cut(second: int) -> str:
    return f"eventtime:{at(second).isoformat()}"


def test_interval_returns_its_events_whatever_their_order(tmp_path: Any) -> None:
    stream = filled(tmp_path, [5, 1, None], [9, 2, 3], [4, 8])
    assert names_in(stream, event_time=(at(2), at(5))) == ["e2", "e3", "e4"]
    assert names_in(stream, event_time=(None, at(2))) == ["e1"]
    assert names_in(stream, event_time=(at(8).isoformat(), None)) == ["e9", "e8"]
    assert names_in(stream, event_time=(None, None)) == ["e5", "e1", "e9", "e2", "e3", "e4", "e8"]
    assert stream.scan(event_time=(at(2), at(5))).count() == 3
    assert names_in(stream, filters=[["name", "!=", "e3"]], event_time=(at(2), at(4))) == ["e2"]


def test_cuts_bind_to_first_event_from_and_last_before(tmp_path: Any) -> None:
    stream = filled(tmp_path, [5, 1, None], [9, 2, 3], [4, 8])
    assert names_in(stream, cut(6)) == ["e9", "e2", "e3", "e4", "e8"]
    assert names_in(stream, "head", cut(4)) == ["e5", "e1", "eNone", "e9", "e2", "e3"]
    assert names_in(stream, cut(10)) == []
    assert names_in(stream, "head", cut(1)) == []
    assert names_in(stream, cut(2), cut(2)) == ["e5", "e1", "eNone", "e9"][:2]


def test_truncate_and_tag_take_the_first_event_from_a_time(tmp_path: Any) -> None:
    stream = filled(tmp_path, [1, 2, 3], [7, 5, 6], [9])
    assert stream.tags.set("from", cut(6)).offset == 3
    assert stream.truncate(cut(2)) == 1
    assert stream.read(cut(0), offset_column="n").read_all()["n"].to_pylist()[0] == 1
    assert stream.truncate(cut(10)) == stream.tail


def test_few_of_thirty_segments_are_opened_for_a_window(tmp_path: Any) -> None:
    filled(tmp_path, *([n, n + 1] for n in range(0, 60, 2)), segment_format="arrow")
    handle = segstore.open(tmp_path / "s")
    before = handle._log.storage.stats.requests.get("get", 0)
    assert names_in(handle, cut(31), cut(33), read_cache_bytes=0) == ["e31", "e32"]
    assert handle._log.storage.stats.requests.get("get", 0) - before <= 6


@pytest.mark.parametrize(
    ("data_type", "values", "moment", "found"),
    [
        (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2)], "2026-01-01T10:00:00Z", [1]),
        (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2)], "2026-01-01", [0, 1]),
        (pa.timestamp("us"), [dt.datetime(2026, 1, 1)], "2026-01-01T00:00:00", [0]),  # noqa: DTZ001
        (pa.int32(), [1, 2], "1.5", [1]),
        (pa.float64(), [1.0, float("nan"), 3.0], "2", [2]),
        (pa.float32(), [None, float("nan")], "2", []),
    ],
)
def test_every_type_of_time_is_compared_in_its_own_type(
    tmp_path: Any, data_type: Any, values: list[Any], moment: str, found: list[int]
) -> None:
    schema = pa.schema([("t", data_type)])
    stream = segstore.create(tmp_path / "s", schema, time_column="t", upkeep=None)
    stream.append(pa.table([pa.array(values, data_type)], schema=schema))
    within = stream.read(event_time=(moment, None), columns=[], offset_column="n").read_all()
    assert within["n"].to_pylist() == found
    start = found[0] if found else len(values)
    assert stream.read(f"eventtime:{moment}", offset_column="n").read_all().num_rows == (
        len(values) - start
    )


@pytest.mark.parametrize("interval", ["ab", (1,), (at(2), at(1)), 7])
def test_what_is_no_interval_is_refused(tmp_path: Any, interval: Any) -> None:
    with pytest.raises(InvalidInputError):
        filled(tmp_path, [1]).read(event_time=interval)


def test_segments_show_their_bounds_and_the_watermark(tmp_path: Any) -> None:
    stream = filled(tmp_path, [1, 5], [None], [3, 9], [7])

    def columns() -> list[tuple[str, ...]]:
        rows = stream.segments().read_all().to_pylist()
        shown = [(row["time_min"], row["time_max"], row["watermark"]) for row in rows]
        return [tuple(value and value[17:19] for value in row) for row in shown]

    assert columns() == [
        ("01", "05", "03"),
        (None, None, "03"),
        ("03", "09", "07"),
        ("07", "07", None),
    ]
    stream.truncate(2)
    assert columns()[0] == (None, None, "03")
    stream.settings.update(time_column=None)
    assert columns() == [(None, None, None)] * 3


def test_bounds_that_are_not_the_events_are_reported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer's own mistake: every checksum is right."""
    wrong = {"timestamp:ts": Bounds(0, 1, 0)}
    monkeypatch.setattr("segstore_ds.format.arrow.frame.compute", lambda *_, **__: wrong)
    stream = filled(tmp_path, [5, 1], segment_format="arrow")
    monkeypatch.undo()
    (problem,) = stream.verify().problems
    assert "statistics are not those of its rows" in str(problem)


@pytest.mark.parametrize("how", ["lost", "cut"])
def test_repair_brings_the_bounds_of_a_part_back(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(0)
    stream.settings.update(time_column="n")
    layout = segstore.Layout(stats_columns=(), inline_bytes=0)
    for n in range(9):
        stream.append(numbers(10 * n, 10 * n + 10), layout=layout)
    before = stream.segments().read_all()
    assert before["watermark"].to_pylist()[:2] == ["10", "20"]
    (part,) = stream._log.root.parts
    data = storage.get(part.path)
    storage.delete(part.path)
    if how == "cut":
        storage.put(part.path, data[:-7])
    assert not open_on(storage).verify().ok
    assert repair_on(storage, clock=stream._log.clock).ok
    assert open_on(storage).segments().read_all() == before
    assert open_on(storage).scan(event_time=(30, 50)).count() == 20


def test_end_cut_reads_the_last_frames_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    schema = pa.schema([("t", pa.int64())])
    stream = segstore.create(tmp_path / "s", schema, time_column="t", upkeep=None)
    layout = segstore.Layout(
        inline_bytes=0, segment_format="arrow", frame_rows=10_000, compression="none"
    )
    stream.append(pa.table([range(200_000)], schema=schema), layout=layout)
    before = stream._log.storage.stats.bytes_read
    assert stream.scan("head", "eventtime:199990").count() == 199_990
    assert stream._log.storage.stats.bytes_read - before < 200_000 * 8 / 2


def test_follower_of_an_interval_passes_what_it_leaves_out(tmp_path: Any) -> None:
    stream = filled(tmp_path, [1, 5, 9])
    following = stream.follow("f", owner="o", start="head", event_time=(at(4), at(6)))
    assert next(following)["name"].to_pylist() == ["e5"]
    stream.append(events([5, 2, 7]))
    assert next(following)["name"].to_pylist() == ["e5"]
    following.publish()
    assert [seen.record.offset for seen in stream.readers] == [4]


@pytest.mark.parametrize("mode", ["clone", "segments", "events"])
def test_copies_keep_the_time_column(tmp_path: Any, mode: str) -> None:
    stream = filled(tmp_path, [5, 1], [9, 2])
    stream.copy_to(tmp_path / "copy", copy_id="c", mode=mode)
    copied = segstore.open(tmp_path / "copy")
    assert names_in(copied, cut(6), event_time=(at(2), None)) == ["e9", "e2"]
    assert copied.segments().read_all()["time_min"].null_count == 0


def test_retention_drops_what_lies_before_the_first_young_event(tmp_path: Any) -> None:
    time = VirtualTime()
    storage = TimedStorage(open_storage(tmp_path / "s"), time)
    stream = create_on(storage, SCHEMA, time_column="ts", upkeep=None, clock=time.clock)
    now = dt.datetime.fromtimestamp(stream._log.root.time_us / 1e6, dt.UTC)

    def ago(*days: int | None) -> pa.Table:
        times = [None if day is None else now - dt.timedelta(days=day) for day in days]
        return pa.table([[str(day) for day in days], times], schema=SCHEMA)

    stream.append(ago(9, None, 8))
    stream.append(ago(5, 2, 7, 1))
    assert stream.retain(max_event_age="30d").dropped == 0
    (blocker,) = stream.retain(max_event_age="30d").blocked_by
    assert blocker.kind == "max_event_age"
    assert stream.retain(max_event_age="6d", dry_run=True).head == 3
    stream.tags.set("kept", 2)
    assert stream.retain(max_event_age="6d").head == 2
    assert stream.retain(max_event_age="6d", respect_readers=False).head == 3
    # The late one goes with what lies before the first young event, and not before.
    assert stream.retain(max_event_age="3d", max_bytes="1g", respect_readers=False).head == 4
    stream.settings.update(retention={"max_event_age": "36h", "respect_readers": False})
    assert open_on(storage, clock=time.clock).settings.retention == stream.settings.retention
    assert stream.retain(stream.settings.retention).head == 6
    assert stream.retain(max_event_age="100000w").dropped == 0
    assert stream.retain(max_event_age=3600, respect_readers=False).head == 7


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us")])
def test_age_of_events_needs_a_time_that_is_one(tmp_path: Any, kind: pa.DataType) -> None:
    schema = pa.schema([("t", kind)])
    policy = segstore.RetentionPolicy(max_event_age="1d")
    for column in ("t", None):
        with pytest.raises(InvalidInputError, match="max_event_age"):
            segstore.create(tmp_path / "s", schema, time_column=column, retention=policy)
    assert not segstore.exists(tmp_path / "s")
    stream = segstore.create(tmp_path / "s", schema, upkeep=None)
    for column in (None, "t"):
        stream.settings.update(time_column=column)
        with pytest.raises(InvalidInputError, match="max_event_age"):
            stream.settings.update(retention=policy)
        with pytest.raises(InvalidInputError, match="max_event_age"):
            stream.retain(policy)
    days = pa.schema([("t", pa.date32())])
    dated = segstore.create(tmp_path / "d", days, time_column="t", retention=policy)
    assert dated.settings.retention == policy
