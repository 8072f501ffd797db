"""The life of a published table, of any format: when it is due, brought up to date, and gone.

The table itself is the publisher's state: each of its commits says which version of the stream it
shows, and one exclusive create decides the commit, so several publishers may run at once and each
may stop anywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from segstore_ds.compact.run import run_compact
from segstore_ds.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    SnapshotExpiredError,
)
from segstore_ds.format.redactions import redacted_since
from segstore_ds.format.root import PartRef, Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.clock import CLOCK_LIMIT_US
from segstore_ds.log.context import StreamContext
from segstore_ds.options.compaction import CompactRules
from segstore_ds.publish.folders import refuse_foreign
from segstore_ds.publish.listing import Listing, plan_listing, shared_parts
from segstore_ds.storage import ObjectInfo
from segstore_ds.write.layout import Layout

_ATTEMPTS = 10
_FRESH_S = 60.0  # nothing is purged that was superseded within an hour


@dataclass(frozen=True, slots=True)
class Published:
    """What a published table shows.

    Attributes:
        url: The table's location, for other engines: the stream's.
        table_version: The number of the table's newest commit.
        version: The stream's version that it shows.
        head: Offset of its first event.
        tail: Offset after its last event; later events are in no Parquet file yet.
        lag: How many events of the stream's newest version the table lacks.
        left_out: Columns that the table lacks as its format has no such type, with their types.
    """

    url: str
    table_version: int
    version: int
    head: int
    tail: int
    lag: int
    left_out: dict[str, str]


@dataclass(frozen=True, slots=True)
class Note:
    """What our commits to a table say of the stream.

    Attributes:
        stream_id: The stream.
        generation: Its generation.
        version: The stream's version that was published.
        head: Offset of the table's first event.
        tail: Offset after its last one.
        created_ms: When the table was made.
        own: How many files of its own it lists.
    """

    stream_id: str
    generation: int
    version: int
    head: int
    tail: int
    created_ms: int
    own: int = 0


@dataclass(frozen=True, slots=True)
class Erasure:
    """What has to leave a table: the values of versions from before a redaction.

    Attributes:
        version: The first version of the stream without them.
        time_us: When that was committed.
        now_us: The store's time.
        grace_s: How long readers of older states may need what the table names no more.
    """

    version: int
    time_us: int
    now_us: int
    grace_s: float

    def is_clean(self, note: Note | None, root: Root) -> bool:
        """Tell whether what a table shows has none of the values."""
        return (
            note is not None and note.generation == root.generation and note.version >= self.version
        )

    def may_hold(self, info: ObjectInfo) -> bool:
        """Tell whether an object may be from before, as far as clocks may differ."""
        return info.modified_us <= self.time_us + CLOCK_LIMIT_US


@dataclass(frozen=True, slots=True)
class Remains:
    """How many objects of a table may still hold redacted values, and when the last can go."""

    count: int = 0
    due_us: int = 0


def keep_published(
    context: StreamContext,
    folder: str,
    publish: Callable[[Root], Published | None],
    *,
    settle: bool,
) -> Published:
    """Call `publish` with the newest version until it has shown one that was not purged meanwhile.

    It returns None if another publisher came first. `folder` is that of the table's own files.

    Raises:
        InvalidInputError: The stream is a clone that shares objects.
        ConflictError: Other publishers came first every time.
    """
    for _ in range(_ATTEMPTS):
        if settle:
            run_compact(context, CompactRules(), Layout(segment_format=PARQUET))
        root, began_s = context.log.follow(), context.clock.boot_s()
        if root.origins:
            raise InvalidInputError(
                "a clone shares files that its table can't name",
                remedy="call stream.materialize() first",
                url=context.storage.url,
            )
        found = publish(root)
        if found is None:
            continue
        context.memory[folder] = root
        if context.clock.boot_s() - began_s < _FRESH_S:
            return found
        # After a pause, what was planned may have been purged and deleted before the put.
        if context.log.refresh().log_start <= root.version:
            return found
    raise ConflictError(
        "other publishers came first every time", remedy="publish again", attempts=_ATTEMPTS
    )


def check_shown(context: StreamContext, note: Note | None, root: Root, folder: str) -> None:
    """Raise InvalidInputError if a table shows another stream, or has none of our commits."""
    if note is None:
        refuse_foreign(context.storage, root.stream_id, folder)
    elif note.stream_id != root.stream_id:
        raise InvalidInputError(
            "the folder holds the published table of another stream",
            remedy="move that table to a folder of its own",
            url=context.storage.url,
            stream_id=note.stream_id,
        )


def recall(
    context: StreamContext, note: Note, root: Root, folder: str
) -> tuple[frozenset[PartRef], Listing] | None:
    """Return the files that a table lists, by the version that it shows, and the rest as parts.

    Those parts are the newer version's as well. None if that version is gone, and where there are
    or may have to be files of the table's own.
    """
    if note.own or note.generation != root.generation:
        return None
    try:
        old = _read_shown(context, note, root, folder)
    except (SnapshotExpiredError, NotFoundError):
        return None
    if old.epoch.number != root.epoch.number:
        return None
    shared = shared_parts(context.status, old, root, (note.head, note.tail))
    listing = plan_listing(context.status, old, folder=folder, known=shared, end=note.tail)
    return shared, listing


def _read_shown(context: StreamContext, note: Note, root: Root, folder: str) -> Root:
    """Return the version that a table shows, maybe as this handle published it."""
    last: Root | None = context.memory.get(folder)
    if last and (last.stream_id, last.generation, last.version) == (
        root.stream_id,
        note.generation,
        note.version,
    ):
        return last
    return context.log.read_version(note.version)


def is_due(shown: Note | None, root: Root, listing: Listing) -> bool:
    """Tell whether a table shows less than a version: another publisher may be ahead."""
    if shown is None or shown.generation != root.generation:
        return shown is None or shown.generation < root.generation
    if shown.version == root.version:
        return shown.tail < listing.end
    return shown.version < root.version


def has_same_events(shown: Note | None, root: Root) -> bool:
    """Tell whether an offset stands for the same event in a table and in a version."""
    return (
        shown is not None
        and shown.generation == root.generation
        and shown.version >= redacted_since(root)
    )


def check_published(context: StreamContext, note: Note | None) -> None:
    """Raise InvalidInputError if a folder holds files, but no table."""
    if note is None:
        raise InvalidInputError("the stream is not published", url=context.storage.url)


def describe(
    context: StreamContext,
    note: Note | None,
    *,
    table_version: int,
    left_out: Mapping[str, str],
) -> Published:
    """Return what a table shows, and what the stream's newest known version has beside it."""
    if note is None:  # every table that has commits was checked when it was read
        raise InvalidInputError("the stream is not published", remedy="publish it first")
    return Published(
        context.storage.url,
        table_version,
        note.version,
        note.head,
        note.tail,
        max(context.log.root.tail - note.tail, 0),
        dict(left_out),
    )
