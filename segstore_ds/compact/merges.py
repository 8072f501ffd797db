"""Merges of the parts of tables: commits of their own, made after other commits.

So are the filters of segments on key columns, which a part gets once it is there.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from segstore_ds.format.indexed_columns import KEY_COLUMNS
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import PartRef, Root
from segstore_ds.log.commit import NOTHING, Change
from segstore_ds.log.context import StreamContext
from segstore_ds.status.key_filters import MOST_LOOKED, find_filters, plan_key_filters
from segstore_ds.status.slot import Slot

_Merge = Callable[[Root, tuple[str, ...], Slot], Root | None]


def run_due_merge(context: StreamContext, *, complete: bool = False) -> None:
    """Merge parts of one kind if a merge is due; `complete` asks storage whether filters lack.

    Runs at most one merge: a merge that this one makes due waits for the next commit, so that no
    commit pays for all of them.
    """
    root = context.log.root
    for table in (*context.status.tables, context.log.history):
        if (paths := table.due(root)) is not None:
            _commit(context, table.merge, paths)
            return
    keyed = KEY_COLUMNS in root.properties
    if keyed and (part := plan_key_filters(context.status, root, complete=complete)) is not None:
        _add_filters(context, part)
    elif complete:
        add_bounds(context)


def add_bounds(context: StreamContext) -> None:
    """Give parts the bounds of the time column where they lack them; a commit if some change."""
    if not context.status.lacks_bounds(context.log.root):
        return

    def build(root: Root, _slot: Slot) -> Change[None]:
        if not context.status.lacks_bounds(root):
            return NOTHING
        found = context.status.add_bounds(root)
        pairs = zip(found.parts, root.parts, strict=True)
        changed = any(new.stats != old.stats for new, old in pairs)
        merged = replace(found, operation=Operation.MERGE, client=context.client)
        return Change(merged if changed else None)

    context.log.commit(build)


def _add_filters(context: StreamContext, part: PartRef) -> None:
    """Give some segments of a part their filters on key columns."""
    find = partial(find_filters, context.status.storage)

    def add(root: Root, _paths: tuple[str, ...], slot: Slot) -> Root | None:
        return context.status.add_filters(root, part, find, slot, most=MOST_LOOKED)

    _commit(context, add, ())


def _commit(context: StreamContext, merge: _Merge, paths: tuple[str, ...]) -> None:
    def build(root: Root, slot: Slot) -> Change[None]:
        # A lost race means that others are writing: the winner merges.
        merged = merge(root, paths, slot) if slot.attempt == 0 else None
        return Change(None if merged is None else replace(merged, operation=Operation.MERGE))

    context.log.commit(build)
