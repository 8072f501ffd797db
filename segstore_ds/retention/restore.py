"""Restore: brings back the events of an earlier version, as an overwrite by reference.

No byte is copied: the head moves to the tail, and the version's segments are listed again under new
offsets and new segment numbers. So one object may be listed, and retired, twice. Offsets that were
given out keep their meaning: they lie below the new head.
"""

from collections.abc import Sequence
from dataclasses import replace

from segstore_ds.errors import SealedError, SnapshotExpiredError
from segstore_ds.format.operation import Operation
from segstore_ds.format.redactions import refuse_unclean
from segstore_ds.format.root import Root
from segstore_ds.log.commit import NOTHING, Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import forgotten_version
from segstore_ds.status.epochs import with_epochs
from segstore_ds.status.slot import Slot
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.status.writers import Commit
from segstore_ds.write.append import drop_below


def plan_restore(
    root: Root,
    old: Root,
    listed: Sequence[PlacedSegment],
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
        raise SealedError("stream is sealed", stream=root.stream_id, tail=root.tail)
    if old.version < root.log_start and root.kept_version(old.version) is None:
        raise forgotten_version(old.version, root.log_start)
    if not allow_redacted:
        refuse_unclean(root, old.version)
    if old.origins and not root.origins:
        raise SnapshotExpiredError(
            "version needs segments of an origin that the stream no longer reads from",
            remedy="restore a version since the stream was materialized",
            version=old.version,
            origins=sorted(old.origins),
        )
    epochs = root.epochs
    if old.epoch.number != root.epoch.number:
        # Restore the schema, too: the old segments may not fit a schema written since.
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

    def build(root: Root, slot: Slot) -> Change[None]:
        planned = plan_restore(root, old, listed, slot, allow_redacted=allow_redacted)
        if planned is None:
            return NOTHING
        if planned.epoch != root.epoch:
            followed = with_epochs(root, context.status, planned.epochs)
            planned = replace(planned, epochs=followed.epochs, properties=followed.properties)
        # The events of inline segments get an object: they are no longer the newest small commits.
        outlined = context.status.outline(replace(planned, client=context.client))
        return Change(context.status.tidy(outlined, slot))

    done = context.log.commit(build)
    root = done.root
    return Commit(root.version, root.transaction, root.head, root.tail, attempts=done.attempts)
