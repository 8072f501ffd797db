"""The front door: `create`, `open`, `exists` and `Stream`.

A `Stream` is a handle: it remembers the newest root it has seen and follows the log from there. It
may be used by several threads one after another, not at once; open one handle per thread.
"""

import datetime as dt
import itertools
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.engine.append import Appender, Commit, WriterKey
from segstore_ds.engine.clock import SYSTEM_CLOCK, Clock
from segstore_ds.engine.commit import Outcome, StreamLog
from segstore_ds.engine.cuts import Position, check_range, parse_cut, resolve_cut
from segstore_ds.engine.epochs import SchemaChange, epoch_schema, plan_staged_schema
from segstore_ds.engine.filters import parse_filters
from segstore_ds.engine.retention import run_purge
from segstore_ds.engine.scan import (
    Reading,
    ReadTask,
    plan_slices,
    plan_tasks,
    prune_segments,
    run_task,
)
from segstore_ds.engine.staging import Layout, StagedTask
from segstore_ds.engine.table_status import TableStatus
from segstore_ds.engine.verify import Report, run_verify
from segstore_ds.engine.write_job import WriteJob
from segstore_ds.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    CorruptionError,
    InvalidInputError,
    SchemaMismatchError,
    SealedError,
    SegstoreError,
)
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.format.schema import conform, encode_schema, normalise_schema
from segstore_ds.storage import Storage, open_storage
from segstore_ds.version import __version__

WRITER_ID_LIMIT = 200

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
    """Create an empty stream on a storage that is open already; see `create`, raises as it does."""
    if not schema.names:
        raise InvalidInputError("schema has no columns", remedy="give at least one")
    text = encode_schema(normalise_schema(schema))
    storage.ensure_exclusive()
    log, status = StreamLog(storage, clock=clock), TableStatus(storage)
    if log.files.newest_listed() is not None:
        raise AlreadyExistsError("there is a stream already", url=storage.url)
    for folder in (names.SEGMENTS_FOLDER, names.STATUS_FOLDER):
        if next(iter(storage.list(folder)), None) is not None:
            raise CorruptionError(
                "folder holds parts of a stream but no log",
                remedy="restore its log folder, or use another location",
                url=storage.url,
                folder=folder,
            )
    root = Root(
        stream_id=clock.new_id(),
        version=0,
        transaction=clock.new_id(),
        parent="",
        time_us=clock.wall_us(),
        operation="create",
        epochs=(status.put_epoch(0, 0, 0, text, spark_schema),),
        client=client_name(),
    )
    if not log.create(root):
        raise AlreadyExistsError("there is a stream already", url=storage.url)
    return Stream(log, status)


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


