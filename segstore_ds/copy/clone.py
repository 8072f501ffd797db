"""Clones: streams that start with the segments of another stream, without copying any.

A clone starts from the newest version or from an older one that is kept, and may end at a cut. If
the cut divides a part, a list or a segment, that one is written anew in the clone's folder.

A clone takes three commits, however long the stream: a pin in the origin; the clone's first root,
which lists the origin's parts and segments by their names there; and a note in the pin that the
clone is made. After that both streams change independently, and neither ever deletes an object in
the other's folder. `run_materialize` copies the shared objects under the same names, so only the
root changes when the clone releases its origin.

Crash argument. After a crash between pin and root, the origin keeps a version longer than needed,
and a repeated call continues with exactly that version; a pin never moves. The clone's root is
created exclusively, so only one of two concurrent calls makes it. Both build it from the same
pinned version, under the stream id that the pin names. A call returns only after the pin says that
the clone is made. If the clone is missing after that, it was moved, so no second clone is made of a
pin that the first one needs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from segstore_ds.compact.rewrite import plan_job
from segstore_ds.copy.destination import Copied, CopyRequest, find_done
from segstore_ds.copy.pins import (
    last_sharing,
    mark_made,
    read_pinned,
    release_origins,
    run_pin,
    run_unpin,
)
from segstore_ds.copy.segments import SegmentCopier, is_sound, list_copied
from segstore_ds.copy.transfer import OBJECTS, CopiedObject, Transfer, copy_small
from segstore_ds.errors import (
    AlreadyExistsError,
    ConflictError,
    InternalError,
    InvalidInputError,
    MissingObjectError,
)
from segstore_ds.format import names
from segstore_ds.format.copies import CLONE, Origin, Pin, pins_of, same_filesystem
from segstore_ds.format.operation import Operation
from segstore_ds.format.properties import inherited_properties
from segstore_ds.format.record import to_json
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.log.context import StreamContext
from segstore_ds.log.place import first_version, seen_before
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.prefetch import map_ahead
from segstore_ds.status.epochs import with_features
from segstore_ds.status.history import begin_history
from segstore_ds.status.references import References, list_objects, read_references
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import Slice, TableStatus
from segstore_ds.storage import Storage, compare_names, find_overlap, refuse_overlap
from segstore_ds.write.create import first_root
from segstore_ds.write.layout import Layout

MATERIALIZE_ROUNDS = 16


def run_clone(context: StreamContext, target: Storage, request: CopyRequest) -> Copied:
    """Make a stream that shares the segments of another one.

    The target is on the same filesystem as the origin; the request's id names the pin. Safe to
    repeat.
    """
    _check_places(context.storage, target)
    log = StreamLog(target, clock=context.clock)
    done = find_done(log, request, context.log.refresh())
    if done is not None:
        known = pins_of(context.log.root).get(request.copy_id)
        if known is not None and not known.made:
            mark_made(context, request.copy_id, target.url, log.root)
        return done
    # Each stream may be dropped without the other, so neither folder may contain the other.
    refuse_overlap(target, context.storage, find_overlap(target, context.storage), "clone")
    version, end, asked = request.version, None, _read_asked(context, request)
    if asked is not None:
        version = asked.version if version is None else version
        _, end = request.bind(context, asked)
    allowed = request.allow_redacted
    pin = run_pin(context, request.copy_id, target.url, version, allow_redacted=allowed)
    if pin.made:
        return _find_made(log, request, context.log.root)
    pinned = asked or read_pinned(context, request.copy_id, pin)
    if asked is None and request.copy_id not in pinned.pins:
        # Only the pin of a clone of the newest version names its own commit.
        raise InvalidInputError(
            "the copy id was used for a clone of an older version, which was not finished",
            remedy="repeat that call, or use another id",
            copy_id=request.copy_id,
            version=pinned.version,
        )
    listed = pinned if end is None else _cut(context, target, pinned, end, request)
    first, copied = _first_root(context, listed, pin, request)
    if log.create(first) is None:
        try:
            done = find_done(log, request, pinned)
        except (AlreadyExistsError, InvalidInputError):
            run_unpin(context, request.copy_id)
            raise
        if done is None:
            raise InternalError("a stream that exists can't be found", url=target.url)
        copied = done
    if not mark_made(context, request.copy_id, target.url, log.root):
        raise ConflictError(
            "the pin was removed while the clone was made",
            remedy="drop the clone and make it again",
            clone=target.url,
            pin=request.copy_id,
        )
    return copied


def _read_asked(context: StreamContext, request: CopyRequest) -> Root | None:
    """Return the root of a request that names a version or an end; None for other requests.

    It is read, and the end bound, before the pin is made, so an invalid request pins nothing.
    """
    known = pins_of(context.log.root).get(request.copy_id)
    if (request.version is None and request.end == "tail") or (known and known.made):
        return None
    if known is not None:
        return read_pinned(context, request.copy_id, known)
    version = request.version
    asked = context.log.root if version is None else context.log.read_version(version)
    if asked.origins:
        raise InvalidInputError(
            "the stream was a clone itself at that version",
            remedy="clone a version since it was materialized",
            version=asked.version,
            url=context.storage.url,
        )
    return asked


def _cut(
    context: StreamContext, target: Storage, root: Root, end: int, request: CopyRequest
) -> Root:
    """Return the root without the events from `end` on; write what the cut divides to `target`."""
    if end == root.tail:
        return root
    if end == root.head:
        return replace(root, lists=(), parts=(), entries=(), tail=end)
    own, levels = TableStatus(target), context.status.table
    made = replace(root, version=seen_before(first_version(StreamLog(target).files) or 0))
    lists = [ref for ref in root.lists if ref.end <= end]
    divided = next((ref for ref in root.lists if ref.start < end < ref.end), None)
    members = levels.members(divided) if divided else ()
    first = tuple(part for part in members if part.end <= end)
    if first:
        lists.append(own.table.put_list(made.version, first))
    parts = [part for part in root.parts if part.end <= end]
    cut = next((part for part in (*members, *root.parts) if part.start < end < part.end), None)
    start = cut.start if cut else root.inline_start
    entries: list[SegmentEntry] = []
    next_segment = root.next_segment
    for placed in context.status.segments(root, start, end):
        if placed.end <= end:
            entries.append(placed.entry)
            continue
        job = plan_job(context, root, Layout(inline_bytes=0))
        with SegmentCopier(job, target, root, token=request.token) as copier:
            copied, next_segment = list_copied([copier.copy(placed.cut(placed.start, end))], root)
        entries.extend(copied)
    if cut:
        parts.append(
            own.put_part(made, cut.start, entries, schema_of=context.status.schemas_of(root))
        )
        entries = []
    return replace(
        root,
        lists=tuple(lists),
        parts=tuple(parts),
        entries=tuple(entries),
        tail=end,
        next_segment=next_segment,
    )


def _find_made(log: StreamLog, request: CopyRequest, origin: Root) -> Copied:
    done = find_done(log, request, origin)  # another call may have made it just now
    if done is None:
        raise InvalidInputError(
            "the clone was made before, but is no longer at its location",
            remedy="if it was moved, open it at its new location; if it was deleted by hand, "
            "call pins.release(copy_id) on the origin and clone again; or use another copy id",
            copy_id=request.copy_id,
            url=log.storage.url,
        )
    return done


def run_materialize(context: StreamContext) -> int:
    """Copy a clone's shared objects into its own folder and release the origin.

    Every object is copied under its existing name, so the call can be interrupted and repeated, and
    readers of older versions keep working. Appends and compactions may be committed meanwhile.
    Returns how many objects were copied.
    """
    storage, copied = context.storage, 0
    sharing = root = context.log.refresh()
    for _ in range(MATERIALIZE_ROUNDS):
        if not root.origins:
            break
        sharing = root
        with Transfer() as transfer:
            take = partial(_take, transfer, storage, _listed(context, root))
            copied += sum(map_ahead(take, _shared(context, root), threads=OBJECTS))

        def next_root(newest: Root, _slot: Slot, base: Root = root) -> Root | None:
            moved = newest.origins and newest.version != base.version
            lacks = moved and any(required for _, required in _shared(context, newest))
            if lacks or not newest.origins:
                return None  # a restore listed more segments of the origin: copy them first
            return replace(newest, origins={}, operation=Operation.MATERIALIZE)

        context.commit(next_root)
        root = context.log.refresh()
    if root.origins:
        raise ConflictError(
            "restores listed more segments of the origin on every attempt", url=storage.url
        )
    release_origins(context, last_sharing(sharing))
    return copied


def _listed(context: StreamContext, root: Root) -> dict[str, Slice]:
    """Return a root's segments by their objects, which are compared with their entries."""
    found = context.status.segments(root, root.listed_start, root.tail, with_stats=False)
    return {names.segment_object(placed.entry.path): placed for placed in found}


