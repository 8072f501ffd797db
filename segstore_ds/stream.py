"""The front door: `create`, `open`, `exists` and `Stream`.

A `Stream` is a handle: it remembers the newest root it has seen and follows the log from there. It
may be used by several threads one after another, not at once; open one handle per thread.
"""

import datetime as dt
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.engine.append import Appender, Commit, WriterKey
from segstore_ds.engine.clock import SYSTEM_CLOCK, Clock
from segstore_ds.engine.commit import Outcome, StreamLog
from segstore_ds.engine.create import run_create
from segstore_ds.engine.cuts import Position, check_range, parse_cut, resolve_cut
from segstore_ds.engine.epochs import epoch_schema
from segstore_ds.engine.inputs import as_reader, writer_key
from segstore_ds.engine.retention import run_purge
from segstore_ds.engine.scan import run_task
from segstore_ds.engine.scan_plan import Reading, ReadTask, plan_range, plan_reading, plan_tasks
from segstore_ds.engine.staging import Layout, StagedSegment, StagedTask
from segstore_ds.engine.table_status import TableStatus
from segstore_ds.engine.verify import Report, run_verify
from segstore_ds.engine.write_job import WriteJob, WriteRequest, plan_job
from segstore_ds.errors import (
    ClosedError,
    CommitUnknownError,
    InternalError,
    InvalidInputError,
    SegstoreError,
)
from segstore_ds.format.root import Root
from segstore_ds.format.schema import conform
from segstore_ds.storage import Storage, open_storage
from segstore_ds.version import __version__

_JOBS_REMEMBERED = 1024
_TRIED, _ENDED = "tried", "ended"

CutLike = int | str | dt.datetime | Position
FilterLike = str | Sequence[Sequence[Any]] | None


