"""The time column: its bounds are kept, and events are found by it, whatever their order."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.fields import parse_json
from segstore_ds.read.segments import open_segment
from segstore_ds.status.inline import with_inline
from segstore_ds.stream import Stream

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
    for placed in stream._status.segments(stream.root, stream.head, stream.tail):
        entry = placed.entry
        own = [] if entry.stats is None else list(parse_json(entry.stats.encode(), where=""))
        storage = with_inline(stream.storage, stream.root)
        frames = open_segment(storage, entry, whole=False).frames
        found.append((own, [list(frame.stats) for frame in frames]))
    return found


@FORMATS
def test_bounds_are_kept_whatever_the_layout_says(tmp_path: Any, form: str) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    assert stream.time_column == "ts"
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
    stream.set_time_column("ts")
    stream.compact(layout=layout)
    assert bounded(stream) == [(["ts"], [["ts"], ["ts"]])]
    assert stream.verify().ok


def test_inline_events_get_bounds_when_they_are_written_out(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    for second in (1, 2):
        stream.append(events([second]), layout=segstore.Layout(stats_columns=()))
    stream.set_time_column("ts")
    stream.compact()
    assert [own for own, _ in bounded(stream)] == [["name", "ts"]]


@pytest.mark.parametrize("column", ["name", "none", 7])
def test_only_a_column_with_an_order_in_time_is_taken(tmp_path: Any, column: Any) -> None:
    with pytest.raises(InvalidInputError, match="time column"):
        segstore.create(tmp_path / "s", SCHEMA, time_column=column)
    assert not segstore.exists(tmp_path / "s")
    stream = segstore.create(tmp_path / "s", SCHEMA)
    with pytest.raises(InvalidInputError, match="time column"):
        stream.set_time_column(column)


def test_time_column_can_be_taken_away(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    stream.set_time_column(None)
    assert segstore.open(tmp_path / "s").time_column is None


def test_time_column_is_never_redacted(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, time_column="ts", upkeep=None)
    stream.append(events([1]))
    with pytest.raises(InvalidInputError, match="time column"):
        stream.redact([["name", "==", "e1"]], columns=["ts"], reason="r", redact_id="1")
    assert stream.read().read_all() == events([1])
    assert "redact" not in stream.history().read_all()["operation"].to_pylist()


def test_wide_bounds_of_other_columns_never_crowd_the_times_out(tmp_path: Any) -> None:
    names = [f"a{n}" for n in range(30)]
    schema = pa.schema([*((name, pa.string()) for name in names), ("ts", pa.timestamp("us"))])
    stream = segstore.create(tmp_path / "s", schema, time_column="ts", upkeep=None)
    row = {**dict.fromkeys(names, "x" * 40), "ts": dt.datetime(2026, 11, 20)}  # noqa: DTZ001
    stream.append(pa.Table.from_pylist([row], schema=schema))
    ((own, _),) = bounded(stream)
    assert "ts" in own
    assert len(own) < len(schema)
