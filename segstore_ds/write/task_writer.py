"""Staging: batches become frames, frames become segment objects that no commit names yet.

Runs in every writing task. Small batches are first gathered into frames of about the target size. A
task whose output stays within `inline_bytes` writes nothing: its frames travel to the driver, which
writes one segment for all such tasks. All other bytes go through the write cache. Nothing staged is
visible before a commit names it, and no two attempts share a name, so a task may be repeated,
killed or run twice.
"""

import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.commit.replicas import ShipTo
from segstore_ds.errors import ClosedError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.batch_fingerprint import BatchFacts, BatchTally, label_stats
from segstore_ds.format.rows import halve_until, slice_evenly
from segstore_ds.format.segment import ARROW
from segstore_ds.format.statistics import merge
from segstore_ds.storage import Storage
from segstore_ds.write.layout import FRAME_BYTES, STATS_COLUMNS, Layout
from segstore_ds.write.segment_writer import SegmentWriter, open_pool
from segstore_ds.write.staged import (
    StagedSegment,
    StagedTask,
    delete_staged,
    entry_stats,
    staged_segment,
)
from segstore_ds.write.task_segments import TaskSegments, decode_staged

__all__ = [
    "INLINE_COMMIT_BYTES",
    "STATS_COLUMNS",
    "Layout",
    "StagedSegment",
    "StagedTask",
    "TaskWriter",
    "delete_staged",
    "entry_stats",
    "split_batch",
    "stage_frames",
    "staged_segment",
]

_LOG = logging.getLogger(__name__)

INLINE_COMMIT_BYTES = 8 << 20
# A gathered batch may keep this many times its own size alive, or this many bytes.
HELD_TIMES, HELD_BYTES = 2, 256
SURELY_LARGER = 64  # assume that compression never exceeds this ratio


