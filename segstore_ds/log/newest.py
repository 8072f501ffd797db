"""Reads the log: opens it, follows it from the newest root seen, and reads versions.

Invariants of this module; without them, leftover files could be read as the log, or lost ones go
unnoticed:

- An open lists the names from the hint on. Leftovers of suspended writers lie below the newest
  version, so the last name listed is the newest. The hint only says where to begin.
- A handle follows the names after its base for `CONFIRM_S`, and lists them again afterwards.
- A version that is missing between the first name listed and the newest is an error. So is a root
  that does not include what this handle or the hint has seen.
- A handle belongs to one stream. Another stream in the same folder is an error.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

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
from segstore_ds.format.root import ROOT_RAW_LIMIT_BYTES, Root, decode_root, encode_root
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.copy_record import check_complete
from segstore_ds.log.metadata_log import MARK_BYTES, Codec, MetadataLog, find_gaps
from segstore_ds.log.origins import share_origins
from segstore_ds.log.place import no_stream
from segstore_ds.log.seen import (
    Seen,
    abandoned_through,
    hint_of,
    hint_remedy,
    lost_commits,
    missing_versions,
    replaced_stream,
    seen_by_hint,
)
from segstore_ds.log.transition import broken_invariants
from segstore_ds.storage import Storage

LOG_GRACE_S = 3600.0
CONFIRM_S = 60.0
REOPEN_ATTEMPTS = 10
FOLLOWED = 8  # versions behind a base that are read by name; then their names are listed

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
    decode_root,
    ROOT_RAW_LIMIT_BYTES,
    _newest,
    frames_of,
    lambda root, frames, where: attach_frames(root, frames, where=where),
)


@dataclass(frozen=True, slots=True)
class Base:
    """A root that was the newest at `confirmed_s`.

    `seen_s` is when its file was seen in the log, and `mark` are the file's first bytes.
    """

    root: Root
    confirmed_s: float
    seen_s: float
    mark: bytes


class FollowedLog:
    """The batch metadata log of one stream, with the newest root this handle has seen.

    A superseded version keeps its name in the log for `grace_s` seconds. `incomplete` also opens a
    stream whose copy is not done, and `damaged` one whose log lacks versions. Threads may share a
    log: what one of them has seen never goes back to what another one found before.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock = SYSTEM_CLOCK,
        grace_s: float = LOG_GRACE_S,
        incomplete: bool = False,
        damaged: bool = False,
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.grace_s = grace_s
        self.incomplete = incomplete
        self.damaged = damaged
        self.files = MetadataLog(storage, LOG_FOLDER, ROOT_CODEC, clock=clock)
        self._base: Base | None = None
        self._seen: Seen | None = None  # kept when an unknown outcome clears the base
        self._locks = os.getpid(), threading.Lock(), threading.RLock()

    @property
    def root(self) -> Root:
        """The newest root this handle has seen; opens the log if it has seen none."""
        base = self._base
        return base.root if base else self.open()

    def adopt(self, root: Root) -> None:
        """Take a root that was seen elsewhere; the next search for newer ones starts by listing."""
        share_origins(self.storage, root)
        self._base, self._seen = Base(root, float("-inf"), float("-inf"), b""), Seen.of(root)

    def follow_from(self, other: "FollowedLog") -> None:
        """Go on from what another handle of this process on the same log knows."""
        with other._state_lock:  # noqa: SLF001 - its own class
            self._base, self._seen = other._base, other._seen  # noqa: SLF001

    def open(self) -> Root:
        """Find the newest root in three requests: the hint, the names from it on, and the root.

        Raises:
            NotFoundError: There is no stream, or another one than this handle has seen.
            IncompleteStreamError: A copy into it is not done.
            MissingObjectError: Versions are missing, or commits are gone that were seen.
            FormatError: The newest root can't be read; an older one is never used instead.
        """
        return self._confirm(self._open_hinted)

    def reopen(self) -> Root:
        """Find the newest root by listing the whole log, without the hint; raises as `open`."""
        return self._confirm(partial(self._newest_from, 0))

    def refresh(self) -> Root:
        """Return the newest root, following the log from the last root seen; raises as `open`."""
        base = self._base
        if base is None:
            return self.open()
        if self.clock.boot_s() - base.confirmed_s > CONFIRM_S:
            return self._confirm(partial(self._newest_from, base.root.version))
        return self._confirm(partial(self._climb, base), known_s=base.confirmed_s)

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
        which detects a folder that was deleted without `drop`; on local disk every call does.
        """
        base = self._base
        if base is None or self.clock.boot_s() - base.confirmed_s > CONFIRM_S:
            return self.refresh()
        if self.files.exists(base.root.version + 1):
            return self.refresh()
        return base.root if self.storage.trust_s or self._stands(base) else self.refresh()

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
        self.files.write_hint(hint_of(root))

    # --- inside ------------------------------------------------------------------------------

    @property
    def _state_lock(self) -> threading.Lock:
        return self._own_locks()[1]

    @property
    def _committing(self) -> threading.RLock:
        return self._own_locks()[2]

    def _own_locks(self) -> tuple[int, threading.Lock, threading.RLock]:
        """Return the locks of this process: a forked child gets free ones."""
        if self._locks[0] != os.getpid():
            self._locks = os.getpid(), threading.Lock(), threading.RLock()
        return self._locks

    def _stand_on(self, base: Base) -> Root:
        """Take a base unless another thread has gone on since; return the newest root known."""
        with self._state_lock:
            known = self._base
            if known is None or not _is_later(known, base):
                known = self._base = base
                self._seen = Seen.of(base.root)
            return known.root

    def _stand_on_later(self, base: Base, data: bytes | None, version: int) -> bool:
        """Stand on a commit behind a base, whose file was read; False without a proof that it is.

        No name after the base existed when the base was confirmed, and purge keeps a name for the
        grace period. So within `CONFIRM_S` of that moment none of them can be a leftover, and a
        commit whose history names the base is as good a base: confirmed at the same moment, whether
        or not it is still the newest.
        """
        later = self._readable(data, version)
        if later is None or data is None or not self._is_behind(later, base.root):
            return False
        self._check(later, version)
        if self.clock.boot_s() - base.confirmed_s > CONFIRM_S:
            return False
        if not self.incomplete:
            check_complete(later, url=self.storage.url)
        now_s = self.clock.boot_s()
        self._stand_on(Base(later, base.confirmed_s, now_s, data[:MARK_BYTES]))
        return True

    def _is_behind(self, later: Root, root: Root) -> bool:
        """Tell whether a commit was surely made behind another one: on it, or so its rows say."""
        seen = Seen.of(root)
        return (
            later.version > root.version and seen.is_same_history(later) and bool(seen.is_in(later))
        )

    def _confirm(self, find: Callable[[], Base | None], known_s: float | None = None) -> Root:
        """Find the newest root; `find` starts from a base confirmed at `known_s`, or from none."""
        alarmed = False
        for _ in range(REOPEN_ATTEMPTS):
            began, seen = self.clock.boot_s(), self._seen
            limit_s = (began if known_s is None else known_s) + self.grace_s / 2
            # A search that ends after `limit_s` is void: names may have been purged on the way.
            try:
                found = find() if began <= limit_s else None
                if found is not None and seen is not None:
                    found = self._not_before(found, seen)
            except NotFoundError:
                self._refuse_base()  # the stream is gone: no commit may use it any more
                raise
            except _LostError as error:
                if alarmed:
                    self._refuse_base()
                    raise error.found from None
                # Only a second search that shows the same proves it.
                alarmed = True
                find, known_s = find if known_s is None else self._open_hinted, None
                continue
            if found is not None and self.clock.boot_s() <= limit_s:
                if not self.incomplete:
                    check_complete(found.root, url=self.storage.url)
                return self._stand_on(replace(found, confirmed_s=began, seen_s=began))
            find, known_s = self._open_hinted, None
        raise StorageError("the log changes faster than it can be read", url=self.storage.url)

    def _includes(self, found: Root, seen: Seen, witness: Hint | None = None) -> bool:
        """Tell whether a root that was found continues what was seen before.

        `witness` is the hint that has seen it; this handle has if it is None. False means that the
        log still holds what was seen although the root is older: the listing was stale. Raises
        _LostError when what was seen is gone from the log.
        """
        if found.stream_id != seen.stream_id or found.generation > seen.generation:
            if witness is None and found.stream_id != seen.stream_id:
                raise replaced_stream(self.storage.url, seen.stream_id, found)
            return True
        included = seen.is_in(found) if found.generation == seen.generation else False
        if included is not None and (included or found.version >= seen.version):
            stale = False
        elif found.version > seen.version and seen.version < found.log_start:
            return True  # purged: a file of that name is a leftover
        elif witness is not None and found.version > seen.version:
            return True  # the hint is far behind: an open takes no further request for it
        else:
            root = self._readable(self.files.read(seen.version), seen.version)
            stale = found.version < seen.version
            # If it can't be read, a newer root is assumed to continue it.
            included = not stale if root is None else root.transaction == seen.transaction
        if not included:
            raise _LostError(
                lost_commits(
                    self.storage.url,
                    version=seen.version,
                    newest=found.version,
                    witness="this handle" if witness is None else self.files.hint_path,
                    remedy=None if witness is None else hint_remedy(self.files.hint_path),
                )
            )
        return not stale

    def _refuse_base(self) -> None:
        """Let no commit use this base any more, even if it was confirmed a moment ago."""
        with self._state_lock:
            if self._base is not None:
                self._base = replace(self._base, confirmed_s=float("-inf"))

    def _readable(self, data: bytes | None, version: int) -> Root | None:
        try:
            return None if data is None else self.files.decode(version, data)
        except FormatError:
            return None

    def _open_hinted(self) -> Base | None:
        hint = self.files.read_hint()
        found = self._newest_from(0 if hint is None else hint.number)
        seen = None if hint is None else seen_by_hint(hint)
        return found if found is None or seen is None else self._not_before(found, seen, hint)

    def _not_before(self, found: Base, seen: Seen, witness: Hint | None = None) -> Base | None:
        """Return what was found, or what follows a commit that a stale listing did not show."""
        if self._includes(found.root, seen, witness):
            return found
        data = self.files.read(seen.version)
        if data is None:
            return None
        root = self._checked(seen.version, data)
        return self._climb(Base(root, 0.0, 0.0, data[:MARK_BYTES]))

    def _newest_from(self, start: int) -> Base | None:
        """Return the newest root by listing the names from a version on; None if it is not there.

        What is listed was there at some moment of the listing. A later purge keeps the newest.
        """
        if not self.storage.trust_s:
            start = 0  # a local folder is listed whole in any case, so every gap shows
        numbers = self.files.numbers(start)
        if not numbers and start:
            return self._newest_from(0)
        if not numbers:
            raise no_stream(self.storage)
        data = self.files.read(numbers[-1])
        if data is None:
            return None
        root = self._checked(numbers[-1], data)
        kept = max(root.log_start, abandoned_through(root) + 1)
        missing = find_gaps(numbers, max(start, kept), root.version)
        if missing and not self.damaged:
            if self.files.exists(root.version + 1):
                return None  # it is not the newest any more, so the names may have been purged
            raise _LostError(missing_versions(self.storage.url, missing, newest=root.version))
        return Base(root, 0.0, 0.0, data[:MARK_BYTES])

    def _climb(self, base: Base) -> Base | None:
        """Follow the names after a base; None where only a listing tells what is the newest."""
        version, data = base.root.version, None
        for _ in range(FOLLOWED):
            following = self.files.read(version + 1)
            if following is None:
                if data is None:
                    return base if self._stands(base) else None
                if not self.files.exists(version):
                    return None
                # Only the newest is decoded: the others are superseded.
                return Base(self._checked(version, data), 0.0, 0.0, data[:MARK_BYTES])
            version, data = version + 1, following
        return None

    def _stands(self, base: Base) -> bool:
        """Tell whether the file of a base is still in the log, with the content that was seen."""
        data = self.files.read(base.root.version)
        return data is not None and data[:MARK_BYTES] == base.mark

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


class _LostError(Exception):
    """A search found that commits are gone; the next search has to find the same."""

    def __init__(self, found: MissingObjectError) -> None:
        super().__init__(str(found))
        self.found = found


def _is_later(known: Base, found: Base) -> bool:
    """Tell whether a base that is known is newer than one that was found by another thread."""
    new, old = known.root, found.root
    if (new.stream_id, new.generation) != (old.stream_id, old.generation):
        return False
    return (new.version, known.confirmed_s) > (old.version, found.confirmed_s)
