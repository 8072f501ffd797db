"""The errors of segstore: one tree, chosen by what a handler would do.

    SegstoreError                          .code (stable, append-only), .fields; retryable = False
    ├── InvalidInputError (ValueError)     fix an argument, option or location
    │   └── SchemaMismatchError
    ├── NotFoundError (LookupError)        no such stream, version, tag, reader
    ├── AlreadyExistsError
    ├── ConflictError          retryable   another change came first: read again
    │   ├── WriterConflictError            another owner, a stale batch, or other events
    │   ├── ReaderConflictError            the reader's name has another owner
    │   ├── LeaseLostError     retryable   a member's lease expired: undo, ask for the next batch
    │   └── StagedExpiredError             staged before the floor: stage again
    ├── CommitUnknownError                 may or may not have landed: ask stream.outcome()
    ├── TruncatedError                     the position is below the head: names what is lost
    ├── SnapshotExpiredError               the version's grace is over: load again
    ├── PositionError                      another stream or generation, or beyond the tail
    ├── SealedError
    ├── UnderReplicatedError               committed, but a follower lacks it: do not repeat
    ├── FencedError                        this folder is not the primary (any more)
    ├── ClosedError
    ├── StorageError           retryable   the filesystem failed; the cause is chained
    │   └── UnsafeFilesystemError          it can't keep the promises: choose another
    ├── FormatError                        stored bytes are not what FORMAT.md says
    │   ├── MissingObjectError
    │   ├── EmptyObjectError
    │   ├── TruncatedObjectError
    │   ├── CorruptionError
    │   └── UnsupportedVersionError
    └── InternalError                      a bug; asks for a report

Spark shows only an error's text, so `str(error)` holds everything: the code, a lowercase fact, the
values as ``name=value``, then the remedy. Every error pickles with its fields. Texts use the names
of Python arguments (``merge_schema=True``); `spark.boundary` respells them as options.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

# The remedy where commits are gone from the log.
RESTORE_LOG = (
    "stop writers, then restore the files of log/ from a backup, or run segstore.repair(url) "
    "to restore them from a follower; without either, repair(url, allow_loss=True) continues "
    "from the newest commit that is left, as another generation"
)
# The remedy where a folder has segments, but no log at all.
LOG_IS_GONE = (
    "call segstore.repair(url, replica=follower) to copy log/ from a follower, or promote one with "
    "followers.promote(); without a follower restore log/ from a backup"
)


class SegstoreError(Exception):
    """The root of all errors that segstore raises on purpose.

    Args:
        fact: What happened, lowercase, without values.
        remedy: What the caller can do about it; empty if there is no advice.
        fields: The values of the fact, shown as ``name=value`` in the given order.
    """

    code: ClassVar[str] = "SEGSTORE"  # of a class of this file: SEG_ and the words of its name
    retryable: bool = False
    default_remedy: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:
            words = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error"))
            cls.code = f"SEG_{words.upper()}"

    def __init__(self, fact: str, *, remedy: str = "", **fields: Any) -> None:
        self.fact = fact
        self.remedy = remedy or self.default_remedy
        self.fields = fields
        super().__init__(self._text())

    def _text(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        text = f"{self.code}: {self.fact}"
        if values:
            text += f": {values}"
        if self.remedy:
            text += f"; {self.remedy}"
        return text

    def refuse_retry(self, remedy: str) -> None:
        """Mark this error as not retryable, and append `remedy` to the one that it has."""
        self.retryable = False
        self.advise(f"{self.remedy}; {remedy}" if self.remedy else remedy)

    def advise(self, remedy: str) -> None:
        """Replace the remedy, where the one that was given does not apply."""
        self.remedy = remedy
        self.args = (self._text(),)

    def tell(self, **fields: Any) -> None:
        """Add values that only the caller knows."""
        self.fields |= fields
        self.args = (self._text(),)

    def respell(self, spell: Callable[[str], str]) -> None:
        """Rename the arguments in fact, remedy and fields for another kind of caller.

        `spell` returns a text with every name in it respelled. It must be idempotent.
        """
        self.fact, self.remedy = spell(self.fact), spell(self.remedy)
        self.fields = {spell(name): value for name, value in self.fields.items()}
        self.args = (self._text(),)

    def __reduce__(self) -> tuple[Any, ...]:
        own = {"retryable": False} if "retryable" in vars(self) else None
        return partial(type(self), self.fact, remedy=self.remedy, **self.fields), (), own


class InvalidInputError(SegstoreError, ValueError):
    """An argument, an option or a location has to be changed."""


class SchemaMismatchError(InvalidInputError):
    """The columns of the data do not fit those of the stream."""


class NotFoundError(SegstoreError, LookupError):
    """There is no such stream, version, tag or reader."""


class AlreadyExistsError(SegstoreError):
    """The name is taken."""


class ConflictError(SegstoreError):
    """Another change came first."""

    retryable = True
    default_remedy = "read the stream again and repeat"


class WriterConflictError(ConflictError):
    """The writer id has another owner, or its batch is older or has other events."""

    retryable = False


class ReaderConflictError(ConflictError):
    """The name of a reader belongs to another owner."""

    retryable = False


class LeaseLostError(ConflictError):
    """The lease of a reader's member expired, and other members read its events."""

    default_remedy = (
        "undo what was done with the batch, and ask the loop for the next one; if batches take so "
        "long, give a longer lease, or call renew() meanwhile"
    )


