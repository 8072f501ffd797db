"""Drop: makes a stream's last commit, then deletes its objects with `retention.deletion`.

The last commit seals the stream, hides its events and sets `dropped`, so nobody opens the remains
as a stream or commits to it. Afterwards objects may be deleted in any order. Another stream may
begin in the folder at once; objects that may belong to it stay.

The log's last hour stays, and the last commit longer: the commit of a handle with an older base
loses its race, and the handle learns that the stream is gone. A stream that is created in the
folder numbers its versions above the last commit.

If copies have staged objects and there is no stream yet, the last commit is also the first: a copy
that still runs finds its version taken.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from segstore_ds.copy.pins import last_sharing, unpin_origins
from segstore_ds.errors import ConflictError, InvalidInputError, NotFoundError, SegstoreError
from segstore_ds.format import names
from segstore_ds.format.copies import pins_of
from segstore_ds.format.operation import Operation
from segstore_ds.format.properties import LATEST_OF, LATEST_PROPERTY
from segstore_ds.format.root import Root
from segstore_ds.format.schema.codec import encode_schema
from segstore_ds.log.clock import Clock
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.newest import LOG_GRACE_S
from segstore_ds.log.place import may_begin
from segstore_ds.log.seen import hint_of
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.publish import paths
from segstore_ds.publish.latest import latest_storage
from segstore_ds.publish.life import remove_tables
from segstore_ds.retention.deletion import Runner, temporaries
from segstore_ds.status.deletable import Ended, Horizon
from segstore_ds.status.history import begin_history
from segstore_ds.status.table import Slot
from segstore_ds.storage import Storage
from segstore_ds.write.append import drop_below
from segstore_ds.write.create import first_root

_LOG = logging.getLogger(__name__)
_MOST_HIDDEN = 999


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a drop did.

    Attributes:
        deleted: How many objects of the stream were deleted. Commits of the last hour stay.
        kept: Paths of files in the folder that do not belong to the stream; they stay, and so does
            the folder.
    """

    deleted: int
    kept: tuple[str, ...] = ()


class DroppableLog(StreamLog):
    """A log that is opened to drop its stream, or to finish a drop."""

    def check_open(self, root: Root) -> None:
        """Accept a stream that was dropped."""


def plan_drop(root: Root, slot: Slot) -> Root | None:
    """Return the last root of a stream; None if the stream is already dropped. Pure."""
    if root.dropped:
        return None
    pins = pins_of(root)
    if pins:
        failure = ConflictError(
            "clones read this stream's segments",
            remedy="drop or materialize the clones first, or release their pins",
            pins={name: pin.url for name, pin in sorted(pins.items())},
        )
        failure.retryable = False  # until somebody does what the remedy says
        raise failure
    # Part lists are not read, so that a stream with a damaged list can be dropped, too.
    lists = (slot.retire("status", index.path) for index in root.lists)
    emptied = drop_below(replace(root, lists=()), root.tail, slot)
    return replace(
        emptied,
        retired=(*emptied.retired, *lists),
        sealed=True,
        staging_floor=root.version,
        dropped=True,
        operation=Operation.DROP,
    )


def run_drop(
    storage: Storage,
    *,
    confirm: str,
    clock: Clock,
    client: str,
    expected_version: int | None = None,
) -> Dropped:
    """Delete a stream and nothing else in its folder; safe to repeat until it returns.

    `confirm` is the stream's location again, as the storage spells it. If the storage fails,
    objects that were deleted stay deleted.
    """
    if confirm != storage.url:
        raise InvalidInputError(
            "confirm names another location",
            remedy="repeat the stream's location as confirm",
            url=storage.url,
            confirm=confirm,
        )
    log = DroppableLog(storage, clock=clock, damaged=True)
    copied = frozenset(info.path for info in storage.list(*names.COPIED.split("/")))
    taken = _take_place(log, client) if copied else None
    before = taken or log.reopen()
    commit_drop(log, client, expected_version=expected_version)
    if before.dropped and taken is None:
        copied = frozenset()  # it was dropped before they were listed
    deleted = 0
    if LATEST_PROPERTY in log.root.properties:
        deleted += drop_latest(storage, log.root, clock=clock, client=client)
    context = StreamContext.of(log, client=client)
    objects, kept = _delete_objects(context, copied)
    deleted += objects
    kept += _find_hidden(storage)
    _unpin(context)
    deleted += purge_dropped(log)
    if before.dropped and not deleted:
        raise NotFoundError("stream was dropped", url=storage.url, version=before.version)
    return Dropped(deleted, tuple(sorted(kept)))


