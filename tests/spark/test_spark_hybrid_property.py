"""Random streams, cuts, columns and filters: the hybrid scan gives what Python reads."""

import itertools
import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import COLUMNS, events, to_table

import segstore_ds as segstore

pytestmark = pytest.mark.slow

_NAMES = tuple(COLUMNS)
_FLOATS = st.sampled_from([0.0, -0.0, 0.5, -1.5, 1e300, float("nan"), float("inf")])
_ORDERED = ("==", "!=", "<", "<=", ">", ">=")
_LITERALS = {
    "n": st.integers(-5, 20) | st.just(2**63 - 1),
    "word": st.sampled_from(["", "a", "ada", "größe", "\U0010ffff"]),
    "ratio": st.sampled_from([0.0, 0.5, -1.5, 1e300, "NaN", "Infinity"]),
    "seen": st.sampled_from(["0001-01-02T00:00:00Z", "1582-10-10T00:00:00Z", "2000-01-01T00:00Z"]),
}
_numbers = itertools.count()


@st.composite
def conditions(draw: st.DrawFn) -> list[object]:
    name = draw(st.sampled_from(list(_LITERALS)))
    op = draw(st.sampled_from([*_ORDERED, "in", "not in", "is null", "is not null"]))
    if op.startswith("is"):
        return [name, op]
    if "in" in op:
        many = st.lists(st.none() | _LITERALS[name], min_size=1, max_size=12)
        return [name, op, draw(many)]
    return [name, op, draw(_LITERALS[name])]


@st.composite
def batches(draw: st.DrawFn) -> pa.Table:
    columns = draw(st.sampled_from([_NAMES, _NAMES, ("n", "word", "ratio")]))
    rows = draw(events(columns))
    for row in rows:
        row["ratio"] = draw(st.none() | _FLOATS)
    return to_table(rows, columns)


@settings(
    max_examples=max(25, settings.default.max_examples // 20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_hybrid_scan_gives_what_python_reads(spark, tmp_path, data):
    url = f"file://{tmp_path}/{next(_numbers)}"
    stream = segstore.create(url, pa.schema([(name, COLUMNS[name]) for name in _NAMES[:3]]))
    tables = st.tuples(batches(), st.sampled_from(["parquet", "parquet", "arrow"]))
    for table, form in data.draw(st.lists(tables, min_size=1, max_size=5), "tables"):
        layout = segstore.Layout(frame_rows=3, segment_rows=7, inline_bytes=0, segment_format=form)
        stream.append(table, layout=layout, merge_schema=True)
    start = data.draw(st.integers(0, stream.tail), "start")
    end = data.draw(st.integers(start, stream.tail), "end")
    columns = data.draw(st.none() | st.lists(st.sampled_from(stream.schema.names), min_size=1))
    columns = list(dict.fromkeys(columns)) if columns else None
    filters = data.draw(st.lists(conditions(), max_size=2), "filters")
    asked = {"filters": [condition for condition in filters if condition[0] in stream.schema.names]}
    expected = stream.read(
        start,
        end,
        columns=columns,
        offset_column="o",
        filters=json.dumps(asked["filters"]),
    ).read_all()
    df = segstore.spark.read(
        spark,
        url,
        startCut=start,
        endCut=end,
        columns=columns,
        offsetColumn="o",
        **asked,
    )
    assert df.columns == expected.column_names
    found = df.orderBy("o").toArrow().cast(expected.schema)
    # repr: NaN equals itself in it, and -0.0 is not 0.0.
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    plain = segstore.spark.read(spark, url, startCut=start, endCut=end, **asked)
    assert plain.count() == len(expected)