def _take(
    transfer: Transfer,
    storage: Storage,
    listed: Mapping[str, Slice],
    shared: tuple[str, bool],
) -> bool:
    """Copy an object into the clone's own folder; False if it is gone and not required."""
    path, required = shared
    try:
        if names.is_status(path):
            copy_small(storage, storage, path)
            return True
        placed = listed.get(path)
        if storage.copy_from(storage, path, path, replace=True):
            if placed is None or is_sound(storage, placed):
                return True
            storage.delete(path)  # damaged in the origin, or on the way
        entry = None if placed is None else placed.entry
        transfer.copy(CopiedObject(storage, path, storage, path, entry))
    except MissingObjectError:
        if required:
            raise
        return False
    return True


def _shared(context: StreamContext, root: Root) -> Iterator[tuple[str, bool]]:
    """Yield each object of a root that its folder lacks, and whether it is required.

    Retired parts are copied if they still exist, because upkeep reads them.
    """
    here = {info.path for info in list_objects(context.storage)}
    # Retired objects may be deleted: a deletion can crash before it removes them from the root.
    refs: References = read_references(
        context.status, root, gone_before=root.version, gone_until_us=root.time_us
    )
    for path in sorted(refs.live):
        if path not in here:
            yield path, True
    for path in sorted(refs.retired.keys() - refs.live):
        if path not in here and names.is_status(path):
            yield path, False


