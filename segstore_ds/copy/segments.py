"""Copies a range of a stream to a new stream, by its segment objects, as one commit.

Ids, epochs and offsets are the same in both streams: segments are copied byte for byte under new
names, and every frame is checked on the way. If a cut lies within a segment, that segment is
rewritten and gets a number of its own. Writers and reader positions are not copied.

Guarantees: there is no stream at the destination before all segments are there; its first root
lists all of them. If interrupted at any point and run again, the copy goes on with the segments
that have not arrived whole. Run again when done, it changes nothing and reports `repeated`. Events
appended to the source meanwhile are not part of the copy.

Source: the second approach of Pravega's copyStream.
"""

from collections.abc import Callable
from dataclasses import replace

from segstore_ds.compact.rewrite import plan_job
from segstore_ds.copy.destination import check_target, commit_first, first_position
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.copy.segment_copier import SegmentCopier
from segstore_ds.format.copies import SEGMENTS
from segstore_ds.format.key_columns import inherited_properties
from segstore_ds.format.root import Epoch, Root, SegmentEntry
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.compaction import CompactRules
from segstore_ds.options.progress import Progress, unheard
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout


def run_copy(
    context: StreamContext,
    target: Storage,
    request: CopyRequest,
    bind: Callable[[Root], tuple[int, int]],
    *,
    progress: Progress = unheard,
) -> Copied:
    """Copy a range to a stream that does not exist yet.

    The version that `source` is at is copied. `bind` returns the range for that root, and is not
    called if the copy is already done.

    Raises:
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The destination is the source, or the id stands for another copy.
        SnapshotExpiredError: A segment was deleted while it was copied: copy again.
        ConflictError: A stream was made and dropped there in the meantime: copy again.
        CommitUnknownError: The storage never said whether the destination was created.
    """
    root = context.log.root
    check_target(context.storage, target)
    log = StreamLog(target, clock=context.clock)
    done, position = first_position(log, request, root)
    if done is not None:
        return done
    bounds = bind(root)
    job = plan_job(context.storage, context.status, root, CompactRules(), Layout(inline_bytes=0))
    with SegmentCopier(job, target, root, token=request.token, clock=context.clock) as work:
        entries, rows = list[SegmentEntry](), 0
        for entry in work.entries(context.status, bounds):
            entries.append(entry)
            rows += entry.rows
            progress(rows, bounds[1] - bounds[0])
    copied = commit_copy(
        StreamContext.of(log, client=context.client),
        root,
        context.status,
        request,
        tuple(entries),
        bounds=bounds,
        next_segment=work.next_segment,
        position=position,
    )
    return copied if copied.repeated else replace(copied, reused=work.reused)


def commit_copy(
    context: StreamContext,
    source: Root,
    source_status: TableStatus,
    request: CopyRequest,
    entries: tuple[SegmentEntry, ...],
    *,
    bounds: tuple[int, int],
    next_segment: int,
    position: int,
) -> Copied:
    """Create the destination's first root, with the source's epochs; as `commit_first`."""
    return commit_first(
        context,
        source,
        request,
        request.begin(source, bounds, mode=SEGMENTS),
        epochs=_copied_epochs(context, source, source_status),
        entries=entries,
        bounds=bounds,
        next_segment=next_segment,
        properties=inherited_properties(source),
        position=position,
    )


def _copied_epochs(
    context: StreamContext, source: Root, source_status: TableStatus
) -> tuple[Epoch, ...]:
    epochs: tuple[Epoch, ...] = ()
    for epoch in source.epochs:
        texts = source_status.schema_texts(epoch)
        made = context.status.put_epoch(0, epoch.number, epoch.since, *texts, beside=epochs)
        epochs = (*epochs, made)
    return epochs
