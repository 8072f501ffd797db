"""Epochs: the schema that a segment's bytes are encoded in, and how a write may add one.

A writing job is planned on the newest schema it saw and encodes all its segments in one schema.
When it commits, that schema is the newest epoch's, an older epoch's or a new one's. The id of each
segment has the epoch of its bytes, and readers convert it to the schema that they read with.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from segstore_ds.errors import CorruptionError, SchemaMismatchError
from segstore_ds.format.indexed_columns import refuse_lost_keys
from segstore_ds.format.parts.kinds import SCHEMA
from segstore_ds.format.properties import follow_columns
from segstore_ds.format.root import COLUMN_NAMES, NANOSECONDS, RULES_PROPERTY, BlobRef, Epoch, Root
from segstore_ds.format.schema.codec import (
    decode_schema,
    encode_schema,
    fingerprint,
    has_nanoseconds,
)
from segstore_ds.format.schema.column_names import Names, change_columns, named_schema, names_of
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
        names: Names = MappingProxyType({}),
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
            return Epoch(number, since, schema, spark, names=dict(names))
        stored = self._store.put(version, SCHEMA, (schema, spark))
        blob = BlobRef(stored.path, stored.bytes, 1)
        return Epoch(number, since, None, None, blob, dict(names))


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The schema of staged bytes, and how it may change the stream's schema."""

    schema: pa.Schema  # in normal form, under stored names
    # Spark's own JSON of it, or of some of its columns; None outside Spark.
    spark: str | None = None
    merge: bool = False  # it may widen and extend the stream's schema
    replace: bool = False  # it replaces the stream's schema (with an overwrite only)
    # The columns' names when the write was planned, if they differ from the stored names.
    names: tuple[str, ...] = ()

    def called(self) -> dict[str, str]:
        """Return the name of each column by its stored name."""
        stored = self.schema.names
        return dict(zip(stored, self.names or stored, strict=True))


def epoch_schema(status: SchemaTexts, epoch: Epoch) -> pa.Schema:
    """Return an epoch's schema as its segments store it."""
    return decode_schema(status.schema_texts(epoch)[0])


def stream_schema(status: SchemaTexts, root: Root) -> pa.Schema:
    """Return a stream's schema as of a root, with the names that callers see."""
    epoch = root.epochs[-1]
    schema = epoch_schema(status, epoch)
    return named_schema(schema, epoch.names) if epoch.names else schema


def called_columns(status: SchemaTexts, epoch: Epoch) -> dict[str, str]:
    """Return the name of each column of an epoch by its stored name."""
    schema = epoch_schema(status, epoch)
    return dict(zip(schema.names, named_schema(schema, epoch.names).names, strict=True))


def plan_epochs(
    root: Root, change: SchemaChange, status: SchemaTexts
) -> tuple[tuple[Epoch, ...], int]:
    """Return the epochs after a commit, and the number of the one that the staged bytes have."""
    epoch = root.epochs[-1]
    text, spark = status.schema_texts(epoch)
    newest = decode_schema(text)
    # Spark schemas that differ may be equal in Arrow: collations, char lengths, interval fields.
    told_apart = change.replace and change.spark is not None and not _is_same(spark, change.spark)
    if (epoch.names or change.names) and not change.replace:
        _refuse_other_columns(root, change, status)
    # The usual case: a job that was planned on this schema holds the same object.
    if newest is change.schema and not told_apart:
        return root.epochs, epoch.number
    wanted, number = fingerprint(change.schema), epoch.number + 1
    if fingerprint(newest) == wanted and not told_apart:
        return root.epochs, epoch.number
    if change.replace:
        return _extend(root, status, change.called(), [(change.schema, change.spark)]), number
    # The job was planned on an older schema: its bytes fit if their columns, without those that
    # were dropped meanwhile, can be converted to the newest one.
    dropped = {stored for stored, name in epoch.names.items() if name is None}
    kept = pa.schema([field for field in change.schema if field.name not in dropped])
    merged = plan_schema(newest, kept, merge=True)
    refuse_lost_keys(root, newest, merged)
    if change.merge and len(kept) < len(change.schema) and not merged.equals(newest):
        raise _changed(root)  # it would add some of its columns, and lose the dropped ones
    for epoch in reversed(root.epochs):
        if fingerprint(epoch_schema(status, epoch)) == wanted and merged.equals(newest):
            return root.epochs, epoch.number
    if not change.merge:
        raise _changed(root)
    called = {**change.called(), **called_columns(status, root.epoch)}
    sources = [(newest, spark), (change.schema, change.spark)]
    spark = merge_spark_json(
        named_schema(merged, called), [(named_schema(one, called), text) for one, text in sources]
    )
    if fingerprint(merged) == wanted:
        return _extend(root, status, called, [(merged, spark)]), number
    # Another writer added columns meanwhile: add an epoch for these bytes and one for all columns.
    own = (change.schema, change.spark)
    return _extend(root, status, called, [own, (merged, spark)]), number