class TaskWriter:
    """Stages the output of one task; created by `WriteJob.open_task`.

    Args:
        storage: The stream's folder.
        schema: The stored schema; batches must have exactly this schema.
        layout: Sizes and compression.
        token: The write job's folder.
        task: The task's number in the job; events are ordered by it.
        attempt: A text that is different for every attempt of any task.
        count_only: Stage nothing and only count rows, because the writer's batch is committed and
            will be compared.
        readable: Allow `read`, until `close`.
        counters: The write cache's counters.
        ship_to: The followers that receive every buffer.

    After `finish` or `abort` every call raises ClosedError, except that `read` still works after
    `finish`.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        layout: Layout,
        *,
        token: str,
        task: int,
        attempt: str,
        count_only: bool = False,
        readable: bool = False,
        counters: CacheCounters | None = None,
        ship_to: ShipTo | None = None,
    ) -> None:
        self._storage = storage
        self._schema = schema
        self._layout = layout
        self._task = task
        self._stats_columns = layout.chosen_stats(schema)
        self._inline_limit = min(layout.inline_bytes, INLINE_COMMIT_BYTES // (task + 1))
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._inline: list[Frame] = []
        self._inline_bytes = 0
        self._readable = readable
        self._counters = counters or CacheCounters()
        self._segments = TaskSegments(
            storage,
            schema,
            layout,
            token=names.check_token(token),
            prefix=f"{task}-{attempt}",
            readable=readable,
            counters=self._counters,
            ship_to=ship_to,
        )
        self._rows = 0
        self._tally = BatchTally(schema, self._stats_columns) if count_only else None
        self._closed = False

    def append(self, batch: pa.RecordBatch) -> None:
        """Take a batch; encodes and writes when a frame is full.

        Args:
            batch: Rows in exactly the job's schema, of any size.

        Raises:
            StorageError: The storage failed.
            InvalidInputError: The batch can't be encoded.
            ClosedError: The writer was finished or aborted.
        """
        self._check_open()
        self._rows += batch.num_rows
        if self._tally is not None:
            self._tally.add(batch)
            return
        fresh = 0
        for piece in split_batch(batch, self._layout.frame_rows, FRAME_BYTES):
            size = piece.nbytes
            full = self._gathered_rows + piece.num_rows > self._layout.frame_rows
            if full or self._gathered_bytes + size > FRAME_BYTES:
                self._encode(full=True)
                fresh = 0
            self._gathered.append(piece)
            self._gathered_rows += piece.num_rows
            self._gathered_bytes += size
            fresh += 1
        # Copy only the pieces that stay gathered: the others are encoded already.
        for place in range(len(self._gathered) - fresh, len(self._gathered)):
            self._gathered[place] = _without_parent(self._gathered[place])

    def append_frame(self, frame: Frame) -> None:
        """Append a frame as it is; raises as `append`."""
        self._check_open()
        self._rows += frame.rows
        self._encode(full=True)
        self._place(frame, full=True)

    def finish(self) -> StagedTask:
        """Write the remaining rows and make everything durable; raises as `append`.

        Returns:
            The staged task, to hand to `Stream.commit`; picklable.
        """
        self._check_open()
        self._encode(full=False)
        self._segments.finish()
        self._closed = True
        if not self._readable:
            self.close()
        _LOG.info("task %d staged %d rows; write cache: %s", self._task, self._rows, self._counters)
        return StagedTask(
            task=self._task,
            host=socket.gethostname(),
            rows=self._rows,
            segments=tuple(self._segments.staged),
            frames=tuple(self._inline),
            stats=self._facts().stats,
        )

    def _facts(self) -> BatchFacts:
        if self._tally is not None:
            return self._tally.facts
        inline = ((frame.rows, frame.stats) for frame in self._inline)
        return BatchFacts(
            self._rows, label_stats(merge([*self._segments.stats, *inline]), self._schema)
        )

    def abort(self) -> None:
        """Delete what was staged, best effort; never raises, safe to repeat."""
        self._closed = True
        self._segments.abort()
        self.close()
        delete_staged(self._storage, self._segments.staged)

    def close(self) -> None:
        """End reading and free the buffers, after `finish`; never raises, safe to repeat."""
        self._segments.close()

    @property
    def schema(self) -> pa.Schema:
        """The schema that batches must have."""
        return self._schema

    @property
    def rows(self) -> int:
        """How many rows were taken."""
        return self._rows

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield rows `[start, end)` of those taken so far, staged or not, as batches in order.

        Raises:
            InvalidInputError: The writer is not readable.
            FormatError: Staged bytes are damaged or missing.
            StorageError: The storage failed.
            ClosedError: The writer was aborted or closed.
        """
        if not self._readable:
            raise InvalidInputError("writer is not readable", remedy="make it with readable=True")
        place = 0
        for rows, decode in self._sources():
            first, last = max(start - place, 0), min(end - place, rows)
            if first < last:
                yield decode().slice(first, last - first)
            place += rows

    def _sources(self) -> Iterator[tuple[int, Callable[[], pa.RecordBatch]]]:
        for frame in self._segments.frames:
            yield frame.rows, partial(frame.decode, self._schema)
        for inline in self._inline:
            yield (
                inline.rows,
                partial(decode_staged, inline, inline.data, self._schema, "inline frame"),
            )
        for batch in self._gathered:
            yield batch.num_rows, partial(_itself, batch)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("task writer was closed", task=self._task)

    def _encode(self, *, full: bool) -> None:
        """Encode the gathered rows; `full` says that more follow, so the task is not small."""
        if not self._gathered_rows:
            return
        batch = _concat(self._gathered)
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        if self._segments.begun:
            self._segments.write(batch, bulk=full)
            return
        large = full and batch.nbytes > SURELY_LARGER * self._inline_limit
        if large and self._segments.format_for(bulk=full) != ARROW:
            self._begin([*self._inline, batch], full=full)
        else:
            self._place(self._layout.encode(batch, self._stats_columns), full=full)

    def _place(self, frame: Frame, *, full: bool) -> None:
        if self._segments.begun:
            self._segments.write(frame, bulk=full)
            return
        self._inline.append(frame)
        self._inline_bytes += frame.data.size
        if self._inline_bytes > self._inline_limit:
            self._begin(self._inline, full=full or len(self._inline) > 1)

    def _begin(self, pieces: Sequence[Frame | pa.RecordBatch], *, full: bool) -> None:
        self._inline = []
        for piece in pieces:
            self._segments.write(piece, bulk=full)


def _itself(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def stage_frames(
    storage: Storage, frames: Iterable[Frame], *, path: str, ship_to: ShipTo | None = None
) -> StagedSegment:
    """Write frames of several tasks as one segment, in the order given."""
    pool = open_pool(storage, buffers=Layout().cache_buffers)
    writer = SegmentWriter(storage, path, pool, CacheCounters(), ArrowEncoder(), ship_to=ship_to)
    try:
        for frame in frames:
            writer.add(frame)
        return staged_segment(writer, writer.finish())
    finally:
        writer.close()


def split_batch(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slice a batch into pieces of about equal rows, within both limits; zero-copy.

    Pieces over the byte limit are halved again, since rows may differ in width. A single row over
    the byte limit is one piece.
    """
    pieces = max(-(-batch.num_rows // most_rows), -(-batch.nbytes // most_bytes), 1)
    for piece in slice_evenly(batch, pieces):
        yield from halve_until(
            piece, lambda part: part if part.num_rows <= 1 or part.nbytes <= most_bytes else None
        )


def _without_parent(piece: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a slice if it would keep much more memory alive than its own."""
    held = piece.get_total_buffer_size()
    if held <= HELD_BYTES or held <= HELD_TIMES * piece.nbytes:
        return piece
    return pa.concat_batches([piece])


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)
