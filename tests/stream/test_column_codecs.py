"""Parquet segments whose columns have their own encodings and codecs, through every reader."""

import uuid
from pathlib import Path

import deltalake
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

import segstore_ds as segstore
from segstore_ds import Layout

ROWS = 1000
MIXED = Layout(inline_bytes=0, segment_format="parquet", frame_rows=ROWS)


def mixed_events() -> pa.Table:
    """Return events of which every other thousand suits other encodings."""
    draw = np.random.default_rng(3)
    frames = []
    for frame in range(4):
        odd = frame % 2
        ids = [str(uuid.UUID(bytes=draw.bytes(16))) for _ in range(ROWS)]
        frames.append(
            pa.table(
                {
                    "n": np.arange(frame * ROWS, (frame + 1) * ROWS),
                    "measured": draw.random(ROWS) if odd else np.arange(ROWS) % 9 / 4,
                    "code": draw.integers(-(2**62), 2**62, ROWS) if odd else np.arange(ROWS) % 5,
                    "text": pa.array(ids if odd else ["a few", "words", None, "x"] * (ROWS // 4)),
                    "list": pa.array([[float(n), None] for n in draw.random(ROWS)]),
                }
            )
        )
    return pa.concat_tables(frames)


def test_every_engine_reads_columns_of_any_encoding_and_codec(tmp_path: Path) -> None:
    """Row groups that several writers made are one file for DuckDB, Polars, Delta and Iceberg."""
    events = mixed_events()
    stream = segstore.create(tmp_path / "s", events.schema)
    stream.append(events, layout=MIXED)
    [file] = stream.scan().files()
    path = file.url.removeprefix("file://")
    metadata = pq.read_metadata(path)
    chunks = [metadata.row_group(n).column(1) for n in range(metadata.num_row_groups)]
    assert {(chunk.compression, chunk.has_dictionary_page) for chunk in chunks} >= {
        ("UNCOMPRESSED", False),
        ("ZSTD", True),
    }

    assert stream.publish("delta").url == stream.publish("iceberg").url == stream.url
    found = {
        "segstore": stream.read().read_all(),
        "pyarrow": pq.read_table(path, page_checksum_verification=True),
        "duckdb": duckdb.read_parquet(path).order("n").to_arrow_table(),
        "polars": pl.read_parquet(path).to_arrow(),
        "polars, lazily": pl.scan_parquet(path).filter(pl.col("n") >= 0).collect().to_arrow(),
        "delta-rs": deltalake.DeltaTable(stream.url).to_pyarrow_table(),
        "pyiceberg": StaticTable.from_metadata(stream.url).scan().to_arrow(),
    }
    for name, table in found.items():
        assert table.sort_by("n").to_pylist() == events.to_pylist(), name
    stream.verify().check()