def create(
    url: str | os.PathLike[str],
    schema: pa.Schema,
    *,
    storage_options: Mapping[str, Any] | None = None,
    spark_schema: str | None = None,
    single_writer: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> "Stream":
    """Create an empty stream.

    Durable when it returns. Of several that create at once exactly one succeeds.

    Args:
        url: Where; a folder of its own.
        schema: Columns of the events. Stored nullable, zones as UTC, large and dictionary types as
            plain ones.
        storage_options: For the filesystem, flat or keyed by URL prefix; `env:NAME` values allowed.
        spark_schema: Spark's JSON of the schema, where Spark creates the stream.
        single_writer: Allow a filesystem without exclusive create.
        clock: Time and ids.

    Returns:
        The stream.

    Raises:
        AlreadyExistsError: There is a stream already.
        SchemaMismatchError: A column has a type that can't be kept.
        InvalidInputError: The location, the options or the schema are not valid.
        CorruptionError: The folder holds segments but no log.
        CommitUnknownError: The storage never said whether the stream was created.
        UnsafeFilesystemError: The filesystem can't create exclusively.
        StorageError: The filesystem failed.
    """
    storage = open_storage(url, storage_options, single_writer=single_writer)
    return create_on(storage, schema, spark_schema=spark_schema, clock=clock)


def create_on(
    storage: Storage,
    schema: pa.Schema,
    *,
    spark_schema: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> "Stream":
    """Create an empty stream on an open storage; see `create`, raises as it does."""
    log = run_create(storage, schema, spark_schema=spark_schema, client=client_name(), clock=clock)
    return Stream(log, TableStatus(storage))


def open(  # noqa: A001 - segstore.open(url) is the name users expect
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> "Stream":
    """Open a stream at its newest version.

    Raises:
        NotFoundError: There is no stream; never an empty answer.
        InvalidInputError: The location or the options are not valid.
        FormatError: The newest root can't be read.
        StorageError: The filesystem failed.
    """
    return open_on(open_storage(url, storage_options, single_writer=single_writer), clock=clock)


def open_on(storage: Storage, *, clock: Clock = SYSTEM_CLOCK) -> "Stream":
    """Open a stream on a storage that is open already; see `open`, raises as it does."""
    log = StreamLog(storage, clock=clock)
    log.open()
    return Stream(log, TableStatus(storage))


def exists(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Tell whether there is a stream. A read error is raised, never taken for "no".

    Raises:
        InvalidInputError: The location or the options are not valid.
        StorageError: The filesystem failed.
    """
    storage = open_storage(url, storage_options, single_writer=True)
    return StreamLog(storage).files.newest_listed() is not None


def client_name() -> str:
    """Return who writes, for the history of a stream."""
    return f"segstore/{__version__} python/{platform.python_version()} pyarrow/{pa.__version__}"


class Stream:
    """A handle on one stream. Made by `create` and `open`.

    `head`, `tail`, `sealed`, `schema` and `version` are those of the newest version this handle has
    seen; `refresh()` looks again.
    """

    def __init__(self, log: StreamLog, status: TableStatus) -> None:
        self._log = log
        self._status = status
        self._appender = Appender(log, status)
        self._jobs: dict[str, str] = {}

    @classmethod
    def at_root(cls, storage: Storage, root: Root) -> "Stream":
        """Return a handle that has seen a root but not looked for newer ones; sends no request."""
        log = StreamLog(storage)
        log.adopt(root)
        return cls(log, TableStatus(storage))

    def __repr__(self) -> str:
        root = self._log.root
        return f"<Stream {self.url} version={root.version} head={root.head} tail={root.tail}>"

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
        """True when nothing can be appended any more."""
        return self._log.root.sealed

    @property
    def schema(self) -> pa.Schema:
        """The columns of the events, in stored form.

        Raises:
            FormatError: It can't be read.
            StorageError: The storage failed.
        """
        return epoch_schema(self._status, self._log.root.epoch)

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the schema, or of some columns of it; None where Spark never wrote one.

        Raises:
            FormatError: It can't be read.
            StorageError: The storage failed.
        """
        return self._status.schema_texts(self._log.root.epoch)[1]

    def refresh(self) -> "Stream":
        """Look for newer commits and return this handle.

        Raises:
            FormatError: The newest root can't be read.
            StorageError: The storage failed.
        """
        self._log.refresh()
        return self

    def position(self, cut: CutLike = "tail") -> Position:
        """Return a cut and its stream as one, for a checkpoint; raises as `read`."""
        root = self._log.root
        offset = resolve_cut(self._log, root, parse_cut(cut))
        return Position(root.stream_id, root.generation, offset)

    def outcome(self, transaction: str, version: int | None = None) -> Outcome:
        """Tell whether a transaction is in the log, after a CommitUnknownError.

        Args:
            transaction: As the error names it.
            version: As the error names it; without it every version kept is searched.

        Returns:
            COMMITTED, NOT_COMMITTED, or UNKNOWN while a late request could still land.

        Raises:
            FormatError: A commit file can't be read.
            StorageError: The storage failed.
        """
        return self._log.outcome(transaction, version)

    # --- writing -----------------------------------------------------------------------------

    def append(
        self,
        data: Any,
        *,
        writer_id: str | None = None,
        batch_id: int | None = None,
        writer_takeover: bool = False,
        expected_tail: int | None = None,
        expected_version: int | None = None,
        merge_schema: bool = False,
        layout: Layout | None = None,
    ) -> Commit:
        """Append events: all of them in one commit, or none.

        Durable and visible when it returns. With a writer id and a batch id it is safe to repeat:
        the same batch again changes nothing and returns the first commit.

        Args:
            data: A Table, RecordBatch, RecordBatchReader, iterable of batches, or anything with
                `__arrow_c_stream__` (pandas, Polars, DuckDB).
            writer_id: Name of an idempotent writer.
            batch_id: Number of its batch; grows.
            writer_takeover: Take the writer id over from another owner, or set it back.
            expected_tail: Commit only if the tail is still this.
            expected_version: Commit only on top of this version.
            merge_schema: Allow new columns, missing columns and wider types.
            layout: Sizes and compression.

        Returns:
            The commit, with the offsets that the events got.

        Raises:
            SchemaMismatchError: The columns don't fit; names them and the remedy.
            WriterConflictError: Another owner, or an older batch.
            ConflictError: An expectation fails, or every race was lost.
            SealedError: The stream has ended.
            CommitUnknownError: The commit may or may not have landed.
            InvalidInputError: The data or an argument is not valid.
            StorageError: The storage failed; nothing was committed.
            FormatError: The stream's metadata can't be read.
        """
        return self._write(
            data,
            writer=writer_key(writer_id, batch_id, takeover=writer_takeover),
            expected_tail=expected_tail,
            expected_version=expected_version,
            merge_schema=merge_schema,
            layout=layout,
        )

    def overwrite(
        self,
        data: Any,
        *,
        writer_id: str | None = None,
        batch_id: int | None = None,
        writer_takeover: bool = False,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        layout: Layout | None = None,
    ) -> Commit:
        """Replace the events up to the tail as of now by others, in one commit.

        Offsets go on: the head moves to today's tail and the new events stand behind it. What
        others append meanwhile stays. Arguments and errors are those of `append`; with
        `overwrite_schema` the schema is replaced as well.
        """
        return self._write(
            data,
            writer=writer_key(writer_id, batch_id, takeover=writer_takeover),
            overwrite=True,
            merge_schema=merge_schema,
            replace_schema=overwrite_schema,
            layout=layout,
        )

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
            writer: The idempotence key.
            overwrite: Replace what is there up to the tail as of now.
            expected_tail: Commit only if the tail is still this.
            expected_version: Commit only on top of this version.
            merge_schema: Allow new columns, missing columns and wider types.
            replace_schema: With `overwrite`: the schema takes the place of the stream's.
            spark_schema: Spark's JSON of the schema.
            layout: Sizes and compression.
            client: Who writes.

        Returns:
            The job; `repeated` says that the writer's batch is committed already.

        Raises:
            InvalidInputError: Arguments contradict each other, or name unknown columns.
            SchemaMismatchError: The columns don't fit; names them and the remedy.
            WriterConflictError: Another owner, or an older batch.
            SealedError: The stream has ended.
            FormatError: The stream's metadata can't be read.
            StorageError: The storage failed.
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
                layout=layout or Layout(),
                client=client or client_name(),
            )
        )

    def plan(self, request: WriteRequest) -> WriteJob:
        """Plan a write that is described as one value; see `plan_write`, raises as it does."""
        return plan_job(self._log, self._status, request)

    def commit(self, job: WriteJob, tasks: Sequence[StagedTask]) -> Commit:
        """Commit what tasks staged for a job, in task order; safe to repeat for a writer's batch.

        On an error that says that nothing was committed, what was staged is deleted, and the job
        has ended. A job is repeated through the handle that it was first committed through.

        Raises:
            As `append`; InvalidInputError where a staged object can't be seen from here; and
            ClosedError for a job that has ended.
        """
        if self._jobs.get(job.transaction) == _ENDED:
            raise ClosedError("write job has ended", remedy="write the data again", token=job.token)
        repeated = job.transaction in self._jobs
        self._remember(job, _TRIED)
        staged = tuple(one for task in tasks for one in task.segments)
        segments, ours = staged, list[StagedSegment]()
        try:
            self._appender.check_visible(tasks)
            segments = self._appender.stage_inline(tasks, token=job.token)
            ours = [one for one in segments if one not in staged]
            self._appender.check_clock(ours[-1] if ours else None)
            rows = sum(task.rows for task in tasks)
            plan = job.append_plan(segments, rows)
            commit = self._appender.commit(plan, transaction=job.transaction)
        except (CommitUnknownError, InternalError):
            raise
        except SegstoreError:
            # What tasks staged may stand in the log already if this is not the first try.
            self._appender.discard(ours if repeated else segments)
            if not repeated:
                self._remember(job, _ENDED)
            raise
        if commit.repeated:
            self._appender.discard(ours)
        else:
            self._appender.maintain()
        return commit

    def discard(self, tasks: Sequence[StagedTask]) -> None:
        """Delete what tasks staged for a job that was never handed to `commit`; never raises."""
        for task in tasks:
            self._appender.discard(task.segments)

    def purge(self, *, older_than_s: float = 30 * 86400.0) -> int:
        """Forget versions that were superseded longer ago than that (an hour at least).

        Their events stay; only reading *as of* those versions ends. Safe to repeat.

        Returns:
            The oldest version kept.

        Raises:
            ConflictError: Other writers came first every time; nothing was deleted.
            CommitUnknownError: It is unknown whether the purge was committed; nothing was deleted.
            FormatError: A commit file can't be read; nothing was deleted.
            StorageError: The storage failed.
        """
        return run_purge(self._log, older_than_s=older_than_s)

    # --- reading -----------------------------------------------------------------------------

    def read(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        offset_column: str | None = None,
        segment_column: str | None = None,
        fail_on_data_loss: bool = True,
    ) -> pa.RecordBatchReader:
        """Read the events between two cuts, in offset order, as of the newest version.

        Args:
            start: First event; an offset, 'head', 'tail', 'version:N', a position or a time.
            end: The event behind the last, in the same forms.
            columns: Which columns, in order; None for all.
            filters: ``[column, op, literal]`` lists that must all hold; SQL's rules for null.
            offset_column: Name of an extra int64 column with each event's offset.
            segment_column: Name of an extra int64 column with each event's segment id.
            fail_on_data_loss: False starts at the head where the start lies below it.

        Returns:
            A reader that DuckDB, Polars and pandas take without a copy.

        Raises:
            InvalidInputError: A cut, a column or a filter is not valid, or start lies behind end.
            PositionError: A cut beyond the tail, or a position of another stream or generation.
            TruncatedError: The start lies below the head.
            NotFoundError: There is no such version.
            SnapshotExpiredError: The version was purged.
            FormatError: Metadata can't be read; a damaged segment raises while reading.
            StorageError: The storage failed.
        """
        root = self._log.refresh()
        reading = self.plan_read(
            start,
            end,
            columns=columns,
            filters=filters,
            offset_column=offset_column,
            segment_column=segment_column,
            fail_on_data_loss=fail_on_data_loss,
            root=root,
        )
        tasks = self.plan_tasks(reading, root=root)

        def batches() -> Iterator[pa.RecordBatch]:
            for task in tasks:
                yield from run_task(reading, task)

        return pa.RecordBatchReader.from_batches(reading.result_schema, batches())

    def plan_read(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        offset_column: str | None = None,
        segment_column: str | None = None,
        fail_on_data_loss: bool = True,
        root: Root | None = None,
    ) -> Reading:
        """Bind a read to a version and to offsets; `plan_tasks` packs it.

        Cuts, columns and errors are those of `read`.

        Args:
            start: First event.
            end: The event behind the last.
            columns: Which columns, in order; None for all.
            filters: What must hold.
            offset_column: Name of an extra column with offsets.
            segment_column: Name of an extra column with segment ids.
            fail_on_data_loss: False starts at the head where the start lies below it.
            root: The version to read as of; None for the newest that this handle has seen.

        Returns:
            What all tasks share; picklable.
        """
        pinned = root or self._log.root
        first, last = (resolve_cut(self._log, pinned, parse_cut(cut)) for cut in (start, end))
        return plan_reading(
            self._log.storage,
            self._status,
            pinned,
            check_range(pinned, first, last, fail_on_data_loss=fail_on_data_loss),
            columns=columns,
            filters=filters,
            offset_column=offset_column,
            segment_column=segment_column,
        )

    def plan_tasks(
        self,
        reading: Reading,
        *,
        partition_bytes: int = options.default("partitionBytes"),
        partition_rows: int | None = None,
        min_partitions: int | None = None,
        root: Root | None = None,
    ) -> list[ReadTask]:
        """Pack a bound read into tasks that any number of processes carry out with `run_task`.

        Args:
            reading: From `plan_read`.
            partition_bytes: Encoded bytes per task, about.
            partition_rows: Rows per task, about.
            min_partitions: Tasks wanted at least.
            root: The version that the read is bound to, where it is at hand; None looks it up.

        Returns:
            Picklable tasks in offset order; none where nothing can match.

        Raises:
            InvalidInputError: The read is bound to another stream or version.
            SnapshotExpiredError: Its version was purged.
            FormatError: A status part can't be read.
            StorageError: The storage failed.
        """
        pinned = root or self._log.read_version(reading.version)
        if (pinned.stream_id, pinned.version) != (reading.stream_id, reading.version):
            raise InvalidInputError(
                "read is bound to another stream or version",
                bound=(reading.stream_id, reading.version),
                given=(pinned.stream_id, pinned.version),
            )
        return plan_tasks(
            plan_range(self._status, pinned, reading),
            partition_bytes=partition_bytes,
            partition_rows=partition_rows,
            min_partitions=min_partitions,
        )

    def verify(self) -> Report:
        """Read the whole stream and report everything that is wrong; changes nothing.

        Raises:
            NotFoundError: The stream is gone.
            StorageError: The storage failed, so nothing can be said.
        """
        return run_verify(self._log, TableStatus(self._log.storage))

    # --- inside ------------------------------------------------------------------------------

    def _remember(self, job: WriteJob, state: str) -> None:
        while len(self._jobs) >= _JOBS_REMEMBERED:
            self._jobs.pop(next(iter(self._jobs)))
        self._jobs[job.transaction] = state

    def _write(
        self,
        data: Any,
        *,
        writer: WriterKey | None,
        overwrite: bool = False,
        expected_tail: int | None = None,
        expected_version: int | None = None,
        merge_schema: bool = False,
        replace_schema: bool = False,
        layout: Layout | None = None,
    ) -> Commit:
        reader = as_reader(data)
        job = self.plan_write(
            reader.schema,
            writer=writer,
            overwrite=overwrite,
            expected_tail=expected_tail,
            expected_version=expected_version,
            merge_schema=merge_schema,
            replace_schema=replace_schema,
            layout=layout,
        )
        task = job.open_task(0, self._log.clock.new_id()[:8])
        schema = job.schema
        try:
            for batch in reader:
                task.append(conform(batch, schema))
            staged = task.finish()
        except BaseException:
            task.abort()
            raise
        return self.commit(job, [staged])
