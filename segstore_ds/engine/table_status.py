"""The table status: the list of a stream's segments, by offset, and what else outgrows the root.

A root lists its newest segments inline. When they pass a soft limit the next commit moves them to a
status part; neighbouring parts of one size are merged by commits of their own, after the
acknowledgement. An attempt that lost a race moves nothing below the hard limit, so that maintenance
never stands between a lost race and its retry. Parts are sorted by offset and never overlap.

Writers beyond `WRITERS_INLINE` and retired objects beyond `RETIRED_INLINE` go to blobs, big schemas
too: a root stays below its 64 KiB however long the stream.

Source: CarbonData's table status proposal (base, delta, pointer), with geometric merging.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from segstore_ds.engine.state import Slot
from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.envelope import decode_envelope, digest_of, encode_envelope
from segstore_ds.format.fields import build_json, parse_json
from segstore_ds.format.root import BlobRef, Epoch, PartRef, Retired, Root, SegmentEntry, Writer
from segstore_ds.format.status import (
    decode_part,
    decode_retired,
    decode_writers,
    encode_part,
    encode_retired,
    encode_writers,
)
from segstore_ds.storage import Storage

INLINE_SOFT = 64
INLINE_HARD = 160
MERGE_FAN_IN = 8
PART_FINAL_SEGMENTS = 32_768
WRITERS_INLINE = 256
RETIRED_INLINE = 192
SCHEMA_INLINE_BYTES = 6_000
OBJECT_RAW_LIMIT_BYTES = 128 << 20
_CACHED_OBJECTS = 64


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment and its place: it holds the events ``[start, start + entry.rows)``."""

    start: int
    entry: SegmentEntry

    @property
    def end(self) -> int:
        """The offset behind its last event."""
        return self.start + self.entry.rows


