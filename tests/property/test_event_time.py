"""Events are found by time as in a plain list, in whatever order, with nulls and old segments."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segstore_ds as segstore
from segstore_ds.status.table import SEGMENTS
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

_NARROW, _WIDE = pa.schema([("ts", pa.int8())]), pa.schema([("ts", pa.int64())])
_LATER = pa.schema([("other", pa.int8())])
# Levels so small that a few commits fill them.
TINY_STATUS = {"rows": 1, "hard": 2, "fan_in": 2, "parts": 2}
_TIMES = st.none() | st.integers(-9, 9)


@st.composite
def _parts(draw: Any) -> list[list[int | None]]:
    """Return the times of each segment."""
    parts = draw(st.lists(st.lists(_TIMES, min_size=1, max_size=6), max_size=8))
    order = draw(st.sampled_from(["any", "ordered", "nearly"]))
    if order == "any":
        return list(parts)
    sizes = [len(part) for part in parts]
    times = sorted((t for part in parts for t in part), key=lambda t: (t is not None, t or 0))
    if order == "nearly" and len(times) > 3:
        place = draw(st.integers(0, len(times) - 3))
        times[place], times[place + 2] = times[place + 2], times[place]
    found = []
    for size in sizes:
        found.append(times[:size])
        times = times[size:]
    return found


def _fill(data: st.DataObject) -> tuple[Stream, list[int | None]]:
    """Return a stream whose time column appears later or widens, and the times of its events."""
    later = data.draw(st.booleans())
    named = data.draw(st.sampled_from(["first", "last"]))
    schema = _LATER if later else _NARROW
    column = "ts" if named == "first" and not later else None
    stream = create_on(
        open_storage(f"memory://{uuid.uuid4().hex}"), schema, upkeep=None, time_column=column
    )
    model: list[int | None] = []
    if later:
        stream.append(pa.table([[1, 2]], schema=_LATER))
        model += [None, None]
    for part in data.draw(_parts()):
        schema = data.draw(st.sampled_from([_NARROW, _WIDE]))
        how = data.draw(st.sampled_from(["arrow", "parquet", "inline"]))
        layout = segstore.Layout(
            frame_rows=data.draw(st.integers(1, 4)),
            inline_bytes=1000 if how == "inline" else 0,
            segment_format="arrow" if how == "inline" else how,
            stats_columns=data.draw(st.sampled_from([None, ()])),
        )
        stream.append(pa.table([part], schema=schema), layout=layout, merge_schema=True)
        model += part
    if "ts" not in stream.schema.names:
        stream.append(pa.table([[3]], schema=_WIDE), merge_schema=True)
        model.append(3)
    if stream.settings.time_column is None:
        stream.settings.update(time_column="ts")
    if data.draw(st.booleans()):
        stream.compact()
    return stream, model


@settings(max_examples=settings.default.max_examples * 2 // 5, deadline=None)
@given(data=st.data())
def test_events_are_found_as_in_a_list(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in data.draw(st.sampled_from([{}, TINY_STATUS])).items():
            patch.setattr(SEGMENTS, name, value)
        _compare_with_list(data)


def _compare_with_list(data: st.DataObject) -> None:
    stream, model = _fill(data)
    if data.draw(st.booleans()):
        stream.maintain()
        stream = open_on(stream._log.storage)
    head = data.draw(st.integers(0, len(model)))
    stream.truncate(head)
    shown = [(n, t) for n, t in enumerate(model) if n >= head]
    start, end = sorted(data.draw(st.tuples(st.integers(-10, 10), st.integers(-10, 10))))
    found = stream.read(event_time=(start, end), columns=[], offset_column="n").read_all()
    assert found["n"].to_pylist() == [n for n, t in shown if t is not None and start <= t < end]

    first = min((n for n, t in shown if t is not None and t >= start), default=len(model))
    last = max((n + 1 for n, t in shown if t is not None and t < end), default=head)
    between = stream.read(
        f"eventtime:{start}", f"eventtime:{end}", columns=[], offset_column="n"
    ).read_all()
    assert between["n"].to_pylist() == [*range(first, last)]
    assert stream.tags.set("there", f"eventtime:{start}").offset == first
    assert stream.verify().ok
