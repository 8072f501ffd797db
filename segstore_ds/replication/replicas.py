"""Replication: ships a stream's commits to its followers, byte-for-byte copies of its folder.

The primary's log decides every race. The segments of a commit are copied to each follower before it
is put in that log. Afterwards its status objects are copied, and its commit file with the same
bytes at the same version. Only then is the commit acknowledged. The next commit first ships what a
follower lacks. A follower takes a version only directly after its newest one, by exclusive create,
so it always holds a complete, readable version of the stream.

The same exclusive create is the fence: `promote` puts a root of a new generation at the follower's
next version. A later commit of the old primary finds other bytes under that name, and is never
acknowledged, whatever the old primary knows and whenever it resumes.

A folder is written to, read and deleted from as a follower only if its own log holds this stream
and says that it follows this folder. So a damaged or malicious root can't reach other folders.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from segstore_ds.copy.transfer import CopiedObject, copy_objects, copy_small
from segstore_ds.errors import (
    ConflictError,
    FencedError,
    FormatError,
    MissingObjectError,
    NotFoundError,
    SegstoreError,
    StorageError,
    UnderReplicatedError,
    UnsupportedVersionError,
)
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.seams import Seam
from segstore_ds.log.seen import lost_commits
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.replication.follower import (
    PROPERTY,
    Follower,
    followers_of,
    new_segments,
    new_status,
    replication_of,
    whole_segments,
)
from segstore_ds.replication.mend import find_wrong, mend
from segstore_ds.replication.shipping import FollowerMirrors
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.storage.base import at_once

_LOG = logging.getLogger(__name__)


class Replicas(Seam):
    """The followers of one stream, as one handle's log sees them."""

    def __init__(self, files: MetadataLog[Root], clock: Clock) -> None:
        self._storage = files.storage
        self._files = files
        self._clock = clock
        self._followers: dict[str, Follower] = {}
        self._invited: set[str] = set()
        # The transaction to be put, and those of its segments that all followers have.
        self._prepared: tuple[str, frozenset[str]] | None = None

    def of(self, root: Root) -> list[Follower]:
        """Return the followers that a root names; sends no request."""
        return [self._open(url) for url in followers_of(root)]

    def mirrors(self, root: Root) -> FollowerMirrors | None:
        """Return the folders of a root's followers; sends no request."""
        known = replication_of(root) if PROPERTY in root.properties else None
        if known is None:
            return None
        return FollowerMirrors(root.stream_id, root.version, known.primary, known.followers)

    def invite(self, url: str) -> None:
        """Ship to a folder although its log does not say yet that it follows this one."""
        self._invited.add(url)

    def staging(self, storage: Storage, root: Root) -> Storage:
        """Return the folder to stage in, mirrored to the followers that hold a root already.

        A follower that does not hold it, or can't be reached, gets the objects with the commit.
        """
        urls = tuple(follower.url for follower in self.of(root) if follower.holds(root))
        if not urls and storage.mirrors is None:
            return storage
        mirrors = FollowerMirrors(root.stream_id, root.version, self._storage.url, urls)
        return storage.mirrored(mirrors if urls else None)

    def before_staging(self, root: Root) -> None:
        """Raise FencedError if this folder is not the primary: it is a follower, or was moved."""
        known = replication_of(root) if PROPERTY in root.properties else None
        if known is not None and known.primary != self._storage.url:
            raise FencedError(
                "this folder is a follower",
                remedy="write to the primary; if the primary is lost, call followers.promote() to "
                "make this folder the primary",
                url=self._storage.url,
                primary=known.primary,
            )

    def before_put(self, base: Root, planned: Root) -> None:
        """Bring followers up to the base, and ship the segments that a new commit refers to.

        A failure here commits nothing. Followers are prepared at the same time. Objects that the
        commit itself makes, parts and outlined segments, are shipped after it has won its race.

        Raises:
            FencedError: This folder is not the primary, or a follower was promoted.
            MissingObjectError: A follower holds commits that the primary's log has lost.
            StorageError: A follower can't be brought up to date, or did not get a segment.
            ConflictError: The commit drops the stream.
        """
        if planned.operation == Operation.DROP:
            _refuse_drop(base)
        if planned.operation != Operation.PROMOTE:
            self.before_staging(base)
        followers = self.of(planned)
        if not followers:
            return
        fresh = new_segments(TableStatus(self._storage), base, planned)
        staged = {path: one for path, one in fresh.items() if not names.is_outlined(one.path)}
        whole: dict[str, frozenset[str]] = {}

        def ship(follower: Follower) -> None:
            with _refusing_commit(follower, base):
                self._copy_segments(follower, staged, whole.get(follower.url))

        looks = [partial(self.ready, follower, base) for follower in followers]
        if staged:
            looks += [partial(_note_whole, whole, follower, staged) for follower in followers]
        at_once(looks)
        at_once([partial(ship, follower) for follower in followers if staged])
        self._prepared = planned.transaction, frozenset(staged)

    def ready(self, follower: Follower, base: Root) -> None:
        """Bring a follower up to a base; raises as `before_put`."""
        with _refusing_commit(follower, base):
            self._bring_up(follower, base)
        self._refuse_lost(follower, base)

    def _refuse_lost(self, follower: Follower, base: Root) -> None:
        ahead = follower.known.version if follower.known else 0
        # If the log holds that version, the base is only outdated and this commit loses its race.
        if ahead > base.version and not self._files.exists(ahead):
            witness = f"follower {follower.url}"
            raise lost_commits(
                self._storage.url, version=ahead, newest=base.version, witness=witness
            )

    def before_ack(self, root: Root) -> None:
        """Bring all followers up to a root that is in the primary's log, at once.

        Raises:
            FencedError: A follower was promoted, so the commit is not part of the stream.
            UnderReplicatedError: The commit is in the log, but not with every follower.
        """
        prepared, self._prepared = self._prepared, None
        # If `before_put` came first, it has just checked the followers' newest commit files.
        checked = prepared is not None and prepared[0] == root.transaction
        there = prepared[1] if prepared is not None and checked else frozenset[str]()
        missing: dict[str, SegstoreError] = {}

        def ship_to(follower: Follower) -> None:
            try:
                self._bring_up(follower, root, there, checked=checked)
            except FencedError:
                raise
            except (StorageError, FormatError) as error:
                missing[follower.url] = error

        at_once([partial(ship_to, follower) for follower in self.of(root)])
        if missing:
            raise UnderReplicatedError(
                "the commit is in the log, but not every follower has it",
                remedy="do not write it again: the next commit ships it first; repair the "
                "follower, or remove it with followers.remove(url)",
                version=root.version,
                transaction=root.transaction,
                followers=sorted(missing),
            ) from missing[min(missing)]

    def acknowledged(self, root: Root) -> int:
        """Return the newest version, up to a root, that all of its followers hold."""

        def newest_held(follower: Follower) -> int:
            try:
                theirs = follower.read_newest(root)
                if theirs.version < root.version:
                    self._check_ours(follower, theirs, root)
            except FencedError:
                raise
            except (StorageError, FormatError) as error:
                raise StorageError(
                    "a follower can't be read, so it is unknown which commits it has",
                    remedy="repair the follower, remove it with followers.remove(url), or "
                    "read without replicated=True",
                    follower=follower.url,
                    version=root.version,
                ) from error
            return theirs.version

        versions = at_once([partial(newest_held, follower) for follower in self.of(root)])
        return min([root.version, *versions])

    def alone(self, base: Root, *, allow_promoted: bool) -> tuple[Root, list[str]]:
        """Return a root without followers, and what to do with their folders; see `Seam.alone`."""
        known, own = replication_of(base), self._storage.url
        unread: dict[str, Exception | None] = {}
        for follower in map(self._open, (known.primary, *known.followers) if known else ()):
            if follower.url == own:
                continue
            try:
                found = follower.files.latest()
            except (FormatError, StorageError) as error:
                unread[follower.url] = error
                continue
            theirs = None if found is None else found[1]
            if theirs is None or theirs.stream_id != base.stream_id:
                unread[follower.url] = None  # an unmounted disk looks like an empty folder
            elif theirs.generation > base.generation:
                raise follower.fenced(base)
            elif known and follower.url == known.primary:
                self.before_staging(base)  # refuses a follower whose primary can be read
        if unread and not allow_promoted:
            raise StorageError(
                "a follower can't be read and may have been promoted, so nothing was changed",
                remedy="make it reachable; or set allow_promoted=True if no follower was ever "
                "promoted, or none will ever be used again",
                followers=sorted(unread),
            ) from next(iter(unread.values()))
        for url in sorted(unread):
            _LOG.warning("follower %s is unreadable, maybe promoted", url)
        kept = {name: text for name, text in base.properties.items() if name != PROPERTY}
        notes = [
            f"the stream has no followers any more: empty {url}, then add it again"
            for url in followers_of(base)
            if url != own
        ]
        return replace(base, properties=kept), notes

    def catch_up(self, base: Root, *, allow_promoted: bool) -> list[str] | None:
        """Take commits from the primary, if this folder follows one; see `Seam.catch_up`."""
        known = replication_of(base)
        if known is None or known.primary == self._storage.url:
            return None
        try:
            log = StreamLog(self._storage.sibling(known.primary), clock=self._clock)
            root = log.open()
            if self._storage.url not in followers_of(root) or root.stream_id != base.stream_id:
                _LOG.warning("%s does not list %s as a follower", known.primary, self._storage.url)
                return None
        except (FormatError, NotFoundError, StorageError) as error:
            _LOG.warning("no commits can be copied from primary %s: %s", known.primary, error)
            return None
        return replicas_of(log).mend(root, self._storage.url, allow_promoted=allow_promoted)

    def is_mirrored(self, theirs: Root) -> bool:
        """Tell whether a root of another folder says that it follows this one."""
        known = replication_of(theirs)
        return known is not None and known.primary == self._storage.url

    def mend(self, root: Root, url: str, *, allow_promoted: bool) -> list[str]:
        """Copy to a follower the commits that are damaged or missing there; see `Seam.mend`."""
        follower = self._open(url)
        mended = mend(self._files, follower, root, root.log_start, sure=allow_promoted)
        before = follower.newest(root)
        self._bring_up(follower, root)
        shipped = range(before.version + 1, root.version + 1)
        return mended + [self._files.path(version) for version in shipped]

    def refuse_promoted(self, url: str, root: Root) -> None:
        """Raise if a follower was or may have been promoted, or holds commits that this log lacks.

        An empty folder is only logged. Raises as `find_wrong`.
        """
        try:
            find_wrong(self._files, self._open(url), root, root.version)
        except FencedError as error:
            error.refuse_retry(
                "to abandon it and continue here, call followers.remove(url, allow_promoted=True)"
            )
            raise
        except MissingObjectError as error:
            if "seen" in error.fields:  # it holds commits that are lost here
                raise
            _LOG.warning("follower %s is unreadable, maybe promoted: %s", url, error)
        except StorageError as error:
            raise StorageError(
                "a follower can't be read and may have been promoted, so it was not removed",
                remedy="try again; if it is lost and was not promoted, call "
                "followers.remove(url, allow_promoted=True)",
                follower=url,
            ) from error

    def _open(self, url: str) -> Follower:
        if url not in self._followers:
            self._followers[url] = Follower(
                self._storage.sibling(url), self._clock, of=self._storage.url
            )
        return self._followers[url]

    def _bring_up(
        self,
        follower: Follower,
        root: Root,
        there: frozenset[str] = frozenset(),
        *,
        checked: bool = False,
    ) -> None:
        try:
            before = follower.newest(root, checked=checked)
        except (MissingObjectError, UnsupportedVersionError):
            raise
        except FormatError:
            mend(self._files, follower, root, max(root.version - 1, root.log_start))
            before = follower.newest(root)
        if before.version > root.version:
            return  # the root is outdated or was shipped; the folder may not follow any more
        if follower.url not in self._invited and not follower.confirms(before):
            raise MissingObjectError(
                "the follower's folder is not marked as a follower of this one",
                remedy="call followers.add(url) again if it was interrupted; else call "
                "followers.remove(url)",
                follower=follower.url,
                primary=self._storage.url,
            )
        if before.version == root.version:
            return
        self._storage.sync(self._files.path(root.version))  # its writer may have died before that
        self._check_ours(follower, before, root)
        status = TableStatus(self._storage)
        source, target = self._storage, follower.storage
        for after in self._lacking(follower, before, root):
            fresh = new_segments(status, before, after)
            unsure = {path: entry for path, entry in fresh.items() if path not in there}
            self._copy_segments(follower, unsure)
            small = new_status(status, before, after)
            at_once([partial(copy_small, source, target, path) for path in small])
            follower.add(after)
            before = after

    def _copy_segments(
        self,
        follower: Follower,
        segments: Mapping[str, SegmentEntry],
        whole: frozenset[str] | None = None,
    ) -> None:
        """Copy segments that a follower does not hold whole; checks it unless `whole` is given."""
        target = follower.storage
        if whole is None:
            whole = whole_segments(target, segments)
        missing = [
            CopiedObject(self._storage, path, target, path, entry)
            for path, entry in sorted(segments.items())
            if path not in whole
        ]
        for _ in copy_objects(missing) if missing else ():
            pass

    def _lacking(self, follower: Follower, before: Root, root: Root) -> Iterator[Root]:
        """Yield the commits after the newest one of a follower, up to a root."""
        try:
            for version in range(before.version + 1, root.version):
                yield self._files.read_sound(version)[0]
        except MissingObjectError as error:
            raise MissingObjectError(
                "a version that a follower lacks was forgotten",
                remedy="call followers.remove(url), then add a follower in an empty folder",
                follower=follower.url,
                version=error.fields.get("version"),
            ) from error
        yield root if self._files.is_sound(root) else self._files.read_sound(root.version)[0]

    def _check_ours(self, follower: Follower, theirs: Root, root: Root) -> None:
        if theirs.version == root.version - 1:
            same = theirs.transaction == root.parent
        else:
            ours = self._files.get(theirs.version)
            same = ours is None or ours.transaction == theirs.transaction
        if not same:
            raise follower.fenced(root)


