"""The life of a stream: truncation, seal, restore, retention, tags and named readers."""

from segstore_ds.commit.properties import run_set_properties
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.retention import PROPERTY, RetentionPolicy, parse_policy
from segstore_ds.format.tag import Tag
from segstore_ds.read.cuts import CutLike, check_version, parse_cut, resolve_cut
from segstore_ds.read.reader_records import SeenReader, list_readers
from segstore_ds.retention.readers import LAPSE_S, NamedReader, register_reader, release_reader
from segstore_ds.retention.restore import run_restore
from segstore_ds.retention.retain import run_retain
from segstore_ds.retention.tags import run_tag, run_untag
from segstore_ds.retention.truncate import run_seal, run_truncate
from segstore_ds.status.writers import Commit
from segstore_ds.stream.handle import Handle


class Lifecycle(Handle):
    """The part of a stream that decides what belongs to it, and who still needs it."""

    def truncate(self, cut: CutLike) -> int:
        """Forget the events before a cut: the head moves there, no offset changes.

        The segment that holds the new head stays; segments below it are deleted by `vacuum` after
        its grace. Allowed on sealed streams. Unlike `retain`, it ignores readers and tags. Safe to
        repeat: a cut at the head changes nothing.

        Returns:
            The head.

        Raises:
            TruncatedError: The cut is below the head.
            PositionError: A cut beyond the tail, or of another stream or generation.
            NotFoundError: There is no such version, tag or reader.
            SnapshotExpiredError: The version that the cut names was purged.
            InvalidInputError: Not a cut.
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        return run_truncate(self._context, parse_cut(cut)).root.head

    def seal(self) -> int:
        """End the stream: every later append is refused with SealedError. Safe to repeat.

        An append in flight either commits before the seal or is refused whole. Reads, truncation
        and repeated batches work as before.

        Returns:
            The tail, which no longer moves.

        Raises:
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        return run_seal(self._context).root.tail

    def restore(self, version: int) -> Commit:
        """Restore the events of an earlier version, in one commit that copies no event.

        The restored events get new offsets from the tail on, and the columns of that version are
        restored as well. The events that were there until now end up below the head. Restoring the
        version before undoes it.

        Raises:
            InvalidInputError: Not the number of a version.
            NotFoundError: There is no such version.
            SnapshotExpiredError: It was purged.
            SealedError: The stream has ended.
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        return run_restore(self._context, check_version(version))

    def retain(
        self,
        *,
        max_bytes: int | None = None,
        max_age_s: int | None = None,
        min_bytes: int | None = None,
        min_age_s: int | None = None,
        respect_readers: bool = True,
    ) -> int:
        """Forget what exceeds a maximum, once; a minimum wins. Safe to repeat.

        Without a maximum, it forgets the events that every live reader is done with. Ages count
        from the commit that appended an event, by the store's clock; events that no kept version
        can date stay.

        Args:
            max_bytes: Drop the oldest segments while the rest is larger (encoded bytes).
            max_age_s: Drop events that were committed more than this many seconds ago.
            min_bytes: Keep at least this many encoded bytes.
            min_age_s: Keep events that were committed within this many seconds.
            respect_readers: Keep what a tag or a live reader needs.

        Returns:
            The head.

        Raises:
            InvalidInputError: A bound is not valid, or nothing could ever be dropped.
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata or a reader's record can't be read; nothing was committed.
            StorageError: The storage failed.
        """
        policy = RetentionPolicy(max_bytes, max_age_s, min_bytes, min_age_s, respect_readers)
        return run_retain(self._context, policy).root.head

    @property
    def retention(self) -> RetentionPolicy | None:
        """The policy that is applied after commits, as of the newest version seen.

        Raises:
            CorruptionError: The policy can't be read.
        """
        text = self._log.root.properties.get(PROPERTY)
        return None if text is None else parse_policy(text)

    def set_retention(self, policy: RetentionPolicy | None) -> None:
        """Set a policy that every committer applies after its commits, about once a minute.

        If applying it fails, the log gets a warning, and the commit does not fail.

        Args:
            policy: What is kept; None ends it.

        Raises:
            InvalidInputError: It is not a policy.
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        if policy is not None and not isinstance(policy, RetentionPolicy):
            raise InvalidInputError(
                "not a retention policy",
                remedy="give segstore.RetentionPolicy(max_age_s=...), or None to remove the policy",
                type=type(policy).__name__,
            )
        text = None if policy is None else policy.to_json()
        run_set_properties(self._context, {PROPERTY: text})

    @property
    def tags(self) -> dict[str, Tag]:
        """The named cuts, by name, as of the newest version seen.

        Raises:
            CorruptionError: A tag can't be read.
        """
        return dict(sorted(self._status.tags(self._log.root).items()))

    def tag(self, name: str, cut: CutLike = "tail", *, move: bool = False) -> Tag:
        """Give a cut a name; from then on `tag:NAME` is accepted wherever a cut is.

        `retain` keeps the events from a tag on. Safe to repeat.

        Args:
            name: Letters, digits, dots, dashes and underscores.
            cut: Any form of cut, bound once.
            move: Allow a tag of that name to move here.

        Raises:
            AlreadyExistsError: The tag names another cut.
            InvalidInputError: Not a name or not a cut, or too many tags.
            TruncatedError: The cut is below the head.
            PositionError: A cut beyond the tail, or of another stream or generation.
            NotFoundError: There is no such version, tag or reader.
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        return run_tag(self._context, name, parse_cut(cut), move=move)

    def untag(self, name: str) -> None:
        """Remove a tag.

        Raises:
            NotFoundError: There is no such tag.
            ConflictError: Every race was lost; nothing was committed.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        run_untag(self._context, name)

    def reader(
        self,
        name: str,
        *,
        owner: str = "",
        start: CutLike | None = None,
        lapse_s: int = LAPSE_S,
        takeover: bool = False,
        provisional: bool = False,
    ) -> NamedReader:
        """Register a named reader, or continue with the one of that owner.

        Once it returns, `retain` keeps the events from the reader's position on, until the reader
        is released, or publishes nothing for `lapse_s`. `reader:NAME` is accepted wherever a cut
        is.

        Args:
            name: Letters, digits, dots, dashes and underscores.
            owner: Who may publish under the name; one reader, one owner.
            start: The first event it needs; None for the position published last, or the head.
            lapse_s: After this many seconds without publication or renewal, by the store's time, it
                holds nothing back.
            takeover: Take the name over from another owner.
            provisional: Let another owner take the name until the next publication.

        Raises:
            ReaderConflictError: The name belongs to another owner.
            TruncatedError: The position is below the head: names what is lost.
            PositionError: A cut beyond the tail, or of another stream or generation.
            InvalidInputError: Not a name or not a cut.
            ConflictError: Every race was lost.
            CommitUnknownError: The storage never said whether it is registered.
            FormatError: A record can't be read.
            StorageError: The storage failed.
        """
        root = self._log.refresh()
        offset = None if start is None else resolve_cut(self._context, root, parse_cut(start))
        return register_reader(
            self._context,
            name,
            owner=owner,
            start=offset,
            lapse_s=lapse_s,
            takeover=takeover,
            provisional=provisional,
        )

    def readers(self) -> list[SeenReader]:
        """Return every named reader by name, released and lapsed ones too.

        Raises:
            FormatError: A record can't be read.
            StorageError: The storage failed.
        """
        return list_readers(self._context)

    def release_reader(self, name: str) -> bool:
        """Release a named reader, whoever owns it; False if there is none to release.

        Raises:
            InvalidInputError: Not a reader's name.
            ConflictError: Every race was lost.
            CommitUnknownError: The storage never said whether it is released.
            FormatError: A record can't be read.
            StorageError: The storage failed.
        """
        return release_reader(self._context, name)
