"""Segments that no list names: what their names and their own footers say about them.

A segment stores no offset and no number. Its name holds the version that its job was planned on;
its footer holds rows, checksums, statistics and the fingerprint of its schema. Only the commits and
the history know whether a commit ever listed it.
"""

import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.arrow.index import count_raws
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import FORMATS, find_end
from segstore_ds.format.statistics import entry_stats, merge
from segstore_ds.storage import ObjectInfo, Storage

_COPIED = re.compile(r"copy-[^/]+/([0-9a-f]{16})-[0-9a-f]{12}\.[a-z]+")
_MOST_TRIED = 2000  # ways to choose the segments of one commit among those found


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A segment as it describes itself.

    Attributes:
        entry: What a list would say about it; its id is known only if `copied`.
        fingerprint: Digest of its schema.
        version: The version that its job was planned on; -1 if the name does not say.
        order: Its place among the segments of its job.
        copied: Whether its name holds its id, because a copy by segments wrote it.
        epoch: Its epoch, if a list named it.
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
    """Return the segments in `objects` that are not in `listed`, in the order of their names.

    Segments that can't be read are skipped.
    """
    prefix = f"{names.SEGMENTS_FOLDER}/"
    found = (
        describe(storage, item.path.removeprefix(prefix), item.size)
        for item in objects
        if item.path.removeprefix(prefix) not in listed
    )
    return sorted((item for item in found if item is not None), key=lambda item: item.order)


def describe(storage: Storage, path: str, size: int) -> Unlisted | None:
    """Read what a segment says about itself; None if it can't be read."""
    form = next(
        (candidate for candidate in FORMATS.values() if path.endswith(candidate.ending)), None
    )
    name = names.segment_object(path)
    if form is None or not size:
        return None
    try:
        end_bytes = find_end(
            form, lambda count: storage.get_range(name, size - count, size), object_bytes=size
        )
        if not end_bytes:
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
        frames=len(frames),
        frame_raws=count_raws(frames),
    )
    version = names.parse_token_version(names.segment_token(path))
    known = -1 if version is None else version
    return Unlisted(entry, fingerprints.pop(), known, _order(known, path), copied is not None)


def is_there(storage: Storage, entry: SegmentEntry) -> bool:
    """Tell whether the object of an entry exists with the right size."""
    try:
        return storage.info(names.segment_object(entry.path)).size == entry.bytes
    except FormatError:
        return False


def choose_committed(
    unlisted: Sequence[Unlisted], *, before: int, segments: int, rows: int, nbytes: int
) -> Iterator[tuple[Unlisted, ...]]:
    """Yield the segments that one commit can have added, by its history row. Pure.

    `unlisted` is in the order of names. `before` is the commit's version: segments planned on it or
    later can't belong to it. `segments`, `rows` and `nbytes` are the sums that the history gives.
    Segments planned on the latest version come first: without a race that is the commit's parent.
    """
    versions = sorted(
        {segment.version for segment in unlisted if segment.version < before}, reverse=True
    )
    for version in versions:
        staged = [
            segment
            for segment in unlisted
            if segment.version == version
            and segment.entry.rows <= rows
            and segment.entry.bytes <= nbytes
        ]
        # Segments of one commit are in task order, whatever folder they are in.
        staged.sort(key=lambda segment: segment.order[2:])
        if comb(len(staged), segments) > _MOST_TRIED:
            continue
        for chosen in combinations(staged, segments):
            sizes = [(segment.entry.rows, segment.entry.bytes) for segment in chosen]
            if (sum(size[0] for size in sizes), sum(size[1] for size in sizes)) == (rows, nbytes):
                yield chosen


def choose_neighbours(unlisted: Sequence[Unlisted], rows: int) -> Iterator[tuple[Unlisted, ...]]:
    """Yield runs of segments, adjacent in name order, that hold `rows` events. Pure."""
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
