"""Epochs: the schema that a segment's bytes are encoded in, and how a write may add one.

A writing job is planned against the newest schema it saw and encodes all its segments in one
schema. When it commits, that schema belongs to the newest epoch, an older epoch or a new one. Each
segment carries the epoch of its bytes, and readers convert it to the schema that they read with.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from segstore_ds.errors import CorruptionError, SchemaMismatchError
from segstore_ds.format.indexed_columns import refuse_lost_keys
from segstore_ds.format.parts.kinds import SCHEMA
from segstore_ds.format.root import NANOSECONDS, BlobRef, Epoch, Root
from segstore_ds.format.schema.codec import decode_schema, encode_schema, fingerprint
from segstore_ds.format.schema.normal_form import has_nanoseconds
from segstore_ds.format.schema.widening import plan_schema
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


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The schema of staged bytes, and how it may change the stream's schema.

    Attributes:
        schema: In normal form.
        spark: Spark's own JSON of it, or of some of its columns; None outside Spark.
        merge: It may widen and extend the stream's schema.
        replace: It replaces the stream's schema (with an overwrite only).
    """

    schema: pa.Schema
    spark: str | None = None
    merge: bool = False
    replace: bool = False


def epoch_schema(status: SchemaTexts, epoch: Epoch) -> pa.Schema:
    """Return an epoch's schema."""
    return decode_schema(status.schema_texts(epoch)[0])


def features_of(schemas: Iterable[pa.Schema], known: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the reader features of a root that has these schemas, and `known` from before. Pure.

    >>> features_of([pa.schema([("ts", pa.timestamp("ns"))])])
    ('nanoseconds',)
    """
    needed = any(has_nanoseconds(field.type) for schema in schemas for field in schema)
    return tuple(sorted({*known, NANOSECONDS})) if needed else tuple(known)


def plan_epochs(
    root: Root, change: SchemaChange, status: SchemaTexts
) -> tuple[tuple[Epoch, ...], int]:
    """Return the stream's epochs after a commit, and the number of the staged bytes' epoch.

    Epochs are added where `change` allows it.

    Raises:
        SchemaMismatchError: The stream's schema was replaced, so the bytes no longer fit.
    """
    text, spark = status.schema_texts(root.epoch)
    newest = decode_schema(text)
    # Spark schemas that differ may be equal in Arrow: collations, char lengths, interval fields.
    told_apart = change.replace and change.spark is not None and not _is_same(spark, change.spark)
    # A job that was planned on this schema has the same object of it.
    if newest is change.schema and not told_apart:
        return root.epochs, root.epoch.number
    wanted = fingerprint(change.schema)
    if fingerprint(newest) == wanted and not told_apart:
        return root.epochs, root.epoch.number
    if change.replace:
        return _extend(root, status, [(change.schema, change.spark)]), root.epoch.number + 1
    # The job was planned on an older schema: its bytes fit if they convert to the newest one.
    merged = plan_schema(newest, change.schema, merge=True)
    refuse_lost_keys(root, newest, merged)
    for epoch in reversed(root.epochs):
        if fingerprint(epoch_schema(status, epoch)) == wanted and merged.equals(newest):
            return root.epochs, epoch.number
    if not change.merge:
        raise SchemaMismatchError(
            "the stream's schema changed during the write",
            remedy="write again",
            stream=root.stream_id,
            epoch=root.epoch.number,
        )
    spark = merge_spark_json(merged, [(newest, spark), (change.schema, change.spark)])
    number = root.epoch.number + 1
    if fingerprint(merged) == wanted:
        return _extend(root, status, [(merged, spark)]), number
    # Another writer added columns meanwhile: add an epoch for these bytes and one for all columns.
    return _extend(root, status, [(change.schema, change.spark), (merged, spark)]), number


def merge_spark_json(
    merged: pa.Schema, sources: Sequence[tuple[pa.Schema, str | None]]
) -> str | None:
    """Return Spark's JSON for the merged columns that have the type of some source. Pure."""
    read = [(schema, _spark_fields(text)) for schema, text in sources if text]
    fields = []
    for field in merged:
        found = (
            spark[field.name]
            for schema, spark in read
            if spark.get(field.name)
            and (place := schema.get_field_index(field.name)) >= 0
            and schema.field(place).equals(field)
        )
        fields.append(next(found, None))
    kept = [field for field in fields if field]
    return json.dumps({"type": "struct", "fields": kept}) if kept else None


def _is_same(one: str | None, other: str) -> bool:
    try:
        return one is not None and bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False


def _spark_fields(text: str) -> dict[str, Any]:
    try:
        return {field["name"]: dict(field) for field in json.loads(text)["fields"]}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptionError("epoch's Spark schema can't be read") from error


def _extend(
    root: Root, status: SchemaTexts, schemas: Sequence[tuple[pa.Schema, str | None]]
) -> tuple[Epoch, ...]:
    epochs = list(root.epochs)
    for schema, spark in schemas:
        text = encode_schema(schema)
        facts = (root.version, len(epochs), root.tail, text, spark)
        epochs.append(status.put_epoch(*facts, beside=epochs))
    return tuple(epochs)
