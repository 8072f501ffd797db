"""Rename and drop columns: one commit that adds an epoch, and rewrites nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.expiry import expiry_of
from segstore_ds.format.indexed_columns import key_columns_of, time_column_of
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.status.epochs import stream_schema, with_columns_changed
from segstore_ds.status.slot import Slot

# Refuses to rename or drop columns, by their names, that something else of the stream names.
Refuse = Callable[[Root, pa.Schema, Collection[str], Collection[str]], None]


def run_change_schema(
    context: StreamContext, rename: Mapping[str, str], drop: Sequence[str], refuse: Sequence[Refuse]
) -> None:
    """Rename and drop columns in one commit; `refuse` are asked on the root that it follows.

    Raises:
        InvalidInputError: As `change_columns`, or a setting needs a column.
    """
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

    def build(root: Root, slot: Slot) -> Change[None]:
        context.log.check_open(root)
        changed = with_columns_changed(root, context.status, rename, drop)
        for each in (_refuse_settings, *refuse):
            each(root, stream_schema(context.status, root), rename.keys(), drop)
        change = replace(changed, operation=Operation.CHANGE_SCHEMA, client=context.client)
        return Change(context.status.tidy(change, slot), None)

    context.log.commit(build)


def _refuse_settings(
    root: Root, _schema: pa.Schema, _rename: object, drop: Collection[str]
) -> None:
    """Raise InvalidInputError if a setting goes by a column that would be dropped."""
    settings = {
        "time_column": [time_column_of(root)],
        "key_columns": key_columns_of(root),
        "expiry": [rule.column for rule in expiry_of(root)],
    }
    for setting, columns in settings.items():
        for stored in columns:
            name = root.epoch.names.get(stored or "", stored)
            if name in drop:
                raise InvalidInputError(
                    "a setting of the stream needs the column",
                    remedy=f"first change it with stream.settings.update({setting}=...)",
                    column=name,
                    setting=setting,
                )