def _refuse_other_columns(root: Root, change: SchemaChange, status: SchemaTexts) -> None:
    """Raise SchemaMismatchError unless each column is new or had its name in some epoch.

    Other writers may have given its stored name, or its name, to another column meanwhile. That
    also holds for a column that was dropped: its values would be lost.
    """
    known: dict[str, set[str]] = {}
    for epoch in root.epochs:
        for stored, name in called_columns(status, epoch).items():
            known.setdefault(stored, set()).add(name)
    newest = called_columns(status, root.epoch)
    taken = {name.casefold() for name in newest.values()}
    for stored, name in change.called().items():
        was_called_otherwise = stored in known and name not in known[stored]
        if was_called_otherwise or (stored not in newest and name.casefold() in taken):
            raise _changed(root)


def _changed(root: Root) -> SchemaMismatchError:
    return SchemaMismatchError(
        "the stream's schema changed during the write",
        remedy="write again",
        stream=root.stream_id,
        epoch=root.epoch.number,
    )


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
    root: Root,
    status: SchemaTexts,
    called: Mapping[str, str],
    schemas: Sequence[tuple[pa.Schema, str | None]],
) -> tuple[Epoch, ...]:
    epochs = list(root.epochs)
    for schema, spark in schemas:
        names = names_of(schema, [called[one] for one in schema.names], root.epoch.names)
        facts = (root.version, len(epochs), root.tail, encode_schema(schema), spark)
        epochs.append(status.put_epoch(*facts, names=names, beside=epochs))
    return tuple(epochs)


def with_columns_changed(
    root: Root, status: SchemaTexts, rename: Mapping[str, str], drop: Sequence[str]
) -> Root:
    """Return a root whose newest epoch has columns renamed and others dropped."""
    text, spark = status.schema_texts(root.epoch)
    schema, names = change_columns(decode_schema(text), root.epoch.names, rename, drop)
    if spark is not None:
        kept = {name: each for name, each in _spark_fields(spark).items() if name not in drop}
        fields = [{**each, "name": rename.get(name, name)} for name, each in kept.items()]
        spark = json.dumps({"type": "struct", "fields": fields}) if fields else None
    facts = (root.version, len(root.epochs), root.tail, encode_schema(schema), spark)
    epoch = status.put_epoch(*facts, names=names, beside=root.epochs)
    return with_epochs(root, status, (*root.epochs, epoch))


def with_epochs(
    root: Root, status: SchemaTexts, epochs: Sequence[Epoch], schemas: Iterable[pa.Schema] = ()
) -> Root:
    """Return a root with newer epochs, and with the features and properties that they need.

    The stored name of a column that is gone is never reused. `schemas` are new ones.
    """
    newest, names = epochs[-1], epochs[-1].names
    after = called_columns(status, newest)
    gone = {one: None for one in root.epoch.names if one not in after and one not in names}
    newest = replace(newest, names={**names, **gone})
    properties = follow_columns(root.properties, called_columns(status, root.epoch), after)
    changed = replace(root, epochs=(*epochs[:-1], newest), properties=properties)
    return with_features(changed, schemas)


def with_features(root: Root, schemas: Iterable[pa.Schema] = ()) -> Root:
    """Return a root with the features that it needs; `schemas` are new ones of its epochs. Pure.

    A feature stays, because older segments and versions may need it.
    """
    named = {COLUMN_NAMES} if any(epoch.names for epoch in root.epochs) else set()
    writers = named | {RULES_PROPERTY} & root.properties.keys()
    fine = any(has_nanoseconds(field.type) for schema in schemas for field in schema)
    readers = {*named, *([NANOSECONDS] if fine else ())}.difference(root.reader_features)
    writers -= {*root.writer_features}
    if not readers and not writers:
        return root
    return replace(
        root,
        reader_features=(*root.reader_features, *sorted(readers)),
        writer_features=(*root.writer_features, *sorted(writers)),
    )
