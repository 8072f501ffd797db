"""One follower: what a stream says of it (REPLICATION.md), what it holds, its next commit file.

A writer that finds an object missing there copies it. Two writers may copy the same object at once,
and either may stop half-way. An object in a follower is therefore never deleted first: if it is not
whole, it is replaced by the same bytes in one step.
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
        self.known: Root | None = None  # the newest root that it was seen to hold
        self._put = ""  # the transaction of the commit file that was put last
        self._hints = HintPace(storage, clock)

    def holds(self, root: Root) -> bool:
        """Tell whether it holds a root, or recently did; also False where it can't be reached."""
        try:
            known = self.known
            if known is None or known.transaction != root.transaction:
                known = self.newest(root)
            return known.transaction == root.transaction and self.says_so(known)
        except (StorageError, FormatError, FencedError):
            return False

    def says_so(self, theirs: Root) -> bool:
        """Tell whether a root of its own log says that it follows this stream's folder.

        The stream's root alone proves nothing: it may be crafted.
        """
        known = replication_of(theirs)
        named = () if known is None else (known.primary, *known.followers)
        return self._of in named and self.url in named[1:]

    def held(self, root: Root) -> Root:
        """Return the newest root that it holds, asked of its store; raises as `newest`."""
        if self.known is None or self.known.transaction != root.transaction:
            # Another process may have shipped it meanwhile.
            self.known = found = self.files.get(root.version)
            if found is not None and found.transaction != root.transaction:
                self.known = None
                raise self.fenced(root)
        return self.newest(root)

    def newest(self, root: Root, *, asked: bool = False) -> Root:
        """Return the newest root that it holds, where `root` is what it should hold.

        The remembered root counts only while its file and the one before exist, because a folder
        may be emptied at any time. `asked` says that they were there a moment ago, which saves the
        requests.

        Raises:
            FencedError: It holds another commit in the place of `root`, or a newer generation.
            MissingObjectError: It does not hold this stream, or its log has a hole.
            CorruptionError: It stored otherwise what this handle put last.
        """
        known = self.known
        near = known is not None and known.version in (root.version - 1, root.version)
        if known is not None and near and self.says_so(known):  # else it was removed for a while
            ours = root.transaction if known.version == root.version else root.parent
            if known.transaction == ours and (asked or self._has_two(known, root)):
                return known
        self.known = None
        found = self._find_near(root) or self._find_listed(root)
        if found.generation > root.generation:
            raise self.fenced(root)
        if found.version >= root.version:
            same = found if found.version == root.version else self.files.get(root.version)
            if same is not None and same.transaction != root.transaction:
                raise self.fenced(root)
        if found.transaction == self._put and not self.files.holds_added(found.version):
            raise self.differs(found.version)
        self.known = found
        return found

    def _find_near(self, root: Root) -> Root | None:
        """Return a root at `root` or beside it, found by name; None where only a list would tell.

        Writers that alternate outdate what each of them remembers, and a list of the log takes the
        longer the older the stream is. Of a follower that is further ahead, the next root will do:
        the primary has it too, so `root` is outdated and its commit loses, or has lost it.
        """
        works: list[Callable[[], Any]] = [
            partial(self.files.get, root.version),
            partial(self.files.get, root.version + 1),
            partial(self.files.exists, root.log_start),
        ]
        own, after, begins = at_once(works)
        if own is not None:
            found: Root | None = after or own
        elif after is None and root.version > root.log_start:
            found = self.files.get(root.version - 1)
        else:
            found = None
        return found if begins and found and found.stream_id == root.stream_id else None

    def _find_listed(self, root: Root) -> Root:
        numbers = self.files.numbers()
        found = self.files.get(numbers[-1]) if numbers else None
        if found is None or found.stream_id != root.stream_id:
            raise self.absent(root)
        begins = max(root.log_start, found.log_start)
        if numbers[0] > begins and found.generation <= root.generation:
            raise self._holed(numbers[0])
        return found

    def add(self, root: Root) -> None:
        """Put the commit file of a root directly after its newest one.

        In an emptied folder every name is free, so it is asked at the same time whether the
        version before is there. A folder that is emptied between the two requests is found out by
        `newest`, as one that is emptied later.

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
            raise StorageError("follower did not answer", follower=self.url) from error
        if not ours:
            raise self.fenced(root)
        if not all(before):
            raise self._holed(root.version)
        self.known, self._put = root, root.transaction
        self._hints.write(partial(self.files.write_hint, hint_of(root)), self._hint_known)

    def _hint_known(self) -> None:
        known = self.known
        if known is not None and self.files.holds_added(known.version):
            self.files.write_hint(hint_of(known))

    def _has_two(self, known: Root, root: Root) -> bool:
        """Tell whether the file of a root is there, and the one before unless it was purged.

        What this handle put is read back: the follower acknowledged it, whatever it stored.
        """
        looks = [partial(self.files.holds_added, known.version)]
        if known.version > max(known.log_start, root.log_start):
            looks.append(partial(self.files.exists, known.version - 1))
        return all(at_once(looks))

    def _holed(self, version: int) -> MissingObjectError:
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
            remedy="bring its disk or its files back; if it is empty for good, call "
            "followers.add(url) again, or followers.remove(url)",
            follower=self.url,
            stream=root.stream_id,
        )

    def differs(self, version: int) -> CorruptionError:
        """Return the error for a commit file that is not the primary's."""
        return CorruptionError(
            "a follower's commit file differs from the one that was sent",
            remedy=_REPAIR,
            follower=self.url,
            version=version,
        )

    def fenced(self, root: Root) -> FencedError:
        """Return the error for a primary that another folder has replaced."""
        return FencedError(
            "a follower was promoted, so this folder is no longer the primary",
            remedy="write to the promoted stream; it lacks commits that were not acknowledged here",
            primary=self.url,
            version=root.version,
            transaction=root.transaction,
        )


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
