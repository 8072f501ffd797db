"""Deletes the status objects and the outlined segments of an attempt that lost its race.

The name of such an object carries the version that it was planned on, and the commit that first
names it takes the next version. Once that version is seen to hold another attempt's commit, no
later commit can name an object that was planned on the same base and that the winner does not name.
Names are digests, so two writers may have put the same object: what the winner names is kept. Where
its root alone does not tell all that it names, the rest is left for upkeep.
"""

import logging
from collections.abc import Iterator

from segstore_ds.errors import FormatError, StorageError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import CONFIRM_S, Base
from segstore_ds.status.references import status_objects

_LOG = logging.getLogger(__name__)


def plan_discard(base: Root, lost: Root, winner: Root) -> list[str]:
    """Return the objects that only `lost` names, where `winner` took its version. Pure."""
    moved = {_lists(base), _lists(lost), _lists(winner)}
    if winner.parent != base.transaction or len(moved) > 1:
        return []  # parts may have moved to lists or out of them
    made = {*_made_on(base, lost)}
    if winner.parts != base.parts:
        made.difference_update(_outlined(lost))  # a new part may list them
    return sorted(made.difference(status_objects(winner), _outlined(winner)))


def _made_on(base: Root, root: Root) -> Iterator[str]:
    paths = (*status_objects(root), *_outlined(root))
    return (path for path in paths if names.staged_version(path) == base.version)


def _outlined(root: Root) -> Iterator[str]:
    paths = (entry.path for entry in root.entries if names.is_outlined(entry.path))
    return map(names.segment_object, paths)


def _lists(root: Root) -> tuple[object, ...]:
    return root.lists, root.history_lists, root.retired_lists, root.writers_lists


def discard_lost(files: MetadataLog[Root], base: Base, lost: Root, clock: Clock) -> None:
    """Delete what a lost attempt put and no commit can name; best effort, never raises."""
    if not any(_made_on(base.root, lost)):
        return
    try:
        winner = files.get(lost.version)
        # After a suspension, that version may have been purged and put again by another writer.
        if winner is not None and clock.boot_s() - base.confirmed_s <= CONFIRM_S:
            for path in plan_discard(base.root, lost, winner):
                files.storage.delete(path)
    except (FormatError, StorageError) as error:
        _LOG.warning(
            "objects of a lost attempt could not be deleted; upkeep will delete them: %s", error
        )
