"""A key filter never loses a row: whatever the types, the widening, the values and the literals."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.bloom import lacks_value
from segstore_ds.format.schema.conversion import lift
from segstore_ds.read.filters.given import parse_filters
from segstore_ds.read.prune import find_keys, may_hold_keys

_DAY = dt.date(2026, 1, 1)
_TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001


def _ints(bits: int) -> st.SearchStrategy[int]:
    limit = 1 << (bits - 1)
    return st.integers(-4, 4) | st.integers(-limit, limit - 1)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return (st.integers(-9, 9) | st.integers(-most, most)).map(lambda n: _scaled(n, scale))


def _scaled(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): _ints(8),
    pa.int16(): _ints(16),
    pa.int32(): _ints(32),
    pa.int64(): _ints(64),
    pa.string(): st.text(max_size=3) | st.text(max_size=70),
    pa.binary(): st.binary(max_size=3) | st.binary(max_size=70),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(_DAY, dt.date(2026, 1, 9)),
    pa.timestamp("us"): _TIMES,
    pa.timestamp("us", "UTC"): _TIMES.map(lambda time: time.replace(tzinfo=dt.UTC)),
    pa.time64("ns"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    pa.decimal128(4, 2): _decimals(4, 2),
    pa.decimal128(12, 2): _decimals(12, 2),
    pa.decimal128(16, 4): _decimals(16, 4),
    pa.decimal128(30, 4): _decimals(30, 4),
}
_WIDENED = [
    *((kind, kind) for kind in _VALUES),
    (pa.int8(), pa.int64()),
    (pa.int8(), pa.int16()),
    (pa.int16(), pa.int32()),
    (pa.int32(), pa.int64()),
    (pa.decimal128(4, 2), pa.decimal128(12, 2)),
    (pa.decimal128(4, 2), pa.decimal128(16, 4)),
    (pa.decimal128(12, 2), pa.decimal128(30, 4)),
]


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(data=st.data())
def test_filters_lose_no_row(data: st.DataObject) -> None:
    stored, reading = data.draw(st.sampled_from(_WIDENED))
    values = data.draw(st.lists(st.none() | _VALUES[stored], max_size=20))
    # Half of the literals are of the rows, the others of the whole wider type.
    there = [value for value in values if value is not None]
    literal = _VALUES[reading] | (st.sampled_from(there) if there else st.nothing())
    literals = data.draw(st.lists(literal, min_size=1, max_size=3))
    batch = pa.record_batch([pa.array(values, stored)], names=["key"])
    frame = encode_frame(
        batch, compression="none", compression_level=None, stats_columns=(), key_columns=("key",)
    )
    schema = pa.schema([("key", reading)])
    filters = parse_filters(
        [["key", "==", literals[0]] if len(literals) == 1 else ["key", "in", literals]], schema
    )
    keys = find_keys(filters, batch.schema)
    assert len(keys) == 1
    found = filters.apply(lift(batch, schema)).num_rows
    if "key" not in frame.filters:
        assert len(there) > 8  # a few values always fit into one block
    else:
        assert not lacks_value([frame.filters["key"]], batch.column(0))
        assert may_hold_keys(keys, frame.filters) or not found
        if not there:
            assert not may_hold_keys(keys, frame.filters)
