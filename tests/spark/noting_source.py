"""A source that notes the process of each task, what that has frozen and what the task has read.

The format is `noting`; notes go to the file `notes` beside the stream.
"""

import gc
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.source import SegstoreDataSource


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """Return the notes of a folder's stream since the last call."""
    path = folder / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    return [json.loads(line) for line in lines]


class NotingReader(PartsReader):
    """A reader whose tasks are noted, with the requests of their storage: a task opens no log."""

    notes: Path

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read a task, then note it."""
        batches, stats = super().read(partition), None
        if hasattr(self.run, "args"):  # the rows do not travel with the plan
            run = pickle.loads(self.run.args[0])  # noqa: S301 - ours
            stats = run.args[0].storage.stats
            batches = run(pickle.loads(partition.value))  # noqa: S301 - ours
        before, rows = stats.total if stats else 0, 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        note = {"pid": os.getpid(), "frozen": gc.get_freeze_count(), "rows": rows}
        note["requests"] = stats.total - before if stats else 0
        with self.notes.open("a") as file:
            file.write(json.dumps(note) + "\n")


class NotingSource(SegstoreDataSource):
    """The format `noting`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "noting"

    def reader(self, schema: Any) -> Any:
        """Plan a read."""
        made = super().reader(schema)
        made.__class__ = NotingReader
        made.notes = Path(self.options["path"].removeprefix("file://")).parent / "notes"
        return made
