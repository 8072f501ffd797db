"""The schemas of epochs: in the root, or in an object of their own where they are large."""

from collections.abc import Sequence

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.kinds import SCHEMA
from segstore_ds.format.root import BlobRef, Epoch
from segstore_ds.status.store import ObjectStore
from segstore_ds.storage import Storage

SCHEMA_INLINE_BYTES = 6_000
SCHEMAS_INLINE_BYTES = 12_000


class SchemaTexts:
    """Reads and writes the schemas of one stream."""

    def __init__(self, storage: Storage) -> None:
        self._store = ObjectStore(storage)

    @property
    def storage(self) -> Storage:
        """The stream's folder."""
        return self._store.storage

    def schema_texts(self, epoch: Epoch) -> tuple[str, str | None]:
        """Return an epoch's Arrow schema (base64) and Spark's JSON of it."""
        if epoch.schema is not None:
            return epoch.schema, epoch.spark
        if epoch.blob is None:
            raise CorruptionError("epoch has no schema", epoch=epoch.number)
        return self._store.get(epoch.blob, SCHEMA)

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
        stored = self._store.put(version, SCHEMA, (schema, spark))
        return Epoch(number, since, None, None, BlobRef(stored.path, stored.bytes, 1))
