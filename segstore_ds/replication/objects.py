"""Copies a stream's objects between its folders, and finds out which are missing.

A writer that finds an object missing copies it. Two writers may copy the same object at once, and
either may stop half-way. An object in a follower is therefore never deleted first: if it is not
whole, it is replaced by the same bytes in one step.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from segstore_ds.copy.transfer import has_arrived
from segstore_ds.format import names
from segstore_ds.format.root import Retired, Root, SegmentEntry
from segstore_ds.status.references import status_objects
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage

T = TypeVar("T")

MOST = 16  # at a time


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of functions that run at the same time, in their order.

    The first one runs in this thread, and so do all where no thread can start, as at the end of the
    process. None of them runs any more when this returns or raises; of several errors the first in
    order is raised.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    if len(works) == 1:
        return [works[0]()]
    if not works:
        return []
    with ThreadPoolExecutor(min(len(works) - 1, MOST), "segstore-at-once") as threads:
        others = [_begin(threads, work) for work in works[1:]]
        return [works[0](), *(end() for end in others)]


def _begin(threads: Executor, work: Callable[[], T]) -> Callable[[], T]:
    """Begin work in a thread, and return what gives its result: the work where none can start."""
    with suppress(RuntimeError):
        return threads.submit(work).result
    return work


def new_status(status: TableStatus, before: Root, after: Root) -> list[str]:
    """Return both names of the status objects that a commit names and its parent does not.

    Parts inside lists are compared only where a list is new. A history part never goes to a list in
    the commit that writes it.
    """
    fresh = set(status_objects(after)) - set(status_objects(before))
    for table in status.tables:
        if any(index.path in fresh for index in table.lists(after)):
            old, new = ({part.path for part in table.parts(root)} for root in (before, after))
            fresh.update(*map(names.both_names, new - old))
    # A truncation may retire a part that it wrote itself, which no root lists.
    items = [*after.retired]
    for part in set(after.retired_parts) - set(before.retired_parts):
        items += status.retired.part(part)
    fresh.update(*(names.both_names(item.path) for item in items if _is_own_part(item, after)))
    return sorted(fresh)


def _is_own_part(item: Retired, root: Root) -> bool:
    own = names.parse_status_version(item.path) == root.version - 1
    return item.kind == "part" and item.version == root.version and own


def new_segments(status: TableStatus, before: Root, after: Root) -> dict[str, SegmentEntry]:
    """Return the segment objects that a commit lists and its parent does not."""
    known = {entry.path for entry in before.entries}
    found = {entry.path: entry for entry in after.entries if entry.frame is None}
    if set(status_objects(after)) != set(status_objects(before)):
        old, new = (
            {part.path: part for part in status.table.parts(root)} for root in (before, after)
        )
        for path in sorted(new.keys() - old.keys()):
            found.update((entry.path, entry) for entry in status.table.entries(new[path]))
        for path in sorted(old.keys() - new.keys()):
            known.update(entry.path for entry in status.table.entries(old[path]))
    fresh = found.keys() - known
    return {names.segment_object(path): found[path] for path in sorted(fresh)}


def whole_segments(target: Storage, segments: Mapping[str, SegmentEntry]) -> frozenset[str]:
    """Return the objects of `segments` that a folder holds whole; they are all asked at once."""
    whole = at_once([partial(has_arrived, target, *each) for each in segments.items()])
    return frozenset(path for path, is_whole in zip(segments, whole, strict=True) if is_whole)