def _delete_objects(context: StreamContext, copied: Collection[str]) -> tuple[int, list[str]]:
    """Delete all but the log; return how many objects it deleted, and the paths of other files.

    `copied` are the objects that copies had staged before the last commit.
    """
    log, storage = context.log, context.storage
    objects, deleted = [*storage.list("")], 0
    if any(paths.is_published(info.path) for info in objects):
        deleted += remove_tables(storage, log.root.stream_id)
        objects = [*storage.list("")]
    log_files = f"{names.LOG_FOLDER}/"
    found = (
        each
        for each in objects
        if not (names.is_object(each.path) and each.path.startswith(log_files))
    )
    runner = Runner(context, log.root, _horizon(log, copied))
    free, waiting = runner.plan(chain(found, temporaries(storage)))
    runner.delete(free)
    deleted += sum(names.is_object(item.path) for item in free)
    return deleted, [item.path for item in waiting if not names.is_object(item.path)]


def _horizon(log: StreamLog, copied: Collection[str]) -> Horizon:
    """Return what a drop may delete of the objects that were listed before this call."""
    last, files = log.root.version, log.files
    put_us = log.storage.info(files.path(last)).modified_us
    ended = Ended(last, put_us, not files.exists(last + 1), frozenset(copied))
    return Horizon(last, put_us, last, None, ended=ended)


def drop_latest(storage: Storage, root: Root, *, clock: Clock, client: str) -> int:
    """Drop the stream of a stream's newest events; return how many objects that deleted."""
    latest = latest_storage(storage)
    log = DroppableLog(latest, clock=clock, damaged=True)
    with suppress(NotFoundError):
        if log.reopen().properties.get(LATEST_OF) == root.stream_id:
            return run_drop(latest, confirm=latest.url, clock=clock, client=client).deleted
    return 0


def _take_place(log: DroppableLog, client: str) -> Root | None:
    """Create an already dropped stream where copies have staged objects and there is no stream."""
    if may_begin(log.files, resumed=names.COPIED) is None:
        return None
    context = StreamContext.of(log, client=client)
    nothing = context.status.put_epoch(0, 0, 0, encode_schema(pa.schema([])), None)
    first = first_root(context, Operation.DROP, [nothing])
    return log.create(begin_history(replace(first, sealed=True, dropped=True)))


def commit_drop(log: DroppableLog, client: str, *, expected_version: int | None = None) -> None:
    """Make the last commit of a stream, unless it was made before."""

    def build(root: Root, slot: Slot) -> Change[None]:
        if expected_version is not None and root.version != expected_version:
            failure = ConflictError(
                "the stream has another version than expected",
                remedy="check what was committed since, then drop the new version",
                version=root.version,
                expected=expected_version,
            )
            failure.retryable = False
            raise failure
        planned = plan_drop(root, slot)
        return Change(None if planned is None else replace(planned, client=client))

    log.commit(build)


def purge_dropped(log: DroppableLog) -> int:
    """Delete the commits of a dropped stream, except the last hour's; return how many."""
    # The hint must not name a purged version. Its modification time is the store's time.
    log.files.put_hint(hint_of(log.root))
    now_us = log.storage.info(names.HINT_PATH).modified_us
    return log.files.purge(log.root.version, superseded_us=now_us - int(LOG_GRACE_S * 1e6))


def _find_hidden(storage: Storage) -> Iterator[str]:
    """Yield the hidden files in the stream's own folders, which listings leave out."""
    for folder in ("", *names.FOLDERS):
        for name in storage.peek(folder, _MOST_HIDDEN) or ():
            path = f"{folder}/{name}".lstrip("/")
            if name.startswith(".") and not names.is_temporary(path):
                yield path


def _unpin(context: StreamContext) -> None:
    root = context.log.root
    if root.origins:
        unpin_origins(context, root)
        return
    try:
        # A materialize that was killed may not have released the origin's pin.
        unpin_origins(context, last_sharing(root))
    except SegstoreError as error:
        # A materialized clone does not need its origin, so this must not stop the drop. A remaining
        # pin can be removed by hand.
        _LOG.warning(
            "origin of %s can't be checked for a remaining pin: %s", context.storage.url, error
        )
