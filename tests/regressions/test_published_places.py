"""Iceberg tables in folders with characters of URLs, by their paths and through a catalog."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

import segstore_ds as segstore
from segstore_ds.write.layout import Layout

SETTLED = Layout(inline_bytes=0, segment_format="parquet")


@pytest.mark.parametrize("name", ["hour=00%3A00", "a#b?c"])
def test_table_in_a_folder_with_characters_of_urls_is_read(tmp_path: Path, name: str) -> None:
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
