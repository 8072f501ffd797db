"""Deletes the status objects and the outlined segments of an attempt that lost its race.

The name of such an object carries the version that it was planned on, and the commit that first
names it takes the next version. Once that version is seen to hold another attempt's commit, no
later commit can name an object that was planned on the same base and that the winner does not name.
Names are digests, so two writers may have put the same object: what the winner names is kept.
"""

import logging

from segstore_ds.errors import FormatError, StorageError
from segstore_ds.format import names
from segstore_ds.format.root import PartRef, Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import CONFIRM_S, Base
from segstore_ds.status.references import status_objects
from segstore_ds.status.table_status import TableStatus, parts_and_lists
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)


def plan_discard(base: Root, lost: Root, winner: Root) -> list[str]:
    """Return the status objects that only `lost` names, where `winner` took its version. Pure."""
    if winner.parent != base.transaction:
        return []
    known = {*status_objects(base), *status_objects(winner), *(old.path for old in winner.retired)}
    if _moves_parts(base, lost, winner):
        known.update(part.path for part in parts_and_lists(lost))
    return sorted(path for path in _made_on(base, lost) if path not in known)


def _moves_parts(base: Root, lost: Root, winner: Root) -> bool:
    # Then the roots alone can't distinguish new parts from parts that came out of a list of the
    # base or went into a list of the winner: keep them all.
    before = _lists(base)
    return not before <= _lists(lost) or not _lists(winner) <= before


def _lists(root: Root) -> set[PartRef]:
    return {*root.lists, *root.history_lists, *root.retired_lists, *root.writers_lists}


def _made_on(base: Root, root: Root) -> set[str]:
    paths = status_objects(root)
    return {path for path in paths if names.parse_status_version(path) == base.version}


def _outlined(status: TableStatus, base: Root, root: Root) -> set[str]:
    """Return the segments that a root on `base` made of inline ones, those in new parts too."""
    new = [part for part in root.parts if part not in base.parts]
    listed = [*root.entries, *(entry for part in new for entry in status.part(part))]
    paths = (entry.path for entry in listed if names.is_outlined(entry.path))
    return {
        names.segment_object(path)
        for path in paths
        if names.parse_token_version(names.segment_token(path)) == base.version
    }


def discard_lost(files: MetadataLog[Root], base: Base, lost: Root, clock: Clock) -> None:
    """Delete what a lost attempt put and no commit can name; best effort, never raises."""
    outlines = base.root.inline_bytes > 0 and lost.inline_bytes == 0
    if not outlines and not _made_on(base.root, lost).difference(status_objects(base.root)):
        return
    try:
        winner = files.get(lost.version)
        # After a suspension, that version may have been purged and put again by another writer.
        if winner is not None and clock.boot_s() - base.confirmed_s <= CONFIRM_S:
            for path in _plan_segments(files.storage, base.root, lost, winner):
                files.storage.delete(path)
            for path in plan_discard(base.root, lost, winner):
                files.storage.delete(path)
    except (FormatError, StorageError) as error:
        _LOG.warning("objects of a lost attempt were left for upkeep: %s", error)


def _plan_segments(storage: Storage, base: Root, lost: Root, winner: Root) -> list[str]:
    """Return the segments that `lost` made of inline ones and that `winner` does not list."""
    if winner.parent != base.transaction or _moves_parts(base, lost, winner):
        return []
    status = TableStatus(storage)
    return sorted(_outlined(status, base, lost) - _outlined(status, base, winner))
