"""What all parts of a stream's handle share: the log, the table status, the newest root seen."""

import datetime as dt
import platform
from typing import Self

import pyarrow as pa

from segstore_ds.commit.commit import StreamLog
from segstore_ds.commit.context import StreamContext
from segstore_ds.commit.lookup import Outcome, OutcomeState, outcome, version_at
from segstore_ds.errors import InvalidInputError, NotFoundError
from segstore_ds.format.root import Root
from segstore_ds.log.copy_record import check_complete
from segstore_ds.options.arguments import check_whole
from segstore_ds.read.cuts import (
    CutLike,
    Position,
    check_version,
    parse_cut,
    parse_moment,
    resolve_cut,
)
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.storage import Storage
from segstore_ds.version import __version__
from segstore_ds.write.append import Appender


def client_name() -> str:
    """Return the name of this writer for a stream's history."""
    return f"segstore/{__version__} python/{platform.python_version()} pyarrow/{pa.__version__}"


def context_of(log: StreamLog) -> StreamContext:
    """Return the context of a log for a handle of this process."""
    return StreamContext.of(log, client=client_name())


class Handle:
    """One stream as one thread sees it: what it has seen of the log, and how to look again."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._log = context.log
        self._status = context.status
        self._appender = Appender(context)

    def __repr__(self) -> str:
        root = self._log.root
        return f"<Stream {self.url} version={root.version} head={root.head} tail={root.tail}>"

    @property
    def context(self) -> StreamContext:
        """The first argument of the verbs below the front door, for connectors."""
        return self._context

    @property
    def url(self) -> str:
        """The canonical location."""
        return self._log.storage.url

    @property
    def storage(self) -> Storage:
        """The folder; its `stats` count requests and bytes."""
        return self._log.storage

    @property
    def root(self) -> Root:
        """The newest root this handle has seen."""
        return self._log.root

    @property
    def stream_id(self) -> str:
        """The stream's identity, made when it was created."""
        return self._log.root.stream_id

    @property
    def version(self) -> int:
        """The number of the newest commit."""
        return self._log.root.version

    @property
    def head(self) -> int:
        """The offset of the oldest kept event."""
        return self._log.root.head

    @property
    def tail(self) -> int:
        """The offset that the next event will get."""
        return self._log.root.tail

    @property
    def sealed(self) -> bool:
        """True if nothing can be appended any more."""
        return self._log.root.sealed

    @property
    def schema(self) -> pa.Schema:
        """The columns of the events, in stored form.

        Raises:
            FormatError: The schema can't be read.
            StorageError: The storage failed.
        """
        return epoch_schema(self._status, self._log.root.epoch)

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the schema, or of some of its columns; None if Spark never wrote one.

        Raises:
            FormatError: The schema can't be read.
            StorageError: The storage failed.
        """
        return self._status.schema_texts(self._log.root.epoch)[1]

    def refresh(self) -> Self:
        """Look for newer commits and return this handle; it never goes back to an older one.

        Raises:
            MissingObjectError: Commits that this handle has seen are gone from the log.
            FormatError: The newest root can't be read.
            StorageError: The storage failed.
        """
        self._log.refresh()
        return self

    def position(self, cut: CutLike = "tail") -> Position:
        """Return a cut together with its stream, for a checkpoint; raises as `read`."""
        root = self._log.root
        offset = resolve_cut(self._context, root, parse_cut(cut))
        return Position.of(root, offset)

    def root_as_of(
        self, *, version: int | None = None, timestamp: str | dt.datetime | None = None
    ) -> Root:
        """Return the root of an earlier version; without arguments the newest one seen.

        Args:
            version: Its number.
            timestamp: A datetime or text with a zone: the newest version committed at or before it.

        Raises:
            InvalidInputError: Both are given, or one is not a number or not a time with a zone.
            NotFoundError: The stream has no such version yet, or was created later.
            SnapshotExpiredError: The version was purged.
            IncompleteStreamError: A copy into the stream was not done at that version.
            FormatError: A commit file can't be read.
            StorageError: The storage failed.
        """
        if version is not None and timestamp is not None:
            raise InvalidInputError(
                "both a version and a time were given to read as of",
                remedy="give version_as_of or timestamp_as_of",
                version=version,
                timestamp=timestamp,
            )
        if version is None and timestamp is None:
            return self._log.root
        if version is not None:
            root: Root | None = self._log.read_version(check_version(version))
        else:
            root = version_at(self._log, parse_moment(timestamp or ""))
        if root is None:
            raise NotFoundError(
                "stream was created after that time", url=self.url, timestamp=str(timestamp)
            )
        check_complete(root, url=self.url)
        return root

    def outcome(self, transaction: str, version: int | None = None) -> Outcome:
        """Tell whether a transaction is in the log, after a CommitUnknownError.

        Args:
            transaction: As the error names it.
            version: As the error names it; without it the whole history is searched.

        Returns:
            COMMITTED, NOT_COMMITTED, or UNKNOWN while a late request could still land.

        Raises:
            InvalidInputError: Not a transaction, or not a version.
            UnderReplicatedError: It is committed, but a follower can't be brought up to date.
            FormatError: A commit file can't be read.
            StorageError: The storage failed.
        """
        if not isinstance(transaction, str) or not transaction:
            raise InvalidInputError(
                "not a transaction",
                remedy="give the error's field transaction",
                transaction=transaction,
            )
        version = check_whole("version", version, optional=True)
        found = outcome(self._log, transaction, version)
        if found.state is OutcomeState.COMMITTED:
            # This acknowledges the commit, so the followers must have it first.
            self._log.replicas.ship(self._log.root)
        return found
