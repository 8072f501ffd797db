"""Writes one segment object through the write cache.

Header, frames and footer are records of the cache; its buffers, in order, are the object's bytes.
Encoding continues while full buffers are written.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from segstore_ds.cache.buffer import BufferPool, Record
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.service import WriteCacheService
from segstore_ds.cache.views import as_view, join
from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame, decode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import PARQUET, find_format
from segstore_ds.storage import Storage

SURELY_READ_BYTES = 64 << 10
BUFFER_BYTES = 8 << 20
BUFFERS = 2  # per task: one is filled while the other is written


class SegmentWriter:
    """Writes one segment object that no commit names yet.

    `encoder` makes its bytes. `path` is relative to the folder of segments. It owns the buffers of
    `pool` until `finish` or `abort`. The storage's mirrors get every buffer, too.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        pool: BufferPool,
        counters: CacheCounters,
        encoder: ArrowEncoder | ParquetEncoder,
    ) -> None:
        self.path = path
        self._name = names.segment_object(path)
        self._storage = storage
        self.encoder: Any = encoder
        mirrors = storage.mirrors
        self._cache = WriteCacheService(
            storage.open_staged(self._name),
            pool,
            load=self._load,
            copies=mirrors.open(storage, self._name) if mirrors else (),
            counters=counters,
        )
        self._cache.write(self.encoder.start())
        self.buffer_bytes = pool.buffer_bytes

    @property
    def where(self) -> str:
        """The object's URL, for errors."""
        return f"{self._storage.url}/{self._name}"

    def has_room(self, nbytes: int) -> bool:
        """Tell whether `nbytes` more fit in buffers without evicting any of the object."""
        return self._cache.has_room(nbytes)

    def add(self, piece: Frame | pa.RecordBatch) -> Record:
        """Append a frame, or rows that the encoder makes one of; return the record for `decode`.

        The bytes are copied, written or referenced. Raises InvalidInputError if the rows can't be
        encoded, and the StorageError of an earlier write.
        """
        if isinstance(piece, Frame):
            pieces, crc = self.encoder.add(piece), piece.crc
        else:
            pieces, crc = self.encoder.add(piece)
        return self._cache.write(join(map(as_view, pieces)), crc, frozen=True)

    def encode(
        self, nbytes: int, encode: Callable[[memoryview], Frame]
    ) -> tuple[Frame, Record | None] | None:
        """Append a frame that is encoded into the memory of a buffer with `nbytes` of room.

        Returns None if no buffer has that much. If the frame needed more, it is returned without a
        record, and was not appended. Else its bytes are valid only as long as the buffer has them.
        """
        found: list[Frame] = []

        def lay(memory: memoryview) -> tuple[int, int] | None:
            frame = encode(memory)
            found.append(frame)
            laid = frame.data.address == pa.py_buffer(memory).address
            return (frame.data.size, frame.crc) if laid else None

        record = self._cache.allocate(nbytes, lay)
        if record is not None:
            self.encoder.add(found[0])
        return (found[0], record) if found else None

    def finish(self) -> SegmentEntry:
        """Make the object complete and durable, also in the mirrors that the entry then names.

        Its buffers return to the pool; reads still work.
        """
        staged: SegmentEntry
        end, staged = self.encoder.finish()
        # Skip a small Arrow index, the usual case: checking it takes as long as writing it.
        if staged.format == PARQUET or len(end) > SURELY_READ_BYTES:
            self._check_end(end, staged)
        self._cache.write(end)
        self._cache.commit()
        self._cache.release_buffers()
        return replace(staged, path=self.path, mirrors=self._cache.copied_to)

    def decode(
        self, record: Record, rows: int, raw_bytes: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        """Return the rows of a frame, read and verified from a buffer or from the object."""
        data = pa.py_buffer(self._cache.read(record))
        return decode_frame(
            data,
            rows=rows,
            schema=schema,
            columns=None,
            where=self.where,
            limit_bytes=max(raw_bytes, 1),
        )

    def abort(self) -> None:
        """Discard an unfinished object, and allow no more reads; never raises, safe to repeat."""
        self._cache.abort()

    def _check_end(self, end: bytes, staged: SegmentEntry) -> None:
        """Parse the index as readers do: a segment that they refuse must not be committed."""
        try:
            find_format(staged.format, where=self.where).parse_index(
                end, object_bytes=staged.bytes, where=self.where, footer_crc=staged.footer_crc
            )
        except FormatError as error:
            raise InvalidInputError(
                "a segment could not be read back",
                remedy="set segment_format='arrow', and report this bug with the schema",
                path=self.path,
                frames=staged.frames,
                why=str(error),
            ) from error

    def _load(self, start: int, end: int) -> bytes:
        return self._storage.get_range(self._name, start, end)


def open_pool(storage: Storage) -> BufferPool:
    """Return a pool with buffers of at least the storage's least part size."""
    return BufferPool(BUFFERS, max(BUFFER_BYTES, storage.profile.part_bytes))
