"""Backups: a byte-for-byte copy of a stream's folder, which a later call brings up to date.

This order keeps the backup consistent at any time, while writers and upkeep go on:

1. Read the records of readers, then the newest root: no record refers to a later version.
2. Copy the objects that the kept versions need and the backup lacks; names are never reused.
3. Add the commit files that it lacks, in ascending order. The last one makes the backup what the
   stream was in 1.
4. Add the records of readers, and write the hint.

A backup that was written to is another stream, and the next call refuses to continue it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from segstore_ds.copy.transfer import CopiedObject, copy_objects
from segstore_ds.errors import ConflictError, FormatError, InvalidInputError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.metadata_log import MetadataLog, find_gaps
from segstore_ds.log.place import may_begin
from segstore_ds.log.seen import abandoned_through, hint_of
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.read.reader_records import record_log
from segstore_ds.status.deletable import plan_horizon
from segstore_ds.status.references import list_objects, read_references
from segstore_ds.status.store import read_sound
from segstore_ds.storage import Storage

_LOOKS = 2  # read again before bytes count as different: one answer may have a wrong bit


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What a backup copied.

    Attributes:
        version: The version that the backup is of.
        tail: Its tail.
        objects: How many objects were copied; those that were there before don't count.
        bytes: The size of the copied objects.
        commits: How many commit files were added.
    """

    version: int
    tail: int
    objects: int
    bytes: int
    commits: int


def run_backup(
    context: StreamContext, target: Storage, *, progress: Progress = unheard
) -> BackedUp:
    """Make a backup, or bring one up to date; `Stream.back_up` describes it."""
    source = context.storage
    target.ensure_exclusive()
    records = dict(_records(context))
    root = context.log.reopen()
    if root.origins:
        raise InvalidInputError(
            "a clone shares segments with its origin",
            remedy="call materialize() first",
            url=source.url,
            origins=list(root.origins),
        )
    sizes = {info.path: info.size for info in list_objects(source)}
    for path in filter(names.is_status, [*sizes]):
        sizes.setdefault(names.twin_of(path), sizes[path])  # either can be read for the other
    there = {info.path: info.size for info in list_objects(target)}
    files = context.log.files.at(target)
    start = _first_missing(context, root, files, there.keys() - sizes.keys())
    needed = sorted(_needed(context, root))
    lacking = [path for path in needed if there.get(path, -1) != sizes.get(path, there.get(path))]
    for path in lacking:
        if path not in sizes:
            raise MissingObjectError("no such object", storage=source.url, path=path)
    for done, _ in enumerate(_copy(context, root, target, lacking), 1):
        progress(done, len(lacking))
    commits = 0
    for number, data in _commits(context, root, start):
        if not target.create(files.path(number), data) and not any(
            files.read(number) == data for _ in range(_LOOKS)
        ):
            raise _another(files, number)
        commits += 1
    for path, data in records.items():
        target.create(path, data)
    files.write_hint(hint_of(root))
    size = sum(sizes[path] for path in lacking)
    return BackedUp(root.version, root.tail, len(lacking), size, commits)


def _commits(context: StreamContext, root: Root, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the commit files from a version to the root's, each checked."""
    left_behind = abandoned_through(root)
    numbers = [number for number in context.log.files.numbers(start) if number <= root.version]
    if find_gaps(numbers, max(start, left_behind + 1), root.version + 1):
        raise ConflictError(
            "versions were forgotten while they were backed up",
            remedy="call it again; what was copied counts",
            url=context.storage.url,
            version=start,
        )
    for number in numbers:
        try:
            yield number, context.log.files.read_sound(number)[1]
        except FormatError:
            if number > left_behind:  # a repair has abandoned all up to there
                raise


def _records(context: StreamContext) -> Iterator[tuple[str, bytes]]:
    for info in context.storage.list(names.READERS_FOLDER):
        if info.path.startswith(f"{names.READER_HINTS_FOLDER}/") or not names.is_object(info.path):
            continue
        with suppress(MissingObjectError):  # a later record took its place meanwhile
            yield info.path, _record(context, info.path)


def _record(context: StreamContext, path: str) -> bytes:
    """Return a reader's record; one that is damaged where it lies is backed up as it is."""
    _, reader, number = path.split("/")
    try:
        return record_log(context, reader).read_sound(int(number))[1]
    except MissingObjectError:
        raise
    except FormatError:
        return context.storage.get(path)


def _needed(context: StreamContext, root: Root) -> Iterator[str]:
    """Yield the objects that the kept versions list."""
    oldest = plan_horizon(root, floor=0, until_us=root.time_us).version
    found = read_references(context.status, root, gone_before=oldest, gone_until_us=root.time_us)
    yield from found.live
    yield from (
        path
        for path, item in found.retired.items()
        if item.version > oldest and path not in found.live
    )


def _first_missing(
    context: StreamContext, root: Root, files: MetadataLog[Root], foreign: set[str]
) -> int:
    """Return the first version whose file a backup needs and lacks."""
    newest = files.newest_listed()
    if newest is None:
        segments = f"{names.SEGMENTS_FOLDER}/"  # of an interrupted call, if the source has them
        if foreign or may_begin(files, resumed=segments) is None:
            raise _another(files, -1)
        return root.log_start
    theirs, data = files.read_sound(newest)
    same = theirs.version <= root.version
    if same and newest >= root.log_start:
        same = any(context.log.files.read(newest) == data for _ in range(_LOOKS))
    elif same:
        known = dict(context.log.history.transactions(root, newest, newest + 1))
        ours = (root.stream_id, root.generation, known.get(newest))
        same = (theirs.stream_id, theirs.generation, theirs.transaction) == ours
    if not same:
        raise _another(files, newest)
    return max(newest + 1, root.log_start)


def _another(files: MetadataLog[Root], version: int) -> InvalidInputError:
    return InvalidInputError(
        "the folder does not hold an earlier state of this stream",
        remedy="back it up into another folder; a backup that was written to is another stream",
        url=files.storage.url,
        version=version,
    )


def _copy(
    context: StreamContext, root: Root, target: Storage, paths: Sequence[str]
) -> Iterator[str]:
    """Copy objects and yield their paths; segments that the root lists are verified."""
    source, left = context.storage, set(paths)
    for path in paths:
        if names.is_status(path):
            target.put(path, read_sound(source, path))
            left.remove(path)
            yield path
    listed = (
        placed.entry for placed in context.status.segments(root, root.listed_start, root.tail)
    )
    entries = {
        path: entry
        for entry in listed
        if not entry.frame and (path := names.segment_object(entry.path)) in left
    }
    yield from copy_objects(
        CopiedObject(source, path, target, path, entries.get(path)) for path in sorted(left)
    )
