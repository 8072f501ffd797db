"""The operations on followers: add (after the stream is copied there), remove and promote."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from segstore_ds.copy.transfer import CopiedObject, copy_objects, copy_small, has_arrived
from segstore_ds.errors import (
    AlreadyExistsError,
    FencedError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    StorageError,
)
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.commit import Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.log.place import may_begin
from segstore_ds.log.seen import abandoned_through
from segstore_ds.replication.follower import (
    PROPERTY,
    Follower,
    Replication,
    followers_of,
    replication_of,
)
from segstore_ds.replication.mend import mend
from segstore_ds.replication.replicas import replicas_of
from segstore_ds.status.references import list_objects, read_references
from segstore_ds.status.table import Slot
from segstore_ds.storage import compare_names, find_overlap, refuse_overlap
from segstore_ds.storage.base import at_once

_LOG = logging.getLogger(__name__)
SEED_ATTEMPTS = 10


def run_add_follower(context: StreamContext, url: str) -> Committed[None]:
    """Make a folder a follower: copy the stream, commit that it follows; safe to repeat."""
    storage = context.storage
    target = storage.sibling(url)
    refuse_overlap(target, storage, compare_names(target, storage), "follower")
    root = context.log.refresh()
    _refuse_clone(root)
    # Refuse in a follower now: its commit would be refused only after everything was copied.
    replicas = replicas_of(context.log)
    replicas.before_staging(root)
    known = [each for each in replicas.of(root) if each.url != target.url]
    for each in known:
        each.known = None  # a remembered root would hide a promotion until the next commit
    at_once([partial(replicas.ready, each, root) for each in known])
    follower = Follower(target, context.clock, of=storage.url)
    first = may_begin(follower.files, resumed=f"{names.SEGMENTS_FOLDER}/")
    # One folder under two names would be one copy, and its promotion would fence no writer.
    for other in (storage, *(files.storage for files in context.log.seams.copies(root))):
        if other.url != target.url:
            refuse_overlap(target, other, find_overlap(target, other), "follower")
    if first:
        raise AlreadyExistsError(
            "the folder holds the last commits of a dropped stream",
            remedy="use another folder: a follower needs the version numbers of its primary",
            url=follower.url,
        )
    if first is not None:
        seed(context, follower)
    else:
        _check_same(context, follower)
    replicas.invite(target.url)

    def next_root(root: Root, _slot: Slot) -> Root | None:
        followers = followers_of(root)
        if target.url in followers:
            return None
        _refuse_clone(root)
        return _following(root, storage.url, (*followers, target.url))

    return context.commit(next_root)


def run_remove_follower(
    context: StreamContext, url: str, *, allow_promoted: bool = False
) -> Committed[None]:
    """Continue without a follower, whose folder stays as it is; safe to repeat.

    Refuses if it was promoted, unless `allow_promoted`: both folders would acknowledge commits.
    """
    gone = {url, context.storage.sibling(url).url}

    def next_root(root: Root, _slot: Slot) -> Root | None:
        known = replication_of(root)
        if known is None or gone.isdisjoint(known.followers):
            return None
        kept = tuple(follower for follower in known.followers if follower not in gone)
        for follower in () if allow_promoted else gone.intersection(known.followers):
            replicas_of(context.log).refuse_promoted(follower, root)
        return _following(root, known.primary, kept)

    return context.commit(next_root)


def run_promote(context: StreamContext) -> Committed[None]:
    """Make this folder a primary of a new generation, without followers; safe to repeat.

    After it returns, no commit of the old primary is acknowledged any more.
    """
    context.log.open()  # reads the hint, which shows if the newest commits are gone

    def next_root(root: Root, _slot: Slot) -> Root | None:
        known = replication_of(root)
        if known is None or known.primary == context.storage.url:
            return None
        _refuse_second(context, root)
        kept = {name: text for name, text in root.properties.items() if name != PROPERTY}
        generation = root.generation + 1
        return replace(root, generation=generation, properties=kept, operation=Operation.PROMOTE)

    return context.commit(next_root)


def _refuse_second(context: StreamContext, root: Root) -> None:
    """Refuse a second promotion: both folders would acknowledge commits of one generation."""
    for follower in replicas_of(context.log).of(root):
        if follower.url == context.storage.url:
            continue
        try:
            found = follower.files.latest()
        except (FormatError, StorageError) as error:
            _LOG.warning("follower %s is unreadable, maybe promoted: %s", follower.url, error)
            continue
        theirs = found[1] if found else root
        newer = theirs.stream_id == root.stream_id and theirs.generation > root.generation
        if newer and not theirs.dropped:
            raise FencedError(
                "another follower was promoted",
                remedy="write to the promoted stream; to promote this one instead, drop that one",
                url=context.storage.url,
                promoted=follower.url,
                generation=theirs.generation,
            )


def _refuse_clone(root: Root) -> None:
    # A follower would need the clone's origin, too: losing the origin would lose both.
    if root.origins:
        raise InvalidInputError(
            "a clone that shares segments with its origin can't have followers",
            remedy="call materialize() on it first",
            stream=root.stream_id,
        )


def _following(root: Root, primary: str, followers: tuple[str, ...]) -> Root:
    properties = {name: text for name, text in root.properties.items() if name != PROPERTY}
    if followers:
        properties[PROPERTY] = Replication(primary, followers).to_text()
    return replace(root, properties=properties, operation=Operation.FOLLOW)


def _check_same(context: StreamContext, follower: Follower) -> None:
    """Check that a folder's log is a copy of this stream's log; shipping continues it."""
    root = context.log.refresh()
    try:
        mend(context.log.files, follower, root, root.log_start)
        # It is the same stream if a version that both have is the same. A version below the log's
        # start proves nothing (a suspended writer may have put it), and could not be brought up.
        found = follower.files.latest()
        root = context.log.refresh()  # a writer may have shipped a later one meanwhile
        kept = range(root.log_start, root.version + 1)
        ours = context.log.files.get(found[0]) if found and found[0] in kept else None
        if found and ours and ours.transaction == found[1].transaction:
            return
        failure = None
    except (FencedError, MissingObjectError) as error:
        failure = error
    raise AlreadyExistsError(
        "the folder holds another stream, or a diverged or outdated copy of this one",
        remedy="give an empty folder",
        url=follower.url,
    ) from failure


def seed(context: StreamContext, follower: Follower) -> None:
    """Copy a stream into a folder: objects first, then its log in order.

    Objects that no version lists, such as those of a running or killed job, are not copied. If an
    object was dropped and deleted meanwhile, another attempt copies a newer version without it.
    """
    for attempt in range(1, SEED_ATTEMPTS + 1):
        root = context.log.refresh()
        try:
            _copy_objects(context, follower, root)
            _copy_log(context, follower, root)
        except MissingObjectError:
            if attempt == SEED_ATTEMPTS or context.log.refresh().version == root.version:
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
            continue  # a repair has abandoned it
        follower.storage.create(files.path(version), data)  # replacing one might undo a promotion
