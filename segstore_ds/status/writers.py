"""Writers: who may commit under a writer id, and whether a batch is committed already.

A writer id has an owner (a streaming query's id; "" for a plain caller) and a last batch.
Committing the last batch again is a no-op that returns the first commit. An older batch, another
owner, or other events under the last batch id are errors.
"""

import logging
from dataclasses import dataclass

from segstore_ds.errors import RESTORE_LOG, InvalidInputError, WriterConflictError
from segstore_ds.format.batch_fingerprint import BatchFacts, differing_columns
from segstore_ds.format.record import is_text
from segstore_ds.format.root import Root, Writer
from segstore_ds.options import table as options
from segstore_ds.status.table_status import TableStatus

_LOG = logging.getLogger(__name__)

ERROR, SKIP = options.BY_NAME["onrepeat"].choices


@dataclass(frozen=True, slots=True)
class WriterKey:
    """The idempotence key of a commit: a writer's batch."""

    writer_id: str
    batch_id: int  # grows from batch to batch
    owner: str = ""  # who may use the name; "" for a plain caller
    takeover: bool = False  # take the name over from another owner
    # A second name that must belong to the owner, such as its checkpoint's; "" for none.
    claim: str = ""
    # What to do with other events under the last batch id: ``error``, or ``skip``, which drops
    # them and keeps what was committed first.
    on_repeat: str = options.default("onRepeat")
    dense: bool = False  # every batch id from 0 up to this one must have been committed

    def __post_init__(self) -> None:
        """Refuse texts that can't be stored (no str, or not UTF-8) and an unknown `on_repeat`."""
        if self.on_repeat not in (ERROR, SKIP):
            raise InvalidInputError(
                "unknown value of on_repeat",
                remedy=f"give {ERROR!r} or {SKIP!r}",
                on_repeat=self.on_repeat,
            )
        for name in ("writer_id", "owner", "claim"):
            text = getattr(self, name)
            if not is_text(text):
                raise InvalidInputError(
                    f"{name} of a writer can't be stored as text",
                    remedy="give a str without lone surrogates (os.fsdecode leaves them where a "
                    "name is not UTF-8)",
                    **{name: text},
                )


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of a write: its events have the offsets ``[start, end)`` as of `version`.

    `repeated` says that the batch was committed before, by the commit described here. `attempts` is
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


def check_writer(known: Writer | None, key: WriterKey | None, batch: BatchFacts | None) -> bool:
    """Tell whether a writer's batch is committed already. Pure."""
    if key is None:
        return False
    if known is None:
        if key.dense and key.batch_id > 0 and not key.takeover:
            raise WriterConflictError(
                "the stream has none of the batches that the query has committed",
                remedy="it was moved, replaced or restored: put it back where the query writes, in "
                "place of an empty one that was created there since; takeover=True, set once, lets "
                "the query go on without them",
                writer_id=key.writer_id,
                batch_id=key.batch_id,
            )
        return False
    same = (known.owner, known.batch_id) == (key.owner, key.batch_id)
    if same and batch is not None:
        _compare(known, key, batch)
    if same or key.takeover:
        return same
    if known.owner != key.owner:
        raise WriterConflictError(
            "writer id belongs to another owner",
            remedy="use another writer_id; or, if that query or job is gone for good, "
            "set takeover=True once",
            writer_id=key.writer_id,
            owner=known.owner or "a batch writer",
            caller=key.owner or "a batch writer",
        )
    if key.batch_id < known.batch_id:
        raise WriterConflictError(
            "batch is older than the writer's last one",
            remedy="a checkpoint or a job's state was set back or deleted; give the next batch id, "
            "use another writer_id, or set takeover=True once",
            writer_id=key.writer_id,
            batch_id=key.batch_id,
            last_batch_id=known.batch_id,
        )
    if key.dense and key.batch_id > known.batch_id + 1:
        raise WriterConflictError(
            "batches that the query committed are gone from the stream",
            remedy=f"{RESTORE_LOG}; takeover=True, set once, lets the query go on without them",
            writer_id=key.writer_id,
            batch_id=key.batch_id,
            last_batch_id=known.batch_id,
        )
    return False


def _compare(known: Writer, key: WriterKey, batch: BatchFacts) -> None:
    """Raise WriterConflictError, or warn, if other events were committed under the batch id."""
    columns = differing_columns(known.fingerprint, batch)
    if known.rows == batch.rows and not columns:
        return
    if key.on_repeat == SKIP:
        _LOG.warning(
            "writer %r repeats batch %d with other events: %d rows, and other values in %s; "
            "the %d rows committed first are kept",
            key.writer_id,
            key.batch_id,
            batch.rows,
            columns or "no column",
            known.rows,
        )
        return
    raise WriterConflictError(
        "batch id was committed with other events",
        remedy="a checkpoint or a job's state was set back, or two batches share an id: "
        "compare with the committed events, and write the missing ones under the next batch "
        "id or with a new checkpoint that starts after them; only if reruns of this query "
        "differ by nature (rand(), current time) set on_repeat='skip', which drops this "
        "batch's events",
        writer_id=key.writer_id,
        batch_id=key.batch_id,
        rows=batch.rows,
        differing_columns=columns,
        committed_rows=known.rows,
        committed_offsets=(known.end - known.rows, known.end),
        committed_version=known.version,
    )


def check_claim(known: Writer | None, key: WriterKey) -> None:
    """Raise WriterConflictError when another owner holds the name that a writer claims. Pure."""
    if known is not None and known.owner != key.owner and not key.takeover:
        raise WriterConflictError(
            "checkpoint belongs to another query",
            remedy="a checkpoint at this location was deleted, and the new query would write "
            "again what it reads from the start: set takeover=True once, and let its source begin "
            "after the last event that was written, as a segstore source with a reader_name does "
            "by takeover=True, too; or choose another checkpointLocation",
            checkpoint=key.claim,
            owner=known.owner,
            caller=key.owner,
        )


def find_repeated(
    status: TableStatus, root: Root, writer: WriterKey, *, batch: BatchFacts | None
) -> Commit | None:
    """Return the commit that already holds a writer's batch, or None.

    `batch` is None before the rows are known; then they are not compared. Raises
    WriterConflictError as `check_writer` does.
    """
    known = status.writers.find(root, writer.writer_id)
    if not check_writer(known, writer, batch) or known is None:
        return None
    return Commit(known.version, "", known.end - known.rows, known.end, repeated=True)
