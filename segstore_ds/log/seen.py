"""Commits that were seen in a log.

A handle, a hint, a reader, a checkpoint or another folder that has seen a version proves that it
was committed. If the log of the same generation ends before it, or holds another commit there,
commits were lost. That is an error: otherwise the offsets of their events would be assigned again.
Another stream id or a later generation shows that the history was abandoned on purpose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from segstore_ds.errors import (
    RESTORE_LOG,
    FormatError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
)
from segstore_ds.format.names import HINT_PATH, Hint, parse_log_name
from segstore_ds.format.root import Root
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.status.history import History

ABANDONED = "abandoned"  # On disk: a property, set by a repair with loss. Never change.


@dataclass(frozen=True, slots=True)
class Seen:
    """A commit that was seen in the log."""

    stream_id: str
    generation: int
    version: int
    transaction: str

    @classmethod
    def of(cls, root: Root) -> Self:
        """Return the commit of a root."""
        return cls(root.stream_id, root.generation, root.version, root.transaction)

    @classmethod
    def by(cls, witness: Any) -> Self | None:
        """Return the commit that a position or a record names, or None."""
        if not witness.transaction:
            return None
        return cls(witness.stream_id, witness.generation, witness.version, witness.transaction)

    def is_same_history(self, root: Root) -> bool:
        """Tell whether a root of the same or a later version must include this commit."""
        return (root.stream_id, root.generation) == (self.stream_id, self.generation)

    def is_in(self, root: Root) -> bool | None:
        """Tell whether a root of the same history includes this commit. Pure.

        None if the root alone can't tell: the commit's history row is in a part, or lost.
        """
        if root.version <= self.version:
            return root.version == self.version and root.transaction == self.transaction
        if root.version == self.version + 1:
            return root.parent == self.transaction
        rows = (row.transaction for row in root.history if row.version == self.version)
        known = next(rows, "")
        return known == self.transaction if known else None


def is_behind(history: History, later: Root, root: Root) -> bool:
    """Tell whether `later` certainly follows `root`, by its parent or its history rows."""
    return later.version > root.version and is_included(history, Seen.of(root), later)


def is_included(history: History, seen: Seen, root: Root) -> bool:
    """Tell whether a root's history certainly includes a commit that was seen."""
    if not seen.is_same_history(root):
        return False
    included = seen.is_in(root)
    if included is None:  # its row is in a part
        found = dict(history.transactions(root, seen.version, seen.version + 1))
        included = found.get(seen.version) == seen.transaction
    return included


def is_gone(files: MetadataLog[Root], seen: Seen, newest: Root) -> bool:
    """Tell whether a commit that was seen is no longer in the log; sends at most one request.

    False if this can't be decided, because the version was purged or can't be read. `newest` must
    have been found after the commit was seen.
    """
    if not seen.is_same_history(newest) or seen.version < newest.log_start:
        return False
    included = seen.is_in(newest)
    if included is not None:
        return not included
    try:
        root = files.get(seen.version)
    except FormatError:
        return False
    return root is not None and root.transaction != seen.transaction


def hint_of(root: Root) -> Hint:
    """Return the hint that names a root."""
    return Hint(root.version, root.generation, root.stream_id, root.transaction)


def seen_by_hint(hint: Hint) -> Seen | None:
    """Return the commit that a hint proves; None for a hint that only says where to look.

    A hint is written only after an acknowledgement. A hint of another stream was written late; one
    of an earlier generation names a version that a repair abandoned.
    """
    if not hint.transaction:
        return None
    return Seen(hint.stream_id, hint.generation, hint.number, hint.transaction)


def is_proof(hint: Hint | None, newest: Root) -> bool:
    """Tell whether a hint proves that a log had newer versions than its newest root. Pure."""
    seen = None if hint is None else seen_by_hint(hint)
    if seen is None or seen.stream_id != newest.stream_id:
        return False
    return seen.version > newest.version and seen.generation >= newest.generation


def abandoned_through(root: Root) -> int:
    """Return the newest version that a repair with loss abandoned; -1 for none.

    Versions up to it may be missing in the log, and such a version in an object's name proves
    nothing.
    """
    text = root.properties.get(ABANDONED, "")
    number = parse_log_name(text)
    return -1 if number is None else number


def lost_commits(url: str, *, version: int, newest: int, witness: str) -> MissingObjectError:
    """Return the error for commits that were seen and are no longer in the log."""
    hinted = (
        f". If an older log/ was put back on purpose, delete {HINT_PATH} and open again: what was "
        "committed since is lost"
    )
    return MissingObjectError(
        "commits that were in the log are gone",
        remedy=RESTORE_LOG + (hinted if witness == HINT_PATH else ""),
        url=url,
        seen=version,
        newest=newest,
        witness=witness,
    )


def forgotten_version(version: int, oldest: int, **where: str) -> SnapshotExpiredError:
    """Return the error for a version that upkeep has forgotten."""
    return SnapshotExpiredError(
        "version was forgotten",
        remedy=f"choose version {oldest} or a later one; the upkeep policy says how long versions "
        "are kept",
        **where,
        version=version,
        oldest=oldest,
    )


def missing_versions(url: str, missing: Sequence[range], *, newest: int) -> MissingObjectError:
    """Return the error for gaps in the versions of the log."""
    first, last = missing[0][0], missing[-1][-1]
    return MissingObjectError(
        "versions are missing in the log",
        remedy=RESTORE_LOG,
        url=url,
        missing=sum(map(len, missing)),
        first=first,
        last=last,
        newest=newest,
    )


def replaced_stream(url: str, stream_id: str, found: Root) -> NotFoundError:
    """Return the error for a stream that was dropped and replaced by another one."""
    return NotFoundError(
        "the stream was dropped, and another one was created in its place",
        remedy="open the location again; a streaming query needs a new checkpoint",
        url=url,
        stream=stream_id,
        found=found.stream_id,
        version=found.version,
    )
