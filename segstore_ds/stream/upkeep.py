"""Upkeep: what is done to a stream beside reading and writing its events."""

from segstore_ds.engine.retention import run_purge
from segstore_ds.engine.table_status import TableStatus
from segstore_ds.engine.verify import Report, run_verify
from segstore_ds.stream.handle import Handle


class Upkeep(Handle):
    """The part of a stream that keeps it in order."""

    def purge(self, *, older_than_s: float = 30 * 86400.0) -> int:
        """Forget versions that were superseded longer ago than that (an hour at least).

        Their events stay; only reading *as of* those versions ends. Safe to repeat.

        Returns:
            The oldest version kept.

        Raises:
            ConflictError: Other writers came first every time; nothing was deleted.
            CommitUnknownError: It is unknown whether the purge was committed; nothing was deleted.
            FormatError: A commit file can't be read; nothing was deleted.
            StorageError: The storage failed.
        """
        return run_purge(self._log, older_than_s=older_than_s)

    def verify(self) -> Report:
        """Read the whole stream and report everything that is wrong; changes nothing.

        Raises:
            NotFoundError: The stream is gone.
            StorageError: The storage failed, so nothing can be said.
        """
        return run_verify(self._log, TableStatus(self._log.storage))
