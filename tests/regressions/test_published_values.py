"""Published tables: values at the bounds of their files, and folders with characters of URLs."""

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.table import StaticTable

import segstore_ds as segstore
from segstore_ds.write.layout import Layout

SETTLED = Layout(inline_bytes=0, segment_format="parquet")
LAST = chr(0x10FFFF)
TEXTS = ["", "a\0", "吉野", "😀", "𠮷野", "\U000e0041", LAST, "𠮷" * 33]  # the last one is cut
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), TEXTS),
    "binary": (pa.binary(), [b"", b"\xff" * 33]),
    "flag": (pa.bool_(), [True, False]),
    "large": (pa.int64(), [-(2**63), 2**53 + 1]),
    "real": (pa.float64(), [1.5, math.inf, -math.inf, -0.0]),
    "money": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789")]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [EPOCH - dt.timedelta(microseconds=1)]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
Find = Callable[[str, Any], int]


def readers_of(url: str) -> dict[str, Find]:
    """Return how many rows with a value each reader of a Delta table finds."""
    table = deltalake.DeltaTable(url)
    dataset = table.to_pyarrow_dataset()
    return {
        "scan_delta": lambda name, value: (
            pl.scan_delta(url).filter(pl.col(name) == value).collect().height
        ),
        "filters": lambda name, value: (
            table.to_pyarrow_table(filters=[(name, "=", value)], columns=[name]).num_rows
        ),
        "dataset": lambda name, value: dataset.count_rows(
            filter=pc.field(name) == pa.scalar(value, SCHEMA.field(name).type)
        ),
    }


def check(readers: dict[str, Find], rows: int) -> None:
    """Let each reader find each value in so many rows."""
    for reader, find in readers.items():
        for name, (_, values) in COLUMNS.items():
            for value in values:
                assert find(name, value) == rows, (reader, name, value)


def test_readers_find_each_value_whatever_bounds_its_file_has(tmp_path) -> None:
    """Alone, beside others, and where bounds of some columns are missing in one more file."""
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    rows = [{name: value} for name, (_, values) in COLUMNS.items() for value in values]
    odd: dict[str, Any] = {"text": LAST * 40, "real": math.nan}
    alone = pa.Table.from_pylist(rows, SCHEMA)
    stream.append(alone, layout=Layout(inline_bytes=0, segment_format="parquet", segment_rows=1))
    stream.publish("delta")
    check(readers_of(str(tmp_path / "s")), 1)  # all files have bounds, so they are skipped by them
    for file in (rows, [odd, *rows]):
        stream.append(pa.Table.from_pylist(file, SCHEMA), layout=SETTLED)
    stream.publish("delta")
    stream.publish("iceberg")
    url = str(tmp_path / "s")
    iceberg = StaticTable.from_metadata(url)
    check(readers_of(url), 3)

    def scan(name: str, value: Any) -> int:
        bounds = LessThanOrEqual(name, value) & GreaterThanOrEqual(name, value)
        return iceberg.scan(bounds).to_arrow().num_rows

    check({"pyiceberg": scan}, 3)


@pytest.mark.parametrize("name", ["hour=00%3A00", "a#b?c"])
def test_table_in_a_folder_with_characters_of_urls_is_read(tmp_path, name) -> None:
    """By its path and through a catalog, after a second publication and a move, too."""
    stream = segstore.create(tmp_path / name, pa.schema([("n", pa.int64())]), upkeep=None)
    catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=str(tmp_path))
    stream.append(pa.table({"n": [0]}), layout=SETTLED)
    catalog.create_namespace("db")
    for n in (1, 2):
        stream.append(pa.table({"n": [n]}), layout=SETTLED)
        done = stream.publish("iceberg")
        catalog.register_table(f"db.t{n}", done.metadata)
        read = StaticTable.from_metadata(str(tmp_path / name)).scan().to_arrow()
        assert sorted(read["n"].to_pylist()) == [*range(n + 1)]
        assert catalog.load_table(f"db.t{n}").scan().to_arrow().num_rows == n + 1
    assert done.metadata == f"{tmp_path / name}/metadata/v2.metadata.json"
    moved = (tmp_path / name).rename(tmp_path / f"{name}2")
    segstore.open(moved).publish("iceberg")
    assert StaticTable.from_metadata(str(moved)).scan().to_arrow().num_rows == 3
    segstore.open(moved).verify().check()
