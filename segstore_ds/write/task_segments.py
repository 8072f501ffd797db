"""The segment objects of one task: their format, and when to start the next one.

The format is chosen once, when the first object is begun. Inline frames are Arrow, and so are rows
that are read back before they are committed. Rows that Parquet can't store go into separate Arrow
objects between the Parquet ones.
"""

from dataclasses import dataclass

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.pool import BufferPool
from segstore_ds.cache.record import Record
from segstore_ds.commit.replicas import ShipTo
from segstore_ds.errors import InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame, decode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.parquet.writer import ParquetEncoder, can_store
from segstore_ds.format.segment import ARROW, FORMATS, PARQUET
from segstore_ds.format.statistics import Stats
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout
from segstore_ds.write.segment_writer import SegmentWriter, open_pool
from segstore_ds.write.staged import StagedSegment, staged_segment

# The most checksums in the index of one segment. Arrow has one per frame; Parquet has two to four
# per column of a frame, for page headers and pages. Until the segment ends, each such column takes
# 1.5 KB of the writer's memory. Readers refuse an index above about ten times that.
MOST_PIECES = 1 << 17


@dataclass(frozen=True, slots=True)
class WrittenFrame:
    """The facts needed to read a frame back from the segment it was written to."""

    rows: int
    crc: int
    raw_bytes: int
    writer: SegmentWriter
    record: Record

    def decode(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return its rows; raises as `SegmentWriter.read` and `decode_frame`."""
        return decode_staged(self, self.writer.read(self.record), schema, self.writer.where)


def decode_staged(
    facts: Frame | WrittenFrame, data: pa.Buffer, schema: pa.Schema, where: str
) -> pa.RecordBatch:
    """Return the rows of a frame that is not committed; raises as `decode_frame`."""
    return decode_frame(
        data,
        crc=facts.crc,
        rows=facts.rows,
        schema=schema,
        columns=None,
        where=where,
        limit_bytes=max(facts.raw_bytes, 1),
    )


def choose_format(layout: Layout, schema: pa.Schema, *, bulk: bool, readable: bool) -> str:
    """Return the format of a task's segments. Pure.

    `bulk` says that the task has more than one frame, `readable` that rows may be read back before
    they are committed.
    """
    wanted = layout.segment_format == PARQUET or (layout.segment_format == "auto" and bulk)
    return PARQUET if wanted and not readable and can_store(schema) else ARROW


class TaskSegments:
    """Writes a task's frames to one segment after another.

    Object names begin with `prefix`, in the folder `token`. If `readable`, `frames` keeps what it
    takes to read every frame back.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        layout: Layout,
        *,
        token: str,
        prefix: str,
        readable: bool,
        counters: CacheCounters,
        ship_to: ShipTo | None = None,
    ) -> None:
        self._storage = storage
        self._schema = schema
        self._layout = layout
        self._token = token
        self._prefix = prefix
        self._readable = readable
        self._counters = counters
        self._ship_to = ship_to
        self._stats_columns = layout.chosen_stats(schema)
        self._format: str | None = None
        self._pool: BufferPool | None = None
        self._writer: SegmentWriter | None = None
        self.staged: list[StagedSegment] = []
        self.stats: list[tuple[int, Stats]] = []  # the rows of each segment, and their statistics
        self.frames: list[WrittenFrame] = []

    @property
    def begun(self) -> bool:
        """True once the first object was begun."""
        return self._format is not None

    def format_for(self, *, bulk: bool) -> str:
        """Return the format of the objects, or the one they would get if they were begun now."""
        return self._format or choose_format(
            self._layout, self._schema, bulk=bulk, readable=self._readable
        )

    def write(self, piece: Frame | pa.RecordBatch, *, bulk: bool) -> None:
        """Write an encoded Arrow frame, or a batch as one frame."""
        self._format = self.format_for(bulk=bulk)
        if self._format == PARQUET:
            if isinstance(piece, Frame):
                piece = decode_staged(piece, piece.data, self._schema, "inline")
            self._write_rows(piece)
        else:
            frame = piece
            if not isinstance(frame, Frame):
                frame = self._layout.encode(frame, self._stats_columns)
            self._write_frame(frame)

    def finish(self) -> None:
        """Make the current object complete and durable."""
        if self._writer is None:
            return
        summary = self._writer.finish()
        self.staged.append(staged_segment(self._writer, summary))
        self.stats.append((summary.rows, summary.stats))
        if not self._readable:
            self._writer.close()
        self._writer = None

    def abort(self) -> None:
        """Discard the current object; never raises."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    def close(self) -> None:
        """End reading and free the buffers; never raises, safe to repeat."""
        for frame in self.frames:
            frame.writer.close()
        self.frames = []
        if self._pool is not None:
            self._pool.close()

    def _write_rows(self, batch: pa.RecordBatch) -> None:
        writer = self._switch(PARQUET)
        # The encoded size is known only after the write; expect about the size of the last frame.
        if writer is not None and self._is_full(writer, writer.expect_bytes(batch), batch.num_rows):
            self.finish()
        writer = self._opened(PARQUET)
        try:
            writer.add_batch(batch)
        except InvalidInputError:
            if not writer.rows:
                self.abort()
            elif writer.is_broken:
                raise
            self._write_aside(batch)

    def _write_aside(self, batch: pa.RecordBatch) -> None:
        """Write rows that Parquet can't store as Arrow, so that no event is refused."""
        self._write_frame(self._layout.encode(batch, self._stats_columns))

    def _write_frame(self, frame: Frame) -> None:
        size, writer = frame.data.size, self._switch(ARROW)
        if writer is not None and (
            self._is_full(writer, size, frame.rows)
            # Readable frames must stay in buffers until their object can be read.
            or (self._readable and not writer.has_room(size))
        ):
            self.finish()
        writer = self._opened(ARROW)
        record = writer.add(frame)
        if self._readable:
            facts = WrittenFrame(frame.rows, frame.crc, frame.raw_bytes, writer, record)
            self.frames.append(facts)
            if size > writer.buffer_bytes:
                self.finish()

    def _is_full(self, writer: SegmentWriter, size: int, rows: int) -> bool:
        layout = self._layout
        return (
            writer.encoded_bytes + size > layout.segment_bytes
            or writer.rows + rows > (layout.segment_rows or 1 << 62)
            or writer.expected_pieces > MOST_PIECES
        )

    def _switch(self, form: str) -> SegmentWriter | None:
        """Return the current object, or None; finish it first if it has the other format."""
        if self._writer is not None and self._writer.format != form:
            self.finish()
        return self._writer

    def _opened(self, form: str) -> SegmentWriter:
        if self._writer is None:
            self._writer = self._open(form)
        return self._writer

    def _open(self, form: str) -> SegmentWriter:
        layout = self._layout
        if self._pool is None:
            self._pool = open_pool(self._storage, buffers=layout.cache_buffers)
        name = f"{self._prefix}-{len(self.staged)}{FORMATS[form].ending}"
        path = names.build_segment_path(self._token, name)
        encoder: ArrowEncoder | ParquetEncoder = ArrowEncoder()
        if form == PARQUET:
            encoder = layout.parquet_encoder(self._schema, self._stats_columns)
        return SegmentWriter(
            self._storage, path, self._pool, self._counters, encoder, ship_to=self._ship_to
        )
