"""Writes one segment object through the write cache.

Header, frames and footer are records of the cache: side by side in its buffers they are the
object's bytes. Encoding goes on while full buffers are written.
"""

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.pool import BufferPool
from segstore_ds.cache.record import Record
from segstore_ds.cache.second_copy import SecondCopy
from segstore_ds.cache.service import WriteCacheService
from segstore_ds.commit.replicas import ShipTo
from segstore_ds.errors import FormatError, InternalError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.index import SegmentSummary
from segstore_ds.format.arrow.segment import SegmentWriter
from segstore_ds.format.parquet.writer import ParquetWriter
from segstore_ds.format.segment import ARROW, PARQUET, find_format
from segstore_ds.storage import Storage
from segstore_ds.write.shipping import Shipment

SURELY_READ_BYTES = 64 << 10


class SegmentStager:
    """Writes one segment object that no commit names yet.

    Args:
        storage: The stream's folder.
        path: The segment, relative to the folder of segments.
        pool: Buffers, which this has until `finish` or `abort`.
        counters: Where the cache counts.
        writer: Lays the object out.
        ship_to: The followers, which get every buffer too.

    Raises:
        StorageError: The storage failed.
        InvalidInputError: Another stager has the buffers.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        pool: BufferPool,
        counters: CacheCounters,
        writer: SegmentWriter | ParquetWriter,
        *,
        ship_to: ShipTo | None = None,
    ) -> None:
        self.path = path
        self.followers: tuple[str, ...] = ()  # that have all of it, after `finish`
        self._name = names.segment_object(path)
        self._storage = storage
        self._writer = writer
        channel = storage.open_staged(self._name)
        self._shipment = Shipment(ship_to, storage, self._name) if ship_to else None
        self._cache = WriteCacheService(
            channel,
            pool,
            load=self._load,
            second_copy=SecondCopy(self._shipment.send) if self._shipment else None,
            counters=counters,
        )
        self._cache.write(self._writer.start())
        self.buffer_bytes = pool.buffer_bytes

    @property
    def where(self) -> str:
        """The object, for errors."""
        return f"{self._storage.url}/{self._name}"

    @property
    def format(self) -> str:
        """The name of the object's format."""
        return ARROW if isinstance(self._writer, SegmentWriter) else PARQUET

    @property
    def encoded_bytes(self) -> int:
        """How many bytes were laid out."""
        return self._writer.encoded_bytes

    @property
    def rows(self) -> int:
        """How many events were added."""
        return self._writer.rows

    @property
    def is_broken(self) -> bool:
        """Whether rows were refused when some of them was written: it can't be finished then."""
        return isinstance(self._writer, ParquetWriter) and self._writer.is_broken

    @property
    def expected_pieces(self) -> int:
        """How many checksums the index will have when another frame was added, about."""
        return self._writer.pieces + self._writer.expected_pieces

    def has_room(self, nbytes: int) -> bool:
        """Tell whether so many bytes can be added and all of the object stays in buffers."""
        return self._cache.has_room(nbytes)

    def add(self, frame: Frame) -> Record:
        """Append a frame; its bytes are copied, written, or held on to.

        Returns:
            What `read` takes.

        Raises:
            StorageError: The storage failed, now or before.
            ClosedError: The segment was finished or aborted.
        """
        if not isinstance(self._writer, SegmentWriter):
            raise InternalError("a frame of Arrow in a segment of another format", path=self.path)
        [data] = self._writer.add(frame)
        return self._cache.write(data, frame.crc, frozen=True)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Encode rows as a frame and append it, where the format leaves that to the object.

        Raises:
            StorageError: The storage failed, now or before.
            InvalidInputError: The rows can't be encoded; `is_broken` says whether others still can.
            ClosedError: The segment was finished or aborted.
        """
        if isinstance(self._writer, SegmentWriter):
            raise InternalError("rows in a segment that takes frames", path=self.path)
        data, crc = self._writer.add(batch)
        self._cache.write(data, crc, frozen=True)

    def expect_bytes(self, batch: pa.RecordBatch) -> int:
        """Return about how many bytes `add_batch` will take for these rows; 0 where unknown."""
        if isinstance(self._writer, SegmentWriter):
            return 0
        return self._writer.expect_bytes(batch.num_rows)

    def finish(self) -> SegmentSummary:
        """Make the object whole and durable; reading goes on until `close`.

        Returns:
            What the table status keeps.

        Raises:
            StorageError: The storage failed: the object is not known to be whole.
            InvalidInputError: No frame was added, or nobody would read the segment.
            ClosedError: The segment was finished or aborted.
        """
        end, summary = self._writer.finish()
        # A small index of frames is the commonest and takes as long to check as to write.
        if self.format == PARQUET or len(end) > SURELY_READ_BYTES:
            self._check_end(end, summary)
        self._cache.write(end)
        size = self._cache.commit()
        self._cache.release_buffers()
        if self._shipment is not None:
            self.followers = self._shipment.finish(size)
        return summary

    def read(self, record: Record) -> pa.Buffer:
        """Return a frame's bytes, verified, whether they are in a buffer or in the object.

        Raises:
            CorruptionError: They fail their checksum.
            FormatError: The object is missing or cut.
            StorageError: The storage failed.
            ClosedError: The segment was aborted or closed.
        """
        return pa.py_buffer(self._cache.read(record))

    def abort(self) -> None:
        """Give the object up; never raises, safe to repeat."""
        self._cache.abort()
        self._give_up_shipment()

    def close(self) -> None:
        """End reading; gives an unfinished object up. Never raises, safe to repeat."""
        self._cache.close()
        self._give_up_shipment()

    def _check_end(self, end: bytes, summary: SegmentSummary) -> None:
        """Read the index as readers will: what they would refuse must never be committed."""
        try:
            find_format(self.format, where=self.where).parse_index(
                end,
                object_bytes=summary.bytes,
                where=self.where,
                footer_crc=summary.footer_crc,
            )
        except FormatError as error:
            raise InvalidInputError(
                "a segment would not be read again",
                remedy="set segment_format to arrow; it is a defect: report it, with the schema",
                path=self.path,
                frames=len(summary.frames),
                why=str(error),
            ) from error

    def _give_up_shipment(self) -> None:
        if self._shipment is not None:
            self._shipment.abort()

    def _load(self, start: int, end: int) -> bytes:
        return self._storage.get_range(self._name, start, end)


def open_pool(storage: Storage, *, buffers: int, buffer_bytes: int) -> BufferPool:
    """Return a pool whose buffers are large enough for the storage.

    Args:
        storage: Where its buffers go.
        buffers: How many.
        buffer_bytes: Size of each; raised to the least that a part of an upload may have.

    Raises:
        InvalidInputError: A number is not positive.
    """
    return BufferPool(buffers, max(buffer_bytes, storage.least_part_bytes))
