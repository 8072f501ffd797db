"""Staging: batches become frames, frames become segment objects that no commit names yet.

Runs in every writing task. Small batches are gathered into frames of a sensible size first. What
stays under `inline_bytes` is not written at all: its frames travel to the driver, which writes one
segment for all such tasks. Nothing staged is visible before a commit names it, and no two attempts
share a name, so a task may be repeated, killed or run twice.
"""

import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.errors import ClosedError, StorageError
from segstore_ds.format import names
from segstore_ds.format.fields import build_json
from segstore_ds.format.frame import Frame, encode_frame
from segstore_ds.format.segment_arrow import SegmentWriter
from segstore_ds.format.statistics import Stats, has_stats, to_json
from segstore_ds.storage import StagedWriter, Storage

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

    After `finish` or `abort` every further call raises ClosedError.
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
        self._writer: _SegmentStager | None = None
        self._segments: list[StagedSegment] = []
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

    def finish(self) -> StagedTask:
        """Write what is left and make it durable; raises as `append`."""
        self._check_open()
        self._encode()
        if self._writer is not None:
            self._segments.append(self._writer.finish())
            self._writer = None
        self._closed = True
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
        delete_staged(self._storage, self._segments)

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
        layout = self._layout
        if self._writer is not None and (
            self._writer.encoded_bytes + frame.data.size > layout.segment_bytes
            or self._writer.rows + frame.rows > (layout.segment_rows or 1 << 62)
        ):
            self._segments.append(self._writer.finish())
            self._writer = None
        if self._writer is None:
            name = f"{self._task}-{self._attempt}-{len(self._segments)}.arrow"
            self._writer = _SegmentStager(
                self._storage, names.build_segment_path(self._token, name)
            )
        self._writer.add(frame)


class _SegmentStager:
    """Writes one segment object."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._path = path
        self._layout = SegmentWriter()
        self._out: StagedWriter = storage.open_staged(names.segment_object(path))
        self._out.write(self._layout.start())

    @property
    def encoded_bytes(self) -> int:
        return self._layout.encoded_bytes

    @property
    def rows(self) -> int:
        return self._layout.rows

    def add(self, frame: Frame) -> None:
        for buffer in self._layout.add(frame):
            self._out.write(buffer)

    def finish(self) -> StagedSegment:
        end, summary = self._layout.finish()
        self._out.write(end)
        self._out.commit()
        return StagedSegment(
            path=self._path,
            rows=summary.rows,
            bytes=summary.bytes,
            footer_bytes=summary.footer_bytes,
            footer_crc=summary.footer_crc,
            stats=entry_stats(summary.stats),
        )

    def abort(self) -> None:
        self._out.abort()


def stage_frames(storage: Storage, frames: Iterable[Frame], *, path: str) -> StagedSegment:
    """Write frames of several tasks as one segment, in the order given.

    Raises:
        StorageError: The storage failed.
    """
    stager = _SegmentStager(storage, path)
    try:
        for frame in frames:
            stager.add(frame)
        return stager.finish()
    except BaseException:
        stager.abort()
        raise


def delete_staged(storage: Storage, segments: Iterable[StagedSegment]) -> None:
    """Delete staged objects that no commit can name; what fails is left for vacuum."""
    for segment in segments:
        try:
            storage.delete(names.segment_object(segment.path))
        except StorageError:
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
