"""Merges of status, history and retired parts: commits of their own, made after other commits."""

from collections.abc import Callable
from dataclasses import replace

from segstore_ds.commit.commit import Change
from segstore_ds.commit.context import StreamContext
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.transition import Slot
from segstore_ds.status.history import plan_history_merge
from segstore_ds.status.table_status import plan_merge, plan_retired_merge

_Merge = Callable[[Root, tuple[str, ...], Slot], Root | None]


def run_due_merge(context: StreamContext) -> None:
    """Merge parts of one kind if a merge is due.

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


def _commit(
    context: StreamContext, merge: _Merge, paths: tuple[str, ...], operation: Operation
) -> None:
    def build(root: Root, slot: Slot) -> Change[None]:
        # A lost race means that others are writing: the winner merges.
        merged = merge(root, paths, slot) if slot.attempt == 0 else None
        return Change(None if merged is None else replace(merged, operation=operation))

    context.log.commit(build)
