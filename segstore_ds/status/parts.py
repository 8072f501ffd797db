"""Status parts: segments as columns, with their statistics behind them.

Parts are kept in memory as columns; an entry becomes an object only where a caller asks for it.
"""

from collections.abc import Sequence

import numpy as np

from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.format.parts.columns import SegmentColumns, concat, from_entries
from segstore_ds.format.parts.kinds import SEGMENTS, encode_object
from segstore_ds.format.parts.segments import CHUNK_ROWS, Part, decode_chunks, encode_chunks
from segstore_ds.format.root import PartRef, SegmentEntry
from segstore_ds.status.store import ObjectStore


class Parts:
    """Reads and writes the status parts of one stream."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def columns(self, ref: PartRef, *, with_stats: bool = False) -> SegmentColumns:
        """Return the segments of a part; `with_stats` fetches their statistics in one request."""
        if with_stats:
            return self._load(ref)[0].columns
        return self._checked(ref, self._store.get(ref, SEGMENTS)).columns

    def stats(self, ref: PartRef) -> Sequence[str | None]:
        """Return the statistics of a part's segments."""
        part, behind = self._load(ref)
        return decode_chunks(part, behind, where=self._store.where(ref))

    def retired(self, path: str, *, required: bool = False) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part that no root names, without statistics.

        A deleted part has no entries, unless it is `required`: then MissingObjectError is raised.
        """
        try:
            part, _ = self._store.read(path, SEGMENTS)
        except MissingObjectError:
            if required:
                raise
            return ()
        return tuple(part.columns.entries())

    def whole(self, path: str) -> tuple[tuple[SegmentEntry, ...], int]:
        """Return all of a part's entries and its envelope's length, even if no root names it."""
        part, behind = self._store.read(path, SEGMENTS)
        size = len(encode_object(SEGMENTS, part))
        where = f"{self._store.storage.url}/{path}"
        return tuple(part.columns.entries(decode_chunks(part, behind, where=where))), size

    def put(
        self, version: int, start: int, columns: SegmentColumns, stats: Sequence[str | None]
    ) -> PartRef:
        """Write a part whose first event is at offset `start`.

        `version` is the newest version that the writer has seen.
        """
        chunks, behind = encode_chunks(stats)
        return self._put(version, start, Part(columns, chunks), behind)

    def join(self, version: int, refs: Sequence[PartRef]) -> PartRef:
        """Write the segments of neighbouring parts as one part.

        Beyond `CHUNK_ROWS` segments the chunks of statistics are copied without decoding them.
        """
        loaded = [self._load(ref) for ref in refs]
        columns = concat(part.columns for part, _ in loaded)
        if len(columns) <= CHUNK_ROWS:
            stats = [text for ref in refs for text in self.stats(ref)]
            return self.put(version, refs[0].start, columns, stats)
        chunks = tuple(chunk for part, _ in loaded for chunk in part.chunks)
        behind = b"".join(tail for _, tail in loaded)
        return self._put(version, refs[0].start, Part(columns, chunks), behind)

    def _put(self, version: int, start: int, part: Part, behind: bytes) -> PartRef:
        stored = self._store.put(version, SEGMENTS, part, behind)
        end = start + _events(part.columns)
        return PartRef(stored.path, start, end, len(part.columns), stored.bytes)

    def _load(self, ref: PartRef) -> tuple[Part, bytes]:
        part, behind = self._store.get_all(ref, SEGMENTS)
        return self._checked(ref, part), behind

    def _checked(self, ref: PartRef, part: Part) -> Part:
        found, events = len(part.columns), _events(part.columns)
        if found != ref.count or events != ref.end - ref.start:
            raise CorruptionError(
                "status part contradicts the root",
                where=self._store.where(ref),
                segments=(ref.count, found),
                rows=(ref.end - ref.start, events),
            )
        return part


def build_part(entries: Sequence[SegmentEntry]) -> tuple[bytes, bytes]:
    """Return a part's object as two pieces: the bytes its digest covers, and the statistics."""
    chunks, behind = encode_chunks([entry.stats for entry in entries])
    return encode_object(SEGMENTS, Part(from_entries(entries), chunks)), behind


def _events(columns: SegmentColumns) -> int:
    # Each value is below 2^63, but the sum may not be: an overflow would produce a false range.
    low = int(np.sum(columns.rows & 0xFFFFFFFF, dtype=np.uint64))
    return low + (int(np.sum(columns.rows >> 32, dtype=np.uint64)) << 32)