class StagedExpiredError(ConflictError):
    """The staged objects are older than the stream's staging floor, so they may be deleted."""

    default_remedy = "write the data again"


class CommitUnknownError(SegstoreError):
    """The commit may or may not have landed."""

    default_remedy = "ask stream.outcome(transaction, version) before you repeat the write"


class TruncatedError(SegstoreError):
    """The position lies below the head of the stream."""


class SnapshotExpiredError(SegstoreError):
    """The version that was read is gone."""

    default_remedy = "load the stream again"


class PositionError(SegstoreError):
    """The position is of another stream or generation, or beyond the tail."""


class SealedError(SegstoreError):
    """The stream has ended: nothing can be appended."""

    default_remedy = "write to another stream"


class UnderReplicatedError(SegstoreError):
    """The commit is in the log but has not reached a follower."""


class FencedError(SegstoreError):
    """The folder is not the primary, or another one was promoted in its place."""


class ClosedError(SegstoreError):
    """The object was used after it was closed."""

    default_remedy = "open another one"


class StorageError(SegstoreError):
    """The filesystem failed.

    If the failure lasts until someone acts, it is not `retryable` and has a remedy.

    Attributes:
        untouched: True if a call that creates an object has certainly not created it. A pickled
            error forgets this, which is safe: the result then counts as unknown.
        unsynced: True if the object may exist without being durable. Not pickled, either.
        denied: True if the filesystem refused this caller. Not pickled, either.
    """

    retryable = True
    untouched = False
    unsynced = False
    denied = False


class UnsafeFilesystemError(StorageError):
    """The filesystem cannot create an object exclusively, so commits would not be safe."""

    retryable = False
    untouched = True


class FormatError(SegstoreError):
    """Stored bytes are not what FORMAT.md says."""

    default_remedy = "segstore.verify(url) lists all damage, segstore.repair(url) fixes what it can"


class MissingObjectError(FormatError):
    """An object that the metadata names, or that a caller named, does not exist."""


class EmptyObjectError(FormatError):
    """An object has no bytes."""


class TruncatedObjectError(FormatError):
    """An object ends before its content does."""


class CorruptionError(FormatError):
    """Bytes fail their checksum, or contradict other metadata."""


class UnsupportedVersionError(FormatError):
    """The bytes were written by a newer version of segstore, or need a feature it lacks."""

    default_remedy = "read it with a newer version of segstore-ds"


class InternalError(SegstoreError):
    """A rule that the code itself should keep was broken."""

    default_remedy = "this is a bug in segstore: please report it with this message"


# After these errors the commit may have landed, or has landed, so the log may name its objects and
# none of them may be deleted. An InternalError is a bug, so its outcome counts as unknown.
MAYBE_COMMITTED = (CommitUnknownError, UnderReplicatedError, FencedError, InternalError)
