"""Planning a scan: which frames hold the events of a range, and how they are packed into tasks.

A plan is bound to one version and picklable; a task needs nothing but the storage. Large segments
are split without opening them: a task claims the frames that *start* within its rows, so each frame
is decoded by exactly one task.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.commit.replicas import followers_of
from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.fields import parse_json
from segstore_ds.format.parts.columns import SegmentColumns
from segstore_ds.format.parts.packed import Ints
from segstore_ds.format.root import Root
from segstore_ds.format.schema.codec import decode_schema
from segstore_ds.format.segment import PARQUET
from segstore_ds.format.statistics import Stats, from_json
from segstore_ds.log.copy_record import check_complete
from segstore_ds.read.commit_times import TIME_TYPE, CommitTimes
from segstore_ds.read.filters import Filters, parse_filters
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.history import History
from segstore_ds.status.slices import EXACT_LIMIT, Slice, SliceTable, plan_borders
from segstore_ds.status.table_status import PlacedSegment, Run, TableStatus
from segstore_ds.storage import Storage


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Slices that one task reads, in offset order; the commits of their events where asked for."""

    slices: Sequence[Slice]
    times: CommitTimes | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What every task of a scan shares; picklable.

    Attributes:
        storage: The stream's folder; pickles without its connections.
        stream_id: Of the stream, for errors.
        version: The plan is bound to.
        start: Offset of the first event.
        end: Offset behind the last event.
        epochs: Number of an epoch -> its schema as text.
        schema: Of the whole stream as of the version.
        columns: Columns of the stream to return, in order.
        filters: What rows have to satisfy.
        offset_column: Name of an extra column with offsets, or None.
        segment_column: Name of an extra column with segment ids, or None.
        commit_time_column: Name of an extra column with commit times, or None.
        times: The commits of the task's events: `run_task` takes them from its task.
        followers: Where else the segments lie, should one be damaged.
        settled: Epochs whose Parquet segments are left out: another engine reads them.
    """

    storage: Storage = field(repr=False)
    stream_id: str
    version: int
    start: int
    end: int
    epochs: dict[int, str] = field(repr=False)
    schema: pa.Schema
    columns: tuple[str, ...]
    filters: Filters
    offset_column: str | None = None
    segment_column: str | None = None
    commit_time_column: str | None = None
    times: CommitTimes | None = field(default=None, repr=False)
    followers: tuple[str, ...] = ()
    settled: tuple[int, ...] = ()

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of what `run_task` yields."""
        fields = [self.schema.field(name) for name in self.columns]
        fields += [
            pa.field(name, pa.int64())
            for name in (self.offset_column, self.segment_column)
            if name is not None
        ]
        if self.commit_time_column is not None:
            fields.append(pa.field(self.commit_time_column, TIME_TYPE))
        return pa.schema(fields)

    @property
    def needed_schema(self) -> pa.Schema:
        """The columns that have to be decoded: those asked for and those filtered by."""
        wanted = dict.fromkeys((*self.columns, *self.filters.columns))
        # Rows have to be counted even when no column of the stream is asked for.
        found = [self.schema.field(name) for name in wanted] or [self.schema.field(0)]
        return pa.schema(found)