class TableStatus:
    """Reads and writes the status objects of one stream.

    Immutable objects are kept in memory by name, the last few of them.

    Args:
        storage: The stream's folder.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cache: dict[str, object] = {}

    # --- reading -----------------------------------------------------------------------------

    def segments(self, root: Root, start: int, end: int) -> Iterator[PlacedSegment]:
        """Yield the segments that hold events of ``[start, end)``, in offset order.

        Raises:
            FormatError: A part is missing, damaged, or contradicts the root.
            StorageError: The storage failed.
        """
        if start >= end:
            return
        for part in root.parts:
            if part.start < end and part.end > start:
                yield from _placed(self.part(part), part.start, start, end)
        inline_start = root.parts[-1].end if root.parts else root.listed_start
        yield from _placed(root.entries, inline_start, start, end)

    def part(self, ref: PartRef) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part; raises as `segments`."""
        found = self._cache.get(ref.path)
        if isinstance(found, tuple):
            return found
        body = self._read(ref)
        entries = decode_part(body, where=self._where(ref.path))
        rows = sum(entry.rows for entry in entries)
        if len(entries) != ref.segments or rows != ref.end - ref.start:
            raise CorruptionError(
                "status part contradicts the root",
                where=self._where(ref.path),
                segments=(ref.segments, len(entries)),
                rows=(ref.end - ref.start, rows),
            )
        self._keep(ref.path, entries)
        return entries

    def writer(self, root: Root, writer_id: str) -> Writer | None:
        """Return what a writer id committed last, wherever it is kept; raises as `segments`."""
        if writer_id in root.writers or root.writers_blob is None:
            return root.writers.get(writer_id)
        return self.writers_blob(root.writers_blob).get(writer_id)

    def writers_blob(self, blob: BlobRef) -> dict[str, Writer]:
        """Return the writers of a blob; raises as `segments`."""
        found = self._cache.get(blob.path)
        if isinstance(found, dict):
            return found
        where = self._where(blob.path)
        writers = decode_writers(self._read(blob), where=where)
        self._keep(blob.path, writers)
        return writers

    def retired_blob(self, blob: BlobRef) -> tuple[Retired, ...]:
        """Return the retired objects of a blob; raises as `segments`."""
        return decode_retired(self._read(blob), where=self._where(blob.path))

    def retired_part(self, path: str, *, required: bool = False) -> tuple[SegmentEntry, ...]:
        """Return the entries of a part that was retired, none where it was deleted since.

        Raises:
            FormatError: The part can't be read; or it is missing though it is required.
            StorageError: The storage failed.
        """
        try:
            data = self._storage.get(path, limit_bytes=OBJECT_RAW_LIMIT_BYTES)
        except MissingObjectError:
            if required:
                raise
            return ()
        where = self._where(path)
        body = decode_envelope(data, where=where, raw_limit_bytes=OBJECT_RAW_LIMIT_BYTES)
        return decode_part(body, where=where)

    def schema_texts(self, epoch: Epoch) -> tuple[str, str | None]:
        """Return an epoch's Arrow schema (base64) and Spark's JSON of it; raises as `segments`."""
        if epoch.schema is not None:
            return epoch.schema, epoch.spark
        if epoch.blob is None:
            raise CorruptionError("epoch has no schema", epoch=epoch.number)
        where = self._where(epoch.blob.path)
        value = parse_json(self._read(epoch.blob), where=where)
        match value:
            case [str(schema), (str() | None) as spark]:
                return schema, spark
        raise CorruptionError("blob holds no schema", where=where)

    # --- writing -----------------------------------------------------------------------------

    def put_epoch(
        self, version: int, number: int, since: int, schema: str, spark: str | None
    ) -> Epoch:
        """Return an epoch, its schema in a blob where it is too big for the root.

        Raises:
            StorageError: The storage failed.
        """
        if len(schema) + len(spark or "") <= SCHEMA_INLINE_BYTES:
            return Epoch(number, since, schema, spark)
        blob = self._put_blob(version, "schema", build_json([schema, spark]), 1)
        return Epoch(number, since, None, None, blob)

    def tidy(self, root: Root, slot: Slot) -> Root:
        """Move what outgrew the root's share to status objects of its own.

        Args:
            root: The root that is about to be committed; its `version` is still its parent's.
            slot: Where it will land; once a race is lost only the hard limit counts.

        Returns:
            The root, unchanged where nothing was due.

        Raises:
            FormatError: A blob that had to be extended can't be read.
            StorageError: The storage failed.
        """
        if len(root.entries) > (INLINE_SOFT if slot.attempt == 0 else INLINE_HARD):
            root = self._spill_entries(root)
        if len(root.writers) > WRITERS_INLINE:
            root = self._spill_writers(root, slot)
        if len(root.retired) > RETIRED_INLINE:
            body = encode_retired(root.retired)
            blob = self._put_blob(root.version, "retired", body, len(root.retired))
            root = replace(root, retired=(), retired_blobs=(*root.retired_blobs, blob))
        return root

    def merge(self, root: Root, paths: tuple[str, ...], slot: Slot) -> Root | None:
        """Replace neighbouring parts by one; None when they are no longer there side by side.

        Raises:
            FormatError: A part can't be read.
            StorageError: The storage failed.
        """
        listed = [part.path for part in root.parts]
        if paths[0] not in listed:
            return None
        first = listed.index(paths[0])
        if tuple(listed[first : first + len(paths)]) != paths:
            return None
        merged = root.parts[first : first + len(paths)]
        entries = tuple(entry for part in merged for entry in self.part(part))
        part = self._put_part(root.version, merged[0].start, entries)
        retired = tuple(Retired("status", old.path, slot.version, slot.time_us) for old in merged)
        parts = (*root.parts[:first], part, *root.parts[first + len(paths) :])
        return replace(root, parts=parts, retired=(*root.retired, *retired))

    def _spill_entries(self, root: Root) -> Root:
        start = root.tail - sum(entry.rows for entry in root.entries)
        parts = list(root.parts)
        for first in range(0, len(root.entries), PART_FINAL_SEGMENTS):
            entries = root.entries[first : first + PART_FINAL_SEGMENTS]
            parts.append(self._put_part(root.version, start, entries))
            start = parts[-1].end
        return replace(root, parts=tuple(parts), entries=())

    def _spill_writers(self, root: Root, slot: Slot) -> Root:
        by_age = sorted(root.writers.items(), key=lambda item: item[1].version)
        moved, kept = by_age[: WRITERS_INLINE * 3 // 4], by_age[WRITERS_INLINE * 3 // 4 :]
        old = root.writers_blob
        writers = dict(self.writers_blob(old)) if old else {}
        # A writer that came back stands inline again; its newer entry is the one that counts.
        writers = {name: writer for name, writer in writers.items() if name not in root.writers}
        writers.update(moved)
        blob = self._put_blob(root.version, "writers", encode_writers(writers), len(writers))
        retired = root.retired
        if old is not None:
            retired = (*retired, Retired("status", old.path, slot.version, slot.time_us))
        return replace(root, writers=dict(kept), writers_blob=blob, retired=retired)

    def _put_part(self, version: int, start: int, entries: tuple[SegmentEntry, ...]) -> PartRef:
        blob = self._put_blob(version, "part", encode_part(entries), len(entries))
        end = start + sum(entry.rows for entry in entries)
        self._keep(blob.path, entries)
        return PartRef(blob.path, start, end, len(entries), blob.bytes, blob.digest)

    def _put_blob(self, version: int, kind: str, body: bytes, count: int) -> BlobRef:
        data = encode_envelope(body)
        digest = digest_of(data)
        path = names.build_status_path(version, kind, digest)
        # Named by digest: a name that is taken holds the same bytes already.
        self._storage.create(path, data)
        return BlobRef(path, len(data), digest, count)

    def _read(self, ref: PartRef | BlobRef) -> bytes:
        data = self._storage.get(ref.path, limit_bytes=min(ref.bytes, OBJECT_RAW_LIMIT_BYTES))
        where = self._where(ref.path)
        body = decode_envelope(data, where=where, raw_limit_bytes=OBJECT_RAW_LIMIT_BYTES)
        actual = digest_of(data)
        if actual != ref.digest:
            raise CorruptionError("wrong digest", where=where, expected=ref.digest, actual=actual)
        return body

    def _keep(self, path: str, value: object) -> None:
        while len(self._cache) >= _CACHED_OBJECTS:
            self._cache.pop(next(iter(self._cache)))
        self._cache[path] = value

    def _where(self, path: str) -> str:
        return f"{self._storage.url}/{path}"


def plan_merge(root: Root) -> tuple[str, ...] | None:
    """Choose neighbouring parts to merge: the newest `MERGE_FAN_IN` of one size class.

    Pure. Returns their names, or None when nothing is due.
    """
    if len(root.parts) < MERGE_FAN_IN:
        return None
    run = root.parts[-MERGE_FAN_IN:]
    classes = {_size_class(part.segments) for part in run}
    if len(classes) != 1 or sum(part.segments for part in run) > 2 * PART_FINAL_SEGMENTS:
        return None
    return tuple(part.path for part in run)


def _size_class(segments: int) -> int:
    size, limit = 0, INLINE_HARD
    while segments > limit:
        size, limit = size + 1, limit * MERGE_FAN_IN
    return size


def _placed(
    entries: tuple[SegmentEntry, ...], first: int, start: int, end: int
) -> Iterator[PlacedSegment]:
    cursor = first
    for entry in entries:
        if cursor >= end:
            return
        if cursor + entry.rows > start:
            yield PlacedSegment(cursor, entry)
        cursor += entry.rows