def _note_whole(
    whole: dict[str, frozenset[str]], follower: Follower, segments: Mapping[str, SegmentEntry]
) -> None:
    """Note which segments a follower holds whole already."""
    with suppress(StorageError, FormatError):  # `_copy_segments` checks again
        whole[follower.url] = whole_segments(follower.storage, segments)


@contextmanager
def _refusing_commit(follower: Follower, base: Root) -> Iterator[None]:
    try:
        yield
    except FencedError:
        raise
    except (StorageError, FormatError) as error:
        failure = StorageError(
            "a follower can't be brought up to date, so nothing was committed",
            remedy="repair the follower, or remove it with followers.remove(url)",
            follower=follower.url,
            version=base.version,
        )
        failure.retryable = error.retryable
        raise failure from error


def _refuse_drop(root: Root) -> None:
    known = replication_of(root)
    if known is not None:
        failure = ConflictError(
            "the stream has followers, which would keep its events",
            remedy="call followers.remove(url) first; to drop a follower, or a former one, "
            "call followers.promote() on it and drop it by itself",
            followers=list(known.followers),
        )
        failure.retryable = False  # until somebody does what the remedy says
        raise failure


SEAM = Replicas


def replicas_of(log: StreamLog) -> Replicas:
    """Return the followers of the stream of a log."""
    replicas = log.seams.room()
    assert isinstance(replicas, Replicas)  # noqa: S101
    return replicas