def plan_reading(
    storage: Storage,
    status: TableStatus,
    root: Root,
    bounds: tuple[int, int],
    *,
    columns: Sequence[str] | None,
    filters: str | Sequence[Sequence[Any]] | None,
    offset_column: str | None,
    segment_column: str | None,
    commit_time_column: str | None = None,
) -> Reading:
    """Work out what every task of a scan shares.

    Args:
        storage: The stream's folder.
        status: The stream's table status.
        root: The version to read as of.
        bounds: ``(start, end)`` offsets, checked.
        columns: Which columns, in order; None for all.
        filters: What rows have to satisfy.
        offset_column: Name of an extra column with offsets, or None.
        segment_column: Name of an extra column with segment ids, or None.
        commit_time_column: Name of an extra column with commit times, or None.

    Raises:
        InvalidInputError: A column or a filter is not valid, or a column would be there twice.
        IncompleteStreamError: A copy into the stream was not done as of that version.
        FormatError: A schema can't be read.
        StorageError: The storage failed.
    """
    check_complete(root, url=storage.url)
    schema = epoch_schema(status, root.epoch)
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise InvalidInputError(
            "not names of columns", remedy="give columns as a list of texts", columns=columns
        )
    chosen = tuple(schema.names if columns is None else columns)
    asked = (offset_column, segment_column, commit_time_column)
    extra = [name for name in asked if name is not None]
    if not all(isinstance(name, str) and name for name in extra):
        raise InvalidInputError("not a name of a column", remedy="give a text", names=extra)
    known = {*schema.names}
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise InvalidInputError("no such columns", columns=unknown, known=schema.names)
    if len({*chosen, *extra}) != len(chosen) + len(extra) or {*extra} & known:
        raise InvalidInputError(
            "a column would be there twice",
            remedy="choose another name",
            columns=list(chosen),
            extra=extra,
        )
    return Reading(
        storage=storage,
        stream_id=root.stream_id,
        version=root.version,
        start=bounds[0],
        end=bounds[1],
        epochs={epoch.number: status.schema_texts(epoch)[0] for epoch in root.epochs},
        schema=schema,
        columns=chosen,
        filters=parse_filters(filters, schema),
        offset_column=offset_column,
        segment_column=segment_column,
        commit_time_column=commit_time_column,
        followers=followers_of(root),
    )


def plan_range(status: TableStatus, root: Root, reading: Reading) -> SliceTable:
    """Return what to read of each segment for the events of a reading, in offset order.

    Raises:
        FormatError: A status part can't be read.
        StorageError: The storage failed.
    """
    schemas: dict[int, pa.Schema] = {}
    if reading.filters:
        schemas = {number: decode_schema(text) for number, text in reading.epochs.items()}
    tables = []
    for run in status.runs(root, reading.start, reading.end):
        kept = _matching(run, reading.filters, schemas) if reading.filters else None
        tables.append(SliceTable.of_run(run, reading.start, reading.end, kept))
    slices = SliceTable.join(tables)
    return slices.select(PARQUET, reading.settled, others=True) if reading.settled else slices


def _matching(run: Run, filters: Filters, schemas: dict[int, pa.Schema]) -> Ints:
    """Return the rows of a run whose statistics leave room for an event that passes."""
    facts = zip(
        run.load_stats(), run.columns.epochs.tolist(), run.columns.rows.tolist(), strict=True
    )
    kept = [
        row
        for row, (text, epoch, rows) in enumerate(facts)
        if text is None
        or filters.may_match(_stats(text, schemas.get(epoch), run.columns, row), rows)
    ]
    return np.array(kept, np.int64)


def _stats(text: str, schema: pa.Schema | None, columns: SegmentColumns, row: int) -> Stats:
    try:
        return _parse_stats(text, schema, where="")
    except CorruptionError:
        return _parse_stats(text, schema, where=columns.path(row))


def _parse_stats(text: str, schema: pa.Schema | None, *, where: str) -> Stats:
    return from_json(parse_json(text.encode(), where=where), where=where, schema=schema)


def plan_slices(segments: Iterable[PlacedSegment], start: int, end: int) -> list[Slice]:
    """Return what to read of each segment for the events ``[start, end)``. Pure."""
    slices = []
    for placed in segments:
        entry = placed.entry
        first = max(start - placed.start, 0)
        last = min(end - placed.start, entry.rows)
        if first >= last:
            continue
        slices.append(
            Slice(
                path=entry.path,
                segment_id=entry.segment_id,
                start=placed.start,
                epoch=entry.epoch,
                bytes=entry.bytes,
                footer_bytes=entry.footer_bytes,
                footer_crc=entry.footer_crc,
                segment_rows=entry.rows,
                rows=(first, last),
                claim=(0, entry.rows),
                format=entry.format,
            )
        )
    return slices


