"""Planning a scan: find the segments that hold a range, and pack their rows into tasks.

A plan is bound to one version and picklable; a task needs only the storage. Large segments are
split without opening them: a task claims the frames that *start* within its rows, so exactly one
task decodes each frame. Commit times come from the history, which is never rewritten; a task has
only those of its own events, so a long history does not make tasks large.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Any, Self

import numpy as np
import pyarrow as pa

from segstore_ds.errors import InvalidInputError, MissingObjectError, SchemaMismatchError
from segstore_ds.format.indexed_columns import key_columns_of
from segstore_ds.format.parts.rows import Ints
from segstore_ds.format.root import Root
from segstore_ds.format.schema.codec import decode_schema
from segstore_ds.format.schema.column_names import with_names
from segstore_ds.format.schema.widening import is_wider
from segstore_ds.format.segment import PARQUET, SegmentIndex
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import forgotten_version, replaced_stream
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options import table as options
from segstore_ds.options.arguments import check_option
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.prune import (
    Key,
    looks_up,
    may_hold_keys,
    may_match,
    part_test,
    segments_to_read,
)
from segstore_ds.status.slices import EXACT_LIMIT, SliceTable, plan_borders
from segstore_ds.status.table_status import Slice, TableStatus, slices_of_entries
from segstore_ds.storage import Storage
from segstore_ds.storage.base import Mirrors

TIME_TYPE = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, eq=False)
class CommitTimes:
    """The commits of a range of events: ascending end offsets, and times in microseconds."""

    ends: Ints
    times_us: Ints

    def within(self, start: int, end: int) -> "CommitTimes":
        """Return the commits of the events `[start, end)`."""
        low = int(np.searchsorted(self.ends, start, "right"))
        high = int(np.searchsorted(self.ends, end, "left")) + 1
        return CommitTimes(self.ends[low:high], self.times_us[low:high])

    def column(self, start: int, rows: int) -> pa.Array:
        """Return the commit time of each of `rows` events from the offset `start` on.

        >>> times = CommitTimes(np.array([2, 5]), np.array([10, 20]))
        >>> times.column(1, 3).cast("int64").to_pylist()
        [10, 20, 20]
        """
        found = np.searchsorted(self.ends, np.arange(start, start + rows), "right")
        return pa.array(self.times_us[found]).view(TIME_TYPE)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The slices that one task reads, in offset order, and commit times if requested."""

    slices: Sequence[Slice]
    times: CommitTimes | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The plan that all tasks of a scan share; picklable.

    `Stream.scan` describes its arguments, which are fields here. `epochs` has the schema text of
    each epoch by its number, `schema` is that of the version, and `mirrors` are other folders,
    which are read if a segment is damaged here. Parquet segments of `native_epochs` are left out,
    because another engine reads them. Segments may be looked up by values of the `key_columns`.
    `stored` has the stored name of each column whose name differs from it. If several streams are
    read together, `stream` is the name of the column of streams' names, and this stream's name.
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
    mirrors: Mirrors | None = None
    native_epochs: tuple[int, ...] = ()
    read_cache_bytes: int = 0
    key_columns: tuple[str, ...] = ()
    stored: Mapping[str, str] = field(default_factory=dict)
    stream: tuple[str, str] | None = None

    @classmethod
    def of(cls, context: StreamContext, root: Root, **how: Any) -> Self:
        """Return a plan with the fields that follow from the version itself."""
        return cls(
            storage=context.storage,
            stream_id=root.stream_id,
            version=root.version,
            epochs={epoch.number: context.status.schema_texts(epoch)[0] for epoch in root.epochs},
            mirrors=context.log.seams.of(root).mirrors(root),
            key_columns=key_columns_of(root),
            **how,
        )

    @property
    def looks_up(self) -> bool:
        """Whether a filter asks for values of a key column, which most segments do not have."""
        return looks_up(self.pruning, self.key_columns)

    @property
    def pruning(self) -> Filters:
        """The filters under stored names, which statistics and Bloom filters of segments use."""
        # If streams are read together, an expression may use the column of their names.
        filters = replace(self.filters, expressions=()) if self.stream else self.filters
        return filters.renamed(self.stored) if self.stored else filters

    def as_stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of some columns under their stored names."""
        if not self.stored:
            return schema
        return with_names(schema, [self.stored.get(name, name) for name in schema.names])

    def check_goes_on(self, later: "Reading", *, remedy: str) -> None:
        """Raise SchemaMismatchError unless a later plan still reads the columns of this one.

        A column is the same if it has the same stored name, and its type or a wider one. The later
        plan may have more columns.
        """
        same = (self.columns, self.stored) == (later.columns, later.stored)
        if same and self.schema is later.schema:  # the usual case while following
            return
        now = later.needed_schema
        known = {*now.names}
        changed = [
            mine.name
            for mine in self.needed_schema
            if mine.name not in known
            or self.stored.get(mine.name, mine.name) != later.stored.get(mine.name, mine.name)
            or not is_wider(mine, now.field(mine.name))
        ]
        if changed:
            raise SchemaMismatchError(
                "columns were renamed, dropped or replaced while they were read",
                remedy=remedy,
                columns=changed,
            )

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the batches that `run_task` yields."""
        fields = [self.schema.field(name) for name in self.columns]
        fields += [
            pa.field(name, pa.int64())
            for name in (self.offset_column, self.segment_column)
            if name is not None
        ]
        if self.commit_time_column is not None:
            fields.append(pa.field(self.commit_time_column, TIME_TYPE))
        if self.stream is not None:
            fields.append(pa.field(self.stream[0], pa.string()))
        return pa.schema(fields)

    @property
    def needs_data(self) -> bool:
        """Whether segments must be read: offsets, ids, commit times and counts need none."""
        return bool(self.columns or self.filters)

    @property
    def needed_schema(self) -> pa.Schema:
        """The schema of the columns to decode: requested columns and filtered ones."""
        wanted = dict.fromkeys((*self.columns, *self.filters.columns))
        if self.stream is not None:
            wanted.pop(self.stream[0], None)
        # Spark reads one column of a Parquet file, to count rows, if none is requested.
        found = [self.schema.field(name) for name in wanted] or [self.schema.field(0)]
        return pa.schema(found)


