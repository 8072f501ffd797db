"""The format with faults: writers whose tasks and commits fail at random, before and after.

A folder says what fails: a file `task`, `before` or `after` holds the chance of it.
"""

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.sink import SegstoreStreamWriter


class FaultyWriter(SegstoreStreamWriter):
    """A writer that fails where the folder says so."""

    faults: Path

    def _maybe(self, fault: str) -> None:
        chance = self.faults / fault
        seed = int.from_bytes(os.urandom(8), "little")
        if chance.exists() and random.Random(seed).random() < float(chance.read_text()):
            raise RuntimeError(f"injected: {fault}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._maybe("task")
        staged = super().write(iterator)
        self._maybe("task")
        return staged

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._maybe("before")
        super().commit(messages, batchId)
        self._maybe("after")


def make_faulty(folder: Path) -> type[SegstoreDataSource]:
    """Return the format `faulty`, which travels by value and so knows its folder."""

    class Faulty(SegstoreDataSource):
        faults: ClassVar[Path] = folder

        @classmethod
        def name(cls) -> str:
            return "faulty"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = FaultyWriter
            writer.faults = self.faults
            return writer

    return Faulty
