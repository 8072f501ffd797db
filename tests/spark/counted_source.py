"""A source whose tasks note how many requests they sent for data, each with its process."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.source import SegstoreDataSource


class CountedReader(PartsReader):
    """A reader whose tasks are noted."""

    notes: Path

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read a task, then note the requests of its storage: a task opens no log."""
        run = pickle.loads(self.run.args[0])  # noqa: S301 - ours
        stats = run.args[0].storage.stats
        before, rows = stats.total, 0
        for batch in run(pickle.loads(partition.value)):  # noqa: S301 - ours
            rows += batch.num_rows
            yield batch
        note = {"pid": os.getpid(), "requests": stats.total - before, "rows": rows}
        with self.notes.open("a") as file:
            file.write(json.dumps(note) + "\n")


class CountedSource(SegstoreDataSource):
    """The format `counted`: notes go to the file `notes` beside the stream."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "counted"

    def reader(self, schema: Any) -> Any:
        """Plan a read."""
        made = super().reader(schema)
        made.__class__ = CountedReader
        made.notes = Path(self.options["path"].removeprefix("file://")).parent / "notes"
        return made