def plan_range(status: TableStatus, root: Root, reading: Reading) -> SliceTable:
    """Return the slices of segments to read, in offset order; statistics skip whole segments."""
    try:
        return _plan_range(status, root, reading)
    except MissingObjectError:
        check_kept(reading)
        raise


def check_kept(reading: Reading) -> None:
    """Raise SnapshotExpiredError if a version with a missing status part was forgotten."""
    _, newest = reopen(reading.storage, reading.stream_id)
    if reading.version < newest.log_start:
        raise forgotten_version(reading.version, newest.log_start, stream=reading.stream_id)


def reopen(storage: Storage, stream_id: str) -> tuple[StreamContext, Root]:
    """Open the stream of a plan, for a task, which has no handle; return its newest root, too."""
    log = StreamLog(storage)
    newest = log.reopen()
    if newest.stream_id != stream_id:
        raise replaced_stream(storage.url, stream_id, newest)
    return StreamContext.of(log), newest


def _plan_range(status: TableStatus, root: Root, reading: Reading) -> SliceTable:
    filters, by_key = reading.pruning, reading.looks_up
    schema = reading.as_stored(reading.schema)
    schemas: dict[int, pa.Schema] = {}
    if filters:
        schemas = {number: decode_schema(text) for number, text in reading.epochs.items()}
    span, wanted = (reading.start, reading.end), part_test(filters, schema)
    tables = []
    for run in status.runs(
        root, *span, with_stats=bool(filters), with_filters=by_key, wanted=wanted
    ):
        kept = None
        if filters:
            kept = segments_to_read(run, filters, schema, schemas, looks_up=by_key)
        tables.append(SliceTable.of_run(run, *span, kept))
    slices = SliceTable.join(tables)
    if not reading.native_epochs:
        return slices
    return slices.select(PARQUET, reading.native_epochs, others=True)


