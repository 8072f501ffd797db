"""Staging: batches become frames, frames become segment objects that no commit names yet.

Runs in every writing task. Small batches are gathered into frames of a sensible size first. What
stays under `inline_bytes` is not written at all: its frames travel to the driver, which writes one
segment for all such tasks; all other bytes go through the write cache. Nothing staged is visible
before a commit names it, and no two attempts share a name, so a task may be repeated, killed or run
twice.
"""

import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.pool import BufferPool
from segstore_ds.cache.write_cache import Record
from segstore_ds.engine.segment_stager import SegmentStager, open_pool
from segstore_ds.engine.shipping import ShipTo
from segstore_ds.errors import ClosedError, InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.fields import build_json
from segstore_ds.format.frame import Frame, decode_frame, encode_frame
from segstore_ds.format.statistics import Stats, has_stats, to_json
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)

INLINE_COMMIT_BYTES = 8 << 20
STATS_COLUMNS = 32
ENTRY_STATS_BYTES = 600  # what one segment may add to the root


@dataclass(frozen=True, slots=True)
class Layout:
    """How bytes are laid out; the names are those of the options, the sizes in bytes and rows."""

    compression: str = options.default("compression")
    compression_level: int = options.default("compressionLevel")
    frame_rows: int = options.default("frameRows")
    frame_bytes: int = options.default("frameBytes")
    segment_rows: int | None = options.default("segmentRows")
    segment_bytes: int = options.default("segmentBytes")
    inline_bytes: int = options.default("inlineBytes")
    stats_columns: tuple[str, ...] | None = options.default("statsColumns")
    cache_buffer_bytes: int = options.default("cacheBufferBytes")
    cache_buffers: int = options.default("cacheBuffers")

    def chosen_stats(self, schema: pa.Schema) -> list[str]:
        """Return the columns to compute statistics of."""
        if self.stats_columns is not None:
            return [name for name in self.stats_columns if name in schema.names]
        return [field.name for field in schema if has_stats(field.type)][:STATS_COLUMNS]


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment object that was written and is durable, but not committed."""

    path: str
    rows: int
    bytes: int
    footer_bytes: int
    footer_crc: int
    stats: str | None
    format: str = "arrow"
    followers: tuple[str, ...] = ()  # that took every buffer of it


@dataclass(frozen=True, slots=True)
class StagedTask:
    """What one task staged: segments, or the frames of one that was too small to be written.

    Travels from executor to driver: picklable, and small but for `frames`, which stay under
    `inline_bytes`.
    """

    task: int
    host: str
    rows: int
    segments: tuple[StagedSegment, ...] = ()
    frames: tuple[Frame, ...] = ()


class TaskStager:
    """Stages the output of one task.

    Args:
        storage: The stream's folder.
        schema: The stored schema of what is written; batches must have exactly this schema.
        layout: Sizes and compression.
        token: The writing job's folder.
        task: The task's place in the job; it decides the order of events.
        attempt: Something no other attempt of this or another task has.
        count_only: Only count rows: the writer's batch was committed before.
        readable: Let `read` give rows back, until `close`.
        counters: Where the write cache counts.
        ship_to: The followers, which get every buffer too.

    After `finish` or `abort` every further call raises ClosedError, but for `read`, which goes on
    after `finish`.
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
        self._token = names.check_token(token)
        self._task = task
        self._attempt = attempt
        self._stats_columns = layout.chosen_stats(schema)
        self._inline_limit = min(layout.inline_bytes, INLINE_COMMIT_BYTES // (task + 1))
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._inline: list[Frame] = []
        self._inline_bytes = 0
        self._pool: BufferPool | None = None
        self._writer: SegmentStager | None = None
        self._segments: list[StagedSegment] = []
        self._readable = readable
        self._frames: list[_WrittenFrame] = []
        self._counters = counters or CacheCounters()
        self._ship_to = ship_to
        self._rows = 0
        self._count_only = count_only
        self._closed = False

    def append(self, batch: pa.RecordBatch) -> None:
        """Take a batch; encodes and writes when a frame is full.

        Raises:
            StorageError: The storage failed.
            InvalidInputError: The batch can't be encoded.
            ClosedError: The stager was finished or aborted.
        """
        self._check_open()
        self._rows += batch.num_rows
        if self._count_only:
            return
        for piece in split_batch(batch, self._layout.frame_rows, self._layout.frame_bytes):
            full = self._gathered_rows + piece.num_rows > self._layout.frame_rows
            if full or self._gathered_bytes + piece.nbytes > self._layout.frame_bytes:
                self._encode()
            self._gathered.append(piece)
            self._gathered_rows += piece.num_rows
            self._gathered_bytes += piece.nbytes

    def append_frame(self, frame: Frame) -> None:
        """Take a frame as it is, behind what was taken before; raises as `append`."""
        self._check_open()
        self._rows += frame.rows
        self._encode()
        self._place(frame)

    def finish(self) -> StagedTask:
        """Write what is left and make it durable; raises as `append`."""
        self._check_open()
        self._encode()
        self._finish_segment()
        self._closed = True
        if not self._readable:
            self.close()
        _LOG.info("task %d staged %d rows; write cache: %s", self._task, self._rows, self._counters)
        return StagedTask(
            task=self._task,
            host=socket.gethostname(),
            rows=self._rows,
            segments=tuple(self._segments),
            frames=tuple(self._inline),
        )

    def abort(self) -> None:
        """Drop what was staged, as well as it can be done; never raises, safe to repeat."""
        self._closed = True
        if self._writer is not None:
            self._writer.abort()
            self._writer = None
        self.close()
        delete_staged(self._storage, self._segments)

    def close(self) -> None:
        """End reading and free the buffers, after `finish`; never raises, safe to repeat."""
        for frame in self._frames:
            frame.stager.close()
        self._frames = []
        if self._pool is not None:
            self._pool.close()

    @property
    def schema(self) -> pa.Schema:
        """The schema that batches have to have."""
        return self._schema

    @property
    def rows(self) -> int:
        """How many rows were taken."""
        return self._rows

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Read rows back that were taken, staged or not, by their place in this task.

        Args:
            start: The first row.
            end: The row behind the last, at most `rows`.

        Yields:
            Batches in order.

        Raises:
            InvalidInputError: The stager was not made to be read.
            FormatError: Staged bytes are damaged or gone.
            StorageError: The storage failed.
            ClosedError: The stager was aborted or closed.
        """
        if not self._readable:
            raise InvalidInputError("stager is not readable", remedy="make it with readable=True")
        place = 0
        for rows, decode in self._sources():
            first, last = max(start - place, 0), min(end - place, rows)
            if first < last:
                yield decode().slice(first, last - first)
            place += rows

    def _sources(self) -> Iterator[tuple[int, Callable[[], pa.RecordBatch]]]:
        for frame in self._frames:
            yield frame.rows, partial(frame.decode, self._schema)
        for inline in self._inline:
            yield inline.rows, partial(_decode, inline, inline.data, self._schema, "inline frame")
        for batch in self._gathered:
            yield batch.num_rows, partial(_itself, batch)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("task stager was closed", task=self._task)

    def _encode(self) -> None:
        if not self._gathered_rows:
            return
        layout = self._layout
        frame = encode_frame(
            _concat(self._gathered),
            compression=layout.compression,  # type: ignore[arg-type]
            compression_level=layout.compression_level if layout.compression == "zstd" else None,
            stats_columns=self._stats_columns,
        )
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        self._place(frame)

    def _place(self, frame: Frame) -> None:
        if self._writer is None and not self._segments:
            self._inline.append(frame)
            self._inline_bytes += frame.data.size
            if self._inline_bytes <= self._inline_limit:
                return
            frames, self._inline = self._inline, []
        else:
            frames = [frame]
        for ready in frames:
            self._write(ready)

    def _write(self, frame: Frame) -> None:
        layout, size = self._layout, frame.data.size
        if self._writer is not None and (
            self._writer.encoded_bytes + size > layout.segment_bytes
            or self._writer.rows + frame.rows > (layout.segment_rows or 1 << 62)
            # What is to be read back stays in buffers until its object can be read.
            or (self._readable and not self._writer.has_room(size))
        ):
            self._finish_segment()
        if self._writer is None:
            self._writer = self._open_segment()
        record = self._writer.add(frame)
        if self._readable:
            facts = _WrittenFrame(frame.rows, frame.crc, frame.raw_bytes, self._writer, record)
            self._frames.append(facts)
            if size > self._writer.buffer_bytes:
                self._finish_segment()

    def _open_segment(self) -> SegmentStager:
        layout = self._layout
        if self._pool is None:
            self._pool = open_pool(
                self._storage,
                buffers=layout.cache_buffers,
                buffer_bytes=layout.cache_buffer_bytes,
            )
        name = f"{self._task}-{self._attempt}-{len(self._segments)}.arrow"
        path = names.build_segment_path(self._token, name)
        return SegmentStager(self._storage, path, self._pool, self._counters, ship_to=self._ship_to)

    def _finish_segment(self) -> None:
        if self._writer is None:
            return
        self._segments.append(staged_segment(self._writer))
        if not self._readable:
            self._writer.close()
        self._writer = None


@dataclass(frozen=True, slots=True)
class _WrittenFrame:
    """What it takes to read a frame back from the segment it was written to."""

    rows: int
    crc: int
    raw_bytes: int
    stager: SegmentStager
    record: Record

    def decode(self, schema: pa.Schema) -> pa.RecordBatch:
        return _decode(self, self.stager.read(self.record), schema, self.stager.where)


def _itself(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _decode(
    facts: Frame | _WrittenFrame, data: pa.Buffer, schema: pa.Schema, where: str
) -> pa.RecordBatch:
    return decode_frame(
        data,
        crc=facts.crc,
        rows=facts.rows,
        schema=schema,
        columns=None,
        where=where,
        limit_bytes=max(facts.raw_bytes, 1),
    )


def stage_frames(
    storage: Storage, frames: Iterable[Frame], *, path: str, ship_to: ShipTo | None = None
) -> StagedSegment:
    """Write frames of several tasks as one segment, in the order given.

    Raises:
        StorageError: The storage failed.
    """
    layout = Layout()
    pool = open_pool(storage, buffers=layout.cache_buffers, buffer_bytes=layout.cache_buffer_bytes)
    stager = SegmentStager(storage, path, pool, CacheCounters(), ship_to=ship_to)
    try:
        for frame in frames:
            stager.add(frame)
        return staged_segment(stager)
    finally:
        stager.close()


def staged_segment(stager: SegmentStager) -> StagedSegment:
    """Finish a segment and return what a commit needs of it; raises as `SegmentStager.finish`."""
    summary = stager.finish()
    return StagedSegment(
        path=stager.path,
        rows=summary.rows,
        bytes=summary.bytes,
        footer_bytes=summary.footer_bytes,
        footer_crc=summary.footer_crc,
        stats=entry_stats(summary.stats),
        followers=stager.followers,
    )


def delete_staged(storage: Storage, segments: Iterable[StagedSegment]) -> None:
    """Delete staged objects that no commit can name; what fails is left for vacuum."""
    for segment in segments:
        for url in (None, *segment.followers):
            try:
                folder = storage if url is None else storage.sibling(url)
                folder.delete(names.segment_object(segment.path))
            except (StorageError, InvalidInputError):
                continue


def split_batch(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch at row borders into near-equal pieces within both limits, where rows allow it.

    Zero-copy. A single row over the limit of bytes is a piece of its own.
    """
    rows = batch.num_rows
    if rows == 0:
        return
    pieces = max(-(-rows // most_rows), -(-batch.nbytes // most_bytes), 1)
    pieces = min(pieces, rows)
    for piece in range(pieces):
        start, end = rows * piece // pieces, rows * (piece + 1) // pieces
        yield batch.slice(start, end - start)


def entry_stats(stats: Stats) -> str | None:
    """Return a segment's statistics for the table status: as many columns as its share holds."""
    kept: dict[str, Any] = {}
    used = 2
    for name, value in to_json(stats).items():
        used += len(build_json({name: value}))
        if used > ENTRY_STATS_BYTES:
            break
        kept[name] = value
    return build_json(kept).decode() if kept else None


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)
