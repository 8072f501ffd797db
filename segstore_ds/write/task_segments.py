"""The segment objects that one task writes: which format they have, and where one ends.

The format is decided once, when the first object is begun. What a task sends inline is Arrow, and
so is what is to be read back before it is committed; and rows that Parquet can't hold, which get an
object of their own between the others.
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
from segstore_ds.format.arrow.segment import SegmentWriter
from segstore_ds.format.parquet.writer import ParquetWriter, can_store
from segstore_ds.format.segment import ARROW, FORMATS, PARQUET
from segstore_ds.format.statistics import Stats
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout
from segstore_ds.write.segment_writer import SegmentStager, open_pool
from segstore_ds.write.staged import StagedSegment, staged_segment

# Checksums in the index of one segment: of frames in Arrow, of page headers and pages in Parquet,
# two to four for each column of a frame. Until a segment ends, each such column takes a kilobyte
# and a half of the writer's memory. Readers refuse indexes about ten times this size.
MOST_PIECES = 1 << 17


@dataclass(frozen=True, slots=True)
class WrittenFrame:
    """What it takes to read a frame back from the segment it was written to."""

    rows: int
    crc: int
    raw_bytes: int
    stager: SegmentStager
    record: Record

    def decode(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return its rows; raises as `SegmentStager.read` and `decode_frame`."""
        return decode_staged(self, self.stager.read(self.record), schema, self.stager.where)


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

    Args:
        layout: What the user asked for.
        schema: Of what is written.
        bulk: The task has more than one frame.
        readable: Rows are to be read back before they are committed.
    """
    wanted = layout.segment_format == PARQUET or (layout.segment_format == "auto" and bulk)
    return PARQUET if wanted and not readable and can_store(schema) else ARROW


class TaskSegments:
    """Writes frames to one segment after another.

    Args:
        storage: The stream's folder.
        schema: The stored schema.
        layout: Sizes and compression.
        token: The writing job's folder.
        prefix: What the names of the objects begin with.
        readable: Keep what `frames` needs.
        counters: Where the write cache counts.
        ship_to: The followers, which get every buffer too.
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
        self._writer: SegmentStager | None = None
        self.staged: list[StagedSegment] = []
        self.stats: list[tuple[int, Stats]] = []  # with the rows of each
        self.frames: list[WrittenFrame] = []

    @property
    def begun(self) -> bool:
        """Whether there is an object."""
        return self._format is not None

    def format_for(self, *, bulk: bool) -> str:
        """Return the format that the objects have, or would have if they were begun now."""
        return self._format or choose_format(
            self._layout, self._schema, bulk=bulk, readable=self._readable
        )

    def write(self, piece: Frame | pa.RecordBatch, *, bulk: bool) -> None:
        """Write a frame, encoded as one of Arrow or not at all.

        Raises:
            StorageError: The storage failed.
            InvalidInputError: It can't be encoded.
        """
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
        """Make the object that was begun whole and durable; raises as `write`."""
        if self._writer is None:
            return
        summary = self._writer.finish()
        self.staged.append(staged_segment(self._writer, summary))
        self.stats.append((summary.rows, summary.stats))
        if not self._readable:
            self._writer.close()
        self._writer = None

    def abort(self) -> None:
        """Give the object up that was begun; never raises."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    def close(self) -> None:
        """End reading and free the buffers; never raises, safe to repeat."""
        for frame in self.frames:
            frame.stager.close()
        self.frames = []
        if self._pool is not None:
            self._pool.close()

    def _write_rows(self, batch: pa.RecordBatch) -> None:
        writer = self._switch(PARQUET)
        # Only when it is written it is known how many bytes it takes: about as many as the last.
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
        """Write rows as Arrow that Parquet can't hold; no event is refused for that."""
        self._write_frame(self._layout.encode(batch, self._stats_columns))

    def _write_frame(self, frame: Frame) -> None:
        size, writer = frame.data.size, self._switch(ARROW)
        if writer is not None and (
            self._is_full(writer, size, frame.rows)
            # What is to be read back stays in buffers until its object can be read.
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

    def _is_full(self, writer: SegmentStager, size: int, rows: int) -> bool:
        layout = self._layout
        return (
            writer.encoded_bytes + size > layout.segment_bytes
            or writer.rows + rows > (layout.segment_rows or 1 << 62)
            or writer.expected_pieces > MOST_PIECES
        )

    def _switch(self, form: str) -> SegmentStager | None:
        """Return the object that was begun, after ending one of the other format."""
        if self._writer is not None and self._writer.format != form:
            self.finish()
        return self._writer

    def _opened(self, form: str) -> SegmentStager:
        if self._writer is None:
            self._writer = self._open(form)
        return self._writer

    def _open(self, form: str) -> SegmentStager:
        layout = self._layout
        if self._pool is None:
            self._pool = open_pool(
                self._storage,
                buffers=layout.cache_buffers,
                buffer_bytes=layout.cache_buffer_bytes,
            )
        name = f"{self._prefix}-{len(self.staged)}{FORMATS[form].ending}"
        path = names.build_segment_path(self._token, name)
        writer: SegmentWriter | ParquetWriter = SegmentWriter()
        if form == PARQUET:
            writer = layout.parquet_writer(self._schema, self._stats_columns)
        return SegmentStager(
            self._storage, path, self._pool, self._counters, writer, ship_to=self._ship_to
        )
