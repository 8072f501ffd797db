"""Truncate, seal and restore: raise a stream's head, end the stream, bring back older events.

Truncating drops events and renumbers none. The segment that spans the head stays, but its older
events are no longer part of the stream. Segments wholly below the head are retired, and upkeep
deletes them after the grace. Truncate and seal are allowed on a sealed stream.

Restore is an overwrite by reference. No byte is copied: the head moves to the tail, and the
version's segments are listed again with new offsets and segment numbers. So one object may be
listed, and retired, twice. Offsets are not reused: the earlier ones are below the new head.
"""

from collections.abc import Sequence
from dataclasses import replace

from segstore_ds.errors import PositionError, SealedError, SnapshotExpiredError, TruncatedError
from segstore_ds.format.operation import Operation
from segstore_ds.format.redactions import refuse_unclean
from segstore_ds.format.root import Root
from segstore_ds.log.commit import Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import forgotten_version
from segstore_ds.read.cuts import Cut, resolve_cut
from segstore_ds.status.epochs import with_epochs
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import Slice, TableStatus
from segstore_ds.status.writers import Commit
from segstore_ds.write.append import drop_below

TRIM_SHARE = 4


def plan_truncate(root: Root, offset: int, slot: Slot) -> Root | None:
    """Return the root with its head at an offset; None if the head is there or above. Pure."""
    if offset > root.tail:
        raise PositionError(
            "the cut is beyond the tail",
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
    head has passed the last one. The part is rewritten only if at least a quarter of it is below
    the head, so a few times at most, and never after a lost race.
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
    # The old part also lists live segments, so retire a new part that lists the dropped ones.
    below = status.table.entries(part)[: part.count - len(kept)]
    dropped = [replace(entry, stats=None) for entry in below]
    gone = status.put_part(root, part.start, dropped)
    retired = (slot.retire("part", gone.path), slot.retire("status", part.path))
    return replace(root, parts=(trimmed, *root.parts[1:]), retired=(*root.retired, *retired))


def run_truncate(context: StreamContext, cut: Cut) -> Committed[None]:
    """Raise the head to a cut; safe to repeat.

    The cut is resolved once, against the newest version: `tail` means the tail at the call.
    """
    root = context.log.refresh()
    offset = resolve_cut(context, root, cut)
    if offset < root.head:
        raise TruncatedError(
            "the cut is below the head",
            remedy="the head only grows: the events before it are already dropped",
            cut=offset,
            head=root.head,
        )

    def next_root(root: Root, slot: Slot) -> Root | None:
        planned = plan_truncate(root, offset, slot)
        return planned and trim_part(context.status, planned, slot)

    return context.commit(next_root)


def run_seal(context: StreamContext) -> Committed[None]:
    """Seal a stream: every later append is refused, reads still work; safe to repeat."""
    context.log.refresh()

    def next_root(root: Root, _slot: Slot) -> Root | None:
        return None if root.sealed else replace(root, sealed=True, operation=Operation.SEAL)

    return context.commit(next_root)


def plan_restore(
    root: Root,
    old: Root,
    listed: Sequence[Slice],
    slot: Slot,
    *,
    allow_redacted: bool = False,
) -> Root | None:
    """Return the root that holds the events of an older one; None if it is that root. Pure.

    `listed` are the segments that hold the events of `old`, in offset order.
    """
    if old.version == root.version:
        return None
    if root.sealed:
        raise SealedError("the stream is sealed", stream=root.stream_id, tail=root.tail)
    if old.version < root.log_start and root.kept_version(old.version) is None:
        raise forgotten_version(old.version, root.log_start)
    if not allow_redacted:
        refuse_unclean(root, old.version)
    if old.origins and not root.origins:
        raise SnapshotExpiredError(
            "the version needs segments of an origin that the stream no longer reads from",
            remedy="restore a version from after the stream was materialized",
            version=old.version,
            origins=sorted(old.origins),
        )
    epochs = root.epochs
    if old.epoch.number != root.epoch.number:
        # Restore the schema, too: the old segments may not fit the current one.
        epochs = (*epochs, replace(old.epoch, number=len(epochs), since=root.tail))
    entries = tuple(
        placed.entry.numbered(placed.entry.epoch << 32 | (root.next_segment + place))
        for place, placed in enumerate(listed)
    )
    # The first segment may hold events from before the old head; hide them below the new head.
    hidden = old.head - listed[0].start if listed else 0
    emptied = drop_below(root, root.tail, slot)
    return replace(
        emptied,
        epochs=epochs,
        entries=(*emptied.entries, *entries),
        next_segment=root.next_segment + len(entries),
        head=root.tail + hidden,
        tail=root.tail + sum(entry.rows for entry in entries),
        operation=Operation.RESTORE,
    )


def run_restore(context: StreamContext, version: int, *, allow_redacted: bool = False) -> Commit:
    """Bring back the events of a version, in one commit that copies no event.

    Events committed between the version and this commit are no longer part of the stream; restoring
    the version before this commit brings them back. Writers keep their committed batches: a
    repeated batch is still skipped. Returns the commit and the offsets of the events; restoring the
    newest version writes nothing.
    """
    context.log.refresh()
    old = context.log.read_version(version)
    listed = list(context.status.segments(old, old.head, old.tail))

    def next_root(root: Root, slot: Slot) -> Root | None:
        planned = plan_restore(root, old, listed, slot, allow_redacted=allow_redacted)
        if planned is None:
            return None
        if planned.epoch != root.epoch:
            followed = with_epochs(root, context.status, planned.epochs)
            planned = replace(planned, epochs=followed.epochs, properties=followed.properties)
        # Inline segments become objects: a root lists only the newest small commits inline.
        return context.status.outline(planned)

    done = context.commit(next_root, restored=version)
    root = done.root
    return Commit(root.version, root.transaction, root.head, root.tail, attempts=done.attempts)