def plan_tasks(
    slices: SliceTable,
    *,
    partition_bytes: int,
    partition_rows: int | None = None,
    min_partitions: int | None = None,
) -> list[ReadTask]:
    """Pack slices into tasks of about the target size: split large slices, join small ones. Pure.

    Slices and tasks are in offset order, and no task is empty. `min_partitions` is the least number
    of tasks if there are enough rows.
    """
    slices = slices.exact()
    sizes, rows = slices.sizes()
    most_bytes, most_rows = partition_bytes, partition_rows or EXACT_LIMIT
    if min_partitions:
        most_bytes = max(1, min(most_bytes, -(-int(sizes.sum()) // min_partitions)))
        most_rows = max(1, min(most_rows, -(-int(rows.sum()) // min_partitions)))
    pieces = slices.split(most_bytes, most_rows, partition_rows)
    if len(pieces) != len(slices):
        sizes, rows = pieces.sizes()
    borders = plan_borders(sizes, rows, most_bytes, most_rows)
    return [ReadTask(pieces[start:end]) for start, end in pairwise(borders)]


def plan_frames(
    index: SegmentIndex,
    slice_: Slice,
    filters: Filters,
    schema: pa.Schema | None = None,
    keys: Sequence[Key] = (),
) -> Iterator[tuple[int, int]]:
    """Yield the number of each frame of a segment to read, and its first row. Pure.

    `schema` has the filtered columns; `keys` are the values that the filters look up, in the types
    of the slice's epoch.
    """
    row, frames = 0, index.frames
    kept: Iterable[bool] = repeat(True)
    if schema is not None and filters:
        counts = np.array([frame.rows for frame in frames])
        kept = may_match(filters, schema, lambda: index.stats, counts)
    for number, (frame, may) in enumerate(zip(frames, kept, strict=False)):
        claimed = slice_.claim[0] <= row < slice_.claim[1]
        wanted = row < slice_.rows[1] and row + frame.rows > slice_.rows[0]
        if claimed and wanted and may and (not keys or may_hold_keys(keys, frame.filters)):
            yield number, row
        row += frame.rows


def split_reading(
    context: StreamContext,
    reading: Reading,
    *,
    root: Root,
    partition_bytes: int = options.default("partitionBytes"),
    partition_rows: int | None = None,
    min_partitions: int | None = None,
) -> list[ReadTask]:
    """Split a read into tasks by the version that it is bound to; `Scan.tasks` describes it."""
    _check_bound(root, reading)
    tasks = plan_tasks(
        plan_range(context.status, root, reading),
        partition_bytes=check_option("partition_bytes", partition_bytes),
        partition_rows=check_option("partition_rows", partition_rows),
        min_partitions=check_option("min_partitions", min_partitions),
    )
    return _dated(context, root, reading, tasks)


def whole_reading(context: StreamContext, reading: Reading, *, root: Root) -> list[ReadTask]:
    """Return a read as one task, for a process that reads all of it; none if nothing can match."""
    _check_bound(root, reading)
    if reading.filters or reading.native_epochs or reading.start < root.inline_start:
        slices: Sequence[Slice] = plan_range(context.status, root, reading)
    else:
        slices = slices_of_entries(root, reading.start, reading.end)
    return _dated(context, root, reading, [ReadTask(slices)] if slices else [])


def _check_bound(root: Root, reading: Reading) -> None:
    if (root.stream_id, root.version) != (reading.stream_id, reading.version):
        raise InvalidInputError(
            "read is bound to another stream or version",
            bound=(reading.stream_id, reading.version),
            given=(root.stream_id, root.version),
        )


def _dated(
    context: StreamContext, root: Root, reading: Reading, tasks: list[ReadTask]
) -> list[ReadTask]:
    """Return tasks, each with the commits of its events if their times are asked for."""
    if reading.commit_time_column is None or not tasks:
        return tasks
    try:
        found = context.log.history.commit_times(root, reading.start, reading.end)
    except MissingObjectError:
        check_kept(reading)
        raise
    times = CommitTimes(*found)
    dated = []
    for task in tasks:
        first, last = task.slices[0], task.slices[-1]
        span = (first.start + first.rows[0], last.start + last.rows[1])
        dated.append(replace(task, times=times.within(*span)))
    return dated
