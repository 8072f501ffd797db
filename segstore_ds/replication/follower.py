"""One follower: the property that names it, the newest commit in its folder, and the next one.

It follows REPLICATION.md. Two writers may copy the same object to a follower at once, and either
may stop half-way. So an object that is not whole there is never deleted first: it is replaced by
the same bytes in one step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from segstore_ds.copy.transfer import has_arrived
from segstore_ds.errors import (
    CorruptionError,
    FencedError,
    FormatError,
    MissingObjectError,
    SegstoreError,
    StorageError,
)
from segstore_ds.format import names
from segstore_ds.format.record import build_json, to_json
from segstore_ds.format.root import Retired, Root, SegmentEntry, property_of
from segstore_ds.log.clock import Clock
from segstore_ds.log.late_hints import HintPace
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.log.seen import hint_of
from segstore_ds.status.references import status_objects
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.storage.base import at_once

PROPERTY = "replication"  # On disk. Never change.
_REPAIR = "call segstore.repair(url) of the primary, which copies to the follower what it lacks"


@dataclass(frozen=True, slots=True)
class Replication:
    """Which folder takes commits, and which folders follow it."""

    primary: str
    followers: tuple[str, ...]

    def to_text(self) -> str:
        """Return the text of the property.

        >>> Replication("file:///a", ("file:///b",)).to_text()
        '{"followers":["file:///b"],"primary":"file:///a"}'
        """
        return build_json(to_json(self)).decode()


def replication_of(root: Root) -> Replication | None:
    """Return the replication of a stream as of a root; None where there is none."""
    return property_of(root, PROPERTY, Replication)


def followers_of(root: Root) -> tuple[str, ...]:
    """Return the locations of the followers that a root names."""
    known = replication_of(root) if PROPERTY in root.properties else None
    return known.followers if known else ()


class Follower:
    """One follower of the folder `of`: its storage, and the newest version known to be there."""

    def __init__(self, storage: Storage, clock: Clock, *, of: str) -> None:
        self.storage = storage
        self.url = storage.url
        self._of = of
        self.files = MetadataLog(storage, names.LOG_FOLDER, ROOT_CODEC, clock=clock)
        self.known: Root | None = None  # the newest root that was read from it or put there
        self._put_last = ""  # the transaction of the commit file that this handle put last
        self._hints = HintPace(storage, clock)

    def holds(self, root: Root) -> bool:
        """Tell whether it holds a root, or recently did; False too if it can't be reached."""
        try:
            known = self.known
            if known is None or known.transaction != root.transaction:
                known = self.newest(root)
            return known.transaction == root.transaction and self.confirms(known)
        except (StorageError, FormatError, FencedError):
            return False

    def confirms(self, theirs: Root) -> bool:
        """Tell whether a root of its own log says that it follows this stream's folder.

        The root of this stream alone proves nothing, because an attacker may have made it.
        """
        known = replication_of(theirs)
        named = () if known is None else (known.primary, *known.followers)
        return self._of in named and self.url in named[1:]

    def read_newest(self, root: Root) -> Root:
        """Return the newest root that it holds, as its folder has it now; raises as `newest`."""
        if self.known is None or self.known.transaction != root.transaction:
            # Another process may have shipped it meanwhile.
            self.known = theirs = self.files.get(root.version)
            if theirs is not None and theirs.transaction != root.transaction:
                self.known = None
                raise self.fenced(root)
        return self.newest(root)

    def newest(self, root: Root, *, checked: bool = False) -> Root:
        """Return the newest root that it holds; `root` is the one that it should hold.

        The remembered root is valid only while its file and the previous one exist, because a
        folder may be emptied at any time. `checked` says that they were there a moment ago, which
        saves the requests.

        Raises:
            FencedError: It holds another commit in the place of `root`, or a newer generation.
            MissingObjectError: It does not hold this stream, or a version is missing in its log.
            CorruptionError: The commit file that this handle put last has other bytes there.
        """
        known = self.known
        near = known is not None and known.version in (root.version - 1, root.version)
        if known is not None and near and self.confirms(known):  # else it was removed for a while
            ours = root.transaction if known.version == root.version else root.parent
            if known.transaction == ours and (checked or self._has_two(known, root)):
                return known
        self.known = None
        theirs = self._read_near(root) or self._read_last(root)
        if theirs.generation > root.generation:
            raise self.fenced(root)
        if theirs.version >= root.version:
            same = theirs if theirs.version == root.version else self.files.get(root.version)
            if same is not None and same.transaction != root.transaction:
                raise self.fenced(root)
        if theirs.transaction == self._put_last and not self.files.holds_added(theirs.version):
            raise self.differs(theirs.version)
        self.known = theirs
        return theirs

    def _read_near(self, root: Root) -> Root | None:
        """Return its root at the version of `root` or next to it; None if only a list can tell.

        These are read by name, because a list of a long log is slow. Writers that alternate need
        them often: each remembers an outdated root. If the follower is further ahead, the next root
        is enough: either the primary has it and this commit loses its race, or it lost that commit.
        """
        works: list[Callable[[], Any]] = [
            partial(self.files.get, root.version),
            partial(self.files.get, root.version + 1),
            partial(self.files.exists, root.log_start),
        ]
        own, after, begins = at_once(works)
        if own is not None:
            theirs: Root | None = after or own
        elif after is None and root.version > root.log_start:
            theirs = self.files.get(root.version - 1)
        else:
            theirs = None
        return theirs if begins and theirs and theirs.stream_id == root.stream_id else None

    def _read_last(self, root: Root) -> Root:
        numbers = self.files.numbers()
        theirs = self.files.get(numbers[-1]) if numbers else None
        if theirs is None or theirs.stream_id != root.stream_id:
            raise self.absent(root)
        begins = max(root.log_start, theirs.log_start)
        if numbers[0] > begins and theirs.generation <= root.generation:
            raise self._lacks(numbers[0])
        return theirs

    def add(self, root: Root) -> None:
        """Put the commit file of a root directly after its newest one.

        An emptied folder accepts every name, so the same round of requests checks that the
        previous version is there. `newest` notices a folder that is emptied in between or later.

        Raises:
            FencedError: Another commit has that version.
            MissingObjectError: The previous version is gone: the folder was deleted meanwhile.
        """
        self.known = None
        works = [partial(self.files.add, root.version, root)]
        if root.version > root.log_start:
            works.append(partial(self.files.exists, root.version - 1))
        try:
            ours, *before = at_once(works)
        except StorageError:
            raise
        except SegstoreError as error:
            raise StorageError("a follower did not answer", follower=self.url) from error
        if not ours:
            raise self.fenced(root)
        if not all(before):
            raise self._lacks(root.version)
        self.known, self._put_last = root, root.transaction
        self._hints.write(partial(self.files.write_hint, hint_of(root)), self._hint_known)

    def _hint_known(self) -> None:
        known = self.known
        if known is not None and self.files.holds_added(known.version):
            self.files.write_hint(hint_of(known))

    def _has_two(self, known: Root, root: Root) -> bool:
        """Tell whether the file of a root is there, and the previous one unless it was purged.

        What this handle put is read back, because a follower may acknowledge a file and store other
        bytes.
        """
        looks = [partial(self.files.holds_added, known.version)]
        if known.version > max(known.log_start, root.log_start):
            looks.append(partial(self.files.exists, known.version - 1))
        return all(at_once(looks))

    def _lacks(self, version: int) -> MissingObjectError:
        return MissingObjectError(
            "a version is missing in a follower's log",
            remedy=_REPAIR,
            follower=self.url,
            version=version,
        )

    def absent(self, root: Root) -> MissingObjectError:
        """Return the error for a folder without this stream."""
        return MissingObjectError(
            "the follower's folder does not hold this stream",
            remedy="mount its disk, or restore its files; if they are lost, call "
            "followers.add(url) again, or followers.remove(url)",
            follower=self.url,
            stream=root.stream_id,
        )

    def differs(self, version: int) -> CorruptionError:
        """Return the error for a commit file that is not the primary's."""
        return CorruptionError(
            "a follower's commit file differs from the primary's",
            remedy=_REPAIR,
            follower=self.url,
            version=version,
        )

    def fenced(self, root: Root) -> FencedError:
        """Return the error for a primary that a promoted follower has replaced."""
        return FencedError(
            "a follower was promoted, so this folder is no longer the primary",
            remedy="write to the promoted stream; it lacks commits that were not acknowledged here",
            primary=self.url,
            version=root.version,
            transaction=root.transaction,
        )


def new_status(status: TableStatus, before: Root, after: Root) -> list[str]:
    """Return both names of each status object that a commit names and its parent does not.

    Parts inside lists are compared only if a list is new, since a commit never moves the history
    part that it writes to a list.
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
    listed = {entry.path: entry for entry in after.entries if entry.frame is None}
    if set(status_objects(after)) != set(status_objects(before)):
        old, new = (
            {part.path: part for part in status.table.parts(root)} for root in (before, after)
        )
        for path in sorted(new.keys() - old.keys()):
            listed.update((entry.path, entry) for entry in status.table.entries(new[path]))
        for path in sorted(old.keys() - new.keys()):
            known.update(entry.path for entry in status.table.entries(old[path]))
    fresh = listed.keys() - known
    return {names.segment_object(path): listed[path] for path in sorted(fresh)}


def whole_segments(target: Storage, segments: Mapping[str, SegmentEntry]) -> frozenset[str]:
    """Return the objects of `segments` that a folder holds whole; checks all of them at once."""
    whole = at_once([partial(has_arrived, target, *each) for each in segments.items()])
    return frozenset(path for path, is_whole in zip(segments, whole, strict=True) if is_whole)
