"""`Stream`: everything that can be done with one stream, each method a call of its verb."""

import datetime as dt
import operator
import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, Unpack

import pyarrow as pa

from segstore_ds import options
from segstore_ds.compact.commit import Compaction
from segstore_ds.compact.run import bind_range, run_compact
from segstore_ds.copy.clone import run_materialize
from segstore_ds.copy.copy_to import run_copy_to
from segstore_ds.copy.destination import Copied, CopyRequest
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.inline import FRAME_MOST_BYTES
from segstore_ds.format.parts.history import HISTORY_SCHEMA
from segstore_ds.format.policies import RetentionPolicy, as_policy
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import Outcome, find_outcome
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.log.transition import GRACE_S
from segstore_ds.observe.description import describe
from segstore_ds.observe.figures import Metrics, measure
from segstore_ds.observe.page import build_cell, build_page
from segstore_ds.options.arguments import check_seconds, check_timeout, check_whole
from segstore_ds.options.compaction import MERGE, TARGET_BYTES, TARGET_ROWS, CompactRules
from segstore_ds.options.progress import Progress, unheard
from segstore_ds.options.quantities import Duration, Size
from segstore_ds.options.table_formats import TableFormat
from segstore_ds.publish.auto import run_auto_publish, run_set_auto_publish
from segstore_ds.publish.formats import codec_of
from segstore_ds.publish.life import forget_tables, published, run_publish, run_unpublish
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.cuts import (
    CutLike,
    Position,
    as_version_or_time,
    check_version,
    parse_cut,
    resolve_cut,
    root_as_of,
)
from segstore_ds.read.event_time import EventTime
from segstore_ds.read.filters import FilterLike
from segstore_ds.read.metadata_tables import find_table, open_table, plan_table
from segstore_ds.read.plan import Reading, ReadTask, bound_root, plan_range, split_reading
from segstore_ds.read.request import ReadRequest, plan_reading
from segstore_ds.redact.forget import redact_and_forget
from segstore_ds.redact.plan import RedactRequest
from segstore_ds.redact.report import Redacted
from segstore_ds.repair.verify import Report, run_verify
from segstore_ds.replication.followers import run_promote
from segstore_ds.retention.deletion import run_maintain, run_purge, run_vacuum
from segstore_ds.retention.plan import Maintenance
from segstore_ds.retention.restore import run_restore
from segstore_ds.retention.retain import run_retain
from segstore_ds.retention.retained import Retained
from segstore_ds.retention.truncate import run_seal, run_truncate
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.slices import SliceTable
from segstore_ds.status.writers import Commit, WriterKey
from segstore_ds.storage import Storage
from segstore_ds.stream.commits import Commits
from segstore_ds.stream.follow import POLL_S, Follow, open_follow
from segstore_ds.stream.namespaces import Followers, Pins, Readers, Settings, Tags
from segstore_ds.stream.scan import AsOf, Scan, ScanArguments
from segstore_ds.stream.tables import Rows
from segstore_ds.version import __version__, requirement
from segstore_ds.write.appender import FlushLimits, LiveAppender, StreamEnds
from segstore_ds.write.inputs import Data, as_input, writer_key
from segstore_ds.write.job import WriteJob, plan_job
from segstore_ds.write.layout import Layout, as_layout
from segstore_ds.write.request import AutoRules, WriteRequest
from segstore_ds.write.staged import StagedTask, delete_staged

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def client_name() -> str:
    """Return the name of this writer for a stream's history."""
    return f"segstore/{__version__} python/{platform.python_version()} pyarrow/{pa.__version__}"


def context_of(log: StreamLog) -> StreamContext:
    """Return the context of a log for a handle of this process."""
    return StreamContext.of(log, client=client_name())


