"""The seams of a commit: where another room takes part in it.

The room that `rooms.py` names is called before the put and before the acknowledgement, and may
raise to refuse the commit. After the acknowledgement nothing can fail any more: the log writes its
hint, and `stream/commits.py` runs what follows a write under `best_effort`.
"""

import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from types import TracebackType

from segstore_ds.errors import SegstoreError, StorageError
from segstore_ds.format.root import Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.rooms import SEAM_MODULE, SEAM_PROPERTY
from segstore_ds.storage import Storage
from segstore_ds.storage.base import Mirrors

_LOG = logging.getLogger(__name__)


class Seam:
    """A room's part in the commits of one stream; this class does nothing.

    A *mirror* is another folder with the same stream, byte for byte. A room takes part in a commit
    if the root or its base has the room's property.
    """

    def before_staging(self, root: Root) -> None:
        """Run before anything is staged for a commit on a root."""

    def mirrors(self, root: Root) -> Mirrors | None:  # noqa: ARG002 - a hook
        """Return the mirrors that a root names; sends no request."""
        return None

    def staging(self, storage: Storage, root: Root) -> Storage:  # noqa: ARG002 - a hook
        """Return the folder to stage in for a commit on a root, perhaps with mirrors."""
        return storage

    def before_put(self, base: Root, planned: Root) -> None:
        """Run on each attempt before its root is put, when all that it refers to is durable."""

    def before_ack(self, root: Root) -> None:
        """Run after a root is in the log and before its commit is acknowledged; may run again."""

    def acknowledged(self, root: Root) -> int:
        """Return the newest version, up to a root, that may have been acknowledged."""
        return root.version

    def catch_up(self, base: Root, *, allow_promoted: bool) -> list[str] | None:  # noqa: ARG002
        """Take commits from the folder that this one follows; None if there is none within reach.

        Returns the files. Raises if this folder took commits of its own or, without
        `allow_promoted`, may have.
        """
        return None

    def is_mirrored(self, theirs: Root) -> bool:  # noqa: ARG002
        """Tell whether a root of another folder says that it mirrors this one."""
        return False

    def mend(self, root: Root, url: str, *, allow_promoted: bool) -> list[str]:  # noqa: ARG002
        """Copy the commits that a mirror lacks to it; raises as `catch_up` does."""
        return []

    def alone(self, base: Root, *, allow_promoted: bool) -> tuple[Root, list[str]]:  # noqa: ARG002
        """Return a root without mirrors for a repair that loses commits, and what to report.

        Raises if a mirror was promoted or, without `allow_promoted`, if it may have been.
        """
        return base, []


_NO_ROOM = Seam()


class Seams:
    """The seams of one handle's log: the room that takes part, and the mirrors that it knows."""

    def __init__(self, files: MetadataLog[Root], clock: Clock) -> None:
        self._files, self._clock = files, clock
        self._room: Seam | None = None

    def room(self) -> Seam:
        """Return the room that takes part."""
        if self._room is None:
            self._room = import_module(SEAM_MODULE).SEAM(self._files, self._clock)
        return self._room

    def of(self, *roots: Root) -> Seam:
        """Return the room that takes part in commits on one of `roots`, or a do-nothing one."""
        for root in roots:  # a plain loop: every commit calls this four times
            if SEAM_PROPERTY in root.properties:
                return self.room()
        return _NO_ROOM

    def staging(self, root: Root) -> Storage:
        """Return the folder to stage in for a commit on a root."""
        storage = self._files.storage
        joined = storage.mirrors is not None or SEAM_PROPERTY in root.properties
        return self.room().staging(storage, root) if joined else storage

    def copies(self, root: Root) -> Iterator[MetadataLog[Root]]:
        """Yield the logs in all mirrors; sends no request."""
        mirrors, files = self.of(root).mirrors(root), self._files
        for url in mirrors.urls if mirrors else ():
            yield files.at(files.storage.sibling(url))

    def sound_copies(self, root: Root) -> Iterator[MetadataLog[Root]]:
        """Yield the logs of mirrors that confirm that they are ones; asks each when it comes."""
        mirrors = self.of(root).mirrors(root)
        yield from map(self._files.at, mirrors.folders(self._files.storage) if mirrors else ())

    def in_copies(self, root: Root, what: str, work: Callable[[MetadataLog[Root]], object]) -> bool:
        """Repeat a deletion in all mirrors; False if it failed in one, which is logged."""
        done = True
        for files in self.copies(root):
            try:
                work(files)
            except StorageError as error:
                _LOG.warning("%s still holds %s: %s", files.storage.url, what, error)
                done = False
        return done


class best_effort:  # noqa: N801 - a context manager, without a generator for every commit
    """Runs the upkeep named `what` after a commit and logs its failure instead of raising it.

    The commit is already durable; raising would make callers retry it. So every Exception is
    caught. One that is neither a SegstoreError nor a MemoryError is a bug, and is logged with its
    traceback. KeyboardInterrupt and SystemExit pass through.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, SegstoreError | MemoryError):
            _LOG.warning("%s failed and was skipped: %s", self._what, error)
        elif isinstance(error, Exception):
            _LOG.error(
                "%s failed and was skipped; this is a bug, please report it",
                self._what,
                exc_info=error,
            )
        return isinstance(error, Exception)
