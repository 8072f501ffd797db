"""How a handle on a stream writes: in one call, event by event, or in processes of its own."""

import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, Concatenate, ParamSpec

import pyarrow as pa

from segstore_ds.errors import CommitUnknownError, SchemaMismatchError
from segstore_ds.format.inline import FRAME_MOST_BYTES
from segstore_ds.format.operation import Operation
from segstore_ds.log.context import StreamContext, new_context
from segstore_ds.log.lookup import OutcomeState, find_outcome
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options import table as options
from segstore_ds.options.arguments import check_seconds, check_whole
from segstore_ds.status.epochs import called_columns
from segstore_ds.status.writers import Commit, WriterKey
from segstore_ds.stream.commits import Commits
from segstore_ds.stream.reads import Reads
from segstore_ds.write.appender import FlushLimits, LiveAppender, StreamEnds
from segstore_ds.write.inputs import Data, as_input, writer_key
from segstore_ds.write.job import WriteJob, plan_job
from segstore_ds.write.layout import Layout, as_layout
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

_P = ParamSpec("_P")


def _awaited_append(
    append: Callable[Concatenate["Writes", _P], Commit],
) -> Callable[Concatenate["Writes", _P], Coroutine[Any, Any, Commit]]:
    async def aappend(self: "Writes", /, *data: _P.args, **how: _P.kwargs) -> Commit:
        """Append as `append` with the same arguments, in a thread of the event loop's pool.

        An append that has begun continues when its caller is cancelled: with a writer id and a
        batch id it is safe to repeat.

        Examples:
            >>> import asyncio
            >>> asyncio.run(stream.aappend({"user": "ada", "n": 4})).end
            4
        """
        from segstore_ds.write.awaited import finish_in_thread  # noqa: PLC0415 - few use asyncio

        note = "the append may be committed: stream.history() tells, and with a writer_id and a "
        note += "batch_id it is safe to repeat"
        return await finish_in_thread(partial(append, self, *data, **how), cancelled=note)

    aappend.__signature__ = signature(append)  # type: ignore[attr-defined]
    aappend.__qualname__ = "Writes.aappend"
    return aappend


class Writes(Reads):
    """What a `Stream` does to write events."""

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        self._commits = Commits(context)

    def append(
        self,
        data: Data,
        *,
        writer_id: str | None = None,
        batch_id: int | None = None,
        takeover: bool = False,
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
            takeover: Take the writer id over from another owner, or set it back.
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

        Examples:
            >>> event = {"user": "ada", "n": 4}
            >>> stream.append(event, writer_id="etl", batch_id=7).end
            4
            >>> stream.append(event, writer_id="etl", batch_id=7).repeated  # changes nothing
            True
        """
        key = writer_key(writer_id, batch_id, takeover=takeover, on_repeat=on_repeat)
        auto = compact != "off" and (
            options.parse_value(options.BY_NAME["compact"], compact) == "auto"
        )
        given = as_input(data, self, new_columns=merge_schema)
        layout = as_layout(layout)
        request = WriteRequest(
            schema=given.schema,
            layout=layout,
            client=self._context.client,
            writer=key,
            expected_tail=expected_tail,
            expected_version=expected_version,
            merge_schema=merge_schema,
            compact=auto,
        )
        return self._commits.write(request, given)

    aappend = _awaited_append(append)

    def overwrite(
        self,
        data: Data,
        *,
        writer_id: str | None = None,
        batch_id: int | None = None,
        takeover: bool = False,
        on_repeat: str = options.default("onRepeat"),
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        layout: Layout | None = None,
    ) -> Commit:
        """Replace the events up to the current tail by others, in one commit.

        Offsets continue: the head moves to the current tail, and the new events follow it. Events
        that others append meanwhile stay. Arguments and errors are those of `append`; with
        `overwrite_schema` the schema is replaced as well.

        Examples:
            >>> commit = stream.overwrite([{"user": "ada", "n": 9}])
            >>> commit.start, stream.head, stream.tail
            (3, 3, 4)
        """
        key = writer_key(writer_id, batch_id, takeover=takeover, on_repeat=on_repeat)
        given = as_input(data, None if overwrite_schema else self, new_columns=merge_schema)
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
            merge_schema: Continue if others add columns: they are null in events from here.
            layout: Sizes and compression.

        Returns:
            The appender. Its flushes commit like `append`, one commit each.

        Examples:
            >>> with stream.appender() as appender:
            ...     place = appender.append({"user": "ada", "n": 4})
            ...     offset = appender.wait(place)  # durable from here
            >>> stream.refresh().tail
            4
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
        layout = replace(given, inline_bytes=min(given.inline_bytes, FRAME_MOST_BYTES))
        ends = _open_ends(self._log, self.schema, merge_schema=merge_schema, layout=layout)
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

        Errors are those of `append`.

        Args:
            schema: The schema of the incoming data.
            writer: The idempotence key, which also says what to do with other events under its
                batch id.
            overwrite: Replace the events up to the current tail.
            expected_tail: As in `append`.
            expected_version: As in `append`.
            merge_schema: As in `append`.
            replace_schema: With `overwrite`: replace the stream's schema by this one.
            spark_schema: Spark's JSON of the schema.
            layout: Sizes and compression.
            client: Who writes.

        Returns:
            The job; `repeated` says that the writer's batch is committed already.

        Examples:
            >>> job = stream.plan_write(stream.schema)
            >>> task = job.open_task(0, attempt="first")  # in any process: a job can be pickled
            >>> task.append(pa.record_batch({"user": ["ada"], "n": [4]}))
            >>> stream.commit(job, [task.finish()]).end
            4
        """
        return plan_job(
            self._context,
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
            ),
        )

    def commit(self, job: WriteJob, tasks: Sequence[StagedTask]) -> Commit:
        """Commit what tasks staged for a job, in task order; safe to repeat for a writer's batch.

        If an error says that nothing was committed, the staged objects are deleted, and the job has
        ended. A job must be repeated through the handle that committed it first.

        Besides the errors of `append`:

        Raises:
            InvalidInputError: A staged object can't be seen from here.
            PositionError: The location no longer holds the stream that the job was planned on.
            ClosedError: The job has ended.
        """
        return self._commits.commit(job, tasks)


