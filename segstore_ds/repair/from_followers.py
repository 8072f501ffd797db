"""Restore from followers what the primary lost: they hold it byte for byte.

Commits are restored first, in order, as long as each one is the child of the one before; then the
objects that the newest commit needs. Nothing is taken from a follower that was promoted: what it
committed since then is not part of this folder's history.
"""

import logging
import re

from segstore_ds.commit.commit import StreamLog
from segstore_ds.commit.context import StreamContext
from segstore_ds.commit.follower import Follower
from segstore_ds.commit.objects import copy_object, copy_objects
from segstore_ds.commit.transfer import CopiedObject
from segstore_ds.errors import FormatError, NotFoundError, StorageError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.metadata_log import find_gaps
from segstore_ds.repair.verify import run_verify

_LOG = logging.getLogger(__name__)
_FOLDERS = tuple(
    f"{folder}/"
    for folder in (
        names.SEGMENTS_FOLDER,
        names.STATUS_FOLDER,
        names.LOG_FOLDER,
    )
)
_PASSES = 3  # a lost part list hides its parts, a lost part hides its segments


def restore_commits(context: StreamContext, base: Root) -> list[str]:
    """Copy commits newer than `base` from followers that hold them; return what and from where."""
    restored: list[str] = []
    newest = base
    for follower in context.log.replicas.agreed(base):
        try:
            while (theirs := _next(follower, newest)) is not None:
                path = context.log.files.path(theirs.version)
                copy_object(follower.storage, context.storage, path)
                restored.append(f"{path} from {follower.url}")
                newest = theirs
        except (FormatError, StorageError) as error:
            _LOG.warning("follower %s can't restore commits: %s", follower.url, error)
    return restored


def restore_objects(context: StreamContext, root: Root) -> list[str]:
    """Copy missing or damaged objects back from a follower whose copy is sound.

    It reads all objects here and, if something is wrong here, those of the followers too. It is
    safe to repeat. It returns what was restored, and from where.
    """
    restored: list[str] = []
    followers = [*context.log.replicas.agreed(root)]
    for _ in range(_PASSES if followers else 0):
        wrong = _damaged(context)
        before = len(restored)
        for follower in followers if wrong else ():
            try:
                theirs = StreamLog(follower.storage, clock=context.clock)
                ours = theirs.open().stream_id == root.stream_id
                sound = wrong - _damaged(StreamContext.of(theirs)) if ours else set()
                copies = (
                    CopiedObject(follower.storage, path, context.storage, path)
                    for path in sorted(sound)
                )
                # As they arrive: a failure must not hide what was restored before it.
                restored.extend(f"{path} from {follower.url}" for path in copy_objects(copies))
                wrong -= sound
            except (FormatError, NotFoundError, StorageError) as error:
                _LOG.warning("follower %s can't restore all of it: %s", follower.url, error)
        if len(restored) == before:
            break
    return restored


def refuse_promoted(context: StreamContext, base: Root, *, ignore_followers: bool) -> None:
    """Refuse to go on if a follower was promoted in place of this folder, or may have been.

    Raises:
        FencedError: A follower was promoted.
        StorageError: A follower can't be asked, and `ignore_followers` is not set.
    """
    unasked: dict[str, Exception | None] = {}
    for follower in context.log.replicas.of(base):
        try:
            found = follower.files.latest()
        except (FormatError, StorageError) as error:
            unasked[follower.url] = error
            continue
        theirs = None if found is None else found[1]
        if theirs is None or theirs.stream_id != base.stream_id:
            unasked[follower.url] = None  # an unmounted disk looks like an empty folder
        elif theirs.generation > base.generation:
            raise follower.fenced(base)
    if unasked and not ignore_followers:
        raise StorageError(
            "a follower can't be asked whether it was promoted, so nothing was changed",
            remedy="make it reachable; or set ignore_followers=True if no follower was ever "
            "promoted, or none will ever be used again",
            followers=sorted(unasked),
        ) from next(iter(unasked.values()))
    for url in sorted(unasked):
        _LOG.warning("follower %s was not asked whether it was promoted", url)


def _next(follower: Follower, base: Root) -> Root | None:
    found = follower.files.get(base.version + 1)
    if found is None or found.parent != base.transaction:
        return None
    same = (found.stream_id, found.generation) == (base.stream_id, base.generation)
    return found if same else None


def _damaged(context: StreamContext) -> set[str]:
    problems = run_verify(context).problems
    # An inline frame is named behind its commit file, and any frame by its range.
    paths = {re.split(r": |\[", problem.where)[0] for problem in problems}
    paths = {path for path in paths if path.startswith(_FOLDERS) and path != names.HINT_PATH}
    files, root = context.log.files, context.log.root
    gaps = find_gaps(files.numbers(), root.log_start, root.version)
    return paths | {files.path(number) for gap in gaps for number in gap}
