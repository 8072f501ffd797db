"""Status objects that list no segments: writers, retired objects and large schemas.

This module also combines them with the root: an inline entry takes precedence.
"""

from collections.abc import Mapping, Sequence

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.kinds import RETIRED, SCHEMA, WRITERS, Kind, T
from segstore_ds.format.root import BlobRef, Epoch, Retired, Root, Writer
from segstore_ds.status.store import ObjectStore
from segstore_ds.storage import Storage

SCHEMA_INLINE_BYTES = 6_000
SCHEMAS_INLINE_BYTES = 12_000


class StatusBlobs:
    """Reads and writes the status objects of one stream that list no segments."""

    def __init__(self, storage: Storage) -> None:
        self._store = ObjectStore(storage)

    @property
    def storage(self) -> Storage:
        """The stream's folder."""
        return self._store.storage

    # --- reading -----------------------------------------------------------------------------

    def writer(self, root: Root, writer_id: str) -> Writer | None:
        """Return what a writer id committed last, wherever it is stored."""
        if writer_id in root.writers or root.writers_blob is None:
            return root.writers.get(writer_id)
        return self.writers_blob(root.writers_blob).get(writer_id)

    def writers_blob(self, blob: BlobRef) -> Mapping[str, Writer]:
        """Return the writers of a blob."""
        return self._store.get(blob, WRITERS)

    def retired_blob(self, blob: BlobRef) -> tuple[Retired, ...]:
        """Return the retired objects of a blob."""
        return self._store.get(blob, RETIRED)

    def schema_texts(self, epoch: Epoch) -> tuple[str, str | None]:
        """Return an epoch's Arrow schema (base64) and Spark's JSON of it."""
        if epoch.schema is not None:
            return epoch.schema, epoch.spark
        if epoch.blob is None:
            raise CorruptionError("epoch has no schema", epoch=epoch.number)
        return self._store.get(epoch.blob, SCHEMA)

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
        blob = self.put(version, SCHEMA, (schema, spark), 1)
        return Epoch(number, since, None, None, blob)

    def put(self, version: int, kind: Kind[T], value: T, count: int) -> BlobRef:
        """Write an object that holds `count` rows."""
        stored = self._store.put(version, kind, value)
        return BlobRef(stored.path, stored.bytes, count)
