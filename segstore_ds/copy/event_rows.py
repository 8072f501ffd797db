"""A copy by events whose rows come from a job: many tasks stage them, one commit lists all.

The job may change the events, so the rows can't be checked against the source: the copy is done
with the one commit that holds all rows, or not at all. Range and id are fixed in the destination's
root before the first task runs, as in `run_copy_events`. A failed job leaves a stream that nobody
can read, and the next job under the same id fills it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from segstore_ds.compact.merges import run_due_merge
from segstore_ds.copy.destination import check_target, copied_of, find_copy
from segstore_ds.copy.events import CopyStep, begin_copy, commit_step
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.errors import MAYBE_COMMITTED, SegstoreError
from segstore_ds.format import names
from segstore_ds.format.copies import CopyRecord
from segstore_ds.format.root import Root
from segstore_ds.format.schema.codec import decode_schema, encode_schema
from segstore_ds.format.schema.normal_form import normalise_schema
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seams import best_effort
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import parse_cut, resolve_range
from segstore_ds.storage import Storage
from segstore_ds.write.append import Appender, AppendPlan
from segstore_ds.write.job import WriteJob
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

ROWS = "rows"  # the mode of a request for such a copy; no other copy uses it


@dataclass(frozen=True, slots=True)
class RowsCopy:
    """One copy by a job's rows; picklable, so it can be planned here and staged anywhere.

    Attributes:
        job: Stages the rows; `repeated` if the copy had been made before.
        state: The progress of the copy.
        seal: Whether the destination is sealed after the last row.
    """

    job: WriteJob
    state: CopyRecord
    seal: bool


def plan_rows_copy(
    source: Storage,
    target: Storage,
    request: CopyRequest,
    write: WriteRequest,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> RowsCopy:
    """Make the destination, or find it, and fix what all tasks share.

    The request is of mode `ROWS`; `write` holds the rows' schema and layout. Only the first call
    binds the range.

    Raises:
        NotFoundError: There is no source.
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The destination is the source, the id stands for another copy, or a cut
            is not valid.
        SchemaMismatchError: A column has a type that can't be stored.
        PositionError: The source's history was abandoned since the copy began.
    """
    check_target(source, target)
    cuts = (parse_cut(request.start), parse_cut(request.end))
    text = encode_schema(normalise_schema(write.schema))
    log = StreamLog(target, clock=clock, incomplete=True)
    old = StreamContext.of(StreamLog(source, clock=clock))
    old.log.open()

    def bind(root: Root) -> tuple[int, int]:
        return resolve_range(old, root, *cuts)

    state, _ = begin_copy(
        StreamContext.of(log, client=write.client),
        old,
        request,
        bind,
        schema=(text, write.spark_schema),
    )
    job = WriteJob(
        storage=target,
        token=names.build_token(log.root.version, clock.new_id()[:12]),
        transaction=clock.new_id(),
        # A failed job may have been fixed: until the copy is done, the newest job sets the columns.
        request=replace(write, schema=decode_schema(text), replace_schema=True),
        repeated=state.done,
        stream_id=log.root.stream_id,
    )
    return RowsCopy(job, state, request.seal)


def find_rows_copy(source: Storage, target: Storage, request: CopyRequest) -> CopyRecord | None:
    """Return how far a copy has come; None if the destination may begin now.

    Raises:
        NotFoundError: There is no source.
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The id stands for another copy.
        PositionError: The source's history was abandoned since the copy began.
    """
    return find_copy(StreamLog(target, incomplete=True), request, StreamLog(source).open())


def commit_rows_copy(
    work: RowsCopy, tasks: Sequence[StagedTask], *, clock: Clock = SYSTEM_CLOCK
) -> Copied:
    """Commit the rows that tasks staged, in task order; `repeated` if another job was first.

    Raises:
        InvalidInputError: A staged object can't be seen from here.
        StagedExpiredError: It took longer than vacuum's grace.
        ConflictError: Every race was lost.
        CommitUnknownError: It may or may not be in the log: run the copy again.
    """
    job, state = work.job, work.state
    if state.done:
        return copied_of(state, repeated=True)
    log = StreamLog(job.storage, clock=clock, incomplete=True)
    context = StreamContext.of(log, client=job.request.client)
    appender = Appender(context)
    segments = tuple(segment for task in tasks for segment in task.segments)
    try:
        log.open()
        appender.check_visible(tasks)
        segments = appender.stage_inline(tasks, token=job.token)
        appender.check_clock(None)
        plan = AppendPlan.of(job, segments, tasks)
        step = CopyStep(state, state.end - state.start, plan, seal=work.seal)
        state, ours = commit_step(context, step)
    except MAYBE_COMMITTED:
        raise
    except SegstoreError:
        appender.discard(segments)
        raise
    if ours:
        with best_effort("merging status parts"):
            run_due_merge(context)
    else:
        appender.discard(segments)
    return copied_of(state, repeated=not ours)
