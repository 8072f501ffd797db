"""Writes the output of one task: rows become frames, and frames segments that no commit names yet.

Small batches are first gathered into frames of about the target size. A task whose output stays
within `inline_bytes` writes nothing: its frames are sent to the driver, which writes one segment
for all such tasks. All other bytes go through the write cache, to one segment after another.
Nothing staged is visible before a commit names it, and no two attempts share a name, so a task may
be repeated, killed or run twice.

`plan_batch` chooses the format once, when the first segment is begun. Inline frames and `readable`
rows are always Arrow. Rows that Parquet can't store go into separate Arrow segments between the
Parquet ones.
"""

import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from segstore_ds.cache.buffer import BufferPool, Record
from segstore_ds.cache.counters import WRITTEN_HERE, CacheCounters
from segstore_ds.errors import ClosedError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.batch_fingerprint import BatchFacts, batch_facts, gather_facts
from segstore_ds.format.bounds import Piece, merge
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.rows import slice_for_readers
from segstore_ds.format.schema.conversion import (
    conform,
    conform_pieces,
    may_hold_decimals,
    with_sound_decimals,
)
from segstore_ds.format.segment import ARROW, PARQUET
from segstore_ds.storage import Storage
from segstore_ds.write.batch_plan import (
    BatchRules,
    Way,
    plan_batch,
    recall_encodings,
    remember_encodings,
)
from segstore_ds.write.frame_rows import FrameRows
from segstore_ds.write.inputs import check_batch
from segstore_ds.write.layout import size_of
from segstore_ds.write.request import Target
from segstore_ds.write.segment_writer import SegmentWriter, open_pool
from segstore_ds.write.staged import Refused, StagedTask, delete_staged

if TYPE_CHECKING:
    from segstore_ds.write.rules import BoundRules

_LOG = logging.getLogger(__name__)

FRAME_BYTES, COLUMN_BYTES = 4096, 256  # most bytes of a frame beside its values, and per column
# Most bytes of dead letters that a task sends with its result; with more the write fails.
REFUSED_BYTES = 8 << 20
SPARE = 1.25  # how much worse than the frame before a frame may compress, to fit as expected
# Most checksums in the index of one segment. Arrow has one per frame; Parquet has two to four per
# column of a frame, for page headers and pages. Until the segment ends, each such column takes
# 1.5 KB of the writer's memory. Readers refuse an index with more than about ten times as many.
MOST_PIECES = 1 << 17


