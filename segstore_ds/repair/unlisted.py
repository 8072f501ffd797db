"""Segments that no list names: what their names and their own ends say of them.

A segment stores no offset and no number. Its name holds the version that its job was planned on,
its end holds rows, checksums, statistics and the fingerprint of its schema. Whether a commit ever
listed it, only the commits and the history know.
"""

import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import FORMATS, LAST_BYTES
from segstore_ds.format.statistics import merge
from segstore_ds.storage import ObjectInfo, Storage
from segstore_ds.write.staged import entry_stats

_COPIED = re.compile(r"copy-[^/]+/([0-9a-f]{16})-[0-9a-f]{12}\.[a-z]+")
_MOST_TRIED = 2000  # ways to choose the segments of one commit among those that lie there


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A segment as it describes itself.

    Attributes:
        entry: What a list would say of it; its id is only known where `copied`.
        fingerprint: Digest of its schema.
        version: The version that its job was planned on; -1 where the name does not say.
        order: Its place among the segments of its job.
        copied: Whether its name holds its id: it came with a copy by segments.
        epoch: Its epoch, where a list told it.
    """

    entry: SegmentEntry
    fingerprint: str
    version: int
    order: tuple[str | int, ...]
    copied: bool = False
    epoch: int | None = None


def find_unlisted(
    storage: Storage, objects: Sequence[ObjectInfo], listed: Collection[str]
) -> list[Unlisted]:
    """Return the segments that lie in a folder and stand in no list, in the order of their names.

    What can't be read is passed over.

    Args:
        storage: The stream's folder.
        objects: What lies in its folder of segments.
        listed: Places of segments that are known already.

    Raises:
        StorageError: The storage failed.
    """
    prefix = f"{names.SEGMENTS_FOLDER}/"
    found = (
        describe(storage, one.path.removeprefix(prefix), one.size)
        for one in objects
        if one.path.removeprefix(prefix) not in listed
    )
    return sorted((one for one in found if one is not None), key=lambda one: one.order)


def describe(storage: Storage, path: str, size: int) -> Unlisted | None:
    """Read what a segment says of itself; None where it can't be read.

    Raises:
        StorageError: The storage failed.
    """
    form = next((one for one in FORMATS.values() if path.endswith(one.ending)), None)
    name = names.segment_object(path)
    if form is None or not size:
        return None
    try:
        last = storage.get_range(name, max(size - LAST_BYTES, 0), size)
        end_bytes = form.measure_end(last)
        if not 0 < end_bytes <= size:
            return None
        end = storage.get_range(name, size - end_bytes, size)
        crc = zlib.crc32(end)
        index = form.parse_index(end, object_bytes=size, where=name, footer_crc=crc)
    except FormatError:
        return None
    frames = index.frames
    fingerprints = {frame.fingerprint for frame in frames}
    rows = sum(frame.rows for frame in frames)
    if len(fingerprints) != 1 or not rows:
        return None
    copied = _COPIED.fullmatch(path)
    entry = SegmentEntry(
        segment_id=int(copied[1], 16) if copied else -1,
        path=path,
        rows=rows,
        bytes=size,
        footer_bytes=end_bytes,
        footer_crc=crc,
        format=form.name,
        stats=entry_stats(merge([(frame.rows, frame.stats) for frame in frames])),
    )
    version = names.parse_token_version(names.segment_token(path))
    known = -1 if version is None else version
    return Unlisted(entry, fingerprints.pop(), known, _order(known, path), copied is not None)


def is_there(storage: Storage, entry: SegmentEntry) -> bool:
    """Tell whether the object of an entry is there with its size.

    Raises:
        StorageError: The storage failed.
    """
    try:
        return storage.info(names.segment_object(entry.path)).size == entry.bytes
    except FormatError:
        return False


def choose_committed(
    unlisted: Sequence[Unlisted], *, before: int, segments: int, rows: int, nbytes: int
) -> Iterator[tuple[Unlisted, ...]]:
    """Yield the segments that one commit can have added, by what the history says of it. Pure.

    Those planned on the latest version come first: without a race that is the commit's parent.

    Args:
        unlisted: What lies there, in the order of names.
        before: The commit's version: what was planned on it or later can't be its.
        segments: How many it added.
        rows: How many events they hold together.
        nbytes: Their bytes together.
    """
    versions = sorted({one.version for one in unlisted if one.version < before}, reverse=True)
    for version in versions:
        staged = [
            one
            for one in unlisted
            if one.version == version and one.entry.rows <= rows and one.entry.bytes <= nbytes
        ]
        # Segments of one commit stand in the order of their tasks, whatever folder they lie in.
        staged.sort(key=lambda one: one.order[2:])
        if comb(len(staged), segments) > _MOST_TRIED:
            continue
        for chosen in combinations(staged, segments):
            sizes = [(one.entry.rows, one.entry.bytes) for one in chosen]
            if (sum(size[0] for size in sizes), sum(size[1] for size in sizes)) == (rows, nbytes):
                yield chosen


def choose_neighbours(unlisted: Sequence[Unlisted], rows: int) -> Iterator[tuple[Unlisted, ...]]:
    """Yield runs of segments, side by side in the order of their names, of so many events. Pure."""
    for first in range(len(unlisted)):
        left = rows
        for last in range(first, len(unlisted)):
            left -= unlisted[last].entry.rows
            if left == 0:
                yield tuple(unlisted[first : last + 1])
            if left <= 0:
                break


def _order(version: int, path: str) -> tuple[str | int, ...]:
    token, _, name = path.partition("/")
    numbers = [int(word) for word in re.findall(r"[0-9]{1,18}", name)] if version >= 0 else []
    task, attempt, place = (*numbers[:3], 0, 0, 0)[:3]
    return (version, token, task, attempt, place, name)