class Stream:
    """A handle on one stream, made by `create` and `open`.

    `head`, `tail`, `sealed`, `schema` and `version` are those of the newest version this handle has
    seen; `refresh()` looks again. Threads may share a handle: their commits take turns, and reads
    wait for none of them.

    Raises:
        StorageError: Any method: the storage failed. What was acknowledged before stays.
        FormatError: Any method: stored bytes can't be read.
        InvalidInputError: Any method: an argument is not valid.
        ConflictError: Methods that commit: every race was lost, and nothing was committed.
        CommitUnknownError: Methods that commit: it may or may not be in the log; `outcome` tells.
        UnderReplicatedError: Methods that commit: it is committed, but a follower lacks it: don't
            do it again.
        FencedError: Methods that commit: this folder is not the primary, or another was promoted.
        PositionError: Methods that take a cut: it is beyond the tail, or of another stream or
            generation.
        TruncatedError: Methods that take a cut: it is below the head.
        NotFoundError: Methods that take a cut or a version: there is no such version, tag or
            reader.
        SnapshotExpiredError: Methods that take a cut or a version: that version was purged.

    What a method raises beside these is listed there.
    """

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._log = context.log
        self._status = context.status
        self._commits = Commits(context)

    @classmethod
    def at_root(cls, storage: Storage, root: Root) -> Self:
        """Return a handle on a given root that has not looked for newer ones; sends no request."""
        log = StreamLog(storage)
        log.adopt(root)
        return cls(context_of(log))

    def __repr__(self) -> str:
        root = self._log.root
        return f"<Stream {self.url} version={root.version} head={root.head} tail={root.tail}>"

    def _repr_html_(self) -> str:
        # Another handle looks, so that showing this one moves it to no newer version.
        looking = type(self).at_root(self.storage, self.root)
        return build_cell(self.url, lambda: describe(looking.context, storage=False))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location and the newest root seen; a copy looks for newer ones by itself."""
        return type(self).at_root, (self.storage, self.root)

    # What this handle has seen.

    @property
    def context(self) -> StreamContext:
        """The first argument of the verbs below the front door, for connectors."""
        return self._context

    @property
    def url(self) -> str:
        """The canonical location."""
        return self._log.storage.url

    @property
    def storage(self) -> Storage:
        """The folder; its `stats` count requests and bytes."""
        return self._log.storage

    @property
    def root(self) -> Root:
        """The newest root this handle has seen."""
        return self._log.root

    @property
    def stream_id(self) -> str:
        """The stream's identity, made when it was created."""
        return self._log.root.stream_id

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
        return epoch_schema(self._status, self._log.root.epoch)

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the schema, or of some of its columns; None if Spark never wrote one."""
        return self._status.schema_texts(self._log.root.epoch)[1]

    def refresh(self) -> Self:
        """Look for newer commits and return this handle; it never goes back to an older one.

        Raises:
            MissingObjectError: Commits that this handle has seen are gone from the log.
        """
        self._log.refresh()
        return self

    def position(self, cut: CutLike = "tail", *, replicated: bool = False) -> Position:
        """Return a cut together with its stream, for a checkpoint.

        With `replicated` it is a position of the newest version that every follower has.
        """
        root = self.root_as_of(replicated=replicated)
        return Position.of(root, resolve_cut(self._context, root, parse_cut(cut)))

    def root_as_of(
        self,
        *,
        version: int | None = None,
        timestamp: str | dt.datetime | None = None,
        replicated: bool = False,
    ) -> Root:
        """Return the root of an earlier version; without arguments the newest one seen.

        Args:
            version: Its number.
            timestamp: A datetime or text with a zone: the newest version committed at or before it.
            replicated: The newest one seen that every follower has; asks each of them.

        Raises:
            NotFoundError: The stream has no such version yet, or was created later.
            FencedError: With `replicated`: a follower was promoted.
            StorageError: With `replicated`: a follower can't be asked.
        """
        return root_as_of(self._context, version, timestamp, replicated=replicated)

    def outcome(self, transaction: str, version: int | None = None) -> Outcome:
        """Tell whether a transaction is in the log, after a CommitUnknownError.

        Args:
            transaction: As the error names it.
            version: As the error names it; without it the whole history is searched.

        Returns:
            COMMITTED, NOT_COMMITTED, or UNKNOWN while a late request could still land.

        Raises:
            UnderReplicatedError: It is committed, but a follower can't be brought up to date.
        """
        return find_outcome(self._log, transaction, version)

    # Writing.

    def append(
        self,
        data: Data,
        *,
        writer_id: str | None = None,
        batch_id: int | None = None,
        writer_takeover: bool = False,
        on_repeat: str = options.default("onRepeat"),
        expected_tail: int | None = None,
        expected_version: int | None = None,
        merge_schema: bool = False,
        layout: Layout | None = None,
        compact: str = "off",
    ) -> Commit:
        """Append events: all of them in one commit, or none.

        Durable and visible when it returns. With a writer id and a batch id it is safe to repeat:
        the same batch again changes nothing and returns the first commit. Other events under the
        same ids are an error, as far as row counts, null counts and column bounds show it.

        Args:
            data: A Table, RecordBatch, RecordBatchReader, iterable of batches, or anything with
                `__arrow_c_stream__` (pandas, Polars, DuckDB); a Polars LazyFrame; or events as a
                dict or an iterable of dicts, whose values must fit their columns exactly and whose
                missing columns are null.
            writer_id: Name of an idempotent writer.
            batch_id: Number of its batch; grows.
            writer_takeover: Take the writer id over from another owner, or set it back.
            on_repeat: What to do with other events under the last batch id: ``error``; or ``skip``,
                which keeps those committed first and drops these, with a warning in the log.
            expected_tail: Commit only if the tail is still this.
            expected_version: Commit only on top of this version.
            merge_schema: Allow new columns, missing columns and wider types, such as doubles where
                there were integers of at most 32 bits. New columns of events get the types that
                Arrow finds in their values.
            layout: Sizes and compression.
            compact: ``auto`` merges the newest small segments afterwards: the work is bounded, and
                its failure never fails the commit. ``off`` leaves them to `compact`.

        Returns:
            The commit, with the offsets that the events got.

        Raises:
            SchemaMismatchError: The columns don't fit; names them and the remedy.
            WriterConflictError: Another owner, an older batch, or other events under its id.
            ConflictError: An expectation fails, or every race was lost.
            SealedError: The stream has ended.
        """
        key = writer_key(writer_id, batch_id, takeover=writer_takeover, on_repeat=on_repeat)
        auto = options.parse_value(options.BY_NAME["compact"], compact) == "auto"
        given = as_input(data, lambda: self.schema, new_columns=merge_schema)
        layout = as_layout(layout)
        request = WriteRequest(
            schema=given.schema,
            layout=layout,
            client=self._context.client,
            writer=key,
            expected_tail=expected_tail,
            expected_version=expected_version,
            merge_schema=merge_schema,
            compact=AutoRules(CompactRules(), layout) if auto else None,
        )
        return self._commits.write(request, given)

    def overwrite(
        self,
        data: Data,
        *,
        writer_id: str | None = None,
        batch_id: int | None = None,
        writer_takeover: bool = False,
        on_repeat: str = options.default("onRepeat"),
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        layout: Layout | None = None,
    ) -> Commit:
        """Replace the events up to the current tail by others, in one commit.

        Offsets go on: the head moves to the current tail, and the new events follow it. Events that
        others append meanwhile stay. Arguments and errors are those of `append`; with
        `overwrite_schema` the schema is replaced as well.
        """
        key = writer_key(writer_id, batch_id, takeover=writer_takeover, on_repeat=on_repeat)
        schema = None if overwrite_schema else lambda: self.schema
        given = as_input(data, schema, new_columns=merge_schema)
        request = WriteRequest(
            schema=given.schema,
            layout=as_layout(layout),
            client=self._context.client,
            writer=key,
            overwrite=True,
            merge_schema=merge_schema,
            replace_schema=overwrite_schema,
        )
        return self._commits.write(request, given)

    def appender(
        self,
        *,
        flush_bytes: int = options.FLUSH_BYTES,
        flush_rows: int = options.FLUSH_ROWS,
        flush_seconds: float | None = options.FLUSH_SECONDS,
        linger: float = options.LINGER_SECONDS,
        merge_schema: bool = False,
        layout: Layout | None = None,
    ) -> LiveAppender:
        """Open a long-lived appender that takes events one by one and reads its own back.

        It works on handles of its own, and several threads may use it: those that `wait` for their
        events share commits. Use it in a `with` block, which flushes at the end.

        Args:
            flush_bytes: Flush when this many bytes, before compression, are not flushed.
            flush_rows: Flush when this many events are not flushed.
            flush_seconds: Flush when an event has waited this many seconds; None for never.
            linger: Seconds that a commit may gather threads that `wait`, if several waited for the
                last one.
            merge_schema: Go on if others add columns: they are null in events from here.
            layout: Sizes and compression.

        Returns:
            The appender. Its flushes commit like `append`, one commit each.
        """
        limits = FlushLimits(
            check_whole("flush_bytes", flush_bytes, least=1),
            check_whole("flush_rows", flush_rows, least=1),
            flush_seconds,
            linger,
        )
        check_seconds("linger", linger)
        if flush_seconds is not None:
            check_seconds("flush_seconds", flush_seconds, positive=True)
        given = as_layout(layout)
        staged = replace(given, inline_bytes=min(given.inline_bytes, FRAME_MOST_BYTES))
        # Plans and reads run while a commit does, so each has a handle of its own.
        logs = [StreamLog(self._log.storage, clock=self._log.clock) for _ in range(3)]
        for log in logs:
            log.adopt(self._log.root)
        own, planner, reader = (type(self)(context_of(log)) for log in logs)
        schema, reading = self.schema, threading.Lock()

        def plan() -> WriteJob:
            logs[1].follow_from(logs[0])
            # This process commits: it stages all frames but those that the commit can hold.
            return planner.plan_write(schema, merge_schema=merge_schema, layout=staged)

        def read(start: int, end: int) -> pa.RecordBatchReader:
            with reading:
                logs[2].follow_from(logs[0])
                return reader.read(start, end)

        ends = StreamEnds(
            schema=schema,
            plan=plan,
            commit=lambda job, task: own.commit(job, [task], keep_staged=True),
            read=read,
        )
        return LiveAppender(ends, limits, self._log.clock)

    def plan_write(
        self,
        schema: pa.Schema,
        *,
        writer: WriterKey | None = None,
        overwrite: bool = False,
        expected_tail: int | None = None,
        expected_version: int | None = None,
        merge_schema: bool = False,
        replace_schema: bool = False,
        spark_schema: str | None = None,
        layout: Layout | None = None,
        client: str = "",
    ) -> WriteJob:
        """Plan one logical write that any number of processes stage and one commits.

        Args:
            schema: Of the incoming data.
            writer: The idempotence key, which also says what to do with other events under its
                batch id.
            overwrite: Replace the events up to the current tail.
            expected_tail: Commit only if the tail is still this.
            expected_version: Commit only on top of this version.
            merge_schema: Allow new columns, missing columns and wider types.
            replace_schema: With `overwrite`: replace the stream's schema by this one.
            spark_schema: Spark's JSON of the schema.
            layout: Sizes and compression.
            client: Who writes.

        Returns:
            The job; `repeated` says that the writer's batch is committed already.

        Raises:
            SchemaMismatchError: The columns don't fit; names them and the remedy.
            WriterConflictError: Another owner, or an older batch.
            ConflictError: An expectation fails already.
            SealedError: The stream has ended.
        """
        return self.plan(
            WriteRequest(
                schema=schema,
                writer=writer,
                overwrite=overwrite,
                expected_tail=expected_tail,
                expected_version=expected_version,
                merge_schema=merge_schema,
                replace_schema=replace_schema,
                spark_schema=spark_schema,
                layout=as_layout(layout),
                client=client or self._context.client,
            )
        )

    def plan(self, request: WriteRequest) -> WriteJob:
        """Plan a write that one value describes; see `plan_write`, raises as it does."""
        return plan_job(self._context, request)

    def commit(
        self, job: WriteJob, tasks: Sequence[StagedTask], *, keep_staged: bool = False
    ) -> Commit:
        """Commit what tasks staged for a job, in task order; safe to repeat for a writer's batch.

        If an error says that nothing was committed, the staged objects are deleted (with
        `keep_staged` the caller must delete them), and the job has ended. A job must be repeated
        through the handle that committed it first.

        Raises:
            As `append`; InvalidInputError if a staged object can't be seen from here; PositionError
            if the location no longer holds the stream that the job was planned on; and ClosedError
            if the job has ended.
        """
        return self._commits.commit(job, tasks, keep_staged=keep_staged)

    def discard(self, tasks: Sequence[StagedTask]) -> None:
        """Delete what tasks staged for a job that was never handed to `commit`; never raises."""
        delete_staged(self.storage, (segment for task in tasks for segment in task.segments))

    # Reading.

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
        """Bind the events between two cuts to a version; the scan reads them when it is asked.

        Args:
            start: First event; an offset, 'head', 'tail', 'version:N', 'tag:NAME', 'reader:NAME', a
                position, a time with a zone, or 'eventtime:T': the first event at or after T.
            end: The event after the last, in the same forms; 'eventtime:T' is behind the last event
                before T.
            columns: Which columns, in order; None for all.
            filters: A text such as ``"n > 3 and user == 'ada'"``; ``[column, op, literal]`` lists
                that must all hold, or lists of such lists, of which one must hold; or an
                expression of pyarrow or Polars. SQL's rules for null hold in the first two.
            event_time: ``(start, end)``, values of the time column: exactly the events in this
                half-open interval, whatever their order. None leaves an end open.
            limit: The most events, the first ones that match; None for all.
            as_of: A version by its number, or the newest one at a time, a datetime or text with a
                zone; None for the newest.
            replicated: The newest version that every follower has: a follower that is promoted
                lacks nothing that was read. An error if a follower can't be asked.
            offset_column: Name of an extra int64 column with each event's offset.
            segment_column: Name of an extra int64 column with each event's segment id.
            commit_time_column: Name of an extra column with the time of each event's commit (UTC).
            fail_on_data_loss: False starts at the head if the start is below it, with a warning in
                the log.
            read_cache_bytes: Encoded, verified bytes of streams that this process may hold for
                later reads; the least recently used leave first. 0 reads without the cache.

        Raises:
            NotFoundError: There is no such version.
        """
        request = ReadRequest(
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
        self._log.refresh()
        root = root_as_of(self._context, *as_version_or_time(as_of), replicated=replicated)
        return Scan.of(self._context, root, request, limit)

    def read(
        self, start: CutLike = "head", end: CutLike = "tail", **how: Unpack[ScanArguments]
    ) -> pa.RecordBatchReader:
        """Return the reader of a `scan` with the same arguments."""
        return self.scan(start, end, **how).to_reader()

    def count(
        self, start: CutLike = "head", end: CutLike = "tail", **how: Unpack[ScanArguments]
    ) -> int:
        """Return how many events a `scan` with the same arguments gives."""
        return self.scan(start, end, **how).count()

    def __len__(self) -> int:
        return self.tail - self.head

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.scan())

    def __getitem__(self, offsets: slice) -> Scan:
        """Return the scan of some offsets; negative ones count from the tail, as in a list.

        Nor is one beyond the tail an error; one below the head is, since those events are gone.
        """
        if not isinstance(offsets, slice) or offsets.step not in (None, 1):
            raise InvalidInputError(
                "not a range of offsets", remedy="write stream[100:200]", offsets=offsets
            )
        root = self._log.refresh()
        head, tail = root.head, root.tail

        def within(cut: Any) -> Any:
            if not isinstance(cut, SupportsIndex) or isinstance(cut, bool):
                return cut  # a word, a time or a position
            number = operator.index(cut)
            return max(tail + number, head) if number < 0 else min(number, tail)

        start = head if offsets.start is None else within(offsets.start)
        end = tail if offsets.stop is None else within(offsets.stop)
        if isinstance(start, int) and isinstance(end, int):
            end = max(start, end)
        return Scan.of(self._context, root, ReadRequest(start, end))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def follow(
        self,
        name: str | None = None,
        *,
        owner: str = "",
        start: CutLike | None = None,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        event_time: EventTime = None,
        offset_column: str | None = None,
        commit_time_column: str | None = None,
        poll_s: float = POLL_S,
        timeout: Duration | None = None,
        replicated: bool = False,
    ) -> Follow:
        """Read events as they are committed: a loop, ``for`` or ``async for``, over batches.

        With a name, a named reader is registered: its position is published when the loop asks for
        the batch after, so an interrupted loop repeats at most the batch that it was in. A poll
        that finds nothing sends one small request.

        Args:
            name: The named reader that publishes; None for none.
            owner: Who may publish under the name.
            start: The first event; None for the position published last, or the head, and without
                a name for the tail.
            columns: Which columns, in order; None for all.
            filters: As for `read`.
            event_time: As for `read`.
            offset_column: Name of an extra int64 column with each event's offset.
            commit_time_column: Name of an extra column with the time of each event's commit (UTC).
            poll_s: Most seconds between two polls, which begin 5 ms apart after each batch.
            timeout: End when nothing came for so long: seconds, a timedelta or a text such as
                '30s'; None waits for ever.
            replicated: Wait with each event until every follower has it, as for `read`.

        Returns:
            The batches; they end when the stream is sealed, and at the timeout.

        Raises:
            ReaderConflictError: The name belongs to another owner, at once or while publishing.
        """
        check_seconds("poll_s", poll_s, positive=True)
        request = ReadRequest(
            columns=columns,
            filters=filters,
            event_time=event_time,
            offset_column=offset_column,
            commit_time_column=commit_time_column,
        )
        return open_follow(
            self._context,
            request,
            name=name,
            owner=owner,
            start=start,
            poll_s=poll_s,
            timeout_s=check_timeout("timeout", timeout),
            replicated=replicated,
        )

    def plan_read(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        event_time: EventTime = None,
        offset_column: str | None = None,
        segment_column: str | None = None,
        commit_time_column: str | None = None,
        fail_on_data_loss: bool = True,
        read_cache_bytes: int = options.default("readCacheBytes"),
        root: Root | None = None,
    ) -> Reading:
        """Bind a read to a version and to offsets; `plan_tasks` splits it into tasks.

        The other arguments are those of `read`.

        Args:
            start: First event.
            end: The event after the last.
            columns: Which columns, in order; None for all.
            filters: As for `read`.
            event_time: As for `read`.
            offset_column: Name of an extra column with offsets.
            segment_column: Name of an extra column with segment ids.
            commit_time_column: Name of an extra column with commit times.
            fail_on_data_loss: False starts at the head if the start is below it.
            read_cache_bytes: What the read cache of each process may hold; 0 reads without it.
            root: The version to read as of; None for the newest that this handle has seen.

        Returns:
            What all tasks share; picklable.
        """
        request = ReadRequest(
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
        return plan_reading(self._context, root or self._log.root, request)

    def plan_slices(self, reading: Reading, *, root: Root | None = None) -> SliceTable:
        """Return which rows of each segment a bound read takes, in offset order.

        Args:
            reading: From `plan_read`.
            root: The version that the read is bound to, if the caller has it; None looks it up.
        """
        return plan_range(self._status, bound_root(self._context, reading, root), reading)

    def plan_tasks(
        self,
        reading: Reading,
        *,
        partition_bytes: int = options.default("partitionBytes"),
        partition_rows: int | None = None,
        min_partitions: int | None = None,
        root: Root | None = None,
    ) -> list[ReadTask]:
        """Split a bound read into tasks that any number of processes carry out with `run_task`.

        Args:
            reading: From `plan_read`.
            partition_bytes: Encoded bytes per task, approximately.
            partition_rows: Rows per task, approximately.
            min_partitions: The wanted least number of tasks.
            root: The version that the read is bound to, if the caller has it; None looks it up.

        Returns:
            Picklable tasks in offset order; none if nothing can match.

        Raises:
            NotFoundError: The requested commit times are older than the stream's history.
        """
        return split_reading(
            self._context,
            reading,
            partition_bytes=partition_bytes,
            partition_rows=partition_rows,
            min_partitions=min_partitions,
            root=root,
        )

    # Metadata.

    def info(self) -> dict[str, Any]:
        """Return the stream's current range and sizes, and what is kept of its past.

        `segments` counts all segments, `root_segments` those that the newest commit file lists
        itself, and `inline_segments` those of them whose events lie in that file.
        """
        row: dict[str, Any] = self.metadata("info").read_all().to_pylist()[0]
        return row

    def metrics(self, *, storage: bool = False) -> Metrics:
        """Measure the newest version: sizes, compaction debt, and who is how far behind.

        Takes about eight requests, one for each reader, one or two for each follower, and one for
        every 65,000 segments, once per handle.

        Args:
            storage: Also say what holds storage, by reason; lists the whole stream.

        Returns:
            Plain values, which `segstore metrics` prints and `listener` exports. `damaged` says
            what could not be read; the figures are of the rest.
        """
        return measure(self._context, storage=storage)

    def to_html(self, *, storage: bool = True) -> str:
        """Return a page that shows the newest version, which needs no server and no network.

        It has the picture that a notebook shows, the history, readers, tables of the newest commits
        and segments, and what holds storage, and says at the top what could not be read. Its size
        is bounded, however long the stream. Takes the requests of `metrics`, and a few for the tags
        and the newest 50,000 commits.

        Args:
            storage: Also show what holds storage, by reason; lists the whole stream.
        """
        return build_page(describe(self._context, storage=storage))

    def plot(self, *, storage: bool = True) -> "Figure":
        """Return the content of `to_html` as a Figure of matplotlib (the extra `plot`).

        Four plots: segments by offset and size, what readers have not passed, the growth and the
        commits over time, and what holds storage.

        Args:
            storage: Also show what holds storage, by reason; lists the whole stream.
        """
        try:
            drawing = import_module("segstore_ds.observe.plot")
        except ImportError as error:
            raise InvalidInputError(
                "plots need matplotlib", remedy=f"pip install '{requirement('plot')}'"
            ) from error
        figure: Figure = drawing.build_figure(describe(self._context, storage=storage))
        return figure

    def segments(self) -> Rows:
        """Return the segments that hold kept events, one row each, in offset order."""
        return self.metadata("segments")

    def history(self, start: int = 0, end: int | None = None) -> Rows:
        """Read what every commit did, oldest first; streams through any number of commits.

        Rows outlive purge. A row holds version, time, operation, head and tail after the commit,
        counts of what was added, writer and batch, client and application, attempts, races lost,
        requests and bytes.

        Args:
            start: First version.
            end: The version after the last; None for all.
        """
        start = check_whole("start", start)
        end = check_whole("end", end, optional=True)
        root = self._log.refresh()
        last, history = root.version + 1 if end is None else end, self._log.history
        return Rows(
            lambda: pa.RecordBatchReader.from_batches(
                HISTORY_SCHEMA, history.batches(root, start, last)
            )
        )

    def metadata(
        self, table: str, *, root: Root | None = None, span: tuple[int, int] | None = None
    ) -> Rows:
        """Return a metadata table, one of the names below, as batches; a notebook shows its rows.

        They are `segments`, `frames`, `history`, `info`, `storage`, `writers`, `readers` and
        `tags`. Rows come in batches as they are read; a million segments are never held at once.
        `info`, `storage` and `history` work while a copy into the stream is not done.

        Args:
            table: The table's name.
            root: The version to look at; None for the newest.
            span: For a table by range: only the segments of these offsets, from `plan_metadata`.
        """
        find_table(table)
        pinned = root or self._log.refresh()
        return Rows(lambda: open_table(self._context, table, pinned, span))

    def plan_metadata(self, table: str, *, root: Root | None = None) -> list[tuple[int, int]]:
        """Return offset ranges for reading a metadata table in parallel; raises as `metadata`."""
        pinned = root or self._log.refresh()
        return plan_table(self._status, pinned, find_table(table))

    def verify(self, *, progress: Progress = unheard) -> Report:
        """Read all that any read can need, and report everything that is wrong; changes nothing.

        That is every kept version, the records of readers and the published tables.

        Args:
            progress: Gets how many events are done, and how many there are, after each step.

        Raises:
            NotFoundError: The stream is gone.
            StorageError: The storage failed, so nothing can be said about the stream.
        """
        return run_verify(self._context, progress=progress)

    # What belongs to the stream.

    def truncate(self, cut: CutLike) -> int:
        """Forget the events before a cut: the head moves there, no offset changes.

        The segment that holds the new head stays; segments below it are deleted by `vacuum` after
        its grace. Allowed on sealed streams. Unlike `retain`, it ignores readers and tags. Safe to
        repeat: a cut at the head changes nothing.

        Returns:
            The head.
        """
        return run_truncate(self._context, parse_cut(cut)).root.head

    def seal(self) -> int:
        """End the stream: every later append is refused with SealedError. Safe to repeat.

        An append in flight either commits before the seal or is refused whole. Reads, truncation
        and repeated batches work as before.

        Returns:
            The tail, which no longer moves.
        """
        return run_seal(self._context).root.tail

    def restore(self, version: int, *, allow_redacted: bool = False) -> Commit:
        """Restore the events of an earlier version, in one commit that copies no event.

        The restored events get new offsets from the tail on, and the columns of that version are
        restored as well. The events that were there until now end up below the head. Restoring the
        version before undoes it.

        Args:
            version: Its number.
            allow_redacted: Allow a version from before a redaction: its values come back.

        Raises:
            SealedError: The stream has ended.
            InvalidInputError: Values of that version were redacted since.
        """
        version = check_version(version)
        return run_restore(self._context, version, allow_redacted=allow_redacted)

    def retain(
        self,
        policy: RetentionPolicy | Mapping[str, Any] | None = None,
        *,
        max_bytes: Size | None = None,
        max_age: Duration | None = None,
        min_bytes: Size | None = None,
        min_age: Duration | None = None,
        respect_readers: bool = True,
        max_event_age: Duration | None = None,
        dry_run: bool = False,
    ) -> Retained:
        """Forget what exceeds a maximum, once; a minimum wins. Safe to repeat.

        Without a maximum, it forgets the events that every live reader is done with. Ages count
        from the commit that appended an event, by the store's clock; events that no kept version
        can date stay. A reader's record that can't be read stops it.

        Sizes are bytes or texts such as ``"10g"`` (k, m, g, t: powers of 1024); ages are seconds, a
        timedelta, or texts such as ``"7d"`` (s, m, h, d, w).

        Args:
            policy: The bounds as one value, a dict of the arguments below or a policy; alone.
            max_bytes: Drop the oldest segments while the rest is larger (encoded bytes).
            max_age: Drop events that were committed longer ago.
            min_bytes: Keep at least this many encoded bytes.
            min_age: Keep events that were committed within this time.
            respect_readers: Keep what a tag or a live reader needs.
            max_event_age: Drop what lies before the first event whose own time, that of the time
                column, is within this time: what 'eventtime:T' as a start would leave out.
            dry_run: Drop nothing, and return what would be done.

        Returns:
            The head, how many events were dropped, and what kept more from being dropped.
        """
        bounds = (max_bytes, max_age, min_bytes, min_age, respect_readers)
        if policy is None:
            asked = RetentionPolicy(*bounds, max_event_age=max_event_age)
            return run_retain(self._context, asked, dry_run=dry_run)
        if (*bounds, max_event_age) != (None, None, None, None, True, None):
            raise InvalidInputError(
                "bounds are given twice", remedy="give them in the policy alone"
            )
        return run_retain(self._context, as_policy(policy), dry_run=dry_run)

    # What belongs to the stream by name.

    @property
    def tags(self) -> Tags:
        """The named cuts, by name; `set` and `delete` change them."""
        return Tags(self._context)

    @property
    def readers(self) -> Readers:
        """The named readers; `register` and `release` change them."""
        return Readers(self._context)

    @property
    def followers(self) -> Followers:
        """The folders that follow this stream; `add` and `remove` change them."""
        return Followers.of(self._context)

    @property
    def pins(self) -> Pins:
        """The versions that clones need, by copy id; `release` removes one."""
        return Pins(self._context)

    @property
    def settings(self) -> Settings:
        """Key columns, time column, retention, upkeep, publishing; `update` changes them."""
        return Settings(self._context)

    # Upkeep.

    def maintain(self) -> Maintenance:
        """Do all that upkeep does, now and to the end, by the stream's policy.

        It purges old versions, deletes what nothing needs any more, merges the parts of the status
        and of the history, lists the whole stream to find what killed jobs left, and publishes as
        `publish(auto=True)` says. Without upkeep it goes by the default policy. Safe to repeat, and
        to run beside everything else.

        Returns:
            What was deleted, and what stays for now, each with its reason.
        """
        done = run_maintain(self._context)
        run_auto_publish(self._context, at_once=True)
        return done

    def purge(
        self,
        *,
        older_than_s: float = 30 * 86400.0,
        keep_versions: int = 1,
        dry_run: bool = False,
    ) -> Maintenance:
        """Forget versions that were superseded longer ago than that (an hour at least).

        Their events and their rows of the history stay; only reading *as of* those versions ends.
        If it fails, nothing was deleted. Safe to repeat.

        Args:
            older_than_s: Least number of seconds since they were superseded.
            keep_versions: How many of the newest versions stay, however old they are.
            dry_run: Delete nothing, and report what would be forgotten.

        Returns:
            The oldest version kept, `log_start`, and how many `versions` were forgotten.
        """
        check_seconds("older_than_s", older_than_s)
        return run_purge(
            self._context, older_than_s=older_than_s, keep_versions=keep_versions, dry_run=dry_run
        )

    def vacuum(
        self,
        *,
        dry_run: bool = True,
        grace_s: float = GRACE_S,
        short_grace: bool = False,
        progress: Progress = unheard,
    ) -> Maintenance:
        """Delete what no version, pin or commit in flight can need; by default only report it.

        It deletes objects that were dropped before the oldest version kept (see `purge`) and longer
        ago than the grace, and objects that were staged on a version older than the grace and never
        committed. Metadata that can't be read stops it before anything is deleted. Safe to repeat,
        and to run beside writers, readers and other vacuums.

        Args:
            dry_run: Change nothing, and report what would be deleted and why.
            grace_s: How many seconds dropped objects stay for readers of older versions, and how
                long a writing job may take.
            short_grace: Allow a grace of less than a day: you promise that nobody needs it.
            progress: Gets how many objects are done, and how many there are, after each step.

        Returns:
            What was deleted, or would be, and what stays for now.
        """
        check_seconds("grace_s", grace_s)
        return run_vacuum(
            self._context,
            dry_run=dry_run,
            grace_s=grace_s,
            short_grace=short_grace,
            progress=progress,
        )

    def compact(
        self,
        start: CutLike | None = None,
        end: CutLike = "tail",
        *,
        mode: str = MERGE,
        target_rows: int = TARGET_ROWS,
        target_bytes: int = TARGET_BYTES,
        minor: tuple[int, int] | None = None,
        budget_bytes: int | None = None,
        layout: Layout | None = None,
        progress: Progress = unheard,
    ) -> Compaction:
        """Replace runs of neighbouring segments by a few large ones, or a large one by several.

        Events, offsets and order do not change. Each commit replaces whole runs; `vacuum` deletes
        the replaced segments after its grace. Safe to repeat, to kill at any point, and to run
        beside readers, writers and other compactions: a group that another commit changed is
        skipped and planned again. If it fails, what was committed before stays. A second call finds
        nothing to do.

        Args:
            start: Where to begin; None for the oldest segment.
            end: Where to end; segments that hold events in between count.
            mode: ``merge`` decodes and writes large frames, ``stitch`` joins frames of Arrow
                unchanged and leaves Parquet segments alone, ``split`` cuts segments that exceed a
                target into pieces of nearly equal size, and frames that exceed the layout's within
                their segment.
            target_rows: Most events of a segment.
            target_bytes: Most encoded bytes of a segment.
            minor: Only runs that are worth it, of at least ``(small, medium)`` segments: a quick
                pass after every few commits, such as ``(4, 3)``. None takes every run.
            budget_bytes: Most encoded bytes to rewrite, the newest first; None for no limit.
            layout: Compression and frames of what is written.
            progress: Gets how many events are done, and how many there are, after each step.

        Returns:
            What was done; `commits` is 0 if there was nothing to do.

        Raises:
            ConflictError: Others changed the segments every time, or every race was lost.
            SnapshotExpiredError: A segment was deleted while it was read, or a version was purged.
        """
        rules = CompactRules(mode, target_rows, target_bytes, minor, budget_bytes)
        bounds = bind_range(self._context, start, end)
        done = run_compact(
            self._context, rules, as_layout(layout), bounds=bounds, progress=progress
        )
        self._commits.keep_up()
        return done

    def redact(
        self,
        filters: FilterLike,
        *,
        columns: Sequence[str],
        reason: str = "",
        redact_id: str | None = None,
        forget: bool = False,
        short_grace: bool = False,
    ) -> Redacted:
        """Set columns of matching events to null for good, and change nothing else.

        Offsets, order, counts, cuts, readers and checkpoints stay as they are. It covers every
        event that is stored below the tail of its first call, also those that the head or a
        truncation hides; it ends only when none of them matches. Safe to repeat, to kill at any
        point, and to run beside readers, writers and compactions. An interrupted call goes on when
        it runs again with the same id, and a finished one does nothing.

        Restoring or cloning a version from before it is refused from then on. Such versions can
        still be read until they are purged, and their objects stay until vacuum's grace is over.
        With `forget` both are seen to: the call purges and deletes what may go by now, in followers
        and in published tables too, and reports what is left and when the same call can end it.

        Args:
            filters: Conditions that the events satisfy, as in `scan`; at least one.
            columns: The columns to set to null.
            reason: What the stream keeps about it: a request's number, never the person.
            redact_id: Letters, digits, dots, dashes and underscores: the same id again is the same
                redaction. None makes a random one.
            forget: Delete what still holds the values.
            short_grace: With `forget`: don't keep the replaced objects for the grace of the
                stream's upkeep. You promise that nobody reads an older version, and no job writes.

        Returns:
            What was redacted, the id and the bound tail; `forgotten` is the report of `forget`.

        Raises:
            ConflictError: Others changed the segments every time, or every race was lost.
            SnapshotExpiredError: A segment was deleted while it was read.
        """
        redact_id = self._context.clock.new_id() if redact_id is None else redact_id
        request = RedactRequest(filters, columns, reason, redact_id)
        done = redact_and_forget(
            self._context, request, forget=forget, short_grace=short_grace, tables=forget_tables
        )
        self._commits.keep_up()
        return done

    # Copies.

    def copy_to(
        self,
        url: str | os.PathLike[str],
        *,
        copy_id: str,
        mode: str = "segments",
        start: CutLike = "head",
        end: CutLike = "tail",
        version: int | None = None,
        seal: bool = False,
        allow_redacted: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress = unheard,
    ) -> Copied:
        """Make a new stream of this one's segments, or of its events.

        By segments, ids, epochs and offsets stay. By events, they are written again in the newest
        schema, with offsets from 0. Either way the destination becomes a stream by one commit, when
        all of it is there.

        An interrupted copy continues where it stopped when it runs again; a finished one does
        nothing. By events, both ends are bound by the first run. Events that are appended meanwhile
        are not copied, nor are writers, readers, tags and properties.

        A clone copies nothing and shares this stream's segments, in three commits for any length.
        It may start from an older version, or end at a cut: a fork of the past.
        Each stream then changes on its own. `vacuum` here keeps what the clone needs until the
        clone is dropped or materialized, or `unpin` removes the pin that has the copy id as its
        name.

        Args:
            url: Where; a folder of its own, on any filesystem.
            copy_id: Letters, digits and dashes: the same id again is the same copy.
            mode: ``segments`` copies the objects, ``events`` writes events again, ``clone`` shares.
            start: First event; a segment that it divides is rewritten.
            end: The event after the last, in the same forms.
            version: The kept version that a clone starts from; None for the newest one.
            seal: Seal the copy after its last event: nothing can be appended to it.
            allow_redacted: Allow a clone of a version from before a redaction, with the values.
            storage_options: For the destination's filesystem; a clone takes this stream's.
            progress: Gets how many events are done, and how many there are, after each step.

        Returns:
            What was copied; `repeated` if it had been done before.

        Raises:
            AlreadyExistsError: There is another stream at the destination.
            InvalidInputError: A cut, the mode or the id is not valid, the id belongs to another
                copy, or the destination is the stream itself. For clones also: a start is given,
                the stream is a clone itself, or the destination is on another filesystem.
            ConflictError: A stream was made and dropped at the destination meanwhile. For clones:
                every race was lost, or the pin was removed meanwhile.
            TruncatedError: The start, or events that are still to be copied, are below the head.
            NotFoundError: There is no such version.
            SnapshotExpiredError: The version was purged; or a segment was deleted while it was
                copied: copy again.
            UnsafeFilesystemError: The destination can't create exclusively.
        """
        check_whole("version", version, optional=True)
        request = CopyRequest(copy_id, str(start), str(end), seal, mode, version, allow_redacted)
        return run_copy_to(
            self._context, url, request, (start, end), storage_options, progress=progress
        )

    def materialize(self) -> int:
        """Copy the objects that this clone shares with its origin, and release the pin.

        If it is interrupted, the next call continues where it stopped; a stream that shares nothing
        does not change. After it, the origin may be vacuumed, moved and dropped.

        Returns:
            How many objects were copied.

        Raises:
            MissingObjectError: The origin is gone, or was vacuumed after its pin was removed.
        """
        return run_materialize(self._context)

    # Tables of other engines.

    def publish(
        self,
        format: TableFormat,  # noqa: A002 - the word of all other engines
        *,
        settle: bool = False,
        strict: bool = False,
        auto: bool | None = None,
        catalog: Any = None,
        table: str | None = None,
    ) -> Published:
        """Publish the stream as a table over its own Parquet files, or bring that up to date.

        The stream's location is the table's. Nothing is copied but segments that other engines
        can't read as they are: one that the head divides, decimals whose scale has grown since, and
        integers that became doubles. Events that are in no Parquet file yet are not in the table:
        `lag` and `reason` of the answer say so. Row ids are offsets.

        Only segstore can write a Delta table: its protocol says so. Iceberg has no way to refuse
        foreign writers; and a program that ignores Delta's protocol could delete the stream's
        files. So give other programs credentials that only read. An Iceberg table needs the extra
        `[iceberg]`, and names files by absolute URLs: after a stream was moved, publish it again.

        Safe to repeat, to kill at any point, and to run beside everything else, other publishers
        included. Publish more often than vacuum's grace, or readers miss files.

        Args:
            format: Both may be published.
            settle: First merge what is in no Parquet file, and publish all events.
            strict: Refuse to publish if a column has a type that the format lacks; otherwise such
                columns are left out.
            auto: True: from now on also after commits, in the background. The writers of the
                stream share one publication about a minute. It is best effort: a failure is
                logged, no commit waits for it or fails, and a later commit publishes what is
                missing. If writing stops, the last minute is published by `maintain`. False ends
                it; None leaves it as it is.
            catalog: A catalog that keeps a pointer to the newest metadata of Iceberg tables, and is
                told after the commit: its name in pyiceberg's configuration, its properties, or
                pyiceberg's object. It needs the extra `[catalog]`. Best effort: a failure is
                logged, and `registered` of the answer is None.
            table: `namespace.name` of the table in that catalog; made if there is none.

        Returns:
            What the table shows now.

        Raises:
            InvalidInputError: The stream can't be published, or its folder holds another table.
            CorruptionError: Another program committed to the table.
        """
        done = run_publish(
            self._context, format, settle=settle, strict=strict, catalog=catalog, table=table
        )
        if auto is not None:
            run_set_auto_publish(self._context, format, on=auto)
        return done

    def published(self, format: TableFormat) -> Published | None:  # noqa: A002
        """Return what the stream's table shows, what it lacks and why; None without a table."""
        self._log.refresh()
        return published(self._context, format)

    def unpublish(self, format: TableFormat) -> int:  # noqa: A002
        """Delete a table's metadata and its own files, never the stream's.

        Commits publish it no more, if they did.

        Returns:
            How many objects were deleted; 0 if there was no table.

        Raises:
            InvalidInputError: The table is not the stream's; nothing was deleted.
        """
        codec_of(format)
        run_set_auto_publish(self._context, format, on=False)
        return run_unpublish(self._context, format)

    # Followers.

    def promote(self) -> int:
        """Make this follower a primary, when the old one is lost or given up. Safe to repeat.

        A follower holds every acknowledged commit. Once this returns, the old primary can
        acknowledge nothing any more, even if it comes back. Earlier positions are refused, since
        commits that the old primary did not acknowledge may be missing here. Followers must be
        added again.

        Returns:
            The generation.

        Raises:
            FencedError: Another follower was promoted; one that can't be reached is not asked.
        """
        return run_promote(self._context).root.generation