class TaskWriter:
    """Stages the output of one task, which is number `task` of its job.

    `attempt` differs for every attempt of any task. With `readable`, `read` returns rows, also
    after `finish`. After `finish` or `abort` the other calls raise ClosedError. Errors count rows
    from `first`.
    """

    def __init__(
        self,
        target: Target,
        task: int,
        attempt: str,
        *,
        readable: bool = False,
        counters: CacheCounters | None = None,
        first: int = 0,
    ) -> None:
        layout = target.layout
        self._target = target
        self._stored, self._given = target.schema, target.given
        self._as_given = not target.names
        self._decimals = may_hold_decimals(target.given)
        self._first = self._next = first
        self._refused, self._refused_bytes = list[Refused](), 0
        self._task = task
        self._attempt = attempt
        self._readable = readable
        self._counters = counters or CacheCounters()
        self._stats_columns = layout.chosen_stats(target.schema, target.time_column)
        self._folder = target.token or ""
        # Facts of rows that are only counted, because their batch is already committed.
        self._counted = None if self._folder else BatchFacts()
        self._rows = 0
        self._gathered = FrameRows(layout.frame_rows)
        self._inline: list[Frame] = []
        self._inline_bytes = 0
        self._rules = BatchRules.of(layout, target.schema, task, readable=readable)
        self._format: str | None = None  # format of the segments, once the first was begun
        self._pool: BufferPool | None = None
        self._segment: SegmentWriter | None = None
        self._shrunk = 1.0  # expected size of a frame after compression, as a share of its raw size
        self._staged: list[SegmentEntry] = []
        self._stats: list[tuple[int, Piece]] = []  # the rows of each segment, and their statistics
        # If readable: rows of each written frame, and a function that decodes it.
        self._written: list[tuple[int, Callable[[], pa.RecordBatch]]] = []
        self._finished = self._aborted = False

    @property
    def schema(self) -> pa.Schema:
        """The schema that batches are converted to."""
        return self._given

    @property
    def rows(self) -> int:
        """How many rows were taken."""
        return self._rows

    @property
    def finished(self) -> bool:
        """True once `finish` has succeeded: a commit may name what was staged."""
        return self._finished

    def stage(self, pieces: Iterable[pa.RecordBatch | Frame], *, lent: bool = False) -> StagedTask:
        """Take all pieces and finish; after a failure, delete what was staged."""
        try:
            for piece in pieces:
                self.take(piece, lent=lent)
            return self.finish()
        except BaseException:
            self.abort()
            raise

    def append(self, piece: pa.RecordBatch | Frame) -> None:
        """Take rows, which are converted to the schema, or an encoded Arrow frame.

        Encodes and writes when a frame is full. The caller may change the memory of the rows
        afterwards.

        Raises:
            SchemaMismatchError: A column or a value does not fit.
            StorageError: The storage failed.
            InvalidInputError: The batch can't be encoded, holds texts that are not UTF-8, or a row
                breaks a rule of the stream.
            ClosedError: The task was finished or aborted.
        """
        if isinstance(piece, pa.RecordBatch):
            check_batch(piece, 0)
        self.take(piece, lent=True)

    def take(self, piece: pa.RecordBatch | Frame, *, lent: bool = False) -> None:
        """Take rows or a frame that were checked before, otherwise as `append`.

        The memory of rows that are not `lent` must not change any more.
        """
        self._check_open()
        if isinstance(piece, Frame):
            self._rows += piece.rows
            self._encode(full=True)
            self._place(piece, more=True)
            return
        fits = not self._decimals and piece.schema.equals(self._given, check_metadata=True)
        pieces = iter((piece,)) if fits else conform_pieces(piece, self._given)
        if self._target.rules is not None:
            pieces = iter(self._ruled(self._target.rules, [*pieces]))
        for given in pieces:
            batch = given if self._as_given else _under(given, self._stored)
            self._rows += batch.num_rows
            if self._counted is not None:
                facts = batch_facts(batch, self._stats_columns)
                self._counted = gather_facts([self._counted, facts])
            else:
                self._gather(batch, lent=lent)

    def _ruled(self, rules: "BoundRules", pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the rows that break no rule; raise if one does and can't go to dead letters."""
        kept, remedy = pieces, ""
        if sends := rules.keyed and rules.dead_letters is not None:
            kept, refused = rules.split(pieces, self._next)
            self._refused += refused
            self._refused_bytes += sum([rows.nbytes for rows, _ in refused])
            remedy = f"; its dead letters take at most {REFUSED_BYTES} bytes from a task"
        if not sends or self._refused_bytes > REFUSED_BYTES:
            rules.check(pieces, self._next, 0 if self._first else self._task, remedy)
        self._next += sum([piece.num_rows for piece in pieces])
        return kept

    def check(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Raise as `append` if a row, counted from 0, breaks a rule."""
        if self._target.rules is not None:
            self._target.rules.check([conform(batch, self._given) for batch in batches])

    def finish(self) -> StagedTask:
        """Write the rest, make all durable and return the staged task; raises as `append`."""
        self._check_open()
        self._encode(full=False)
        self._end_segment()
        self._free_buffers()
        self._finished = True
        if self._pool is not None:
            WRITTEN_HERE.add(self._target.storage.url, self._counters)
        if self._rows and _LOG.isEnabledFor(logging.INFO):
            counters = f"; write cache: {text}" if (text := str(self._counters)) else ""
            _LOG.info("task %d staged %d rows%s", self._task, self._rows, counters)
        return StagedTask(
            task=self._task,
            host=socket.gethostname(),
            facts=self._facts(),
            segments=tuple(self._staged),
            frames=tuple(self._inline),
            refused=tuple(self._refused),
        )

    def abort(self) -> None:
        """Delete what was staged, best effort; never raises, safe to repeat."""
        self._aborted = True
        self._drop_segment()
        self._free_buffers()
        delete_staged(self._target.storage, self._staged)

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows `[start, end)` of all rows taken so far, in order."""
        if not self._readable:
            raise InvalidInputError("task is not readable", remedy="open it with readable=True")
        if self._aborted:
            raise ClosedError("task was aborted", task=self._task)
        place = 0
        for rows, decode in self._sources():
            first, last = max(start - place, 0), min(end - place, rows)
            if first < last:
                batch = slice_for_readers(decode(), first, last - first)
                yield batch if self._as_given else _under(batch, self._given)
            place += rows

    def _sources(self) -> Iterator[tuple[int, Callable[[], pa.RecordBatch]]]:
        yield from self._written
        for inline in self._inline:
            yield inline.rows, partial(inline.decode, self._stored)
        for batch in self._gathered.batches:
            yield batch.num_rows, partial(pa.concat_batches, [batch])  # a reader may write to it

    def _facts(self) -> BatchFacts:
        if self._counted is not None:
            return self._counted
        inline = [(frame.rows, frame.stats) for frame in self._inline]
        return BatchFacts(self._rows, merge([*self._stats, *inline]))

    def _check_open(self) -> None:
        if self._finished or self._aborted:
            raise ClosedError("task has ended", task=self._task)

    def _gather(self, batch: pa.RecordBatch, *, lent: bool) -> None:
        pieces = self._gathered.cut(batch)
        try:
            for piece in pieces:
                size = size_of(piece)
                try:
                    if not self._gathered.has_room(piece.num_rows, size):
                        self._encode(full=True)
                finally:
                    self._gathered.add(piece, size)
        finally:
            for unwritten in pieces:
                self._gathered.add(unwritten, size_of(unwritten))  # for `read`
            # Only pieces that stay gathered are copied: the others are encoded already.
            self._gathered.detach(lent=lent)

    def _encode(self, *, full: bool) -> None:
        """Encode the gathered rows; `full` says that more follow, so the task is not small."""
        size, batch = self._gathered.bytes, self._gathered.take()
        if batch is None:
            return
        if self._format is not None:
            self._write(batch)
            return
        if plan_batch(self._rules, batch.num_rows, size, more=full) is Way.PARQUET:
            self._begin(Way.PARQUET, [*self._inline, batch])
        else:
            self._place(self._encoded(batch), more=full)

    def _encoded(self, batch: pa.RecordBatch, into: memoryview | None = None) -> Frame:
        target = self._target
        return target.layout.encode(batch, self._stats_columns, target.key_columns, into)

    def _place(self, frame: Frame, *, more: bool) -> None:
        """Keep a frame inline while all of them are small; write it otherwise."""
        if self._format is not None:
            self._write(frame)
            return
        self._inline.append(frame)
        self._inline_bytes += frame.data.size
        more = more or len(self._inline) > 1
        way = plan_batch(self._rules, frame.rows, self._inline_bytes, encoded=True, more=more)
        if way is not Way.INLINE:
            self._begin(way, self._inline)

    def _begin(self, way: Way, pieces: Sequence[Frame | pa.RecordBatch]) -> None:
        """Write the first frames of the task's segments."""
        self._format = way.value
        self._inline = []
        for place, piece in enumerate(pieces):
            try:
                self._write(piece)
            except BaseException:
                self._keep(pieces[place + 1 :])
                raise

    def _write(self, piece: Frame | pa.RecordBatch) -> None:
        if self._format == PARQUET:
            if isinstance(piece, Frame):
                piece = piece.decode(self._stored)
            self._write_rows(piece)
        elif isinstance(piece, Frame):
            self._write_frame(piece)
        else:
            self._write_batch(piece)

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        """Encode rows as an Arrow frame, into the memory of a buffer if one has enough room."""
        segment, encode = self._current(ARROW), partial(self._encoded, batch)
        expected = int(batch.nbytes * self._shrunk) + FRAME_BYTES + COLUMN_BYTES * len(self._stored)
        laid = None
        if segment is not None and not self._is_full(segment, expected, batch.num_rows):
            try:
                laid = segment.encode(expected, encode)
            except BaseException:
                self._keep([encode()])
                raise
        frame, record = laid or (encode(), None)
        if segment is None or record is None:
            self._write_frame(frame)
        else:
            self._added(segment, frame, record)

    def _write_rows(self, batch: pa.RecordBatch) -> None:
        segment, rows = self._current(PARQUET), batch.num_rows
        # The encoded size is known only after the write, so estimate it.
        if segment and self._is_full(segment, segment.encoder.expect_bytes(rows), rows):
            self._end_segment()
        segment = self._opened(PARQUET)
        try:
            segment.add(batch)
        except InvalidInputError as error:
            if not segment.encoder.rows:
                self._drop_segment()
            elif segment.encoder.is_broken:
                raise
            # Parquet can't store these rows. Write them as Arrow, so that no event is refused.
            _LOG.warning(
                "task %d: %d rows are written as Arrow, since Parquet can't hold them: %s",
                self._task,
                batch.num_rows,
                error,
            )
            self._write_frame(self._encoded(batch))

    def _write_frame(self, frame: Frame) -> None:
        try:
            self._add_frame(frame)
        except BaseException:
            self._keep([frame])
            raise

    def _keep(self, pieces: Sequence[Frame | pa.RecordBatch]) -> None:
        """Keep frames that could not be written, so that `read` still returns all rows."""
        self._inline += [piece for piece in pieces if isinstance(piece, Frame)]

    def _add_frame(self, frame: Frame) -> None:
        size, segment = frame.data.size, self._current(ARROW)
        if segment is not None and (
            self._is_full(segment, size, frame.rows)
            # Readable frames must stay in buffers until their object can be read.
            or (self._readable and not segment.has_room(size))
        ):
            self._end_segment()
        segment = self._opened(ARROW)
        self._added(segment, frame, segment.add(frame))
        if self._readable and size > segment.buffer_bytes:
            self._end_segment()

    def _added(self, segment: SegmentWriter, frame: Frame, record: Record) -> None:
        self._shrunk = min(SPARE * frame.data.size / max(frame.raw_bytes, 1), 1.0)
        if self._readable:
            facts = (record, frame.rows, frame.raw_bytes, self._stored)
            self._written.append((frame.rows, partial(segment.decode, *facts)))

    def _is_full(self, segment: SegmentWriter, size: int, rows: int) -> bool:
        layout, encoder = self._target.layout, segment.encoder
        return bool(
            encoder.encoded_bytes + size > layout.segment_bytes
            or encoder.rows + rows > (layout.segment_rows or 1 << 62)
            or encoder.pieces + encoder.expected_pieces > MOST_PIECES
        )

    def _current(self, form: str) -> SegmentWriter | None:
        """Return the current segment, or None; end it first if it has the other format."""
        if self._segment is not None and self._segment.encoder.name != form:
            self._end_segment()
        return self._segment

    def _opened(self, form: str) -> SegmentWriter:
        if self._segment is None:
            self._segment = self._open(form)
        return self._segment

    def _open(self, form: str) -> SegmentWriter:
        target, layout = self._target, self._target.layout
        if self._pool is None:
            self._pool = open_pool(target.storage)
        name = f"{self._task}-{self._attempt}-{len(self._staged)}.{form}"
        path = names.build_segment_path(self._folder, name)
        encoder: ArrowEncoder | ParquetEncoder = ArrowEncoder()
        if form == PARQUET:
            encoder = layout.parquet_encoder(self._stored, self._stats_columns, target.key_columns)
            encoder.encodings = recall_encodings(target)
        return SegmentWriter(target.storage, path, self._pool, self._counters, encoder)

    def _end_segment(self) -> None:
        """Make the current segment complete and durable."""
        if self._segment is None:
            return
        encoder = self._segment.encoder
        if isinstance(encoder, ParquetEncoder):
            remember_encodings(self._target, encoder)
        self._staged.append(self._segment.finish())
        self._stats.append((encoder.rows, encoder.stats))
        self._segment = None

    def _drop_segment(self) -> None:
        if self._segment is not None:
            self._segment.abort()
            self._segment = None

    def _free_buffers(self) -> None:
        if self._pool is not None:
            self._pool.close()


def _under(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the column names of a schema with the same types."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def stage_few(target: Target, batch: pa.RecordBatch) -> StagedTask | None:
    """Stage a few rows as a task in one step; None unless they stay inline.

    It does the same as a TaskWriter with less code to run, which is most of a small append's time.
    """
    layout, schema, rows = target.layout, target.schema, batch.num_rows
    fits = rows <= layout.frame_rows and size_of(batch) <= layout.inline_bytes
    if target.names or not fits or not batch.schema.equals(schema, check_metadata=True):
        return None
    stats_columns = layout.chosen_stats(schema, target.time_column)
    batch = with_sound_decimals(batch)
    if target.rules is not None and target.rules.broken(batch):
        return None  # a TaskWriter raises the error
    frame = layout.encode(batch, stats_columns, target.key_columns)
    if frame.data.size > layout.inline_bytes:
        return None
    return StagedTask(0, "", BatchFacts(rows, frame.stats), frames=(frame,))


def stage_frames(storage: Storage, frames: Iterable[Frame], *, path: str) -> SegmentEntry:
    """Write frames of several tasks as one segment, in the given order."""
    pool, counters = open_pool(storage), CacheCounters()
    writer = SegmentWriter(storage, path, pool, counters, ArrowEncoder())
    try:
        for frame in frames:
            writer.add(frame)
        staged = writer.finish()
    except BaseException:
        writer.abort()
        raise
    WRITTEN_HERE.add(storage.url, counters)
    return staged
