"""What a handle on a stream has seen, and how it reads; nothing here changes the stream."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext, new_context
from segstore_ds.log.lookup import Outcome, find_outcome
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.observe.description import describe
from segstore_ds.observe.figures import Metrics, measure
from segstore_ds.observe.page import Picture, Rows, build_cell
from segstore_ds.options import table as options
from segstore_ds.options.arguments import (
    Progress,
    check_duration,
    check_seconds,
    check_size,
    check_timeout,
    check_whole,
    unheard,
)
from segstore_ds.options.quantities import Duration
from segstore_ds.read.cuts import (
    AsOf,
    CutLike,
    Position,
    parse_cut,
    parse_moment,
    resolve_cut,
    resolve_range,
    root_as_of,
)
from segstore_ds.read.event_time import EventTime
from segstore_ds.read.filters.given import FilterLike
from segstore_ds.read.latest import check_key, newest_by_key
from segstore_ds.read.metadata_rows import HISTORY, history_rows, pick_commits
from segstore_ds.read.metadata_tables import find_table, open_table
from segstore_ds.read.micro_batch import BatchLimits, plan_batch_end
from segstore_ds.read.request import plan_reading
from segstore_ds.repair.verify import Report, run_verify
from segstore_ds.status.epochs import stream_schema
from segstore_ds.storage import Storage, UrlLike
from segstore_ds.stream.follow import POLL_S, Follow
from segstore_ds.stream.scan import Scan

if TYPE_CHECKING:
    from segstore_ds.stream.awaited import AsyncFollow

_P = ParamSpec("_P")


def _reader_of(
    scan: Callable[Concatenate["Reads", _P], Scan],
) -> Callable[Concatenate["Reads", _P], pa.RecordBatchReader]:
    def read(self: "Reads", /, *cuts: _P.args, **how: _P.kwargs) -> pa.RecordBatchReader:
        """Return the reader of a `scan` with the same arguments.

        Examples:
            >>> stream.read(filters=[["n", ">", 1]]).read_all()["user"].to_pylist()
            ['bob', 'eve']
        """
        return scan(self, *cuts, **how).to_reader()

    # So that `help` shows the arguments.
    named = signature(scan).replace(return_annotation=pa.RecordBatchReader)
    read.__signature__ = named  # type: ignore[attr-defined]
    read.__qualname__ = "Reads.read"
    return read


def _awaited_follow(
    follow: Callable[Concatenate["Reads", _P], Follow],
) -> Callable[Concatenate["Reads", _P], "AsyncFollow"]:
    def afollow(self: "Reads", /, *name: _P.args, **how: _P.kwargs) -> "AsyncFollow":
        """Follow as `follow` with the same arguments, by an ``async for``.

        No thread is held between two polls. A named reader registers with the first batch, and a
        cancelled wait for a batch loses none.

        Examples:
            >>> import asyncio
            >>> async def newest():
            ...     return [len(batch) async for batch in stream.afollow(start="head", timeout=0)]
            >>> asyncio.run(newest())
            [3]
        """
        from segstore_ds.stream.awaited import AsyncFollow  # noqa: PLC0415 - few use asyncio

        return AsyncFollow(partial(follow, self, *name, **how))

    named = signature(follow).replace(return_annotation="AsyncFollow")
    afollow.__signature__ = named  # type: ignore[attr-defined]
    afollow.__qualname__ = "Reads.afollow"
    return afollow


class Reads:
    """What a `Stream` does that changes nothing."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._log = context.log

    def __repr__(self) -> str:
        root = self._log.root
        return f"<Stream {self.url} version={root.version} head={root.head} tail={root.tail}>"

    def _repr_html_(self) -> str:
        # Another handle looks, so that showing this one does not move it to a newer version.
        context = self._context.apart()
        return build_cell(self.url, lambda: describe(context, storage=False))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location and the newest root seen; a copy looks for newer ones by itself."""
        return at_root, (type(self), self._log.storage, self._log.root)

    # What this handle has seen.

    @property
    def url(self) -> str:
        """The canonical location."""
        return self._log.storage.url

    @property
    def version(self) -> int:
        """The number of the newest commit."""
        return self._log.root.version

    @property
    def head(self) -> int:
        """The offset of the oldest kept event."""
        return self._log.root.head

    @property
    def tail(self) -> int:
        """The offset that the next event will get."""
        return self._log.root.tail

    @property
    def sealed(self) -> bool:
        """True if nothing can be appended any more."""
        return self._log.root.sealed

    @property
    def schema(self) -> pa.Schema:
        """The columns of the events, in stored form."""
        return stream_schema(self._context.status, self._log.root)

    def refresh(self) -> Self:
        """Look for newer commits and return this handle; it never goes back to an older one.

        Raises:
            MissingObjectError: Commits that this handle has seen are gone from the log.

        Examples:
            >>> other = segstore.open("hello")
            >>> stream.append({"user": "ada", "n": 4}).end
            4
            >>> other.tail, other.refresh().tail
            (3, 4)
        """
        self._log.refresh()
        return self

    def position(self, cut: CutLike = "tail", *, replicated: bool = False) -> Position:
        """Return a cut together with its stream, for a checkpoint.

        With `replicated` it is a position of the newest version that every follower has.

        Examples:
            >>> stream.position("tail").offset
            3
        """
        root = self._log.acknowledged() if replicated else self._log.root
        return Position.of(root, resolve_cut(self._context, root, parse_cut(cut)))

    def cut_after(
        self,
        cut: CutLike = "head",
        *,
        max_bytes: int | str | None = None,
        max_rows: int | None = None,
    ) -> int:
        """Return the cut that is so many bytes or events after another one, or the tail.

        It bounds work as `maxBytesPerTrigger` does: between the two is at least one event, if any
        is left, and no more than the limits allow.

        Args:
            cut: Where to begin, as of the version that this handle has seen.
            max_bytes: Most encoded bytes: a number, or a text such as `64m`. A part of a segment
                counts by its share of the events.
            max_rows: Most events.

        Examples:
            >>> stream.cut_after("head", max_bytes="1m"), stream.cut_after(0, max_rows=2)
            (3, 2)
        """
        rows = check_whole("max_rows", max_rows, least=1, optional=True)
        size = check_size("max_bytes", max_bytes)
        size = check_whole("max_bytes", size, least=1, optional=True)
        limits = BatchLimits(rows, size)
        root = self._log.root
        start, tail = resolve_range(self._context, root, parse_cut(cut), parse_cut("tail"))
        if start == tail:
            return tail
        return plan_batch_end(self._context.status.segments(root, start, tail), start, tail, limits)

    def outcome(self, transaction: str, version: int | None = None) -> Outcome:
        """Tell whether a transaction is in the log, after a CommitUnknownError.

        Args:
            transaction: As the error names it.
            version: As the error names it; without it the whole history is searched.

        Returns:
            COMMITTED, NOT_COMMITTED, or UNKNOWN while a late request could still land.

        Raises:
            UnderReplicatedError: It is committed, but a follower can't be brought up to date.

        Examples:
            >>> commit = stream.append({"user": "ada", "n": 4})
            >>> stream.outcome(commit.transaction).state.name
            'COMMITTED'
        """
        return find_outcome(self._log, transaction, version)

    # Events.

    def scan(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        event_time: EventTime = None,
        limit: int | None = None,
        as_of: AsOf = None,
        replicated: bool = False,
        offset_column: str | None = None,
        segment_column: str | None = None,
        commit_time_column: str | None = None,
        fail_on_data_loss: bool = True,
        read_cache_bytes: int = options.default("readCacheBytes"),
    ) -> Scan:
        """Return a scan of the events between two cuts, as of one version; it reads when asked.

        Args:
            start: First event; an offset, 'head', 'tail', 'version:N', 'tag:NAME', 'reader:NAME', a
                position, a time with a zone, or 'eventtime:T': the first event at or after T.
            end: The event after the last, in the same forms; 'eventtime:T' is after the last event
                before T.
            columns: Which columns, in order; None for all.
            filters: A text such as ``"n > 3 and user == 'ada'"``; ``[column, op, literal]`` lists
                that must all hold, or lists of such lists, of which one must hold; or an
                expression of pyarrow or Polars. SQL's rules for null hold in the first two.
            event_time: ``(start, end)``, values of the time column: exactly the events in this
                half-open interval, whatever their order. None leaves an end open.
            limit: The most events, the first ones that match; None for all.
            as_of: A version by its number or 'tag:NAME', or the newest one at a time, a datetime or
                text with a zone; None for the newest.
            replicated: The newest version that every follower has, so a follower that is promoted
                lacks nothing that was read. An error if a follower can't be read.
            offset_column: Name of an extra int64 column with each event's offset.
            segment_column: Name of an extra int64 column with each event's segment id.
            commit_time_column: Name of an extra column with the time of each event's commit (UTC).
            fail_on_data_loss: False starts at the head if the start is below it, with a warning in
                the log.
            read_cache_bytes: Encoded, verified bytes of streams that this process may hold for
                later reads; the least recently used are evicted. 0 reads without the cache.

        Examples:
            >>> stream.scan(1, "tail", columns=["n"], offset_column="at").to_arrow().to_pylist()
            [{'n': 2, 'at': 1}, {'n': 3, 'at': 2}]
            >>> stream.scan(filters="n > 1 and user != 'eve'").count()
            1
        """
        self._log.follow()
        root = root_as_of(self._context, as_of, replicated=replicated)
        reading = plan_reading(
            self._context,
            root,
            start,
            end,
            columns=columns,
            filters=filters,
            event_time=event_time,
            offset_column=offset_column,
            segment_column=segment_column,
            commit_time_column=commit_time_column,
            fail_on_data_loss=fail_on_data_loss,
            read_cache_bytes=read_cache_bytes,
        )
        return Scan(self._context, root, reading, limit)

    read = _reader_of(scan)

    def latest(self, key: Sequence[str], *, tombstone: str | None = None, **how: Any) -> Rows:
        """Return the newest event of each key: the current state, if events are changes.

        Reads the events once; memory holds the newest ones and about as many again. The rows are
        always those of the version that `latest` saw.

        Args:
            key: The columns whose values are a key: any but lists, maps and structs. Null is a key.
            tombstone: A column of booleans: a key whose newest event has it true is left out.
            how: Arguments of `scan` but `limit`. With `filters` or `event_time`, the newest event
                among those that match.

        Returns:
            Events in offset order, with the columns of the scan.

        Raises:
            InvalidInputError: A column can't be a key or a tombstone.

        Examples:
            >>> _ = stream.append({"user": "ada", "n": 7})
            >>> pa.table(stream.latest(["user"])).to_pylist()[-1]
            {'user': 'ada', 'n': 7}
        """
        if how.get("limit") is not None:
            raise InvalidInputError("latest takes no limit", remedy="leave it out")
        key = [key] if isinstance(key, str) else [*key]
        shown = self.scan(**how)
        check_key(shown.reading.schema, key, tombstone)
        needed = (*key, *([] if tombstone is None else [tombstone]))
        columns = tuple(dict.fromkeys((*shown.reading.columns, *needed)))
        scan = Scan(shown.context, shown.root, replace(shown.reading, columns=columns))

        def read() -> pa.RecordBatchReader:
            found = newest_by_key(scan, scan.schema, key, tombstone).select(shown.schema.names)
            return found.to_reader()

        return Rows(shown.schema, read)

    def __len__(self) -> int:
        return self.tail - self.head

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.scan())

    def __getitem__(self, offsets: slice) -> Scan:
        """Return the scan of some offsets; negative ones count from the tail, as in a list.

        An offset beyond the tail is no error; one below the head is: those events are gone.
        """
        root = self._log.refresh()
        try:
            start, end, step = offsets.indices(root.tail)
        except (AttributeError, TypeError):
            step = 0
        if step != 1:
            raise InvalidInputError(
                "not a range of offsets", remedy="write stream[100:200]", offsets=offsets
            )
        if offsets.start is None or offsets.start < 0:
            start = max(start, root.head)
        if offsets.stop is not None and offsets.stop < 0:
            end = max(end, root.head)
        end = max(start, end)
        return Scan(self._context, root, plan_reading(self._context, root, start, end))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def follow(
        self,
        name: str | None = None,
        *,
        owner: str = "",
        member: str | None = None,
        key: Sequence[str] | None = None,
        lease: Duration = "30s",
        start: CutLike | None = None,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        event_time: EventTime = None,
        offset_column: str | None = None,
        commit_time_column: str | None = None,
        poll_s: float = POLL_S,
        timeout: Duration | None = None,
        min_rows: int | None = None,
        max_rows: int | None = None,
        max_delay: Duration = "15m",
        replicated: bool = False,
        dead_letters: UrlLike | None = None,
        max_deliveries: int = 5,
    ) -> Follow:
        """Read events as they are committed: a loop over batches; `afollow` is its ``async for``.

        With a name, a named reader is registered: its position is published when the loop asks for
        the next batch, so an interrupted loop repeats at most the batch that it was in. A poll
        that finds nothing sends one small request.

        Processes that give a `member` share the reader: each event goes to one of them, at least
        once, and in order within the ranges of offsets that each leases; with a `key`, the events
        of each key in order.

        New columns and wider types come with the next batch. If a column that is read was renamed,
        dropped or replaced, the loop raises an error before the first batch without it.

        Args:
            name: The named reader that publishes; None for none.
            owner: Who may publish under the name.
            member: The name of this process among those that share the reader. One that starts
                again under its name takes over the range that it had.
            key: Columns by whose values members share: the events of a key go to one member at a
                time, in order. Each member reads all events and leaves out those of others. All
                members give the same columns.
            lease: A member that asks for no batch for so long loses its events to others, so a
                batch has to take less: seconds, a timedelta or a text.
            start: The first event; None for the position published last, or the head, and without
                a name for the tail. Members start where the others are, unless those events are
                gone.
            columns: As for `scan`, like the next four.
            filters: Which events.
            event_time: Of which times.
            offset_column: The name of a column with offsets.
            commit_time_column: The name of a column with commit times.
            poll_s: Most seconds between two polls, which begin 5 ms apart after each batch.
            timeout: End when nothing came for so long: seconds, a timedelta or a text such as
                '30s'; None waits for ever.
            min_rows: Wait until so many events are new, before filters.
            max_rows: Most events of a batch, so that no more are repeated after a crash.
            max_delay: With `min_rows`: the longest wait, from the commit of the first of them.
            replicated: Return an event only once every follower has it, as for `scan`.
            dead_letters: Location of a stream, created if it is missing, for batches that members
                reject, or that were given out `max_deliveries` times and never done. It has the
                events' columns and what happened to them. With a `key` later events of the same
                keys wait for that. For members only.
            max_deliveries: How often a batch is given out.

        Returns:
            The batches; they end when the stream is sealed, and at the timeout.

        Raises:
            ReaderConflictError: The name belongs to another owner, or members share it and this is
                not one; raised at once or while publishing.
            LeaseLostError: The lease ended before the loop asked for the next batch, and others got
                the events: the batch does not count as done.
            SchemaMismatchError: A column that is read was renamed, dropped or replaced: start
                again.

        Examples:
            >>> [batch["n"].to_pylist() for batch in stream.follow(start="head", timeout=0)]
            [[1, 2, 3]]
        """
        check_seconds("poll_s", poll_s, positive=True)
        return Follow(
            self._context.apart(),
            {
                "columns": columns,
                "filters": filters,
                "event_time": event_time,
                "offset_column": offset_column,
                "commit_time_column": commit_time_column,
            },
            name=name,
            owner=owner,
            member=member,
            key=key,
            lease=lease,
            start=start,
            poll_s=poll_s,
            timeout_s=check_timeout("timeout", timeout),
            least_rows=check_whole("min_rows", min_rows, least=1, optional=True),
            most_rows=check_whole("max_rows", max_rows, least=1, optional=True),
            delay_s=check_duration("max_delay", max_delay) or 0,
            replicated=replicated,
            dead_letters=dead_letters,
            most_deliveries=check_whole("max_deliveries", max_deliveries, least=1),
        )

    afollow = _awaited_follow(follow)

    # Metadata.

    def info(self) -> dict[str, Any]:
        """Return the stream's current range and sizes, and what is kept of its past.

        `segments` counts all segments, `root_segments` those that the newest commit file lists
        itself, and `inline_segments` those of them whose events are in that file.

        Examples:
            >>> info = stream.info()
            >>> info["head"], info["tail"], info["versions"]
            (0, 3, 2)
        """
        row: dict[str, Any] = self.metadata("info").read_all().to_pylist()[0]
        return row

    def metrics(self, *, storage: bool = False) -> Metrics:
        """Measure the newest version: sizes, compaction debt, and the lag of readers and followers.

        Takes about eight requests, two for each reader, one or two for each follower, and one for
        every 65,000 segments, once per handle.

        Args:
            storage: Also say what holds storage, by reason; lists the whole stream.

        Returns:
            Plain values, which `segstore metrics` prints and `listener` exports. `damaged` says
            what could not be read; the figures are of the rest.

        Examples:
            >>> figures = stream.metrics()
            >>> figures.events, figures.segments, figures.damaged
            (3, 1, ())
        """
        return measure(self._context, storage=storage)

    def picture(self, *, storage: bool = True) -> Picture:
        """Return a picture of the newest version: a page of HTML.

        It says at the top what could not be read. Its size is bounded, however long the stream.
        Takes the requests of `metrics`, and a few for the tags and the newest 50,000 commits.

        Args:
            storage: Also show what holds storage, by reason; lists the whole stream.

        Examples:
            >>> page = stream.picture().to_html()
            >>> page[:15]
            '<!doctype html>'
        """
        return Picture(describe(self._context, storage=storage))

    def segments(self) -> Rows:
        """Return the segments that hold kept events, one row each, in offset order.

        Examples:
            >>> pa.table(stream.segments()).select(["start", "end", "format"]).to_pylist()
            [{'start': 0, 'end': 3, 'format': 'arrow'}]
        """
        return self.metadata("segments")

    def history(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        operation: str | Collection[str] | None = None,
        client: str | None = None,
    ) -> Rows:
        """Read who changed what in the stream and when, oldest first.

        There is a row for each commit since the stream was created; it stays when the version is
        forgotten. The metadata table `history` describes the columns.

        Args:
            start: First version.
            end: The version after the last; None for all.
            since: Only commits at or after this time: a datetime or ISO 8601 text, with a zone.
            until: Only commits before this time.
            operation: Only commits of this operation, or of these.
            client: Only commits whose client has this text, such as a user's name.

        Raises:
            InvalidInputError: An operation does not exist, or a time is not valid.

        Examples:
            >>> [batch["operation"].to_pylist() for batch in stream.history()]
            [['create', 'append']]
        """
        start = check_whole("start", start)
        end = check_whole("end", end, optional=True)
        pick, root = pick_commits(operation, client), self._log.refresh()
        last = root.version + 1 if end is None else end

        def first_at(time: str | datetime) -> int:
            before = self._log.history.latest(root, parse_moment(time) - 1)
            return 0 if before is None else before.version + 1

        first = start if since is None else max(start, first_at(since))
        last = last if until is None else min(last, first_at(until))

        def batches() -> Iterator[pa.RecordBatch]:
            return map(pick, history_rows(self._context, root, first, last))

        return Rows(HISTORY, lambda: pa.RecordBatchReader.from_batches(HISTORY, batches()))

    def metadata(self, table: str, *, as_of: AsOf = None) -> Rows:
        """Return a metadata table, one of the names below, as batches; a notebook shows its rows.

        They are `segments`, `frames`, `history`, `info`, `storage`, `writers`, `readers` and
        `tags`. Rows come in batches as they are read; a million segments are never held at once.

        Args:
            table: The table's name.
            as_of: As for `scan`.

        Examples:
            >>> stream.metadata("frames").read_all().num_rows
            1
        """
        schema = find_table(table).schema
        self._log.refresh()
        root = root_as_of(self._context, as_of)
        return Rows(schema, lambda: open_table(self._context, table, root))

    def verify(self, *, progress: Progress = unheard) -> Report:
        """Read everything that a read may need, and report all damage; changes nothing.

        That is every kept version, the records of readers and the published tables.

        Args:
            progress: Gets how many events and versions are done, and of how many, after each step.

        Raises:
            NotFoundError: The stream is gone.

        Examples:
            >>> stream.verify().ok
            True
        """
        return run_verify(self._context, progress=progress)


_Handle = TypeVar("_Handle", bound=Reads)


def at_root(kind: type[_Handle], storage: Storage, root: Root) -> _Handle:
    """Return a handle on a root that has not looked for newer ones; sends no request."""
    log = StreamLog(storage)
    log.adopt(root)
    return kind(new_context(log))
