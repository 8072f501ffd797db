"""The objects of a stream on their way between its folders: which are missing, and their copies.

An object is copied by whoever finds it missing, so two writers may copy the same one at once, and
either may stop in the middle. What lies in a follower is therefore never taken away first: it is
replaced by the same bytes, in one step, where it is not whole.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping

from segstore_ds.errors import MissingObjectError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.status.references import status_objects
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import ObjectInfo, Storage

COPY_BYTES = 8 << 20
END_BYTES = 4096


def copy_small(source: Storage, target: Storage, path: str) -> None:
    """Copy an object by one get and one exclusive create; an object that is there is whole.

    Raises:
        FormatError: It is not there.
        StorageError: A storage failed.
    """
    target.create(path, source.get(path))


def copy_object(source: Storage, target: Storage, path: str) -> None:
    """Copy an object of any size; what lies there is replaced once all of it has arrived.

    Raises:
        FormatError: It is not there.
        StorageError: A storage failed.
    """
    if target.copy_from(source, path, path, replace=True):
        return
    size = source.info(path).size
    with target.open_staged(path, replace=True) as writer:
        for start in range(0, size, COPY_BYTES):
            writer.write(source.get_range(path, start, min(start + COPY_BYTES, size)))
        writer.commit()


def has_same_end(source: Storage, target: Storage, info: ObjectInfo) -> bool:
    """Tell whether two folders' objects of one name and size end alike: the end is written last.

    Raises:
        FormatError: One is gone.
        StorageError: A storage failed.
    """
    ends = (
        one.get_range(info.path, max(info.size - END_BYTES, 0), info.size)
        for one in (source, target)
    )
    return next(ends) == next(ends)


def new_status(status: TableStatus, before: Root, after: Root) -> list[str]:
    """Return the status and history objects that a commit names and the one before it does not.

    Those that stand in a list of parts are looked for only where a list is new. A part of the
    history never goes to a list with the commit that writes it.

    Raises:
        FormatError: A list can't be read.
        StorageError: The storage failed.
    """
    fresh = set(status_objects(after)) - set(status_objects(before))
    if any(index.path in fresh for index in after.indexes):
        old, new = ({part.path for part in status.parts(root)} for root in (before, after))
        fresh |= new - old
    return sorted(fresh)


def new_segments(status: TableStatus, before: Root, after: Root) -> dict[str, SegmentEntry]:
    """Return the segment objects that a commit lists and the one before it does not.

    Raises:
        FormatError: A status part can't be read.
        StorageError: The storage failed.
    """
    known = {entry.path for entry in before.entries}
    found = {entry.path: entry for entry in after.entries}
    if set(status_objects(after)) != set(status_objects(before)):
        old, new = ({part.path: part for part in status.parts(one)} for one in (before, after))
        for path in new.keys() - old.keys():
            found.update((entry.path, entry) for entry in status.part(new[path]))
        for path in old.keys() - new.keys():
            known.update(entry.path for entry in status.part(old[path]))
    fresh = found.keys() - known
    return {names.segment_object(path): found[path] for path in sorted(fresh)}


def missing_segments(
    target: Storage, segments: Mapping[str, SegmentEntry], told: Collection[str]
) -> Iterator[str]:
    """Yield the segment objects that a folder does not hold whole.

    One listing per folder of a writing job. Size, and the checksum of the end, which is written
    last, tell that an object is whole; of one that was shipped buffer by buffer the size is enough.

    Args:
        target: The folder.
        segments: The objects that it has to hold.
        told: Those of which every buffer is said to have arrived.

    Raises:
        StorageError: The storage failed.
    """
    folders = {path.rpartition("/")[0] for path in segments}
    sizes = {info.path: info.size for folder in folders for info in target.list(folder)}
    for path, entry in segments.items():
        whole = sizes.get(path) == entry.bytes
        if not whole or (path not in told and not _ends_right(target, path, entry)):
            yield path


def _ends_right(target: Storage, path: str, entry: SegmentEntry) -> bool:
    try:
        end = target.get_range(path, entry.bytes - entry.footer_bytes, entry.bytes)
    except (MissingObjectError, TruncatedObjectError):
        return False
    return zlib.crc32(end) == entry.footer_crc
