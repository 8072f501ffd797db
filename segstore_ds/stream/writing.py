"""Writing: appends and overwrites, from this process or staged by many."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.commit.context import StreamContext
from segstore_ds.errors import MAYBE_COMMITTED, ClosedError, SegstoreError
from segstore_ds.options.compaction import CompactRules
from segstore_ds.status.writers import Commit, WriterKey
from segstore_ds.stream.after_commit import AfterCommit
from segstore_ds.stream.handle import Handle, client_name
from segstore_ds.write.append import check_stream
from segstore_ds.write.inputs import as_input, writer_key
from segstore_ds.write.job import AutoRules, WriteJob, WriteRequest, plan_job
from segstore_ds.write.layout import as_layout
from segstore_ds.write.task_writer import Layout, StagedSegment, StagedTask

_JOBS_REMEMBERED = 1024
_TRIED, _ENDED = "tried", "ended"


class Writes(Handle):
    """The part of a stream that writes events."""

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        self._jobs: dict[str, str] = {}
        self._after = AfterCommit(context)

    def append(
        self,
        data: Any,
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
                `__arrow_c_stream__` (pandas, Polars, DuckDB).
            writer_id: Name of an idempotent writer.
            batch_id: Number of its batch; grows.
            writer_takeover: Take the writer id over from another owner, or set it back.
            on_repeat: What to do with other events under the last batch id: ``error``; or ``skip``,
                which keeps those committed first and drops these, with a warning in the log.
            expected_tail: Commit only if the tail is still this.
            expected_version: Commit only on top of this version.
            merge_schema: Allow new columns, missing columns and wider types.
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
            CommitUnknownError: The commit may or may not have landed.
            UnderReplicatedError: It is committed, but a follower lacks it: don't write it again.
            FencedError: This folder is not the primary, or another one was promoted.
            InvalidInputError: The data or an argument is not valid.
            StorageError: The storage failed; nothing was committed.
            FormatError: The stream's metadata can't be read.
        """
        return self._write(
            data,
            writer=writer_key(writer_id, batch_id, takeover=writer_takeover, on_repeat=on_repeat),
            expected_tail=expected_tail,
            expected_version=expected_version,
            merge_schema=merge_schema,
            layout=layout,
            compact=compact,
        )

    def overwrite(
        self,
        data: Any,
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
        return self._write(
            data,
            writer=writer_key(writer_id, batch_id, takeover=writer_takeover, on_repeat=on_repeat),
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
            InvalidInputError: Arguments contradict each other, or name unknown columns.
            SchemaMismatchError: The columns don't fit; names them and the remedy.
            WriterConflictError: Another owner, or an older batch.
            ConflictError: An expectation fails already.
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
                layout=as_layout(layout),
                client=client or client_name(),
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
        if self._jobs.get(job.transaction) == _ENDED:
            raise ClosedError("write job has ended", remedy="write the data again", token=job.token)
        repeated = job.transaction in self._jobs
        self._remember(job, _TRIED)
        staged = tuple(segment for task in tasks for segment in task.segments)
        segments, ours = staged, list[StagedSegment]()
        try:
            check_stream(self._log.root, job.stream_id)
            self._appender.check_visible(tasks)
            segments = self._appender.stage_inline(tasks, token=job.token, ship_to=job.ship_to)
            ours = [segment for segment in segments if segment not in staged]
            self._appender.check_clock(ours[-1] if ours else None)
            plan = job.append_plan(segments, tasks)
            commit = self._appender.commit(plan, transaction=job.transaction)
        except MAYBE_COMMITTED:
            raise
        except SegstoreError:
            # If this is not the first try, staged segments may already be in the log.
            self._appender.discard(ours if repeated or keep_staged else segments)
            if not repeated:
                self._remember(job, _ENDED)
            raise
        if commit.repeated:
            self._appender.discard(ours)
        else:
            self._after.run(job.compact)
        return commit

    def discard(self, tasks: Sequence[StagedTask]) -> None:
        """Delete what tasks staged for a job that was never handed to `commit`; never raises."""
        for task in tasks:
            self._appender.discard(task.segments)

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
        compact: str = "off",
    ) -> Commit:
        asked = options.parse_value(options.BY_NAME["compact"], compact)
        given = as_input(data)
        try:
            job = self.plan_write(
                given.schema,
                writer=writer,
                overwrite=overwrite,
                expected_tail=expected_tail,
                expected_version=expected_version,
                merge_schema=merge_schema,
                replace_schema=replace_schema,
                layout=layout,
            )
            if asked == "auto":
                job = replace(job, compact=AutoRules(CompactRules(), as_layout(layout)))
            return self.commit(job, [job.stage(0, "0", given)])
        except SegstoreError as error:
            given.explain(error)
            raise
