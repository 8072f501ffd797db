"""The figures of a stream as plain values: its size, the lag of readers and copies, upkeep's work.

All that shows numbers of a stream takes them from here, so they are the same everywhere.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Self, TypeVar

import numpy as np

from segstore_ds.cache.counters import WRITTEN_HERE, CacheCounters
from segstore_ds.compact.plan import small_segments
from segstore_ds.errors import FormatError, StorageError
from segstore_ds.format.parts.rows import Ints
from segstore_ds.format.reader_record import Lease
from segstore_ds.format.redactions import expiry_of, redactions_of
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.options.quantities import to_moment
from segstore_ds.publish.latest import latest_tables
from segstore_ds.publish.life import CODECS, published
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.metadata_rows import storage_rows
from segstore_ds.read.reader_records import each_reader

T = TypeVar("T")
FORMATS = ("arrow", "parquet")


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The segments from an offset on, as columns, without those in unreadable parts."""

    starts: Ints
    rows: Ints
    bytes: Ints
    formats: Ints  # indexes into `FORMATS`

    @classmethod
    def of(cls, context: StreamContext, root: Root, start: int, readable: "Readable") -> Self:
        """Read a version's segments; damaged parts are left out and noted."""
        none = np.zeros(0, np.int64)
        runs = [(none, none, none, none)]
        for run in context.status.sound_runs(root, start, root.tail, readable.note):
            table = run.columns
            codes = np.array([FORMATS.index(form) for form, _ in table.kind_names], np.int64)
            numbers = (table.rows.astype(np.int64), table.bytes.astype(np.int64))
            runs.append((run.starts, *numbers, codes[table.kinds]))
        return cls(*(np.concatenate(column) for column in zip(*runs, strict=True)))

    def bytes_from(self, offset: int) -> int:
        """Return the encoded bytes of the events from an offset on."""
        left = np.clip((self.starts + self.rows - offset) / self.rows, 0, 1)
        return round(float((self.bytes * left).sum()))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a position is behind the tail."""

    events: int  # events after the position, also dropped ones
    bytes: int  # encoded bytes of the kept ones; of a divided segment its share
    # Age of the oldest kept one; 0 if there is none, None if the history can't tell.
    seconds: float | None


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """One of the members that share a reader."""

    name: str
    lag_events: int  # committed events that it has leased and not done
    # Age of the oldest of them; 0 if there is none, None if the history can't tell.
    lag_seconds: float | None
    lease_s: int  # seconds without a record after which others get its events


@dataclass(frozen=True, slots=True)
class ReaderFigures:
    """One named reader that was not released."""

    name: str
    owner: str  # who may publish its position
    offset: int  # its position: the first event that it still needs
    lag: Lag  # how far that is behind the tail
    lost_events: int  # events from its position on that were dropped
    renewed: dt.datetime  # when it last published or renewed
    live: bool  # whether retention waits for it; not if it has lapsed
    members: tuple[MemberFigures, ...] = ()  # the members that share it, by name


@dataclass(frozen=True, slots=True)
class FollowerFigures:
    """One follower; all but the url are None if it can't be read or has another history."""

    url: str  # its folder
    version: int | None  # the newest version that it holds
    lag_versions: int | None  # versions that it lacks
    lag_events: int | None


