"""What type checkers know of a stream: `test_typing` runs mypy, which has to find these errors."""

from collections.abc import Iterator
from typing import assert_type

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

import segstore_ds as segstore
from segstore_ds.stream.follow import Follow


def reads(stream: segstore.Stream) -> None:
    """Whatever reads says what it returns."""
    scan = stream.scan(columns=["n"], filters="n > 3", limit=5)
    stream.scan(filters=[pl.col("n") > 3, ["user", "==", "ada"]])
    assert_type(scan, segstore.Scan)
    assert_type(stream[1:5], segstore.Scan)
    assert_type(scan.to_polars(), pl.LazyFrame)
    assert_type(scan.to_duckdb(duckdb.connect()), duckdb.DuckDBPyRelation)
    assert_type(scan.tasks(4), list[segstore.ScanTask])
    assert_type(stream.scan(filters=[["n", ">", 3]]).count(), int)
    assert_type(stream.follow("billing", filters=pl.col("n") > 3), Follow)
    frame: pd.DataFrame = scan.to_pandas()
    table: pa.Table = scan.to_arrow()
    reader: pa.RecordBatchReader = stream.read(2, "tail", filters=pl.col("n") > 3)
    batches: Iterator[pa.RecordBatch] = iter(stream)
    assert len(stream) == len(pl.DataFrame(stream)) == len(frame), (table, reader, batches)
    stream.scan(filters=3)  # error: arg-type
    stream.scan(columns="n", end="tail", filter="n > 3").count()  # error: call-arg
    stream[3]  # error: index
    scan.to_polars().collects()  # error: attr-defined


def writes(stream: segstore.Stream, frame: pd.DataFrame, table: pa.Table) -> None:
    """Whatever holds rows is taken, and nothing else."""
    assert_type(stream.append({"user": "ada", "n": 1}), segstore.Commit)
    stream.append([{"user": "ada"}, {"n": 1}])
    stream.append({"n": n} for n in range(3))
    stream.append(pl.DataFrame({"n": [1]}))
    stream.append(pl.LazyFrame({"n": [1]}), merge_schema=True)
    stream.append(stream[:5].to_duckdb())
    stream.append(frame)
    stream.append(table)
    stream.append(table.to_batches())
    stream.append(batch for batch in table.to_batches())
    stream.append(stream.scan(0, 5))
    stream.overwrite(stream.history())
    with stream.appender() as appender:
        assert_type(appender.append({"n": 1}), int)
        appender.append(table)
        appender.append(3)  # error: arg-type
    stream.append(3)  # error: arg-type
    stream.append("n")  # error: arg-type
    stream.append([1])  # error: list-item
    stream.append(None)  # error: arg-type
    segstore.create(stream.url, like=3)  # error: arg-type
