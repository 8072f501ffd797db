"""A source of Spark that produces events at a fixed rate, as a broker's topic does.

Event `n` is there from `(n + 1) / rate` seconds after the start on, whether anybody asks or not.
Spark's own `rate` source gives events out by whole seconds only. Spark's processes import this
module, so it imports no more than such a source needs.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

TASKS = 2
TEXT = "what an event of about a hundred bytes says, as those of a shop's clicks do, more or less "


class PacedSource(DataSource):
    """The format `paced`, with the options `rate` (events a second) and `began` (epoch seconds)."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "paced"

    def schema(self) -> str:
        """Return a number and a text."""
        return "n bigint, text string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Give out all that was produced since the last batch."""
        return _Reader(float(self.options["rate"]), float(self.options["began"]))


@dataclass
class _Range(InputPartition):
    start: int
    end: int


class _Reader(DataSourceStreamReader):
    def __init__(self, rate: float, began: float) -> None:
        self._rate, self._began = rate, began

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"n": 0}

    def latestOffset(self, *_limits: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"n": max(int((time.time() - self._began) * self._rate), 0)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, last = start["n"], end["n"]
        each = max(-(-(last - first) // TASKS), 1)
        return [_Range(n, min(n + each, last)) for n in range(first, last, each)]

    def read(self, partition: _Range) -> Iterator[pa.RecordBatch]:  # type: ignore[override] # ours
        for first in range(partition.start, partition.end, 10_000):
            numbers = range(first, min(first + 10_000, partition.end))
            columns = [pa.array(numbers, pa.int64()), pa.array([TEXT] * len(numbers))]
            yield pa.record_batch(columns, names=["n", "text"])

    def commit(self, end: dict[str, int]) -> None:
        pass
