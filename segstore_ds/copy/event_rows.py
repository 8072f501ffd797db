"""A copy by events whose rows come from a job: many tasks stage them, one commit lists all.

The job may change the events, so the rows are not those of the source. If the rows have a column of
offsets, it is checked against the range of the job (`OffsetCheck`); `segstore.spark.copy` reads the
range itself. One job is one piece (`copy.staging`): a copy that several jobs share goes on after
the last piece that was made in the same way. Nothing can be read before the commit.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.events import EventsCopy, plan_copy_events
from segstore_ds.copy.staging import Range, StagedPiece, put_piece
from segstore_ds.errors import InternalError, InvalidInputError, SegstoreError
from segstore_ds.format.schema.codec import decode_schema, encode_schema, normalise_schema
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.storage import Storage
from segstore_ds.write.append import Appender
from segstore_ds.write.job import WriteJob
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask, delete_staged

ROWS = "rows"  # the mode of a request for such a copy; no other copy uses it
_REMEDY = (
    "write rows of the DataFrame that was loaded with offset_column and the same start_cut and "
    "end_cut, in their order and each once; or use segstore.spark.copy(spark, ..., transform)"
)


@dataclass(frozen=True, slots=True)
class RowsCopy:
    """One job of a copy by rows; picklable, so it can be planned here and staged anywhere."""

    copy: EventsCopy  # the copy that it belongs to
    job: WriteJob  # stages the rows; `repeated` if the copy had been made before
    span: Range  # the part of the copy's range from which the rows were made
    column: str | None = None  # the column of offsets, which is not stored

    def stage(self, task: int, batches: Iterable[pa.RecordBatch]) -> tuple[StagedTask, Range]:
        """Stage one task's rows; return also their first and last offset, if they have them."""
        check = OffsetCheck(self.column or "", self.span)
        rows = map(check.take, batches) if self.column else batches
        # All attempts of all jobs of a copy share one folder.
        staged = self.job.open_task(task, secrets.token_hex(6)).stage(rows)
        return staged, (check.first, check.last)

    def commit(self, sent: Iterable[tuple[StagedTask, Range]]) -> None:
        """Record the rows that tasks staged, in task order; commit if they complete the copy."""
        copy, job = self.copy, self.job
        ordered = sorted(sent, key=lambda one: one[0].task)
        check_offsets([offsets for _, offsets in ordered])
        if copy.to.done is not None:
            return
        tasks = [staged for staged, _ in ordered]
        appender = Appender(StreamContext.of(copy.to.log))
        segments = tuple(segment for task in tasks for segment in task.segments)
        try:
            appender.check_visible(tasks)
            segments = appender.stage_inline(tasks, token=job.token)
            if sum(segment.rows for segment in segments) != sum(task.rows for task in tasks):
                raise InternalError("tasks staged another number of rows than they received")
        except SegstoreError:
            delete_staged(job.storage, segments)
            raise
        # From here on a piece or a root may name the segments, even after an error: only upkeep
        # may delete them.
        if self.span == copy.bounds:
            copy.commit_segments(segments)
        else:
            piece = StagedPiece(*self.span, copy.made_by, segments)
            put_piece(job.storage, copy.to.request.copy_id, piece)

    def discard(self, sent: Iterable[tuple[StagedTask, Range]]) -> None:
        """Delete what tasks staged for a commit that was never tried; never raises."""
        delete_staged(self.job.storage, (one for task, _ in sent for one in task.segments))


def plan_rows_copy(
    source: Storage,
    target: Storage,
    write: WriteRequest,
    copy_id: str,
    cuts: tuple[str, str],
    *,
    seal: bool = False,
    span: Range | None = None,
    made_by: str | None = None,
    column: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RowsCopy:
    """Plan what all tasks of a job share; only the first run binds the copy's range.

    `write` has the schema and the layout of the rows. `span` is the whole range by default. Pieces
    of other jobs count if they have the same `made_by`.
    """
    request = CopyRequest(copy_id, *cuts, seal, ROWS)
    text = encode_schema(normalise_schema(write.schema))
    context = StreamContext.of(StreamLog(source, clock=clock), client=write.client)
    context.log.open()
    copy = plan_copy_events(
        context,
        target,
        request,
        rows=(text, write.spark_schema),
        made_by=made_by or secrets.token_hex(6),
    )
    job = WriteJob(
        storage=target,
        token=request.token,
        transaction="",
        request=write,
        schema=decode_schema(text),
        repeated=copy.to.done is not None,
    )
    return RowsCopy(copy, job, span or copy.bounds, column)


@dataclass(slots=True)
class OffsetCheck:
    """Removes the column of offsets from one task's rows, and checks it.

    The offsets must lie in the range and ascend.
    """

    column: str
    span: Range
    first: int = -1
    last: int = -1

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without their offsets."""
        place = batch.schema.get_field_index(self.column)
        offsets = batch.column(place).cast(pa.int64())
        if batch.num_rows:
            if offsets.null_count:
                raise InvalidInputError("a row has no offset", remedy=_REMEDY, column=self.column)
            values = offsets.to_numpy()
            first, last = int(values[0]), int(values[-1])
            if not (values[1:] > values[:-1]).all() or first <= self.last:
                raise InvalidInputError(
                    "rows are not in the order of their offsets", remedy=_REMEDY, after=self.last
                )
            if first < self.span[0] or last >= self.span[1]:
                raise InvalidInputError(
                    "rows lie outside the copy's range",
                    remedy=_REMEDY,
                    rows=f"[{first}, {last}]",
                    range=f"[{self.span[0]}, {self.span[1]})",
                )
            self.first, self.last = (first if self.first < 0 else self.first), last
        return batch.drop_columns([self.column])


def check_offsets(checks: Sequence[tuple[int, int]]) -> None:
    """Check the order of tasks by the first and last offset of each; -1 for a task without rows."""
    last = -1
    for first, end in checks:
        if 0 <= first <= last:
            raise InvalidInputError(
                "rows are not in the order of their offsets", remedy=_REMEDY, after=last
            )
        last = max(last, end)
