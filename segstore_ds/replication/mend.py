"""Compares a follower's commit files with the primary's, and replaces damaged or missing ones.

A damaged file may have been a promotion; to replace it would undo the promotion. So it is replaced
only if it was surely the primary's own commit. Any of these proves it: its first bytes, which hold
the digest of the rest; all bytes after them; a later commit of the follower; the follower's hint.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError
from segstore_ds.format.root import Root
from segstore_ds.log.metadata_log import MARK_BYTES, MetadataLog
from segstore_ds.log.newest import readable
from segstore_ds.log.seen import lost_commits
from segstore_ds.replication.follower import Follower
from segstore_ds.storage.base import at_once

_LOG = logging.getLogger(__name__)


def mend(
    ours: MetadataLog[Root], follower: Follower, root: Root, first: int, *, sure: bool = False
) -> list[str]:
    """Copy to a follower the commit files from `first` on that are damaged or missing there.

    Versions after its newest one are left to shipping. Returns the paths; raises as `find_wrong`.
    """
    wrong = find_wrong(ours, follower, root, first, sure=sure)
    for version, data in sorted(wrong.items()):
        path = follower.files.path(version)
        if not follower.storage.create(path, data):
            follower.storage.put(path, data)
        if follower.files.read(version) != data:
            raise follower.differs(version)
        _LOG.warning("%s/%s was damaged or missing: copied from the primary", follower.url, path)
    follower.known = None
    return [follower.files.path(version) for version in sorted(wrong)]


def find_wrong(
    ours: MetadataLog[Root], follower: Follower, root: Root, first: int, *, sure: bool = False
) -> dict[int, bytes]:
    """Return the commit files from `first` on that a follower lacks or that are damaged there.

    `root` is the primary's newest root. `sure` is the operator's word that nobody has promoted the
    follower.

    Raises:
        FencedError: It was promoted.
        MissingObjectError: It does not hold this stream, or it holds commits that this log lacks.
        CorruptionError: A file is damaged, and may have been a promotion.
    """
    theirs = follower.files
    known = _hinted_version(ours, follower, root)  # up to it, all its commits are the primary's
    numbers = theirs.numbers()
    if not numbers:
        raise follower.absent(root)
    confirmed, wrong = sure, dict[int, bytes]()
    versions = {*numbers, *range(first, min(numbers[-1], root.version))}
    for version in sorted((each for each in versions if each >= first), reverse=True):
        works: list[Callable[[], Any]] = [
            partial(theirs.read, version),
            partial(_read_own, ours, version),
        ]
        held, (commit, own) = at_once(works)
        copy = readable(theirs, version, held)
        if copy is not None:
            _refuse_other(follower, root, copy, commit)
        if own is None and held is not None and version > root.version:
            raise _lost(ours, follower, root, version)
        if commit is None:
            continue  # forgotten, or damaged in the primary itself
        if held is not None and (copy is not None or _is_copy(held, own)):
            known = max(known, version)
        confirmed = confirmed or (version <= known and follower.confirms(commit))
        if held == own or (held is None and version > known):
            continue
        if version > known and not sure:
            raise CorruptionError(
                "a follower's commit file is damaged, and may hide that it was promoted",
                remedy="if it never was, call segstore.repair(url, allow_promoted=True) of the "
                "primary, which replaces the file",
                follower=follower.url,
                path=theirs.path(version),
            )
        wrong[version] = own
    if wrong and not confirmed:
        raise follower.absent(root)
    return wrong


def _read_own(ours: MetadataLog[Root], version: int) -> tuple[Root | None, bytes | None]:
    """Return a commit and its file; no commit if it is damaged, no file if it is gone."""
    try:
        return ours.read_sound(version)
    except MissingObjectError:
        return None, None
    except FormatError:
        return None, b""


def _refuse_other(follower: Follower, root: Root, copy: Root, commit: Root | None) -> None:
    """Raise if a follower's commit is of another stream or history than the primary's."""
    if copy.stream_id != root.stream_id:
        raise follower.absent(root)
    other = commit is not None and copy.transaction != commit.transaction
    if other or copy.generation > root.generation:
        raise follower.fenced(root)


def _lost(
    ours: MetadataLog[Root], follower: Follower, root: Root, version: int
) -> MissingObjectError:
    witness = f"follower {follower.url}"
    return lost_commits(ours.storage.url, version=version, newest=root.version, witness=witness)


def _is_copy(held: bytes, own: bytes) -> bool:
    """Tell whether damaged bytes were surely `own`: the digest, or all but the digest, is intact.

    >>> _is_copy(b"d" * 80 + b"body", b"d" * 80 + b"bodz")
    True
    """
    same_digest = held[:MARK_BYTES] == own[:MARK_BYTES]
    return same_digest or held[MARK_BYTES:] == own[MARK_BYTES:] != b""


def _hinted_version(ours: MetadataLog[Root], follower: Follower, root: Root) -> int:
    """Return the version that a follower's hint names; -1 if it is not a commit of the primary."""
    hint = follower.files.read_hint()
    if hint is None or hint.stream_id != root.stream_id:
        return -1
    if hint.generation > root.generation:
        raise follower.fenced(root)
    try:
        named = ours.get(hint.number)
    except FormatError:
        return -1
    return hint.number if named is not None and named.transaction == hint.transaction else -1