def plan_tasks(
    slices: Sequence[Slice],
    *,
    partition_bytes: int,
    partition_rows: int | None = None,
    min_partitions: int | None = None,
) -> list[ReadTask]:
    """Pack slices into tasks of about the target: large ones split, small ones together. Pure.

    Args:
        slices: In offset order.
        partition_bytes: Encoded bytes per task, about (>= 1).
        partition_rows: Rows per task, about (>= 1); None for any.
        min_partitions: Tasks wanted at least, where there are rows enough; None for any.

    Returns:
        Tasks in offset order, none of them empty.
    """
    if isinstance(slices, SliceTable) and slices.exact:
        return _plan_columns(slices, partition_bytes, partition_rows, min_partitions)
    total_bytes = sum(one.claimed_bytes for one in slices)
    total_rows = sum(one.claimed_rows for one in slices)
    targets = _targets(partition_bytes, partition_rows, min_partitions, total_bytes, total_rows)
    most_bytes, most_rows = targets
    tasks: list[ReadTask] = []
    packed: list[Slice] = []
    used_bytes = used_rows = 0
    for piece in (piece for one in slices for piece in _split(one, most_bytes, most_rows)):
        size, rows = piece.claimed_bytes, piece.claimed_rows
        # A tenth over the target is better than a task for the rest.
        over = used_bytes + size > most_bytes * 1.1 or used_rows + rows > most_rows * 1.1
        if packed and over:
            tasks.append(ReadTask(tuple(packed)))
            packed, used_bytes, used_rows = [], 0, 0
        packed.append(piece)
        used_bytes += size
        used_rows += rows
    if packed:
        tasks.append(ReadTask(tuple(packed)))
    return tasks


def _plan_columns(
    slices: SliceTable,
    partition_bytes: int,
    partition_rows: int | None,
    min_partitions: int | None,
) -> list[ReadTask]:
    sizes, rows = slices.sizes()
    most_bytes, most_rows = _targets(
        partition_bytes, partition_rows, min_partitions, int(sizes.sum()), int(rows.sum())
    )
    pieces = slices.split(most_bytes, most_rows)
    if len(pieces) != len(slices):
        sizes, rows = pieces.sizes()
    borders = plan_borders(sizes, rows, most_bytes, most_rows)
    return [ReadTask(pieces[start:end]) for start, end in pairwise(borders)]


def _targets(
    partition_bytes: int,
    partition_rows: int | None,
    min_partitions: int | None,
    total_bytes: int,
    total_rows: int,
) -> tuple[int, int]:
    """Return the bytes and the rows that a task may hold, about."""
    most_bytes, most_rows = partition_bytes, partition_rows or EXACT_LIMIT
    if min_partitions:
        most_bytes = max(1, min(most_bytes, -(-total_bytes // min_partitions)))
        most_rows = max(1, min(most_rows, -(-total_rows // min_partitions)))
    return most_bytes, most_rows


def _split(one: Slice, most_bytes: int, most_rows: int) -> Iterator[Slice]:
    first, last = one.rows
    rows = last - first
    pieces = max(round(one.claimed_bytes / most_bytes), -(-rows // most_rows), 1)
    pieces = min(pieces, rows)
    borders = [first + rows * piece // pieces for piece in range(1, pieces)]
    # The first piece claims the frame that straddles the first row, wherever it starts.
    for claim in pairwise([0, *borders, one.segment_rows]):
        yield replace(one, claim=claim)


def date_tasks(
    history: History, root: Root, reading: Reading, tasks: Sequence[ReadTask]
) -> list[ReadTask]:
    """Return the tasks of a scan with the commits of their events.

    Raises:
        NotFoundError: The stream is older than its history, and so are events of the range.
        FormatError: The history can't be read.
        StorageError: The storage failed.
    """
    if not tasks:
        return []
    times = CommitTimes(*history.commit_times(root, reading.start, reading.end))
    dated = []
    for task in tasks:
        first, last = task.slices[0], task.slices[-1]
        span = (first.start + first.rows[0], last.start + last.rows[1])
        dated.append(replace(task, times=times.within(*span)))
    return dated
