"""Replication: followers that hold every acknowledged commit, and promotion of one of them."""

from segstore_ds.format.replication import followers_of
from segstore_ds.replication.followers import run_add_follower, run_promote, run_remove_follower
from segstore_ds.stream.handle import Handle


class Replication(Handle):
    """The part of a stream that keeps it in several places."""

    @property
    def followers(self) -> tuple[str, ...]:
        """The folders that follow this stream, as of the newest version seen.

        Raises:
            CorruptionError: The property can't be read.
        """
        return followers_of(self._log.root)

    def add_follower(self, url: str) -> None:
        """Keep a second copy of the whole stream in another folder, from now on.

        Once it returns, every commit, whoever makes it, is acknowledged only when the follower has
        it too. A follower can be read like any stream; commits through it are refused until
        `promote`. Safe to repeat. From now on, commits by versions of segstore that don't know
        followers are refused.

        Args:
            url: An empty folder, opened with this stream's storage options.

        Raises:
            AlreadyExistsError: The folder holds another stream.
            InvalidInputError: The stream's own folder under any name, one inside or around it, or
                one that can't be opened.
            FencedError: This folder is a follower itself.
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            UnderReplicatedError: It is in the log, but the follower lacks a part.
            FormatError: An object that must be copied is damaged.
            StorageError: A storage failed.
        """
        run_add_follower(self._context, url)

    def remove_follower(self, url: str) -> None:
        """Continue without a follower, even if it is lost; its folder stays. Safe to repeat.

        Raises:
            As `add_follower`, but for AlreadyExistsError.
        """
        run_remove_follower(self._context, url)

    def promote(self) -> int:
        """Make this follower a primary, when the old one is lost or given up. Safe to repeat.

        A follower holds every acknowledged commit. Once this returns, the old primary can
        acknowledge nothing any more, even if it comes back. Earlier positions are refused, since
        commits that the old primary did not acknowledge may be missing here. Followers must be
        added again.

        Returns:
            The generation.

        Raises:
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        return run_promote(self._context).root.generation
