"""Copies what a stream lists into an empty folder, which then follows it.

What no version lists, such as the objects of a job that runs or was killed, is not looked at.
"""

import logging
from collections.abc import Iterator
from functools import partial

from segstore_ds.copy.transfer import CopiedObject, copy_objects, copy_small, has_arrived
from segstore_ds.errors import FormatError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import abandoned_through
from segstore_ds.replication.follower import Follower
from segstore_ds.replication.objects import at_once
from segstore_ds.status.references import list_objects, read_references

_LOG = logging.getLogger(__name__)
ATTEMPTS = 10


def seed(context: StreamContext, follower: Follower) -> None:
    """Copy a stream into a folder: objects first, then its log in order.

    What went meanwhile, because a newer version no longer lists it, is left out in another attempt.
    """
    for attempt in range(1, ATTEMPTS + 1):
        root = context.log.refresh()
        try:
            _copy_objects(context, follower, root)
            _copy_log(context, follower, root)
        except MissingObjectError:
            if attempt == ATTEMPTS or context.log.refresh().version == root.version:
                raise
        else:
            return


def _copy_objects(context: StreamContext, follower: Follower, root: Root) -> None:
    source, target = context.storage, follower.storage
    held, there = ({info.path: info.size for info in list_objects(at)} for at in (source, target))
    refs = read_references(context.status, root, gone_before=root.version, gone_until_us=1 << 62)

    def copy(path: str) -> None:
        if there.get(path) != held.get(path, -1):
            copy_small(source, target, path)

    def copy_retired(path: str) -> None:
        try:
            copy(path)
        except FormatError as error:
            _LOG.warning("%s is no longer listed, and is not copied: %s", path, error)

    def listed() -> Iterator[CopiedObject]:
        found = context.status.segments(root, root.listed_start, root.tail, with_stats=False)
        for entry in (placed.entry for placed in found):
            path = names.segment_object(entry.path)
            whole = there.get(path) == entry.bytes and has_arrived(target, path, entry)
            if entry.frame is None and not whole:
                yield CopiedObject(source, path, target, path, entry)

    at_once([partial(copy, path) for path in sorted(filter(names.is_status, refs.live))])
    for _ in copy_objects(listed()):
        pass
    # Readers of older versions may need these for a while; upkeep may delete them at any time.
    retired = sorted((refs.retired.keys() - refs.live) & held.keys())
    segments = [path for path in retired if path.startswith(f"{names.SEGMENTS_FOLDER}/")]
    at_once([partial(copy_retired, path) for path in retired if path not in segments])
    missing = (path for path in segments if there.get(path) != held[path])
    old = (CopiedObject(source, path, target, path, size=held[path]) for path in missing)
    for _ in copy_objects(old, skip_damaged=True):
        pass


def _copy_log(context: StreamContext, follower: Follower, root: Root) -> None:
    files = context.log.files
    for version in files.numbers(root.log_start):
        if version > root.version:
            continue
        try:
            data = files.read_sound(version)[1]
        except FormatError:
            if version > abandoned_through(root):
                raise
            continue  # a repair has left it behind
        follower.storage.create(files.path(version), data)  # replaced, it would undo a fence
