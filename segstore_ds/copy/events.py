"""Copies a range of a stream to a new stream, event by event, as one commit.

The events are decoded and encoded again. The destination has the source's newest schema as of the
first run, offsets from 0, and segments of its own sizes, whatever epochs and segments the source
has. The first run binds the range (`copy.staging`). One process or many stage its pieces in any
order, and the destination's first root lists them all. Before that there is no stream; a run that
resumes stages what is missing. Memory is bounded by the buffers of one writing task and the frames
that are decoded, and by the list of the segments.

A job may stage rows of its own instead (`copy.event_rows`).

Source: the first approach of Pravega's copyStream.
"""

import os
import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from segstore_ds.copy.destination import (
    Copied,
    CopyRequest,
    Destination,
    bytes_of,
    open_destination,
)
from segstore_ds.copy.staging import (
    CopyPlan,
    Range,
    StagedPiece,
    clear,
    find_gaps,
    open_plan,
    put_piece,
    read_pieces,
)
from segstore_ds.errors import (
    ConflictError,
    CorruptionError,
    MissingObjectError,
    SnapshotExpiredError,
    TruncatedError,
)
from segstore_ds.format.copies import EVENTS
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.properties import inherited_properties
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.format.schema.codec import decode_schema, encode_schema
from segstore_ds.format.schema.column_names import named_schema
from segstore_ds.format.schema.conversion import convert
from segstore_ds.log.context import StreamContext, run_here
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.read.cuts import Position, check_position
from segstore_ds.read.plan import plan_range, plan_tasks
from segstore_ds.read.request import plan_reading
from segstore_ds.read.scan import run_task
from segstore_ds.status.epochs import called_columns
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import Target
from segstore_ds.write.task_writer import TaskWriter

PIECE_BYTES = 256 << 20  # encoded bytes of the source per piece, approximately
LEAST_PIECE_ROWS = 1 << 12
READ_THREADS = 4
Schema = tuple[str, str | None]  # encoded Arrow schema, and Spark's JSON


@dataclass(frozen=True, slots=True)
class EventsCopy:
    """What all runs and tasks of a copy by events share; picklable."""

    source: Storage = field(repr=False)  # the source's folder
    to: Destination  # the destination, with the source's version that is read first
    schema: Schema  # of the events in the destination
    made_by: str  # as in `StagedPiece`
    plan: CopyPlan | None = None  # what the first run fixed; None if the copy is done
    properties: Mapping[str, str] = field(default_factory=dict)  # of the destination
    threads: int = 1  # how many threads read a piece

    @property
    def bounds(self) -> Range:
        """The offsets that are copied."""
        if self.plan is not None:
            return self.plan.start, self.plan.end
        return (self.to.done.start, self.to.done.end) if self.to.done else (0, 0)

    def missing(self, pieces: int = 1) -> list[Range]:
        """Return the ranges that are not staged yet, each of at most `pieces` pieces."""
        if self.plan is None:
            return []
        most = self.plan.piece_rows * pieces
        return find_gaps(
            self.to.storage, self.to.request.copy_id, self.made_by, self.bounds, most=most
        )

    def run(self, rows: Iterable[Range]) -> Generator[int, None, None]:
        """Stage ranges of the source's events; yield the number of segments of each."""
        context = StreamContext.of(StreamLog(self.source))
        context.log.adopt(self.to.source)
        for bounds in rows:
            segments = self._stage(context, bounds)
            piece = StagedPiece(*bounds, self.made_by, segments)
            counts = put_piece(self.to.storage, self.to.request.copy_id, piece)
            yield len(segments) if counts else 0

    def size(self, rows: Iterable[Range]) -> int:
        """Return the encoded bytes of the segments in some ranges."""
        return bytes_of(TableStatus(self.source), self.to.source, rows)

    def commit(self) -> Copied:
        """Create the destination's first root, which lists the pieces of all runs."""
        if self.to.done is not None:
            return self.to.done
        copy_id, plan = self.to.request.copy_id, self.plan
        try:
            segments: list[SegmentEntry] = []
            for piece in read_pieces(self.to.storage, copy_id, self.made_by, self.bounds):
                segments += piece.segments
        except MissingObjectError:
            # A run that has committed deletes the pieces.
            done = self.to.find_done()
            if done is None:
                raise
            return done
        if plan is not None and plan.schema is not None:
            _check_rows(segments, plan.end - plan.start, self.to.storage.url)
        return self.commit_segments(segments)

    def commit_segments(self, segments: Sequence[SegmentEntry]) -> Copied:
        """Create the destination's first root, which lists these segments."""
        entries = tuple(segment.numbered(number) for number, segment in enumerate(segments))
        copied = self.to.commit(
            entries,
            (0, sum(entry.rows for entry in entries)),
            copied=self.bounds,
            mode=EVENTS,
            epochs=[(0, *self.schema, {})],
            properties=self.properties,
        )
        clear(self.to.storage, self.to.request.copy_id)
        return copied

    def _stage(self, context: StreamContext, bounds: Range) -> tuple[SegmentEntry, ...]:
        while True:
            root = context.log.root
            try:
                return self._write(context, root, bounds)
            except SnapshotExpiredError:
                # Compacted and deleted meanwhile: other segments have the same events now.
                if context.log.refresh().version == root.version:
                    raise

    def _write(self, context: StreamContext, root: Root, bounds: Range) -> tuple[SegmentEntry, ...]:
        """Write the events of a range, read from one version of the source."""
        start, end = bounds
        if self.plan is not None:
            check_position(root, Position(self.plan.source, self.plan.generation, start))
        if start < root.head:
            raise TruncatedError(
                "events were dropped before they were copied",
                remedy="copy the events that are left, under another id",
                lost=f"[{start}, {min(root.head, self.bounds[1])})",
                head=root.head,
            )
        schema = decode_schema(self.schema[0])
        # Columns may be renamed during the copy: find the planned ones by their stored names.
        known = called_columns(context.status, root.epoch)
        planned = decode_schema(self.plan.schema or "") if self.plan is not None else schema
        pairs = zip(planned.names, schema.names, strict=True)
        found = {name: known[one] for one, name in pairs if one in known}
        columns, present = [*found.values()], [*found]
        # The copy reads each event once, so caching would only evict what others read again.
        reading = plan_reading(context, root, start, end, columns=columns, read_cache_bytes=0)
        tasks = plan_tasks(plan_range(context.status, root, reading), partition_bytes=PIECE_BYTES)
        batches = (
            _narrow(batch.rename_columns(present), schema)
            for task in tasks
            for batch in run_task(reading, task, threads=self.threads)
        )
        target = Target(self.to.storage, schema, Layout(inline_bytes=0), self.to.request.token)
        staged = TaskWriter(target, start, secrets.token_hex(6)).stage(batches)
        _check_rows(staged.segments, end - start, context.storage.url)
        return staged.segments


