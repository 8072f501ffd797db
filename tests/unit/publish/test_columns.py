"""Columns and bounds in Iceberg's words, compared with what pyiceberg makes of them."""

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.utils.datetime import days_to_date, micros_to_timestamp

from segstore_ds.format.bounds import compute
from segstore_ds.format.schema.column_names import with_column_ids
from segstore_ds.format.statistics import entry_stats
from segstore_ds.publish import columns as words
from segstore_ds.publish.columns import as_iceberg, as_iceberg_stats, ids_of
from segstore_ds.publish.snapshot import Columns

NESTED = pa.struct([("a", pa.list_(pa.int8())), ("b", pa.map_(pa.string(), pa.date32()))])


def schema_of(found: Columns) -> Schema:
    """Return the columns as pyiceberg reads them."""
    fields = list(found.form)
    return Schema.model_validate({"type": "struct", "schema-id": 0, "fields": fields})


def test_nested_columns_have_the_ids_of_the_parquet_files() -> None:
    """Each field inside has one, elements, keys and values too."""
    schema = pa.schema([("n", pa.int64()), ("s", NESTED)])
    found = schema_of(as_iceberg(schema))
    stored = with_column_ids(schema).to_string(truncate_metadata=False)
    numbers = {int(number) for number in re.findall(r"field_id: '([0-9]+)'", stored)}
    assert numbers == {*found._lazy_id_to_name}
    assert found.highest_field_id == max(ids_of(as_iceberg(schema).form)) == max(numbers)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.int8(), -3, 7),
        (pa.int32(), -(2**31), 2**31 - 1),
        (pa.int64(), -(2**63), 2**40),
        (pa.float32(), -1.5, float("inf")),
        (pa.float64(), -0.1, 2.0**70),
        (pa.bool_(), False, True),
        (pa.string(), "", "größe"),
        (pa.binary(), b"", b"\xff\x00"),
        (pa.date32(), dt.date(1, 1, 1), dt.date(2026, 1, 1)),
        (pa.timestamp("us"), dt.datetime(1969, 1, 1), dt.datetime(2026, 1, 1)),  # noqa: DTZ001
        (pa.decimal128(9, 2), Decimal("-128.00"), Decimal("1.27")),
        (pa.decimal128(38, 0), Decimal(10**37), Decimal(10**38 - 1)),
    ],
)
def test_bounds_are_those_that_pyiceberg_reads(kind: pa.DataType, low: Any, high: Any) -> None:
    """In the binary form of each type."""
    schema = pa.schema([("c", kind)])
    batch = pa.record_batch([pa.array([low, None, high], kind)], schema)
    columns = as_iceberg(schema)
    found = as_iceberg_stats(entry_stats(compute(batch, ["c"])), 3, columns)
    (number,) = (field["id"] for field in columns.form)
    assert found["value_counts"] == [{"key": number, "value": 3}]
    assert found["null_value_counts"] == [{"key": number, "value": 1}]
    read = schema_of(columns).find_field(number).field_type
    values = []
    for bounds in ("lower_bounds", "upper_bounds"):
        (pair,) = found[bounds]
        values.append(from_bytes(read, pair["value"]))
    if pa.types.is_date(kind):
        values = [days_to_date(value) for value in values]
    if pa.types.is_timestamp(kind):
        values = [micros_to_timestamp(value) for value in values]
    assert values == [low, high]


def test_columns_with_equal_ids_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed ids may be equal, and the largest are Iceberg's own."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int32()), ("c", pa.bool_())])
    numbers = {("a",): 5, ("b",): 5, ("c",): 2147483448}
    monkeypatch.setattr(words, "column_id", lambda path, _: numbers[path])
    found = as_iceberg(schema)
    assert (found.names, found.left_out) == (("a",), {"b": "int32", "c": "bool"})


def test_types_that_iceberg_lacks_are_named() -> None:
    """A column with such a field inside is left out whole."""
    inner = pa.struct([("x", pa.duration("us"))])
    schema = pa.schema([("n", pa.null()), ("t", pa.time64("ns")), ("s", inner), ("k", pa.int8())])
    found = as_iceberg(schema)
    assert found.names == ("k",)
    assert found.left_out == {"n": "null", "t": "time64[ns]", "s": "duration[us]"}
