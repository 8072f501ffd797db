"""Where a copy goes to: whether it may begin there, and how far it has come."""

from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.errors import AlreadyExistsError, InvalidInputError
from segstore_ds.format.copies import CLONE, SEGMENTS, CopyRecord, parse_copy
from segstore_ds.format.root import Root
from segstore_ds.log.place import COPIED, may_begin
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import Position, check_position
from segstore_ds.storage import Overlap, Storage, compare_names, refuse_overlap


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


def find_copy(
    log: StreamLog, request: CopyRequest, source: Root, *, resumed: str | None = None
) -> CopyRecord | None:
    """Return how far a copy has come; None if the destination may begin now.

    With `resumed`, segments that an earlier attempt left under this prefix are allowed.

    Raises:
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The id stands for another copy, or the destination holds something else.
        PositionError: The source's history was abandoned since the copy by events began.
        CorruptionError: The destination holds segments of a stream, but no log.
    """
    if may_begin(log.files, resumed=resumed):
        return None
    known = log.open().copies.get(request.copy_id)
    if known is None:
        raise AlreadyExistsError(
            "a stream already exists here",
            remedy="copy to a location without a stream",
            url=log.storage.url,
        )
    record = parse_copy(request.copy_id, known)
    if request.mode not in (SEGMENTS, CLONE) and record.source == source.stream_id:
        check_position(source, Position(record.source, record.generation, record.start))
    if record.digest != request.digest(source):
        raise InvalidInputError(
            "the copy id was used for another copy",
            remedy="repeat the copy with the arguments of its first call, or use another id",
            copy_id=request.copy_id,
            url=log.storage.url,
        )
    return record


def find_done(log: StreamLog, request: CopyRequest, source: Root) -> Copied | None:
    """Return the result of an earlier copy by segments, or of a clone; raises as `find_copy`."""
    record = find_copy(log, request, source, resumed=COPIED)
    return None if record is None else copied_of(record, repeated=True)


def copied_of(record: CopyRecord, *, repeated: bool) -> Copied:
    """Return the result of a copy for the caller."""
    return Copied(record.start, record.end, record.segments, record.bytes, repeated=repeated)