@dataclass(frozen=True, slots=True)
class ExpiryFigures:
    """The progress of a rule by which values of a column expire."""

    column: str
    rows: int  # how many events lost values so far
    # For how many seconds the oldest values may be overdue; None before the first round.
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """The objects that take storage for one reason, as in the metadata table `storage`."""

    why: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of a stream at one moment, as of its newest version.

    Attributes:
        url: The location of the stream.
        stream_id: The id of the stream.
        measured: When the figures were taken, by this machine's clock.
        version: The newest version.
        generation: Its generation.
        last_commit: When that version was committed.
        last_append: When the newest event was committed; None without events, or if the history
            can't tell.
        events: How many events the stream holds.
        head: Offset of the oldest event.
        tail: Offset of the next event.
        sealed: Whether the stream has ended.
        segments: How many segments hold the events.
        bytes: Their encoded bytes.
        small_segments: How many of them a compaction would merge, because two neighbours fit into
            one.
        small_bytes: The encoded bytes of these.
        versions: How many versions can be read.
        retired: How many objects were dropped and not deleted yet.
        last_upkeep: When `maintain` or a round of upkeep last committed; None if none did.
        readers: The named readers, by name.
        followers: The followers, in the stream's order.
        published: The published tables.
        storage: What takes storage, the largest first; None unless requested, or if it can't be
            read.
        damaged: The errors of metadata that could not be read; the figures are without it. Events
            are not read, so only `verify` names all damage.
        written: What the write caches of this process wrote to the stream's folder so far: dense
            (segments) and scattered (parts of copied objects). Small commits use no cache.
        expiry: The rules by which values expire.
    """

    url: str
    stream_id: str
    measured: dt.datetime
    version: int
    generation: int
    last_commit: dt.datetime
    last_append: dt.datetime | None
    events: int
    head: int
    tail: int
    sealed: bool
    segments: int
    bytes: int
    small_segments: int
    small_bytes: int
    versions: int
    retired: int
    last_upkeep: dt.datetime | None
    readers: tuple[ReaderFigures, ...]
    followers: tuple[FollowerFigures, ...]
    published: tuple[Published, ...]
    storage: tuple[StorageFigures, ...] | None
    damaged: tuple[str, ...] = ()
    written: CacheCounters = field(default_factory=CacheCounters)
    expiry: tuple[ExpiryFigures, ...] = ()

    @property
    def idle_s(self) -> float:
        """Seconds since the newest event was committed; without events, since the last commit."""
        return max((self.measured - (self.last_append or self.last_commit)).total_seconds(), 0.0)

    def copies(self) -> Iterator[tuple[str, int | None, str]]:
        """Yield the name of each follower and table, how many events it lacks, and why.

        The number is None for a follower that can't be read.
        """
        for follower in self.followers:
            yield f"follower {follower.url}", follower.lag_events, ""
        for table in self.published:
            what = "table of newest events" if table.latest_by else "table"
            yield f"{table.format.capitalize()} {what}", table.lag, table.reason


class Readable:
    """Runs reads of a stream's metadata, and notes the errors of those that meet damage."""

    def __init__(self) -> None:
        self.damaged: list[str] = []

    def note(self, error: FormatError) -> None:
        """Note an error, once."""
        if str(error) not in self.damaged:
            self.damaged.append(str(error))

    def read(self, read: Callable[[], T]) -> T | None:
        """Return what `read` returns; None if it meets damage."""
        try:
            return read()
        except FormatError as error:
            self.note(error)
            return None


def measure(context: StreamContext, *, storage: bool = False) -> Metrics:
    """Return the figures of a stream's newest version; `storage` lists its whole folder."""
    root, readable = context.log.refresh(), Readable()
    segments = Segments.of(context, root, root.head, readable)
    return figures_of(context, root, segments, readable, storage=storage)


def figures_of(
    context: StreamContext, root: Root, segments: Segments, readable: Readable, *, storage: bool
) -> Metrics:
    """Return the figures of a version, given its segments."""
    now_us = context.clock.wall_us()
    small, small_bytes = small_segments(segments.rows, segments.bytes)
    expiry = readable.read(lambda: tuple(_expiry(root, now_us))) or ()
    return Metrics(
        url=context.storage.url,
        stream_id=root.stream_id,
        measured=to_moment(now_us),
        version=root.version,
        generation=root.generation,
        last_commit=to_moment(root.time_us),
        last_append=_last_append(context, root, readable),
        events=root.tail - root.head,
        head=root.head,
        tail=root.tail,
        sealed=root.sealed,
        segments=len(segments.starts),
        bytes=int(segments.bytes.sum()),
        small_segments=small,
        small_bytes=small_bytes,
        versions=root.version + 1 - root.log_start,
        retired=root.retired_count,
        last_upkeep=to_moment(root.upkeep.time_us) if root.upkeep else None,
        readers=tuple(_readers(context, root, segments, now_us, readable)),
        followers=tuple(
            _follower(files, root)
            for files in readable.read(lambda: [*context.log.seams.copies(root)]) or ()
        ),
        published=(
            *(
                found
                for kind in CODECS
                if (found := readable.read(partial(published, context, kind))) is not None
            ),
            *(readable.read(lambda: tuple(latest_tables(context))) or ()),
        ),
        storage=readable.read(partial(_storage, context, root)) if storage else None,
        damaged=tuple(readable.damaged),
        written=WRITTEN_HERE.at(context.storage.url),
        expiry=expiry,
    )