def as_reader(data: Any) -> pa.RecordBatchReader:
    """Return whatever holds Arrow data as a reader.

    Args:
        data: A Table, RecordBatch, RecordBatchReader, iterable of batches, or anything with
            `__arrow_c_stream__` or `__arrow_c_array__`.

    Raises:
        InvalidInputError: It is none of these, or an iterable without a batch.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    batches = iter(data) if isinstance(data, Iterable) else iter(())
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise InvalidInputError(
            "not Arrow data",
            remedy="give a pyarrow Table, RecordBatch or RecordBatchReader, a non-empty iterable "
            "of batches, or a DataFrame of pandas or Polars",
            type=type(data).__name__,
        )
    return pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))


def writer_key(
    writer_id: str | None, batch_id: int | None, *, takeover: bool, owner: str = ""
) -> WriterKey | None:
    """Return the idempotence key of a writer id and a batch id, or None where neither is given.

    Raises:
        InvalidInputError: Only one is given, or one is out of range.
    """
    if (writer_id is None) != (batch_id is None):
        raise InvalidInputError(
            "a writer id and a batch id go together",
            remedy="give both, or neither",
            writer_id=writer_id,
            batch_id=batch_id,
        )
    if writer_id is None or batch_id is None:
        return None
    if not 0 < len(writer_id) <= WRITER_ID_LIMIT or not 0 <= batch_id < 2**63:
        raise InvalidInputError(
            "writer id or batch id is out of range",
            remedy=f"give 1 to {WRITER_ID_LIMIT} characters and an integer from 0",
            writer_id=writer_id,
            batch_id=batch_id,
        )
    return WriterKey(writer_id, batch_id, owner, takeover)


class Stream:
    """A handle on one stream. Made by `create` and `open`.

    `head`, `tail`, `sealed`, `schema` and `version` are those of the newest version this handle has
    seen; `refresh()` looks again.
    """

    def __init__(self, log: StreamLog, status: TableStatus) -> None:
        self._log = log
        self._status = status
        self._appender = Appender(log, status)

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
        others append meanwhile stays. Arguments and errors are those of `append`; `overwrite_schema`
        replaces the schema as well.
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
        if replace_schema and not overwrite:
            raise InvalidInputError(
                "the schema can only be replaced together with the events",
                remedy="use mode overwrite, or mergeSchema to extend the schema",
            )
        root = self._log.refresh() if overwrite else self._log.recent()
        clock = self._log.clock
        known = self._appender.find_repeated(root, writer, None)
        if known is None and root.sealed:
            raise SealedError("stream is sealed", url=self.url, tail=root.tail)
        incoming = normalise_schema(schema)
        change = SchemaChange(incoming, spark_schema, merge_schema, replace_schema)
        staged = incoming if known else self._staged_schema(incoming, change)
        chosen = layout or Layout()
        unknown = sorted(set(chosen.stats_columns or ()) - set(staged.names))
        if unknown:
            raise InvalidInputError("statsColumns names no such columns", columns=unknown)
        return WriteJob(
            storage=self._log.storage,
            token=names.build_token(root.version, clock.new_id()[:12]),
            transaction=clock.new_id(),
            schema_text=encode_schema(staged),
            layout=chosen,
            spark=spark_schema,
            merge_schema=merge_schema,
            replace_schema=replace_schema,
            writer=writer,
            overwrite_to=root.tail if overwrite else None,
            expected_tail=expected_tail,
            expected_version=expected_version,
            client=client or client_name(),
            repeated=known is not None,
        )

    def commit(self, job: WriteJob, tasks: Sequence[StagedTask]) -> Commit:
        """Commit what tasks staged for a job, in task order; safe to repeat for a writer's batch.

        On an error that says that nothing was committed, what was staged is deleted.

        Raises:
            As `append`; and InvalidInputError where a staged object can't be seen from here.
        """
        segments: tuple[Any, ...] = tuple(one for task in tasks for one in task.segments)
        try:
            self._appender.check_visible(tasks)
            segments = self._appender.stage_inline(tasks, token=job.token)
            if segments and any(task.frames for task in tasks):
                self._appender.check_clock(segments[-1])
            rows = sum(task.rows for task in tasks)
            plan = job.append_plan(segments, rows)
            commit = self._appender.commit(plan, transaction=job.transaction)
        except CommitUnknownError:
            raise
        except SegstoreError:
            self._appender.discard(segments)
            raise
        if commit.repeated:
            self._appender.discard(segments)
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
        self._log.refresh()
        reading, tasks = self.plan_read(
            start,
            end,
            columns=columns,
            filters=filters,
            offset_column=offset_column,
            segment_column=segment_column,
            fail_on_data_loss=fail_on_data_loss,
        )

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
        partition_bytes: int = options.default("partitionBytes"),
        partition_rows: int | None = None,
        min_partitions: int | None = None,
        root: Root | None = None,
    ) -> tuple[Reading, list[ReadTask]]:
        """Plan a read that any number of processes carry out with `run_task`.

        Cuts, columns and errors are those of `read`.

        Args:
            start: First event.
            end: The event behind the last.
            columns: Which columns, in order; None for all.
            filters: What must hold.
            offset_column: Name of an extra column with offsets.
            segment_column: Name of an extra column with segment ids.
            fail_on_data_loss: False starts at the head where the start lies below it.
            partition_bytes: Encoded bytes per task, about.
            partition_rows: Rows per task, about.
            min_partitions: Tasks wanted at least.
            root: The version to read as of; None for the newest that this handle has seen.

        Returns:
            What all tasks share, and the tasks in offset order; both picklable.
        """
        pinned = root or self._log.root
        first, last = (resolve_cut(self._log, pinned, parse_cut(cut)) for cut in (start, end))
        first, last = check_range(pinned, first, last, fail_on_data_loss=fail_on_data_loss)
        reading = self._plan_reading(pinned, columns, filters, offset_column, segment_column)
        schemas = {epoch.number: epoch_schema(self._status, epoch) for epoch in pinned.epochs}
        found = self._status.segments(pinned, first, last)
        slices = plan_slices(prune_segments(found, reading.filters, schemas), first, last)
        tasks = plan_tasks(
            slices,
            partition_bytes=partition_bytes,
            partition_rows=partition_rows,
            min_partitions=min_partitions,
        )
        return reading, tasks

    def verify(self) -> Report:
        """Read the whole stream and report everything that is wrong; changes nothing.

        Raises:
            NotFoundError: The stream is gone.
            StorageError: The storage failed, so nothing can be said.
        """
        return run_verify(self._log, TableStatus(self._log.storage))

    # --- inside ------------------------------------------------------------------------------

    def _staged_schema(self, incoming: pa.Schema, change: SchemaChange) -> pa.Schema:
        try:
            return plan_staged_schema(self.schema, incoming, change)
        except SchemaMismatchError:
            # Another writer may have extended the schema since this handle looked.
            version = self._log.root.version
            if self._log.refresh().version == version:
                raise
            return plan_staged_schema(self.schema, incoming, change)

    def _plan_reading(
        self,
        root: Root,
        columns: Sequence[str] | None,
        filters: FilterLike,
        offset_column: str | None,
        segment_column: str | None,
    ) -> Reading:
        schema = epoch_schema(self._status, root.epoch)
        chosen = tuple(schema.names if columns is None else columns)
        unknown = [name for name in chosen if name not in schema.names]
        extra = [name for name in (offset_column, segment_column) if name is not None]
        if unknown:
            raise InvalidInputError("no such columns", columns=unknown, known=schema.names)
        if len({*chosen, *extra}) != len(chosen) + len(extra) or {*extra} & {*schema.names}:
            raise InvalidInputError(
                "a column would be there twice", columns=list(chosen), extra=extra
            )
        return Reading(
            storage=self._log.storage,
            stream_id=root.stream_id,
            version=root.version,
            epochs={epoch.number: self._status.schema_texts(epoch)[0] for epoch in root.epochs},
            schema=schema,
            columns=chosen,
            filters=parse_filters(filters, schema),
            offset_column=offset_column,
            segment_column=segment_column,
        )

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