def _open_ends(
    log: StreamLog, schema: pa.Schema, *, merge_schema: bool, layout: Layout
) -> StreamEnds:
    """Return the functions by which an appender uses its stream.

    Plans and reads run during a commit, so each has a handle of its own.
    """
    opened = log.root.epoch
    logs = [StreamLog(log.storage, clock=log.clock) for _ in range(3)]
    for each in logs:
        each.adopt(log.root)
    contexts = [new_context(each) for each in logs]
    own, planning, reads = Commits(contexts[0]), contexts[1], Reads(contexts[2])
    reading = threading.Lock()

    def check_names(context: StreamContext) -> None:
        """Raise SchemaMismatchError if a column was renamed or dropped since the appender opened.

        Names may have been swapped: then values would get into the wrong columns.
        """
        epoch = context.log.root.epoch
        if epoch.number == opened.number:
            return
        known, called = (called_columns(context.status, each) for each in (opened, epoch))
        changed = sorted(name for stored, name in known.items() if called.get(stored) != name)
        if changed:
            raise SchemaMismatchError(
                "columns were renamed or dropped since the appender was opened",
                remedy="open another appender",
                columns=changed,
            )

    def plan(look: bool) -> WriteJob:
        logs[1].follow_from(logs[0])
        if look:
            logs[1].refresh()
        check_names(planning)
        request = WriteRequest(
            schema=schema, layout=layout, client=planning.client, merge_schema=merge_schema
        )
        return plan_job(planning, request)

    def read(start: int, end: int) -> pa.RecordBatchReader:
        with reading:
            logs[2].follow_from(logs[0])
            found = reads.read(start, end)
            check_names(contexts[2])
            return found

    # This process commits: it stages only frames that the commit can't hold.
    return StreamEnds(
        schema=schema,
        plan=plan,
        commit=lambda job, task: own.commit(job, [task], keep_staged=True),
        settle=partial(_settle, contexts[0]),
        read=read,
    )


def _settle(context: StreamContext, job: WriteJob, rows: int, version: int | None) -> Commit | None:
    """Find the commit of a job of so many rows that failed at a version, as `StreamEnds` says."""
    found = find_outcome(context.log, job.transaction, version)
    if found.state is OutcomeState.UNKNOWN and version is not None:
        # Nobody has committed since. A commit that takes the version decides: a put that is still
        # on its way has landed by now, or can't land any more.
        context.commit(lambda root, _: replace(root, operation=Operation.SET_PROPERTIES))
        found = find_outcome(context.log, job.transaction, version)
    if found.state is OutcomeState.NOT_COMMITTED:
        return None
    known = found.version and context.log.history.moment(context.log.root, found.version)
    if not known:
        raise CommitUnknownError(
            "it is not known whether the appender's commit is in the log",
            remedy="look into stream.history(), and append what is missing with another appender",
            version=version,
            transaction=job.transaction,
        )
    return Commit(known.version, job.transaction, known.tail - rows, known.tail)