def measure_lag(context: StreamContext, offset: int) -> Lag:
    """Return how far a position is behind the tail of the newest root seen."""
    root, readable = context.log.root, Readable()
    segments = Segments.of(context, root, max(offset, root.head), readable)
    return _lag(context, segments, offset, context.clock.wall_us(), readable)


def _lag(
    context: StreamContext, segments: Segments, offset: int, now_us: int, readable: Readable
) -> Lag:
    root = context.log.root
    first = min(max(offset, root.head), root.tail)
    if first == root.tail:
        return Lag(max(root.tail - offset, 0), 0, 0.0)
    size = segments.bytes_from(first)
    return Lag(root.tail - offset, size, _age_s(context, first, now_us, readable))


def _last_append(context: StreamContext, root: Root, readable: Readable) -> dt.datetime | None:
    time_us = _commit_us(context, root.tail - 1, readable) if root.tail else None
    return None if time_us is None else to_moment(time_us)


def _age_s(context: StreamContext, offset: int, now_us: int, readable: Readable) -> float | None:
    """Return how long ago an event was committed."""
    time_us = _commit_us(context, offset, readable)
    return None if time_us is None else max(now_us - time_us, 0) / 1e6


def _commit_us(context: StreamContext, offset: int, readable: Readable) -> int | None:
    try:
        _, times_us = context.log.history.commit_times(context.log.root, offset, offset + 1)
    except FormatError as error:
        readable.note(error)
        return None
    return int(times_us[0])


def _member(
    context: StreamContext, name: str, lease: Lease, now_us: int, readable: Readable
) -> MemberFigures:
    root = context.log.root
    seconds: float | None = 0.0
    if events := lease.behind(root.tail):
        seconds = _age_s(context, max(lease.start, root.head), now_us, readable)
    return MemberFigures(name, events, seconds, lease.lease_s)


def _readers(
    context: StreamContext, root: Root, segments: Segments, now_us: int, readable: Readable
) -> Iterator[ReaderFigures]:
    for name, seen in each_reader(context):
        if isinstance(seen, FormatError):
            readable.note(seen)
        elif not seen.record.released:
            offset = seen.record.offset
            yield ReaderFigures(
                name=name,
                owner=seen.record.owner,
                offset=offset,
                lag=_lag(context, segments, offset, now_us, readable),
                lost_events=max(root.head - offset, 0),
                renewed=to_moment(seen.renewed_us),
                live=seen.is_live(now_us),
                members=tuple(
                    _member(context, member, lease, now_us, readable)
                    for member, lease in sorted(seen.record.members.items())
                ),
            )


def _expiry(root: Root, now_us: int) -> Iterator[ExpiryFigures]:
    known, names = redactions_of(root), root.epoch.names
    for rule in expiry_of(root):
        record, column = known.get(rule.redact_id), names.get(rule.column) or rule.column
        if record is None or not record.until_us:
            yield ExpiryFigures(column, record.rows if record else 0, None)
        else:
            due_us = now_us - rule.age_s * 1_000_000 - record.until_us
            yield ExpiryFigures(column, record.rows, max(due_us, 0) / 1e6)


def _follower(files: MetadataLog[Root], root: Root) -> FollowerFigures:
    url = files.storage.url
    try:
        latest = files.latest()
    except (StorageError, FormatError):
        latest = None
    theirs = None if latest is None else latest[1]
    if theirs is None or (theirs.stream_id, theirs.generation) != (root.stream_id, root.generation):
        return FollowerFigures(url, None, None, None)
    # It may be ahead: another process may have committed meanwhile.
    versions, events = root.version - theirs.version, root.tail - theirs.tail
    return FollowerFigures(url, theirs.version, max(versions, 0), max(events, 0))


def _storage(context: StreamContext, root: Root) -> tuple[StorageFigures, ...]:
    return tuple(
        StorageFigures(row["why"], row["objects"], row["bytes"])
        for row in storage_rows(context, root)
    )
