"""Status parts in storage; the last few are cached.

Parts are cached as columns; an entry becomes an object only where a caller asks for that entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    MissingObjectError,
    TruncatedObjectError,
)
from segstore_ds.format import names
from segstore_ds.format.envelope import digest_of, split_envelope
from segstore_ds.format.parts.columns import SegmentColumns, concat, from_entries
from segstore_ds.format.parts.part import (
    CHUNK_ROWS,
    RAW_LIMIT_BYTES,
    Part,
    StatsChunk,
    decode_chunks,
    decode_part,
    encode_chunks,
    encode_part,
)
from segstore_ds.format.root import PartRef, SegmentEntry
from segstore_ds.storage import Storage

LEVEL = "level"  # On disk: kind of status object. Never change; add a new one.
_KEPT_PARTS = 64
_KEPT_SEGMENTS = 1 << 18


@dataclass(slots=True)
class _Loaded:
    part: Part
    stats: bytes | None  # the bytes after the columns; None where they were not read


class PartFiles:
    """Reads and writes the parts of one stream."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._kept: dict[str, _Loaded] = {}

    def columns(self, ref: PartRef) -> SegmentColumns:
        """Return the segments of a part; reads no statistics."""
        return self._load(ref, whole=False).part.columns

    def stats(self, ref: PartRef) -> Sequence[str | None]:
        """Return the statistics of a part's segments."""
        loaded = self._load(ref, whole=True)
        return decode_chunks(loaded.part, loaded.stats or b"", where=self._where(ref.path))

    def retired(self, path: str, *, required: bool = False) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part that no root names, without statistics.

        A deleted part has no entries, unless it is `required`: then MissingObjectError is raised.
        """
        where = self._where(path)
        try:
            data = self._storage.get(path, limit_bytes=2 * RAW_LIMIT_BYTES)
        except MissingObjectError:
            if required:
                raise
            return ()
        return tuple(decode_part(split_envelope(data)[0], where=where).columns.entries())

    def whole(self, path: str) -> tuple[SegmentEntry, ...]:
        """Return all of a part's entries, checked against the digest in its name."""
        where = self._where(path)
        data = self._storage.get(path, limit_bytes=2 * RAW_LIMIT_BYTES)
        front, behind = split_envelope(data)
        if digest_of(front) != names.parse_status_digest(path):
            raise CorruptionError("status part does not match the digest in its name", where=where)
        part = decode_part(front, where=where)
        return tuple(part.columns.entries(decode_chunks(part, behind, where=where)))

    def put(
        self, version: int, start: int, columns: SegmentColumns, stats: Sequence[str | None]
    ) -> PartRef:
        """Write a part whose first event is at offset `start`.

        `version` is the newest version that the writer has seen.
        """
        chunks, behind = encode_chunks(stats)
        return self._put(version, start, columns, chunks, behind)

    def merge(self, version: int, refs: Sequence[PartRef]) -> PartRef:
        """Write the segments of neighbouring parts as one part.

        Beyond `CHUNK_ROWS` segments the chunks of statistics are copied without decoding them.
        """
        loaded = [self._load(ref, whole=True) for ref in refs]
        columns = concat(loaded_part.part.columns for loaded_part in loaded)
        if len(columns) <= CHUNK_ROWS:
            stats = [text for ref in refs for text in self.stats(ref)]
            return self.put(version, refs[0].start, columns, stats)
        chunks = tuple(chunk for loaded_part in loaded for chunk in loaded_part.part.chunks)
        behind = b"".join(loaded_part.stats or b"" for loaded_part in loaded)
        return self._put(version, refs[0].start, columns, chunks, behind)

    def _put(
        self,
        version: int,
        start: int,
        columns: SegmentColumns,
        chunks: tuple[StatsChunk, ...],
        behind: bytes,
    ) -> PartRef:
        data = encode_part(columns, chunks)
        digest = digest_of(data)
        path = names.build_status_path(version, LEVEL, digest)
        # Named by digest: an existing object of that name holds the same bytes.
        self._storage.create(path, data + behind)
        self._keep(path, _Loaded(Part(columns, chunks), behind))
        return PartRef(path, start, start + _rows(columns), len(columns), len(data), digest)

    def _load(self, ref: PartRef, *, whole: bool) -> _Loaded:
        found = self._kept.get(ref.path)
        if found is not None and (found.stats is not None or not whole):
            return found
        loaded = self._load_level(ref, whole=whole)
        columns = loaded.part.columns
        rows = _rows(columns)
        if len(columns) != ref.segments or rows != ref.end - ref.start:
            raise CorruptionError(
                "status part contradicts the root",
                where=self._where(ref.path),
                segments=(ref.segments, len(columns)),
                rows=(ref.end - ref.start, rows),
            )
        self._keep(ref.path, loaded)
        return loaded

    def _load_level(self, ref: PartRef, *, whole: bool) -> _Loaded:
        where = self._where(ref.path)
        if whole:
            data = self._storage.get(ref.path, limit_bytes=ref.bytes + 2 * RAW_LIMIT_BYTES)
        else:
            data = self._front(ref)
        front, behind = data[: ref.bytes], data[ref.bytes :]
        part = decode_part(front, where=where)
        self._check_digest(ref, front)
        if whole and len(behind) != part.stats_bytes:
            raise CorruptionError(
                "statistics have the wrong length",
                where=where,
                expected=part.stats_bytes,
                actual=len(behind),
            )
        return _Loaded(part, behind if whole or not part.stats_bytes else None)

    def _front(self, ref: PartRef) -> bytes:
        size = min(ref.bytes, RAW_LIMIT_BYTES)
        try:
            return self._storage.get_range(ref.path, 0, size)
        except TruncatedObjectError as error:
            # An empty object and a truncated one are different errors.
            if self._storage.info(ref.path).size == 0:
                raise EmptyObjectError(
                    "status part is empty", where=self._where(ref.path)
                ) from error
            raise

    def _check_digest(self, ref: PartRef, data: bytes) -> None:
        actual = digest_of(data)
        if actual != ref.digest:
            where = self._where(ref.path)
            raise CorruptionError("wrong digest", where=where, expected=ref.digest, actual=actual)

    def _keep(self, path: str, loaded: _Loaded) -> None:
        self._kept.pop(path, None)
        self._kept[path] = loaded
        while len(self._kept) > 1 and (
            len(self._kept) > _KEPT_PARTS
            or sum(len(loaded_part.part.columns) for loaded_part in self._kept.values())
            > _KEPT_SEGMENTS
        ):
            self._kept.pop(next(iter(self._kept)))

    def _where(self, path: str) -> str:
        return f"{self._storage.url}/{path}"


def build_part(entries: Sequence[SegmentEntry]) -> tuple[bytes, bytes]:
    """Return a part's object as two pieces: the bytes its digest covers, and the statistics."""
    chunks, behind = encode_chunks([entry.stats for entry in entries])
    return encode_part(from_entries(entries), chunks), behind


def _rows(columns: SegmentColumns) -> int:
    # Each value is below 2^63, but the sum may not be: an overflow would produce a false range.
    low = int(np.sum(columns.rows & 0xFFFFFFFF, dtype=np.uint64))
    return low + (int(np.sum(columns.rows >> 32, dtype=np.uint64)) << 32)
