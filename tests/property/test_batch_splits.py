"""The fingerprint of a batch: the same however rows are split, another one for other bounds."""

import datetime as dt
import decimal
import math
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import WriterConflictError
from segstore_ds.format.schema.conversion import conform
from segstore_ds.status.writers import WriterKey
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

KEY = WriterKey("w", 1)
_WORDS = st.sampled_from(
    ["", "a", "b" * 31, "b" * 32, "b" * 33, "b" * 32 + "c", "größe", "\U0010ffff" * 33]
)
_BYTES = st.sampled_from(
    [b"", b"a", b"\xff", b"\xff" * 33, b"\xc3", b"a" * 32 + b"\xff", b"\xf0\x9f"]
)
_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "n": (pa.int64(), st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1])),
    "small": (pa.int8(), st.integers(-3, 3)),
    "ratio": (pa.float64(), st.sampled_from([0.0, -0.0, 0.1, -1e300, math.inf, math.nan])),
    "single": (pa.float32(), st.sampled_from([0.0, -0.0, 0.5, -math.inf, math.nan])),
    "price": (
        pa.decimal128(38, 3),
        st.decimals(-9, 9, places=3) | st.just(decimal.Decimal("1" * 35 + ".001")),
    ),
    "word": (pa.string(), _WORDS),
    "raw": (pa.binary(), _BYTES),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates()),
    "seen": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "tags": (pa.list_(pa.string()), st.lists(_WORDS, max_size=2)),
    "text": (pa.binary(), _BYTES),  # stored as a string, of which some are no UTF-8
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in _VALUES.items()}),
    max_size=8,
)
LAYOUTS = st.builds(
    Layout,
    frame_rows=st.sampled_from([1, 2, 5, 1000]),
    segment_rows=st.sampled_from([None, 1, 3]),
    inline_bytes=st.sampled_from([0, 1 << 16]),
    segment_format=st.sampled_from(["arrow", "parquet"]),
)


def to_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as Arrow; what is no UTF-8 comes into a string as Spark brings it."""
    schema = pa.schema([(name, type_) for name, (type_, _) in _VALUES.items()])
    batch = pa.RecordBatch.from_pylist(rows, schema)
    text = batch.column("text").view(pa.string())
    return batch.set_column(batch.num_columns - 1, "text", text)


def write(
    stream: Stream, batch: pa.RecordBatch, cuts: list[int], layout: Layout, *, key: WriterKey = KEY
) -> bool:
    """Write a batch in as many tasks as the cuts leave, and tell whether it was repeated."""
    job = stream.plan_write(batch.schema, writer=key, layout=layout)
    places = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    tasks, batch = [], conform(batch, job.schema)
    for number, start in enumerate(places[:-1]):
        task = job.open_task(number, f"a{number}")
        task.take(batch.slice(start, places[number + 1] - start))
        tasks.append(task.finish())
    return stream.commit(job, tasks).repeated


def new_stream(schema: pa.Schema) -> Stream:
    return create_on(open_storage(f"memory://{uuid.uuid4().hex}"), schema)


CUTS = st.lists(st.integers(0, 8), max_size=4)


@given(rows=ROWS, order=st.randoms(), first=CUTS, second=CUTS, layouts=st.tuples(LAYOUTS, LAYOUTS))
def test_fingerprint_does_not_depend_on_the_split(
    rows: list[dict[str, Any]],
    order: Any,
    first: list[int],
    second: list[int],
    layouts: tuple[Layout, Layout],
) -> None:
    """Other tasks, frames, segments, formats and order of the same rows are the same batch."""
    batch, shuffled = to_batch(rows), list(rows)
    order.shuffle(shuffled)
    stream, other = new_stream(batch.schema), new_stream(batch.schema)
    assert not write(stream, batch, first, layouts[0])
    assert write(stream, to_batch(shuffled), second, layouts[1])
    stream.verify().check()
    write(other, to_batch(shuffled), second, layouts[1])
    stored = [each._log.root.writers["w"].fingerprint for each in (stream, other)]
    odd = any(row["text"] in (b"\xff", b"\xff" * 33, b"\xc3", b"\xf0\x9f") for row in rows)
    assert odd or stored[0] == stored[1]


NUMBERS = st.lists(st.none() | st.integers(-2, 2), max_size=5)


def facts(values: list[int | None]) -> tuple[Any, ...]:
    """Return what a fingerprint is made of, from the values."""
    known = [value for value in values if value is not None]
    bounds = (min(known), max(known)) if known else None
    return len(values), len(values) - len(known), bounds


@given(values=NUMBERS, others=NUMBERS, cuts=CUTS, layout=LAYOUTS)
def test_other_rows_nulls_or_bounds_are_another_batch(
    values: list[int | None], others: list[int | None], cuts: list[int], layout: Layout
) -> None:
    """Only these differences count: values between the bounds are not compared."""
    given_, again = (
        pa.record_batch({"n": pa.array(each, pa.int64())}) for each in (values, others)
    )
    stream = new_stream(given_.schema)
    write(stream, given_, cuts, layout)
    if facts(values) == facts(others):
        assert write(stream, again, cuts, layout)
    else:
        with pytest.raises(WriterConflictError, match="other events"):
            write(stream, again, cuts, layout)
        assert write(stream, again, cuts, layout, key=WriterKey("w", 1, on_repeat="skip"))
    assert stream.read().read_all()["n"].to_pylist() == values
    stream.verify().check()