def run_copy_events(
    context: StreamContext, target: Storage, request: CopyRequest, *, progress: Progress = unheard
) -> Copied:
    """Copy a range to a new stream, or continue a copy that was begun."""
    context.log.refresh()
    copy = plan_copy_events(context, target, request)
    if copy.to.done is not None:
        return copy.to.done
    if context.launch is run_here:
        copy = replace(copy, threads=min(os.cpu_count() or 1, READ_THREADS))
    missing, (start, end) = copy.missing(), copy.bounds
    done, staged = end - start - sum(last - first for first, last in missing), 0
    with closing(context.launch(copy, missing)) as counts:
        for (first, last), segments in zip(missing, counts, strict=True):
            staged += segments
            done += last - first
            progress(done, end - start)
    copied = copy.commit()
    return copied if copied.repeated else replace(copied, reused=copied.segments - staged)


def plan_copy_events(
    context: StreamContext,
    target: Storage,
    request: CopyRequest,
    *,
    rows: Schema | None = None,
    made_by: str | None = None,
) -> EventsCopy:
    """Plan a copy, or read the plan of its first run; `context` is the source's, refreshed.

    `rows` is the schema of a job's rows, and `made_by` tells the job from others.
    """
    to = open_destination(context, target, request)
    root = to.source

    def propose() -> CopyPlan:
        start, end = request.bind(context, root)
        text, spark = (None, None) if rows else context.status.schema_texts(root.epoch)
        return CopyPlan(
            root.stream_id,
            root.generation,
            root.version,
            start,
            end,
            request.digest(root),
            _piece_rows(context, root, (start, end)),
            text,
            spark,
            {} if rows else root.epoch.names,
        )

    plan = None if to.done else open_plan(target, request.copy_id, propose)
    if plan is None:
        to = replace(to, done=to.done or to.find_done())
        if to.done is None:
            raise ConflictError("the copy was made and dropped in the meantime", url=target.url)
        return EventsCopy(context.storage, to, rows or ("", None), "")
    if plan.source == root.stream_id:
        check_position(root, Position(plan.source, plan.generation, plan.start))
    request.check_digest(plan.digest, root, url=target.url)
    schema = rows or (_named(plan), plan.spark_schema)
    return EventsCopy(
        context.storage,
        to,
        schema,
        made_by or digest_of(schema[0].encode())[:12],
        plan,
        properties={} if rows else inherited_properties(root, plan.names),
    )


def _named(plan: CopyPlan) -> str:
    """Return the encoded schema of the copy, with the column names that callers see."""
    return encode_schema(named_schema(decode_schema(plan.schema or ""), plan.names))


def _piece_rows(context: StreamContext, root: Root, bounds: Range) -> int:
    rows = size = 0
    for run in context.status.runs(root, *bounds):
        rows += int(run.columns.rows.sum())
        size += int(run.columns.bytes.sum())
    return max(LEAST_PIECE_ROWS, rows * PIECE_BYTES // max(size, 1))


def _check_rows(segments: Sequence[SegmentEntry], expected: int, url: str) -> None:
    rows = sum(segment.rows for segment in segments)
    if rows != expected:
        raise CorruptionError(
            "the source has another number of events than it lists",
            url=url,
            copied=rows,
            expected=expected,
        )


def _narrow(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert events to the schema of the copy, which may be older than the source's newest.

    Columns that were added since are left out. The values of columns that were widened since still
    fit, because they were stored in the narrower type.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    present = {*batch.schema.names}
    columns = [
        convert(batch.column(field.name), field.type, field.name)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
