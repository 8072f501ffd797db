"""Rename and drop columns: one commit that adds an epoch, and rewrites nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.operation import Operation
from segstore_ds.format.properties import refuse_needed
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.status.epochs import stream_schema, with_columns_changed
from segstore_ds.status.slot import Slot

# Refuses to rename or drop columns, by their names, that filters of the stream name.
Refuse = Callable[[Root, pa.Schema, Collection[str], Collection[str]], None]


def run_change_schema(
    context: StreamContext, rename: Mapping[str, str], drop: Sequence[str], refuse: Refuse
) -> None:
    """Rename and drop columns in one commit; `refuse` is asked on the root that it follows.

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

    def next_root(root: Root, _slot: Slot) -> Root:
        context.log.check_open(root)
        changed = with_columns_changed(root, context.status, rename, drop)
        refuse_needed(root, drop)
        refuse(root, stream_schema(context.status, root), rename.keys(), drop)
        return replace(changed, operation=Operation.CHANGE_SCHEMA)

    context.commit(next_root)
