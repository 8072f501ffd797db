"""Upkeep: what is done to a stream beside reading and writing its events."""

from segstore_ds.engine.retention import run_purge
from segstore_ds.engine.table_status import TableStatus
from segstore_ds.engine.vacuum import GRACE_S, VacuumReport, run_vacuum
from segstore_ds.engine.verify import Report, run_verify
from segstore_ds.stream.handle import Handle, client_name


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

    def vacuum(
        self, *, dry_run: bool = True, grace_s: float = GRACE_S, short_grace: bool = False
    ) -> VacuumReport:
        """Delete what no version, no pin and no commit in flight can need; by default only say so.

        That is what was dropped longer ago than the grace and before the oldest version kept (see
        `purge`), and what was staged on a version older than the grace and never committed. Safe to
        repeat, and to run beside writers, readers and other vacuums.

        Args:
            dry_run: Change nothing, and report what would be deleted and why.
            grace_s: How long what was dropped stays for readers of older versions, and how long a
                writing job may take.
            short_grace: Allow a grace of less than a day: you promise that nobody needs it.

        Returns:
            What was deleted, or would be, and what stays for now.

        Raises:
            InvalidInputError: A grace of less than a day without `short_grace`.
            ConflictError: Every race was lost; nothing was deleted.
            CommitUnknownError: It is unknown whether the floor was raised; nothing was deleted.
            FormatError: Metadata can't be read; nothing was deleted.
            StorageError: The storage failed; what was deleted stays deleted.
        """
        return run_vacuum(
            self._log,
            TableStatus(self._log.storage),
            dry_run=dry_run,
            grace_s=grace_s,
            short_grace=short_grace,
            client=client_name(),
        )

    def verify(self) -> Report:
        """Read the whole stream and report everything that is wrong; changes nothing.

        Raises:
            NotFoundError: The stream is gone.
            StorageError: The storage failed, so nothing can be said.
        """
        return run_verify(self._log, TableStatus(self._log.storage))
