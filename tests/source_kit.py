"""The format `segstore` as Spark calls it, in this process: the same calls and pickles, no JVM.

What Spark itself decides is tested in tests/spark.
"""

import datetime as dt
import pickle
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str

from segstore_ds.spark.source import SegstoreDataSource

SCHEMA = pa.schema([("n", pa.int64()), ("user", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
T0 = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
USERS = ["ada", "bob", None, "eve", "Ada"]


def rows(start: int, end: int) -> pa.Table:
    """Return numbered events of five users, an hour apart; each seventh has no number."""
    columns = {
        "n": [n if n % 7 else None for n in range(start, end)],
        "user": [USERS[n % 5] for n in range(start, end)],
        "ts": [T0 + dt.timedelta(hours=n) for n in range(start, end)],
    }
    return pa.table(columns, schema=SCHEMA)


def source(url: str | None, options: dict[str, object]) -> SegstoreDataSource:
    """Return the format with options as Spark hands them over: small names, and texts."""
    given = {name.lower(): to_str(value) for name, value in options.items()}
    return SegstoreDataSource(given if url is None else {"path": url, **given})


def again(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


@dataclass
class Loaded:
    """What `spark.read.load` returns: planned anew for each use, from what `schema()` pinned."""

    pinned: SegstoreDataSource
    schema: StructType

    def plan(self) -> tuple[DataSourceReader, list[InputPartition | None]]:
        """Plan a read; for no tasks at all Spark makes one."""
        reader = again(self.pinned).reader(self.schema)
        return reader, reader.partitions() or [InputPartition(None)]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.schema.names

    def table(self) -> pa.Table:
        """Read every task, each with its own copy of the reader."""
        reader, tasks = self.plan()
        batches = [batch for task in tasks for batch in again(reader).read(again(task))]
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def rows(self) -> list[dict[str, object]]:
        """Read every event."""
        return self.table().to_pylist()

    def count(self) -> int:
        """Read every event and count them."""
        return self.table().num_rows


def load(url: str | None, *, schema: StructType | None = None, **options: object) -> Loaded:
    """Load as `spark.read.format("segstore").options(**options).load(url)`."""
    made = source(url, options)
    found = made.schema() if schema is None else schema
    return Loaded(made, found)


def append(
    url: str,
    *tasks: pa.Table,
    schema: StructType | None = None,
    overwrite: bool = False,
    **options: object,
) -> None:
    """Write each table as a task, then commit; `schema` is that of the DataFrame."""
    made = source(url, options)
    writer = made.writer(schema or from_arrow_schema(tasks[0].schema), overwrite)
    messages = []
    try:
        for number, table in enumerate(tasks):
            context = TaskContext._getOrCreate()
            context._partitionId, context._taskAttemptId = number, number
            context._localProperties = {}
            messages.append(again(again(writer).write(iter(table.to_batches()))))
    finally:
        TaskContext._taskContext = None
    again(writer).commit(messages)
