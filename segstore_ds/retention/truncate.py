"""Truncate and seal: move a stream's head up and close its tail.

Truncating drops events and renumbers none. The segment that spans the head stays, but its older
events are no longer part of the stream. Segments wholly below the head are retired, and upkeep
deletes them after the grace. Both operations are allowed on a sealed stream.
"""

from dataclasses import replace

from segstore_ds.errors import PositionError, TruncatedError
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.commit import NOTHING, Change, Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.read.cuts import Cut, resolve_cut
from segstore_ds.status.slot import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.write.append import drop_below

TRIM_SHARE = 4


def plan_truncate(root: Root, offset: int, slot: Slot) -> Root | None:
    """Return the root with its head at an offset; None if it is there or beyond. Pure."""
    if offset > root.tail:
        raise PositionError(
            "cut is beyond the tail",
            remedy="truncate up to 'tail' at most",
            cut=offset,
            tail=root.tail,
        )
    if offset <= root.head:
        return None
    return replace(drop_below(root, offset, slot), operation=Operation.TRUNCATE)


def trim_part(status: TableStatus, root: Root, slot: Slot) -> Root:
    """Return the root with the part that spans the head reduced to its kept segments.

    A part may list tens of thousands of segments; without this, all of them would stay until the
    head has passed the last one. The part is trimmed when at least a quarter of it lies below the
    head, so that it is rewritten only a few times, and never after a lost race.
    """
    if slot.attempt or root.lists or not root.parts:
        return root
    part = root.parts[0]
    if (root.head - part.start) * TRIM_SHARE < part.end - part.start:
        return root
    kept = [
        placed for placed in status.segments(root, root.head, part.end) if placed.start < part.end
    ]
    if len(kept) == part.count:
        return root
    entries = [placed.entry for placed in kept]
    start = kept[0].start
    trimmed = status.put_part(root, start, entries, old=(part,))
    # The old part lists live segments, too. A part of the dropped ones is what retires them.
    below = status.table.entries(part)[: part.count - len(kept)]
    dropped = [replace(entry, stats=None) for entry in below]
    gone = status.put_part(root, part.start, dropped)
    retired = (slot.retire("part", gone.path), slot.retire("status", part.path))
    return replace(root, parts=(trimmed, *root.parts[1:]), retired=(*root.retired, *retired))


def finish_truncate(context: StreamContext, root: Root, slot: Slot) -> Root:
    """Return a planned truncation ready to commit, with its status objects written."""
    return context.status.tidy(
        trim_part(context.status, replace(root, client=context.client), slot), slot
    )


def run_truncate(context: StreamContext, cut: Cut) -> Committed[None]:
    """Move the head up to a cut; safe to repeat.

    The cut is resolved once, against the newest version: `tail` means the tail as of the call.
    """
    root = context.log.refresh()
    offset = resolve_cut(context, root, cut)
    if offset < root.head:
        raise TruncatedError(
            "cut is below the head",
            remedy="the head only grows; the events before it are gone already",
            cut=offset,
            head=root.head,
        )

    def build(root: Root, slot: Slot) -> Change[None]:
        planned = plan_truncate(root, offset, slot)
        return Change(None if planned is None else finish_truncate(context, planned, slot))

    return context.log.commit(build)


def run_seal(context: StreamContext) -> Committed[None]:
    """Seal a stream: every later append is refused, reads still work; safe to repeat."""
    context.log.refresh()

    def build(root: Root, _slot: Slot) -> Change[None]:
        if root.sealed:
            return NOTHING
        return Change(replace(root, sealed=True, operation=Operation.SEAL, client=context.client))

    return context.log.commit(build)
