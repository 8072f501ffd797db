"""The objects that a root refers to: those that must exist for it, and those that it retired.

Only this module knows all the ways in which metadata names an object. Metadata that can't be read
raises, so an object never counts as unreferenced because a lookup failed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from segstore_ds.errors import MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.root import Retired, Root
from segstore_ds.status.history import History
from segstore_ds.status.table_status import TableStatus, parts_and_lists
from segstore_ds.storage import ObjectInfo, Storage

# In the order of deletion: what lists other objects is deleted after them.
OBJECT_FOLDERS = (names.SEGMENTS_FOLDER, names.TWINS_FOLDER, names.STATUS_FOLDER)


@dataclass(slots=True)
class References:
    """The objects that a root names, by their paths in the stream's folder."""

    # What the root lists: its segments, and both names of its status objects.
    live: set[str] = field(default_factory=set)
    # What commits dropped, each with its newest record; a restore may have made some live again.
    retired: dict[str, Retired] = field(default_factory=dict)

    def retire(self, path: str, item: Retired) -> None:
        """Record a retirement; the newest one of an object counts."""
        known = self.retired.get(path)
        if known is None or item.version > known.version:
            self.retired[path] = item


def list_objects(storage: Storage) -> Iterator[ObjectInfo]:
    """List all objects of a folder that commits may name: segments, twins, status objects."""
    for folder in OBJECT_FOLDERS:
        yield from storage.list(folder)


def status_objects(root: Root) -> Iterator[str]:
    """Yield both names of each status object that a root itself names. Pure."""
    for ref in parts_and_lists(root):
        yield from names.both_names(ref.path)
    for epoch in root.epochs:
        yield from names.both_names(epoch.blob.path) if epoch.blob is not None else ()


def listed_parts(status: TableStatus, root: Root) -> Iterator[str]:
    """Yield both names of the parts of all tables, those in lists included."""
    for table in (*status.tables, History(status.storage)):
        for part in table.parts(root):
            yield from names.both_names(part.path)


def retired_objects(status: TableStatus, item: Retired) -> Iterator[str]:
    """Yield the objects that a retirement drops, segments before the part that lists them."""
    if item.kind == "segment":
        yield names.segment_object(item.path)
        return
    if item.kind == "part":
        entries = status.table.retired(item.path)
        yield from (names.segment_object(entry.path) for entry in entries)
    yield from names.both_names(item.path)


def find_unlisted(status: TableStatus, root: Root, paths: set[str]) -> set[str]:
    """Return the objects of `paths` that a root does not seem to list.

    Segments are looked up by the versions in their names, which may miss one. So check with
    `read_references` before a deletion.
    """
    left = paths - set(status_objects(root))
    left.difference_update(listed_parts(status, root))
    tokens = (names.segment_token(path.partition("/")[2]) for path in left)
    staged = map(names.parse_token_version, tokens)
    versions = [version for version in staged if version is not None]
    if not versions:
        return left
    for run in status.runs(root, root.listed_start, root.tail):
        for row in np.flatnonzero(np.isin(run.columns.versions, versions)):
            left.discard(names.segment_object(run.columns.path(int(row))))
    return left


def read_references(
    status: TableStatus, root: Root, *, gone_before: int = 0, gone_until_us: int = -1
) -> References:
    """Read everything that a root refers to.

    A part that was retired at or before version `gone_before` and time `gone_until_us` may be
    deleted already, together with its segments; any other missing part raises.
    """
    found = References(live=set(status_objects(root)))
    found.live.update(listed_parts(status, root))
    for run in status.runs(root, root.listed_start, root.tail):
        paths = (run.columns.path(row) for row in range(len(run.columns)))
        found.live.update(names.segment_object(path) for path in paths if not names.is_inline(path))
    for item in status.retired.all(root):
        if item.kind == "segment":
            found.retire(names.segment_object(item.path), item)
            continue
        for path in names.both_names(item.path):
            found.retire(path, item)
        if item.kind == "part":
            for path in _part_segments(status, item, gone_before, gone_until_us):
                found.retire(path, item)
    return found


def _part_segments(
    status: TableStatus, item: Retired, gone_before: int, gone_until_us: int
) -> Iterator[str]:
    try:
        entries = status.table.retired(item.path, required=True)
    except MissingObjectError:
        if item.version <= gone_before and item.time_us <= gone_until_us:
            return
        raise
    yield from (names.segment_object(entry.path) for entry in entries)
