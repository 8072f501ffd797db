"""Commits that were seen in a log: each one proves that it was committed.

A handle, a hint, a reader, a checkpoint or a follower that has seen a version proves that it was
committed. If the log of the same generation ends before it, or holds another commit there, commits
were lost. That is an error: otherwise the offsets of their events would be assigned again. Another
stream id or a later generation shows that the history was abandoned on purpose.
"""

from dataclasses import dataclass
from typing import Protocol, Self

from segstore_ds.errors import FormatError, MissingObjectError
from segstore_ds.format.names import Hint
from segstore_ds.format.root import Root
from segstore_ds.log.metadata_log import MetadataLog

RESTORE = (
    "stop writers, then restore the files of log/ from a backup, or run segstore.repair(url) "
    "to restore them from a follower; without either, repair(url, allow_loss=True) continues "
    "from the newest commit that is left, as another generation"
)


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

    def is_same_history(self, root: Root) -> bool:
        """Tell whether a root must include this commit, if it is as new."""
        return (root.stream_id, root.generation) == (self.stream_id, self.generation)

    def contradicts(self, root: Root) -> bool:
        """Tell whether a root alone shows that this commit is gone from its log. Pure."""
        if not self.is_same_history(root):
            return False
        if root.version <= self.version:
            return root.version < self.version or root.transaction != self.transaction
        return root.version == self.version + 1 and root.parent != self.transaction


class Witnessing(Protocol):
    """An object that remembers which commit it has seen: a position or a reader's record."""

    @property
    def stream_id(self) -> str:
        """Of the stream."""

    @property
    def generation(self) -> int:
        """Of the stream."""

    @property
    def version(self) -> int:
        """The newest version that was seen."""

    @property
    def transaction(self) -> str:
        """Of that version; "" where it is not known."""


def seen_by(witness: Witnessing) -> Seen | None:
    """Return the commit that a witness has seen; None where it remembers none."""
    if not witness.transaction:
        return None
    return Seen(witness.stream_id, witness.generation, witness.version, witness.transaction)


def is_gone(files: MetadataLog[Root], seen: Seen, newest: Root) -> bool:
    """Tell whether a commit that was seen is no longer in the log; sends at most one request.

    False when this can't be decided, because the version was purged or can't be read. `newest` must
    be found after the commit was seen.
    """
    if not seen.is_same_history(newest) or seen.version < newest.log_start:
        return False
    if seen.version >= newest.version - 1:
        return seen.contradicts(newest)
    try:
        root = files.get(seen.version)
    except FormatError:
        return False
    return root is not None and root.transaction != seen.transaction


def hint_of(root: Root) -> Hint:
    """Return the hint that leads to a root."""
    return Hint(root.version, root.generation, root.stream_id)


def is_proof(hint: Hint | None, newest: Root) -> bool:
    """Tell whether a hint proves that a log had newer versions than its newest root. Pure.

    A hint is written only after an acknowledgement. A hint of another stream was written late; one
    of an earlier generation names a version that a repair abandoned.
    """
    if hint is None or hint.stream_id != newest.stream_id:
        return False
    return hint.number > newest.version and hint.generation >= newest.generation


def lost_commits(
    url: str, *, version: int, newest: int, witness: str, remedy: str = RESTORE
) -> MissingObjectError:
    """Return the error for commits that were seen and are no longer in the log."""
    return MissingObjectError(
        "commits that were in the log are gone",
        remedy=remedy,
        url=url,
        seen=version,
        newest=newest,
        witness=witness,
    )
