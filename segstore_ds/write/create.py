"""Creates a stream, sets its properties, renames and drops its columns; rewrites no event.

A property is a text that applies to every writer. A change of columns adds an epoch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa

from segstore_ds.errors import AlreadyExistsError, ConflictError, InvalidInputError
from segstore_ds.format.indexed_columns import KEY_COLUMNS, build_key_columns, build_time_column
from segstore_ds.format.operation import Operation
from segstore_ds.format.properties import PROPERTIES, refuse_needed
from segstore_ds.format.root import RULES_PROPERTY, TIME_COLUMN, Epoch, Root
from segstore_ds.format.schema.codec import encode_schema, normalise_schema
from segstore_ds.log.commit import Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.log.place import may_begin, seen_before
from segstore_ds.status.epochs import stream_schema, with_columns_changed, with_features
from segstore_ds.status.history import begin_history
from segstore_ds.status.table import Slot
from segstore_ds.write.inputs import refuse_unnamed_index

# Raises if filters of the stream name one of the columns to rename or drop.
Refuse = Callable[[Root, pa.Schema, Collection[str]], None]


def run_create(
    context: StreamContext,
    schema: pa.Schema,
    *,
    spark_schema: str | None,
    properties: Mapping[str, str | None] = MappingProxyType({}),
    key_columns: Sequence[str] | None = None,
    time_column: str | None = None,
) -> None:
    """Create an empty stream; afterwards the context's log is at the first root.

    If several callers create at once, exactly one succeeds. `spark_schema` is Spark's JSON of the
    schema, or None.
    """
    if not isinstance(schema, pa.Schema):
        raise InvalidInputError(
            "not a schema",
            remedy="give a pyarrow Schema, such as pa.schema([('n', pa.int64())]) or table.schema",
            type=type(schema).__name__,
        )
    refuse_unnamed_index(schema)
    if not schema.names:
        raise InvalidInputError("schema has no columns", remedy="give at least one")
    stored = normalise_schema(schema)
    text = encode_schema(stored)
    texts = {
        **properties,
        KEY_COLUMNS: build_key_columns(key_columns, stored),
        TIME_COLUMN: build_time_column(time_column, stored),
    }
    version = may_begin(context.log.files)
    if version is None:
        raise _taken(context.storage.url)
    epoch = context.status.put_epoch(seen_before(version), 0, 0, text, spark_schema)
    first = first_root(context, Operation.CREATE, [epoch], [stored])
    first = replace(first, properties={name: text for name, text in texts.items() if text})
    if context.log.create(begin_history(first), version) is None:
        raise _taken(context.storage.url)


def _taken(url: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        "a stream already exists here", remedy="open it, or choose another location", url=url
    )


def first_root(
    context: StreamContext,
    operation: Operation,
    epochs: Sequence[Epoch],
    schemas: Iterable[pa.Schema] = (),
    *,
    stream_id: str | None = None,
) -> Root:
    """Return the first root of a new stream, without events and without a history row."""
    first = Root(
        stream_id=stream_id or context.clock.new_id(),
        version=0,
        transaction=context.clock.new_id(),
        parent="",
        time_us=context.clock.wall_us(),
        operation=operation,
        epochs=tuple(epochs),
        client=context.client,
    )
    return with_features(first, schemas)


def run_set_properties(
    context: StreamContext, changes: Mapping[str, str | None], *, epoch: int | None = None
) -> Committed[None]:
    """Set properties of a stream, or remove those whose value is None; safe to repeat.

    Columns are named as of `epoch`: if it is not the newest, properties that name some are refused.
    """
    context.log.refresh()

    def next_root(root: Root, _slot: Slot) -> Root | None:
        for each in PROPERTIES:
            if changes.get(each.name):
                if epoch not in (None, root.epoch.number):
                    fact = "the columns of the stream have changed meanwhile"
                    raise ConflictError(fact, url=context.storage.url)
                each.refuse(root)
        merged = {**root.properties, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        if kept == dict(root.properties):
            return None
        return with_features(replace(root, properties=kept, operation=Operation.SET_PROPERTIES))

    return context.commit(next_root)


def run_change_schema(
    context: StreamContext, rename: Mapping[str, str], drop: Sequence[str], refuse: Refuse
) -> None:
    """Rename and drop columns in one commit; `refuse` is called with the root that it follows."""
    for given, kind in ((rename, Mapping), (drop, Sequence)):
        if not isinstance(given, kind) or isinstance(given, str):
            raise InvalidInputError(
                "not a change of columns",
                remedy="give rename={'old': 'new'} and drop=['name']",
                rename=rename,
                drop=drop,
            )
    if not rename and not drop:
        raise InvalidInputError("no change of columns", remedy="give rename or drop")
    context.log.refresh()

    def next_root(root: Root, _slot: Slot) -> Root:
        context.log.check_open(root)
        changed = with_columns_changed(root, context.status, rename, drop)
        refuse_needed(root, drop)
        schema, named = stream_schema(context.status, root), {*rename, *drop}
        refuse(root, schema, named)
        if RULES_PROPERTY in root.properties:
            from segstore_ds.write.rules import refuse_checked  # noqa: PLC0415 - few have rules

            refuse_checked(root, schema, named)
        return replace(changed, operation=Operation.CHANGE_SCHEMA)

    context.commit(next_root)
