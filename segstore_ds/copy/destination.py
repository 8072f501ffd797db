"""Where a copy goes to: whether it may begin there, whether it is done, and its one commit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.errors import AlreadyExistsError, ConflictError, InvalidInputError
from segstore_ds.format.copies import EVENTS, CopyRecord, parse_copy
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Epoch, Root, SegmentEntry
from segstore_ds.log.context import StreamContext
from segstore_ds.log.place import COPIED, first_version, may_begin
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import Position, check_position
from segstore_ds.status.history import begin_history
from segstore_ds.status.slot import Slot
from segstore_ds.storage import Overlap, Storage, compare_names, refuse_overlap
from segstore_ds.write.create import first_root


def check_target(source: Storage, target: Storage) -> None:
    """Check that the destination is not the source.

    Raises:
        InvalidInputError: It is the source, or lies within or around it.
    """
    # Comparing names is enough: under any other name, the source's folder already holds a log.
    overlap = compare_names(target, source)
    if overlap is Overlap.SAME:
        raise InvalidInputError("a stream can't be copied onto itself", url=target.url)
    refuse_overlap(target, source, overlap, "copy")


def find_done(log: StreamLog, request: CopyRequest, source: Root) -> Copied | None:
    """Return the result of a copy that is done; None if the destination may begin now.

    What copies have staged there is allowed.

    Raises:
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The id stands for another copy, or the destination holds something else.
        PositionError: The source's history was abandoned since the copy by events.
        CorruptionError: The destination holds segments of a stream, but no log.
    """
    if may_begin(log.files, resumed=COPIED):
        return None
    known = log.open().copies.get(request.copy_id)
    if known is None:
        raise AlreadyExistsError(
            "a stream already exists here",
            remedy="copy to a location without a stream",
            url=log.storage.url,
        )
    record = parse_copy(request.copy_id, known)
    if record.mode == EVENTS and record.source == source.stream_id:
        check_position(source, Position(record.source, record.generation, record.start))
    request.check_digest(record.digest, source, url=log.storage.url)
    return Copied(record.start, record.end, record.segments, record.bytes, repeated=True)


def first_position(log: StreamLog, request: CopyRequest, source: Root) -> tuple[Copied | None, int]:
    """Return the result of a copy that is done, or the version that its first root will get.

    Objects that are staged from now on are there when a root gets that version: only a drop deletes
    them, and it leaves a later one. Raises as `find_done`.
    """
    done = find_done(log, request, source)
    position = None if done else first_version(log.files)
    if position is None:  # another run was first, a moment ago
        done = done or find_done(log, request, source)
    return done, position or 0


def commit_first(
    context: StreamContext,
    source: Root,
    request: CopyRequest,
    record: CopyRecord,
    *,
    epochs: Sequence[Epoch],
    entries: tuple[SegmentEntry, ...],
    bounds: tuple[int, int],
    next_segment: int,
    properties: Mapping[str, str],
    position: int,
) -> Copied:
    """Create the destination's first root, which lists everything that was copied.

    `context` is the destination's, and `bounds` are its head and tail. Returns what was copied;
    `repeated` if another run of the same copy was first.

    Raises:
        AlreadyExistsError: Another stream was made there in the meantime.
        ConflictError: A stream was made and dropped there in the meantime.
        CommitUnknownError: The storage never said whether it was created.
    """
    record = replace(record, segments=len(entries), bytes=sum(entry.bytes for entry in entries))
    first = replace(
        first_root(context, Operation.COPY, epochs),
        head=bounds[0],
        tail=bounds[1],
        sealed=request.seal,
        next_segment=next_segment,
        entries=entries,
        copies={request.copy_id: record.to_value()},
        properties=properties,
    )
    first = begin_history(first, segments=len(entries))
    first = context.status.tidy(first, Slot(0, first.time_us, 0))
    if context.log.create(first, position) is None:
        done = find_done(context.log, request, source)
        if done is None:
            raise ConflictError(
                "a stream was made and dropped at the destination in the meantime",
                remedy="copy again",
                url=context.storage.url,
            )
        return done
    return Copied(record.start, record.end, record.segments, record.bytes)
