"""Queries without Spark: what its offset process and its tasks ask of the source."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.source import SegstoreStreamReader
from segstore_ds.spark.versions import ReadAllAvailable

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
Value = dict[str, Any]


def numbers(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    columns = {"n": list(range(start, end)), "s": [f"s{n}" for n in range(start, end)]}
    return pa.table(columns, SCHEMA)


def start_reader(
    url: str, schema: StructType | None = None, **options: object
) -> SegstoreStreamReader:
    """Start a query: return what Spark's offset process holds."""
    source = SegstoreDataSource({"path": url, **{name: str(v) for name, v in options.items()}})
    return source.streamReader(schema or source.schema())


def as_spark(value: Value) -> Value:
    """Take an offset through JSON text, as Spark does."""
    return json.loads(json.dumps(value))


def ask(reader: SegstoreStreamReader, start: Value) -> Value:
    """Ask for the end of a batch of all that is there."""
    return as_spark(reader.latestOffset(start, ReadAllAvailable()))


def follow(
    reader: SegstoreStreamReader, start: Value | None = None, *, everything: bool = False
) -> Iterator[tuple[Value, Value]]:
    """Yield the micro-batches that Spark would run until there is nothing new."""
    limit = ReadAllAvailable() if everything else reader.getDefaultReadLimit()
    given = start if start is not None else as_spark(reader.initialOffset())
    while (end := as_spark(reader.latestOffset(given, limit))) != given:
        assert json.dumps(end) != json.dumps(given)
        yield given, end
        given = end


def rows(reader: SegstoreStreamReader, start: Value, end: Value) -> list[dict[str, Any]]:
    """Read a batch with the tasks' copy of the reader."""
    tasks = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own bytes
    plan = pickle.loads(pickle.dumps(reader.partitions(start, end)))  # noqa: S301 - the same
    return [row for part in plan for batch in tasks.read(part) for row in batch.to_pylist()]


def ends(batches: list[tuple[Value, Value]]) -> list[int]:
    """Return the offsets at which batches end."""
    return [end["offset"] for _, end in batches]
