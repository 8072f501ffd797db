"""Reads the log: opens it, follows it from the newest root seen, and reads versions.

Invariants of this module; without them, leftover files could be read as the log:

- A handle that has not confirmed its base for half of the grace period (time suspended included)
  opens the log again by listing, because a name after its base may be a leftover of a suspended
  writer.
- If an open through the hint finds an old root, it checks that the root's parent exists.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
    StorageError,
)
from segstore_ds.format.inline import attach_frames, frames_of
from segstore_ds.format.names import LOG_FOLDER, Hint
from segstore_ds.format.root import ROOT_RAW_LIMIT_BYTES, Root
from segstore_ds.format.root_codec import decode_root, encode_root
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.copy_record import check_complete
from segstore_ds.log.metadata_log import Codec, MetadataLog
from segstore_ds.log.origins import share_origins
from segstore_ds.log.place import no_stream
from segstore_ds.log.seen import RESTORE, Seen, is_proof, lost_commits
from segstore_ds.log.transition import broken_invariants
from segstore_ds.storage import Storage

LOG_GRACE_S = 3600.0
CONFIRM_S = 60.0
YOUNG_S = 1200.0  # a leftover is older than this by the time that anybody can read it
REOPEN_ATTEMPTS = 10

_NEWEST = 2  # listed entries are made alike, so two suffice; what callers gave is in other fields


def _newest(root: Root) -> Root:
    return replace(
        root,
        parts=root.parts[-_NEWEST:],
        entries=root.entries[-_NEWEST:],
        history=root.history[-_NEWEST:],
        history_parts=root.history_parts[-_NEWEST:],
        retired=root.retired[-_NEWEST:],
        retired_blobs=root.retired_blobs[-_NEWEST:],
    )


ROOT_CODEC: Codec[Root] = Codec(
    encode_root,
    lambda body, where: decode_root(body, where=where),
    ROOT_RAW_LIMIT_BYTES,
    _newest,
    frames_of,
    lambda root, frames, where: attach_frames(root, frames, where=where),
)


@dataclass(frozen=True, slots=True)
class Base:
    """A root that was the newest at `confirmed_s`.

    `sound` says that it can't be a leftover: it is young, was listed, or follows a sound one.
    """

    root: Root
    confirmed_s: float
    sound: bool


class FollowedLog:
    """The batch metadata log of one stream, with the newest root this handle has seen.

    A superseded version keeps its name in the log for `grace_s` seconds. `incomplete` also opens a
    stream whose copy is not done.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock = SYSTEM_CLOCK,
        grace_s: float = LOG_GRACE_S,
        incomplete: bool = False,
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.grace_s = grace_s
        self.incomplete = incomplete
        self.files = MetadataLog(storage, LOG_FOLDER, ROOT_CODEC, clock=clock)
        self._base: Base | None = None
        self._seen: Seen | None = None  # kept when an unknown outcome clears the base

    @property
    def root(self) -> Root:
        """The newest root this handle has seen; opens the log if it has seen none."""
        return self._base.root if self._base else self.open()

    def adopt(self, root: Root) -> None:
        """Take a root that was seen elsewhere; the next search for newer ones starts by listing."""
        share_origins(self.storage, root)
        self._stand_on(Base(root, float("-inf"), sound=False))

    def follow_from(self, other: "FollowedLog") -> None:
        """Go on from what another handle of this process on the same log knows."""
        self._base, self._seen = other._base, other._seen  # noqa: SLF001 - its own class

    def open(self) -> Root:
        """Find the newest root in O(1) requests: by the hint, by probing names, then by listing.

        Raises:
            NotFoundError: There is no stream.
            IncompleteStreamError: A copy into it is not done.
            FormatError: The newest root can't be read; an older one is never used instead.
        """
        return self._confirm(self._open_hinted)

    def reopen(self) -> Root:
        """Find the newest root by listing, ignoring anything seen before; raises as `open`."""
        return self._confirm(self._open_listed)

    def refresh(self) -> Root:
        """Return the newest root, following the log from the last root seen; raises as `open`."""
        base = self._base
        if base is None:
            return self.open()
        return self._confirm(
            lambda: self._climb(base.root, sound=base.sound), known_s=base.confirmed_s
        )

    def recent(self) -> Root:
        """Return a root that was the newest within the last minute; raises as `open`."""
        base = self._base
        if base is not None and self.clock.boot_s() - base.confirmed_s <= CONFIRM_S:
            return base.root
        return self.refresh()

    def follow(self) -> Root:
        """Return the newest root, by one request where nothing has changed; raises as `open`.

        A root that was confirmed within half of the grace period can't have been purged, so a
        missing next version alone proves that it is the newest. Once a minute a full refresh runs,
        which detects a stream that was deleted and created again.
        """
        base = self._base
        if base is None or self.clock.boot_s() - base.confirmed_s > CONFIRM_S:
            return self.refresh()
        if not self.files.exists(base.root.version + 1):
            return base.root
        return self.refresh()

    def read_version(self, version: int) -> Root:
        """Return the root as of a version.

        Raises:
            NotFoundError: The stream has no such version yet.
            SnapshotExpiredError: The version was purged.
        """
        newest = self.root
        if version > newest.version:
            newest = self.refresh()
        if version == newest.version:
            return newest
        if not 0 <= version < newest.version:
            raise NotFoundError(
                "no such version", url=self.storage.url, version=version, newest=newest.version
            )
        root = self._get(version) if version >= newest.log_start else None
        if root is None:
            start = self.reopen().log_start
            if version >= start:
                raise CorruptionError(
                    "version is missing in the log", url=self.storage.url, version=version
                )
            raise SnapshotExpiredError(
                "version was purged", url=self.storage.url, version=version, oldest=start
            )
        return root

    def write_hint(self, root: Root) -> None:
        """Record where the newest root is; only a hint, so a failure changes nothing."""
        self.files.write_hint(root.version, generation=root.generation, stream_id=root.stream_id)

    # --- inside ------------------------------------------------------------------------------

    def _stand_on(self, base: Base) -> None:
        self._base, self._seen = base, Seen.of(base.root)

    def _stand_on_later(self, base: Base, data: bytes | None, version: int) -> bool:
        """Stand on a commit behind a base, whose file was read; False without a proof that it is.

        No name after the base existed when the base was confirmed, and purge keeps a name for the
        grace period. So within `CONFIRM_S` of that moment none of them can be a leftover, and a
        commit whose history names the base is as good a base: confirmed at the same moment, whether
        or not it is still the newest.
        """
        later = self._readable(data, version)
        if later is None or not base.sound or not self._is_behind(later, base.root):
            return False
        self._check(later, version)
        if self.clock.boot_s() - base.confirmed_s > CONFIRM_S:
            return False
        if not self.incomplete:
            check_complete(later, url=self.storage.url)
        self._stand_on(replace(base, root=later))
        return True

    def _is_behind(self, later: Root, root: Root) -> bool:
        """Tell whether a commit was surely made behind another one: on it, or so its rows say."""
        if (later.stream_id, later.generation) != (root.stream_id, root.generation):
            return False
        if later.version == root.version + 1:
            return later.parent == root.transaction
        rows = (row for row in later.history if row.version == root.version)
        return any(row.transaction == root.transaction for row in rows)

    def _confirm(self, find: Callable[[], Base | None], known_s: float | None = None) -> Root:
        """Find the newest root; `find` starts from a base confirmed at `known_s`, or from none."""
        for _ in range(REOPEN_ATTEMPTS):
            began = self.clock.boot_s()
            limit_s = (began if known_s is None else known_s) + self.grace_s / 2
            # A search that ends after `limit_s` is void: names may have been purged on the way.
            try:
                found = find() if began <= limit_s else None
            except NotFoundError:
                self._refuse_base()  # in the empty folder of a dropped stream every name is free
                raise
            if found is not None and not self._holds_seen(found.root, climbed=known_s is not None):
                found = None
            if found is not None and self.clock.boot_s() <= limit_s:
                if not self.incomplete:
                    check_complete(found.root, url=self.storage.url)
                self._stand_on(replace(found, confirmed_s=began))
                return found.root
            find, known_s = self._open_listed, None
        raise StorageError("the log changes faster than it can be read", url=self.storage.url)

    def _holds_seen(self, found: Root, *, climbed: bool) -> bool:
        """Tell whether a root that was found continues what this handle has seen before.

        False means that the root is older although the log still holds what was seen: the listing
        was stale. `climbed` says that the root was found by following what was seen, which `_climb`
        has checked. Raises MissingObjectError when what was seen is gone from the log.
        """
        seen = self._seen
        if seen is None or not seen.is_same_history(found):
            return True
        if found.version in (seen.version, seen.version + 1) or climbed:
            there, stale = not seen.contradicts(found), False
        elif found.version > seen.version and seen.version < found.log_start:
            return True  # purged: a file of that name is a leftover
        else:
            root = self._readable(self.files.read(seen.version), seen.version)
            stale = found.version < seen.version
            # If it can't be read, a newer root is assumed to continue it.
            there = not stale if root is None else root.transaction == seen.transaction
            if not there and not stale and self.files.exists(found.version + 1):
                return False  # a purge may have come since, and what was read may be a leftover
        if not there:
            raise self._lost(seen, found.version)
        return not stale

    def _lost(self, seen: Seen, newest: int) -> MissingObjectError:
        self._refuse_base()
        return lost_commits(
            self.storage.url, version=seen.version, newest=newest, witness="this handle"
        )

    def _refuse_base(self) -> None:
        """Let no commit use this base any more, even if it was confirmed a moment ago."""
        if self._base is not None:
            self._base = replace(self._base, confirmed_s=float("-inf"))

    def _readable(self, data: bytes | None, version: int) -> Root | None:
        try:
            return None if data is None else self.files.decode(version, data)
        except FormatError:
            return None

    def _open_hinted(self) -> Base | None:
        hint = self.files.read_hint()
        base = self._follow_hint(hint)
        if base is not None and hint is not None and is_proof(hint, base.root):
            raise lost_commits(
                self.storage.url,
                version=hint.number,
                newest=base.root.version,
                witness=self.files.hint_path,
                remedy=f"{RESTORE}. If an older log/ was put back on purpose, delete "
                f"{self.files.hint_path} and open again: what was committed since is lost",
            )
        return base

    def _follow_hint(self, found: Hint | None) -> Base | None:
        if found is None:
            return self._open_listed()
        hint = found.number
        # The next number is read first: if it is missing, the hinted one is the newest.
        following = self._get(hint + 1)
        root = self._get(hint) if following is None else following
        base = None
        if root is not None and following is None:
            base = Base(root, 0.0, sound=False)
        elif root is not None:
            base = self._climb(root, sound=False)
        if base is None:
            return self._open_listed()
        age_us = self.clock.wall_us() - base.root.time_us
        if abs(age_us) <= YOUNG_S * 1e6:
            return replace(base, sound=True)
        return base if self._anchored(base.root) else self._open_listed()

    def _anchored(self, root: Root) -> bool:
        if root.version == 0:
            return True
        try:
            parent = self._get(root.version - 1)
        except FormatError:
            return False  # a repair abandoned it; the listing shows what the log is
        return parent is not None and parent.transaction == root.parent

    def _open_listed(self) -> Base | None:
        newest = self.files.newest_listed()
        if newest is None:
            raise no_stream(self.storage)
        root = self._get(newest)
        return None if root is None else self._climb(root, sound=True)

    def _climb(self, root: Root, *, sound: bool) -> Base | None:
        version, data, first = root.version, None, b""
        for _ in range(8):
            following = self.files.read(version + 1)
            if following is None:
                if not (self._is_there(root) if data is None else self.files.exists(version)):
                    return None
                # Only the newest is decoded: the others are superseded.
                newest = root if data is None else self._checked(version, data)
                self._check_follows(root, first, newest)
                return Base(newest, 0.0, sound=sound)
            version, data = version + 1, following
            first = first or following
        probed = self.files.probe(version)
        found = None if probed is None else self._get(probed)
        if found is None:
            return None
        self._check_follows(root, first, found)
        return Base(found, 0.0, sound=sound)

    def _is_there(self, root: Root) -> bool:
        """Tell whether a root is in the log; for a root that was just read, its name is enough."""
        seen = self._seen
        if seen is None or seen != Seen.of(root):
            return self.files.exists(root.version)
        data = self.files.read(root.version)
        found = self._readable(data, root.version)
        if found is not None and seen.contradicts(found):
            raise self._lost(seen, found.version)
        return data is not None

    def _check_follows(self, root: Root, first: bytes, newest: Root) -> None:
        """Check that the first commit after a root that was seen before was made on that root."""
        seen = self._seen
        if not first or seen is None or seen != Seen.of(root) or root.version < newest.log_start:
            return
        found = self._readable(first, root.version + 1)
        if found is not None and seen.contradicts(found):
            raise self._lost(seen, newest.version)

    def _get(self, version: int) -> Root | None:
        data = self.files.read(version)
        return None if data is None else self._checked(version, data)

    def _checked(self, version: int, data: bytes) -> Root:
        root = self.files.decode(version, data)
        self._check(root, version)
        return root

    def _check(self, root: Root, version: int) -> None:
        """Refuse a root that contradicts its name or itself, or that this handle can't use."""
        if root.version != version:
            raise CorruptionError(
                "commit file holds a different version than its name says",
                url=self.storage.url,
                path=self.files.path(version),
                version=root.version,
            )
        broken = list(broken_invariants(root))
        if broken:
            raise CorruptionError(
                "commit file contradicts itself",
                url=self.storage.url,
                path=self.files.path(version),
                broken=broken,
            )
        self.check_open(root)
        share_origins(self.storage, root)

    def check_open(self, root: Root) -> None:
        """Raise NotFoundError for a stream that was dropped, because its objects may be gone."""
        if root.dropped:
            raise NotFoundError(
                "stream was dropped",
                remedy="if objects are left, call segstore.drop(url, confirm=url) again to "
                "delete them",
                url=self.storage.url,
                version=root.version,
            )
