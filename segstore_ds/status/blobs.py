"""Status objects that list no segments: writers, retired objects, tags and large schemas.

Each is an envelope of JSON, named by its digest and immutable; the last few are kept in memory.
This module also combines them with the root: an inline entry takes precedence.
"""

from collections.abc import Mapping, Sequence, Sized

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.envelope import decode_envelope, digest_of, encode_envelope
from segstore_ds.format.fields import build_json, parse_json
from segstore_ds.format.parts.status import decode_retired, decode_writers
from segstore_ds.format.root import BlobRef, Epoch, PartIndex, Retired, Root, Writer
from segstore_ds.format.tag import Tag, decode_tags, parse_tag, parse_tags
from segstore_ds.storage import Storage

SCHEMA_INLINE_BYTES = 6_000
SCHEMAS_INLINE_BYTES = 12_000
OBJECT_RAW_LIMIT_BYTES = 128 << 20
_CACHED_OBJECTS = 64
_CACHED_ROWS = 1 << 18  # in all cached objects together; the newest is kept whatever its size


class StatusBlobs:
    """Reads and writes the status objects of one stream that list no segments."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cache: dict[str, Sized] = {}

    @property
    def storage(self) -> Storage:
        """The stream's folder."""
        return self._storage

    # --- reading -----------------------------------------------------------------------------

    def writer(self, root: Root, writer_id: str) -> Writer | None:
        """Return what a writer id committed last, wherever it is stored."""
        if writer_id in root.writers or root.writers_blob is None:
            return root.writers.get(writer_id)
        return self.writers_blob(root.writers_blob).get(writer_id)

    def writers_blob(self, blob: BlobRef) -> dict[str, Writer]:
        """Return the writers of a blob."""
        found = self._cache.get(blob.path)
        if isinstance(found, dict):
            return found
        where = self._where(blob.path)
        writers = decode_writers(self._read(blob), where=where)
        self._keep(blob.path, writers)
        return writers

    def retired_blob(self, blob: BlobRef) -> tuple[Retired, ...]:
        """Return the retired objects of a blob."""
        return decode_retired(self._read(blob), where=self._where(blob.path))

    def tags(self, root: Root) -> dict[str, Tag]:
        """Return all tags of a root by name."""
        if root.tags_blob is None:
            return parse_tags(root.tags, where=f"version {root.version}")
        inline = {name: value for name, value in root.tags.items() if value is not None}
        moved = self.tags_blob(root.tags_blob)
        kept = {name: tag for name, tag in moved.items() if name not in root.tags}
        return {**kept, **parse_tags(inline, where=f"version {root.version}")}

    def tag(self, root: Root, name: str) -> Tag | None:
        """Return a tag, wherever it is stored."""
        value = root.tags.get(name)
        if value is not None:
            return parse_tag(value, where=f"version {root.version}, tag {name!r}")
        if name in root.tags or root.tags_blob is None:
            return None
        return self.tags_blob(root.tags_blob).get(name)

    def tags_blob(self, blob: BlobRef) -> Mapping[str, Tag]:
        """Return the tags of a blob."""
        found = self._cache.get(blob.path)
        if isinstance(found, dict):
            return found
        tags = decode_tags(self._read(blob), where=self._where(blob.path))
        self._keep(blob.path, tags)
        return tags

    def schema_texts(self, epoch: Epoch) -> tuple[str, str | None]:
        """Return an epoch's Arrow schema (base64) and Spark's JSON of it."""
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
        self,
        version: int,
        number: int,
        since: int,
        schema: str,
        spark: str | None,
        *,
        beside: Sequence[Epoch] = (),
    ) -> Epoch:
        """Return an epoch; a schema that is too big for the root is written to a blob.

        `version` is the newest version that the writer has seen, `since` the tail at which the
        epoch begins. `beside` holds the epochs that the root already lists: all inline schemas
        share one size limit.
        """
        size = len(schema) + len(spark or "")
        used = sum(len(known.schema or "") + len(known.spark or "") for known in beside)
        if size <= SCHEMA_INLINE_BYTES and used + size <= SCHEMAS_INLINE_BYTES:
            return Epoch(number, since, schema, spark)
        blob = self.put(version, "schema", encode_schema_blob(schema, spark), 1)
        return Epoch(number, since, None, None, blob)

    def put(self, version: int, kind: str, body: bytes, count: int) -> BlobRef:
        """Write an object that holds `count` rows."""
        data = encode_envelope(body)
        digest = digest_of(data)
        path = names.build_status_path(version, kind, digest)
        # Named by digest: an existing object of that name holds the same bytes.
        self._storage.create(path, data)
        return BlobRef(path, len(data), digest, count)

    def _read(self, ref: PartIndex | BlobRef) -> bytes:
        data = self._storage.get(ref.path, limit_bytes=min(ref.bytes, OBJECT_RAW_LIMIT_BYTES))
        where = self._where(ref.path)
        body = decode_envelope(data, where=where, raw_limit_bytes=OBJECT_RAW_LIMIT_BYTES)
        actual = digest_of(data)
        if actual != ref.digest:
            raise CorruptionError("wrong digest", where=where, expected=ref.digest, actual=actual)
        return body

    def _keep(self, path: str, value: Sized) -> None:
        self._cache.pop(path, None)
        self._cache[path] = value
        while len(self._cache) > 1 and (
            len(self._cache) > _CACHED_OBJECTS
            or sum(len(known) for known in self._cache.values()) > _CACHED_ROWS
        ):
            self._cache.pop(next(iter(self._cache)))

    def _where(self, path: str) -> str:
        return f"{self._storage.url}/{path}"


def encode_schema_blob(schema: str, spark: str | None) -> bytes:
    """Return the body of the blob that holds an epoch's schema."""
    return build_json([schema, spark])
