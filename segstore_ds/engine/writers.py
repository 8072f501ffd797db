"""Writers: who may commit under a name, and whether a batch is committed already.

A writer id has an owner (the streaming query's id, or the caller) and a last batch. The same batch
again is a no-op that returns the first commit; an older one, or another owner, is an error.
"""

import logging
from dataclasses import dataclass

from segstore_ds.engine.table_status import TableStatus
from segstore_ds.errors import InvalidInputError, WriterConflictError
from segstore_ds.format.fields import is_text
from segstore_ds.format.root import Root, Writer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterKey:
    """The idempotence key of a commit: a writer's batch.

    Attributes:
        writer_id: Its name.
        batch_id: Grows.
        owner: Who may use the name; "" for a plain caller.
        takeover: Take the name over from another owner.
        claim: A second name that must be the owner's, such as its checkpoint's; "" for none.
    """

    writer_id: str
    batch_id: int
    owner: str = ""
    takeover: bool = False
    claim: str = ""

    def __post_init__(self) -> None:
        """Check the texts: they go into the root, and into views.

        Raises:
            InvalidInputError: One is no text, or holds what no UTF-8 can.
        """
        for name in ("writer_id", "owner", "claim"):
            text = getattr(self, name)
            if not is_text(text):
                raise InvalidInputError(
                    f"{name} of a writer is no text that can be stored",
                    remedy="give a str without lone surrogates (os.fsdecode leaves them where a "
                    "name is not UTF-8)",
                    **{name: text},
                )


@dataclass(frozen=True, slots=True)
class Commit:
    """What a write did: its events lie at ``[start, end)`` as of `version`.

    `repeated` says that the batch was committed before, by the commit described here; `attempts`
    how many puts of a commit file this call took.
    """

    version: int
    transaction: str
    start: int
    end: int
    repeated: bool = False
    attempts: int = 0

    @property
    def rows(self) -> int:
        """How many events the commit holds."""
        return self.end - self.start


def check_writer(known: Writer | None, key: WriterKey | None, rows: int | None) -> bool:
    """Tell whether a writer's batch is committed already. Pure.

    Raises:
        WriterConflictError: The id has another owner, or the batch is older than the last one.
    """
    if key is None or known is None:
        return False
    if key.takeover:
        return (known.owner, known.batch_id) == (key.owner, key.batch_id)
    if known.owner != key.owner:
        raise WriterConflictError(
            "writer id belongs to another owner",
            remedy="use another writerId; or, if that query or job is gone for good, "
            "set writerTakeover=true once",
            writer_id=key.writer_id,
            owner=known.owner or "a batch writer",
            caller=key.owner or "a batch writer",
        )
    if key.batch_id < known.batch_id:
        raise WriterConflictError(
            "batch is older than the writer's last one",
            remedy="a checkpoint or a job's state was set back or deleted; give the next batch id, "
            "use another writerId, or set writerTakeover=true once",
            writer_id=key.writer_id,
            batch_id=key.batch_id,
            last_batch_id=known.batch_id,
        )
    if key.batch_id > known.batch_id:
        return False
    if rows is not None and known.rows != rows:
        _LOG.warning(
            "writer %r repeats batch %d with %d rows; the %d rows committed first stay",
            key.writer_id,
            key.batch_id,
            rows,
            known.rows,
        )
    return True


def check_claim(known: Writer | None, key: WriterKey) -> None:
    """Check that the name a writer claims beside its own is free or its owner's. Pure.

    Raises:
        WriterConflictError: It is another owner's.
    """
    if known is not None and known.owner != key.owner and not key.takeover:
        raise WriterConflictError(
            "checkpoint belongs to another query",
            remedy="a checkpoint at this place was deleted, and the new query would write its "
            "events once more; choose another checkpointLocation, or set writerTakeover=true once",
            checkpoint=key.claim,
            owner=known.owner,
            caller=key.owner,
        )


def find_repeated(
    status: TableStatus, root: Root, writer: WriterKey | None, *, rows: int | None
) -> Commit | None:
    """Return the commit that holds a writer's batch already, or None.

    Args:
        status: The stream's table status.
        root: The root to look in.
        writer: The batch; None is never repeated.
        rows: How many rows are repeated, to warn when they differ; None where that is not known.

    Raises:
        WriterConflictError: Another owner, or an older batch.
        FormatError: The writers can't be read.
        StorageError: The storage failed.
    """
    known = status.writer(root, writer.writer_id) if writer else None
    if not check_writer(known, writer, rows) or known is None:
        return None
    return Commit(known.version, "", known.end - known.rows, known.end, repeated=True)
