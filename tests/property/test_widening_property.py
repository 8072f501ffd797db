"""Integers that became doubles are read, found, redacted and copied as in a plain list."""

import math
import uuid
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.status.table import SEGMENTS
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

# Few commits fill a part, and few parts are merged.
TINY = {"rows": 2, "hard": 4, "fan_in": 2, "parts": 2}
_TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.float64())
_EDGES = (-(2**31), 2**31 - 1, -(2**15), 127)
_FLOATS = (-math.inf, math.inf, math.nan, -0.0, 2.5, 1e300)
_COMPARE = ("==", "!=", "<", "<=", ">", ">=")
_ORDER = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind == pa.float64():
        some = st.sampled_from(_FLOATS) | st.integers(-4, 4).map(float)
    else:
        least = -(1 << (kind.bit_width - 1))
        some = st.integers(-4, 4) | st.sampled_from(
            [edge for edge in _EDGES if least <= edge < -least]
        )
    return st.lists(st.none() | some, min_size=1, max_size=6)


def _key(value: float) -> tuple[bool, float]:
    """Return what values compare by: NaN equals NaN and is above all others."""
    return (True, 0.0) if math.isnan(value) else (False, float(value))


def _matches(op: str, literal: Any, value: float | None) -> bool:
    if op.startswith("is"):
        return (value is None) == (op == "is null")
    if value is None:
        return False
    if op == "in":
        return _key(value) in [_key(each) for each in literal]
    return bool(_ORDER[op](_key(value), _key(literal)))


_SOME = st.integers(-5, 5).map(float) | st.sampled_from([*_FLOATS, *map(float, _EDGES)])
_CONDITIONS = st.one_of(
    st.tuples(st.sampled_from(_COMPARE), _SOME),
    st.tuples(st.just("in"), st.lists(_SOME, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["is null", "is not null"]), st.none()),
)
_STEPS = st.lists(
    st.one_of(
        *[
            st.tuples(st.just("append"), st.just(kind), _values(kind), st.sampled_from("aip"))
            for kind in _TYPES
        ],
        st.tuples(st.just("compact")),
        st.tuples(st.just("redact"), _CONDITIONS),
        st.tuples(st.just("maintain")),
        st.tuples(st.just("reopen")),
    ),
    max_size=10,
)


class Program:
    """Runs steps on a stream and on the list of its values."""

    def __init__(self, first: pa.DataType, time_column: str | None) -> None:
        schema = pa.schema([("x", first), ("deep", pa.list_(first)), ("n", pa.int64())])
        storage = open_storage(f"memory://{uuid.uuid4().hex}")
        self.stream = create_on(storage, schema, upkeep=None, time_column=time_column)
        self.model: list[Any] = []
        self.redacted: set[int] = set()

    def append(self, kind: pa.DataType, values: list[Any], form: str) -> None:
        formats = {"a": "arrow", "i": "arrow", "p": "parquet"}
        layout = Layout(
            inline_bytes=1000 if form == "i" else 0, segment_format=formats[form], frame_rows=2
        )
        first = len(self.model)
        columns = [
            pa.array(values, kind),
            pa.array([[value] for value in values], pa.list_(kind)),
            pa.array(range(first, first + len(values))),
        ]
        table = pa.table(columns, names=["x", "deep", "n"])
        self.stream.append(table, layout=layout, merge_schema=True)
        self.model += values

    def compact(self) -> None:
        self.stream.compact()

    def redact(self, condition: tuple[str, Any]) -> None:
        if self.stream.schema.field("x").type == pa.float64():  # else no literal is a fraction
            self.stream.redact([["x", *condition]], columns=["n"])
            self.redacted |= {n for n, x in enumerate(self.model) if _matches(*condition, x)}

    def maintain(self) -> None:
        self.stream.maintain()

    def reopen(self) -> None:
        self.stream = open_on(self.stream._log.storage)


def _same(found: list[Any], expected: list[Any]) -> bool:
    """Compare as Python does, but for NaN, which equals NaN."""
    return [repr(x + 0.0) if x is not None else x for x in found] == [
        repr(float(x) + 0.0) if x is not None else x for x in expected
    ]


@given(
    first=st.sampled_from(_TYPES),
    steps=_STEPS,
    conditions=st.lists(_CONDITIONS, min_size=1, max_size=3),
    tiny=st.booleans(),
    times=st.none() | st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(sorted),
)
def test_widened_integers_are_as_in_a_list(
    first: pa.DataType,
    steps: list[Any],
    conditions: list[Any],
    tiny: bool,
    times: list[int] | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (TINY if tiny else {}).items():
            patch.setattr(SEGMENTS, name, value)
        program = Program(first, "x" if times else None)
        for name, *given_ in [*steps, ("append", pa.float64(), [0.5, None], "i")]:
            getattr(program, name)(*given_)
        stream, model = program.stream, program.model
        assert stream.schema.field("x").type == pa.float64()
        assert stream.schema.field("deep").type.value_type == pa.float64()
        _compare(stream, model, program.redacted)
        for op, literal in conditions:
            _find(stream, model, op, literal)
        if times:
            _find_times(stream, model, *times)
        _copy(stream, model)
        assert stream.verify().ok


def _compare(stream: Stream, model: list[Any], redacted: set[int]) -> None:
    found = stream.scan().to_arrow()
    assert _same(found["x"].to_pylist(), model)
    assert _same([each[0] for each in found["deep"].to_pylist()], model)
    assert found["n"].to_pylist() == [None if n in redacted else n for n in range(len(model))]


def _find(stream: Stream, model: list[Any], op: str, literal: Any) -> None:
    expected = [n for n, x in enumerate(model) if _matches(op, literal, x)]
    filters: list[Any] = [["x", op, literal]]
    x, polars = pc.field("x"), pl.col("x")
    if op in _COMPARE and not math.isnan(literal):
        filters += [_ORDER[op](polars, literal)]
        if not any(value is not None and math.isnan(value) for value in model):
            filters += [_ORDER[op](x, literal)]
    for each in filters:
        asked = [each] if isinstance(each, list) else each
        found = stream.read(filters=asked, columns=[], offset_column="at").read_all()
        assert found["at"].to_pylist() == expected, each


def _find_times(stream: Stream, model: list[Any], start: int, end: int) -> None:
    found = stream.read(event_time=(start, end), columns=[], offset_column="at").read_all()
    assert found["at"].to_pylist() == [
        n for n, x in enumerate(model) if x is not None and start <= x < end
    ]
    first = next((n for n, x in enumerate(model) if x is not None and x >= start), None)
    cut = stream.tags.set("there", f"eventtime:{start}").offset
    assert cut == (len(model) if first is None else first)


def _copy(stream: Stream, model: list[Any]) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    stream.copy_to(url, copy_id="c", mode="events")
    copied = open_on(open_storage(url)).scan().to_arrow()
    assert _same(copied["x"].to_pylist(), model)
