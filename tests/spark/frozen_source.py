"""A source that notes, after each entry point, how much its worker has frozen."""

import functools
import gc
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.batch.writer import SegstoreWriter
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.sink import SegstoreStreamWriter
from segstore_ds.spark.workers import commits_here


def _note(notes: Path, entry: str) -> None:
    line = {"pid": os.getpid(), "entry": entry, "frozen": gc.get_freeze_count()}
    with notes.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        result = method(self, *args, **given)
        _note(self.notes, method.__name__)
        return result

    @functools.wraps(method)
    def iterate(self: Any, *args: Any) -> Any:
        yield from method(self, *args)
        _note(self.notes, method.__name__)

    return iterate if inspect.isgeneratorfunction(method) else call


class NotingReader(PartsReader):
    """A reader whose tasks are noted."""

    notes: Path
    read = _noted(PartsReader.read)


class NotingWriter(SegstoreWriter):
    """A batch writer whose tasks and commits are noted."""

    notes: Path
    write = _noted(SegstoreWriter.write)
    commit = _noted(SegstoreWriter.commit)


class NotingStreamWriter(SegstoreStreamWriter):
    """A sink whose plans, tasks and commits are noted."""

    notes: Path
    write = _noted(SegstoreStreamWriter.write)
    commit = _noted(SegstoreStreamWriter.commit)


class NotingSource(SegstoreDataSource):
    """The format `noting`: notes go to the file `notes` beside the stream."""

    schema = _noted(SegstoreDataSource.schema)

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.notes = Path(options["path"].removeprefix("file://")).parent / "notes"

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "noting"

    def reader(self, schema: Any) -> Any:
        """Plan a read."""
        return self._watch(super().reader(schema), NotingReader, "reader")

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Plan a write."""
        return self._watch(super().writer(schema, overwrite), NotingWriter, "writer")

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return the sink."""
        entry = "" if commits_here() else "streamWriter"
        return self._watch(super().streamWriter(schema, overwrite), NotingStreamWriter, entry)

    def _watch(self, made: Any, cls: type, entry: str = "") -> Any:
        made.__class__, made.notes = cls, self.notes
        if entry:
            _note(self.notes, entry)
        return made
