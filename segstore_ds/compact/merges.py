"""Merges of status, history and retired parts: commits of their own, made after other commits.

So are the filters of segments on key columns, which a part gets once it is there.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from segstore_ds.format.operation import Operation
from segstore_ds.format.root import PartRef, Root
from segstore_ds.log.commit import NOTHING, Change
from segstore_ds.log.context import StreamContext
from segstore_ds.status.history import plan_history_merge
from segstore_ds.status.key_filters import MOST_LOOKED, find_filters, plan_key_filters
from segstore_ds.status.slot import Slot
from segstore_ds.status.table_status import plan_merge, plan_retired_merge

_Merge = Callable[[Root, tuple[str, ...], Slot], Root | None]


def run_due_merge(context: StreamContext, *, thorough: bool = False) -> None:
    """Merge parts of one kind if a merge is due; `thorough` asks storage whether filters lack.

    Runs at most one merge: a merge that this one makes due waits for the next commit, so that no
    commit pays for all of them.
    """
    root = context.log.root
    if (paths := plan_merge(root)) is not None:
        _commit(context, context.status.levels.merge, paths, Operation.MERGE_STATUS)
    elif (paths := plan_history_merge(root)) is not None:
        _commit(context, context.log.history.levels.merge, paths, Operation.MERGE_HISTORY)
    elif (paths := plan_retired_merge(root)) is not None:
        _commit(context, context.status.merge_retired, paths, Operation.MERGE_STATUS)
    elif (part := plan_key_filters(context.status, root, thorough=thorough)) is not None:
        _add_filters(context, part)
    elif thorough:
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
        merged = replace(found, operation=Operation.MERGE_STATUS, client=context.client)
        return Change(merged if changed else None)

    context.log.commit(build)


def _add_filters(context: StreamContext, part: PartRef) -> None:
    """Give some segments of a part their filters on key columns."""
    find = partial(find_filters, context.status.storage)

    def add(root: Root, _paths: tuple[str, ...], slot: Slot) -> Root | None:
        return context.status.add_filters(root, part, find, slot, most=MOST_LOOKED)

    _commit(context, add, (), Operation.MERGE_STATUS)


def _commit(
    context: StreamContext, merge: _Merge, paths: tuple[str, ...], operation: Operation
) -> None:
    def build(root: Root, slot: Slot) -> Change[None]:
        # A lost race means that others are writing: the winner merges.
        merged = merge(root, paths, slot) if slot.attempt == 0 else None
        return Change(None if merged is None else replace(merged, operation=operation))

    context.log.commit(build)