def _check_places(source: Storage, target: Storage) -> None:
    refuse_overlap(target, source, compare_names(target, source), "clone")
    if not same_filesystem(source.url, target.url):
        raise InvalidInputError(
            "a clone must be on its origin's filesystem",
            remedy='use copy_to(url, mode="segments") to copy between filesystems',
            origin=source.url,
            url=target.url,
        )


def _first_root(
    context: StreamContext, pinned: Root, pin: Pin, request: CopyRequest
) -> tuple[Root, Copied]:
    segments = len(pinned.entries) + sum(ref.count for ref in (*pinned.lists, *pinned.parts))
    copied = Copied(pinned.head, pinned.tail, segments, 0)
    record = replace(
        request.begin(pinned, (copied.start, copied.end), mode=CLONE),
        segments=segments,
        origin=context.storage.url,
    )
    origin = Origin(pinned.stream_id, context.storage.url, request.copy_id, pinned.version)
    first = first_root(context, Operation.COPY, pinned.epochs, stream_id=pin.clone_id)
    first = replace(
        first,
        reader_features=pinned.reader_features,
        head=pinned.head,
        tail=pinned.tail,
        sealed=request.seal,
        next_segment=pinned.next_segment,
        lists=pinned.lists,
        parts=pinned.parts,
        entries=pinned.entries,
        origins={pinned.stream_id: to_json(origin)},
        copies={request.copy_id: to_json(record)},
        properties=inherited_properties(pinned),
    )
    return begin_history(with_features(first)), copied
