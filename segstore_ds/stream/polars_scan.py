"""A stream as a lazy frame of Polars.

Polars itself reads the Parquet segments that need no cut, if the folder is local and the files hold
the columns as the stream has them. The rest is read here, by sources to which Polars passes
columns, a predicate and a limit; they fetch and check large Parquet segments, and Polars decodes
them. The parts follow each other in offset order.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any

import pyarrow as pa

from segstore_ds.format.schema.codec import decode_schema
from segstore_ds.read.decode import Fetched
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.filters.polars_predicate import implied_by
from segstore_ds.read.frames import check_texts, load
from segstore_ds.read.parquet_files import ParquetFile, list_parquet_files
from segstore_ds.read.scan import read_threads, run_tasks
from segstore_ds.storage.locations import resolve_location
from segstore_ds.stream.scan import Scan


def scan_events(read: Scan) -> Any:
    """Return the events of a read as a `polars.LazyFrame`."""
    polars = load("polars")
    reading = read.reading
    wanted = polars.from_arrow(read.schema.empty_table()).schema
    parts, at = [], reading.start
    for run in _native_runs(polars, read, wanted):
        if at < run[0].start:
            parts.append(_source(polars, read.between(at, run[0].start), wanted))
        parts.append(_files(polars, run, reading.offset_column))
        at = run[-1].end
    if at < reading.end or not parts:
        parts.append(_source(polars, read.between(at, reading.end), wanted))
    return parts[0] if len(parts) == 1 else polars.concat(parts)


def _native_runs(polars: Any, read: Scan, wanted: Any) -> list[list[ParquetFile]]:
    """Return runs of adjacent files that Polars reads as the stream would."""
    reading = read.reading
    ours = reading.segment_column or reading.commit_time_column or reading.filters
    if ours or reading.stored or not _path(read.context.storage.url):
        return []
    schemas = {number: decode_schema(text) for number, text in reading.epochs.items()}
    files = [
        file
        for file in list_parquet_files(read.context.status, read.root, reading, partial=True)
        if (file.row_start, file.row_end) == (0, file.rows)
        and schemas[file.epoch].equals(reading.schema)
    ]
    if not files:
        return []
    found = _files(polars, files[:1], reading.offset_column).collect_schema()
    if list(found.items()) != list(wanted.items()):
        return []
    runs = [[files[0]]]
    for before, file in pairwise(files):
        if before.end == file.start:
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs


def _path(url: str) -> str:
    """Return the path of a location on a local disk; "" for any other location."""
    location = resolve_location(url)
    return location.path if location.scheme == "file" else ""


def _files(polars: Any, run: Sequence[ParquetFile], offset_column: str | None) -> Any:
    return _scan(polars, [_path(file.url) for file in run], run[0].start, offset_column)


def _scan(polars: Any, source: Any, start: int, offset_column: str | None) -> Any:
    """Return Polars' own scan of files whose first event is at an offset."""
    frame = polars.scan_parquet(
        source, glob=False, hive_partitioning=False, row_index_name=offset_column
    )
    if offset_column is None:
        return frame
    offset = polars.col(offset_column).cast(polars.Int64) + start
    return frame.select(polars.exclude(offset_column), offset)


def _source(polars: Any, read: Scan, wanted: Any) -> Any:
    plugins = load("polars.io.plugins")

    def batches(
        with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        del batch_size
        names = list(wanted) if with_columns is None else with_columns
        needed = [*names] if predicate is None else [*{*names, *predicate.meta.root_names()}]
        asked, left = read, n_rows
        if n_rows is not None and not read.reading.filters:
            # The limit counts rows before the predicate does: without other filters, offsets.
            start, left = read.reading.start, None
            asked = read.between(start, min(start + n_rows, read.reading.end))
        filters = Filters()
        if predicate is not None and left is None:
            filters = implied_by(predicate, read.reading.schema)

        def finish(frame: Any) -> Any:
            kept = frame if predicate is None else frame.filter(predicate)
            return kept.select(names)

        reading, tasks = asked.plan_part(needed, filters)
        engine = None
        own = asked.reading
        if not (own.filters or own.mirrors or own.segment_column or own.commit_time_column):
            engine = _Files(polars, wanted, reading.offset_column, finish)
        threads = read_threads(reading)
        for found in run_tasks(reading, tasks, threads=threads, engine=engine):
            if not isinstance(found, pa.RecordBatch):
                yield found
                continue
            frame = _as_frame(polars, found)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield finish(frame)
            if left == 0:
                return

    return plugins.register_io_source(batches, schema=wanted, is_pure=True)


@contextmanager
def _opened(fetched: Fetched) -> Iterator[Any]:
    """Yield what was fetched as a file, or as its bytes if the whole segment was fetched."""
    whole = fetched.segment.whole
    if whole is not None:
        yield whole.obj if isinstance(whole.obj, bytes) else bytes(whole)
        return
    with _open_sparse(fetched) as file:
        yield file


def _open_sparse(fetched: Fetched) -> IO[bytes]:
    """Return a file in memory with what was fetched and the end of the segment, each at its place.

    The rest is a hole, which takes no memory and reads as zeros: never as a page of Parquet.
    """
    index: Any = fetched.segment.index
    file = _open_empty()
    for number, buffers in fetched.data.items():
        spans = index.spans(number, fetched.columns)
        for (start, _), data in zip(spans, buffers, strict=True):
            file.seek(start)
            file.write(data)
    file.seek(index.object_bytes - len(index.end))
    file.write(index.end)
    file.seek(0)  # which flushes, too
    return file


def _open_empty() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # on Linux
        return os.fdopen(os.memfd_create("segstore"), "w+b")
    return tempfile.TemporaryFile()


def _as_frame(polars: Any, batch: pa.RecordBatch) -> Any:
    check_texts(batch)
    return polars.from_arrow(batch)


@dataclass(frozen=True, slots=True, eq=False)
class _Files:
    """Lets Polars decode checked frames of Parquet, as files that hold nothing else.

    Polars takes half of Arrow's time, and drops rows before it decodes their other columns.
    """

    polars: Any
    wanted: Any
    offset_column: str | None
    finish: Callable[[Any], Any]

    def __call__(self, fetched: Fetched) -> Any:
        """Return the wanted rows of frames as a frame of Polars."""
        try:
            with _opened(fetched) as file:
                frame = _scan(self.polars, file, fetched.slice.start, self.offset_column)
                known = frame.collect_schema()
                if all(known.get(name) == self.wanted[name] for name in fetched.columns):
                    parts = [self.finish(frame.slice(*run)) for run in fetched.runs()]
                    return self.polars.concat(parts).collect()
        except self.polars.exceptions.PolarsError:
            pass  # Arrow reads more types, and its errors say what is wrong
        batches = map(fetched.decode, fetched.data)
        frames = [_as_frame(self.polars, batch) for batch in batches if batch is not None]
        return self.finish(self.polars.concat(frames)) if frames else None
