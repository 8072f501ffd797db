"""Copies a range of a stream to a new stream, event by event, in steps that can be interrupted.

The events are read and written again. The destination has the source's newest schema as of the
first call, offsets from 0, and segments of its own sizes, whatever epochs and segments the source
has. The first call binds the range and keeps it in the destination's root. Each step is one commit
that moves events and progress together, so a copy that is run again, or twice at once, continues
exactly after the last step. The last step marks the copy as done, and seals the stream if that was
requested. Until then nobody else can open the destination (`log.copy_record`).

Memory is bounded by the buffers of one writing task and the frames that are decoded.

Source: the first approach of Pravega's copyStream.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from segstore_ds.compact.merges import run_due_merge
from segstore_ds.copy.destination import check_target, copied_of, find_copy
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.errors import (
    MAYBE_COMMITTED,
    CorruptionError,
    InternalError,
    SegstoreError,
    SnapshotExpiredError,
    TruncatedError,
)
from segstore_ds.format import names
from segstore_ds.format.copies import EVENTS, CopyRecord, parse_copy
from segstore_ds.format.key_columns import inherited_properties
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.format.schema.conversion import convert
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seams import best_effort
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.progress import Progress, unheard
from segstore_ds.read.plan import Reading, ReadTask, plan_range, plan_tasks
from segstore_ds.read.request import ReadRequest, plan_reading
from segstore_ds.read.scan import run_task
from segstore_ds.status.epochs import epoch_schema, plan_epochs
from segstore_ds.status.history import Note, begin_history
from segstore_ds.status.slot import Slot
from segstore_ds.storage import Storage
from segstore_ds.write.append import Appender, AppendPlan, check_preconditions, plan_append
from segstore_ds.write.create import first_root
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

STEP_BYTES = 256 << 20  # encoded bytes of the source per commit, approximately
READ_THREADS = 4


def run_copy_events(
    context: StreamContext,
    target: Storage,
    request: CopyRequest,
    bind: Callable[[Root], tuple[int, int]],
    *,
    progress: Progress = unheard,
) -> Copied:
    """Copy a range to a stream that does not exist yet, or continue a copy that was begun.

    The request is of mode ``events``. `bind` returns the range for the source's root, and only the
    first call uses it. Returns what the destination holds; `repeated` if there was nothing left to
    do. A call that failed can be run again.

    Raises:
        AlreadyExistsError: There is another stream at the destination.
        InvalidInputError: The destination is the source, or the id stands for another copy.
        PositionError: The source's history was abandoned since the copy began.
        TruncatedError: The source no longer has the events that are still to be copied.
        SnapshotExpiredError: A segment was deleted while it was read.
        StagedExpiredError: A step took longer than vacuum's grace.
        ConflictError: Every race was lost.
        CommitUnknownError: The storage never said whether a step was committed.
    """
    check_target(context.storage, target)
    log = StreamLog(target, clock=context.clock, incomplete=True)
    made = StreamContext.of(log, client=context.client)
    context.log.refresh()
    state, is_new = begin_copy(made, context, request, bind)
    if state.done:
        return copied_of(state, repeated=not is_new)
    runner = _Runner(made, context, request, progress)
    state = runner.run(state)
    return copied_of(state, repeated=runner.steps == 0)


def begin_copy(
    context: StreamContext,
    source: StreamContext,
    request: CopyRequest,
    bind: Callable[[Root], tuple[int, int]],
    *,
    schema: tuple[str, str | None] | None = None,
) -> tuple[CopyRecord, bool]:
    """Make the destination, which fixes the range; or find how far the copy has come.

    `context` is the destination's, whose log accepts incomplete streams; the source is refreshed.
    `schema` is the schema text and Spark's JSON of a job's rows, or None for the events' own
    schema. Returns the state, and whether this call made the destination. Raises as
    `run_copy_events`.
    """
    root = source.log.root
    state = find_copy(context.log, request, root)
    if state is not None:
        return state, False
    start, end = bind(root)
    texts = schema or source.status.schema_texts(root.epoch)
    state = replace(
        request.begin(root, (start, end), mode=EVENTS),
        transformed=schema is not None,
        done=schema is None and start == end,
    )
    first = _first_root(context, state, texts, sealed=request.seal and state.done)
    if schema is None:
        first = replace(first, properties=inherited_properties(root))
    if context.log.create(first) is not None:
        return state, True
    state = find_copy(context.log, request, root)
    if state is None:
        raise InternalError("a stream that exists can't be found", url=context.storage.url)
    return state, False


def _first_root(
    context: StreamContext, state: CopyRecord, texts: tuple[str, str | None], *, sealed: bool
) -> Root:
    epoch = context.status.put_epoch(0, 0, 0, *texts)
    first = first_root(context, Operation.COPY, [epoch])
    copies = {state.copy_id: state.to_value()}
    return begin_history(replace(first, sealed=sealed, copies=copies))


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Events that were written and are to be committed.

    Attributes:
        after: The state before this step.
        events: Number of events of the source in this step.
        append: The segments that hold them.
        seal: Whether the stream is sealed after the copy's last event.
    """

    after: CopyRecord
    events: int
    append: AppendPlan
    seal: bool


def commit_step(context: StreamContext, step: CopyStep) -> tuple[CopyRecord, bool]:
    """Commit a step: events and progress together.

    Returns the state from now on, and whether this step made it: another runner may have been
    first.

    Raises:
        IncompleteStreamError: Another copy into the stream is not done.
        StagedExpiredError: The segments were staged below the staging floor.
        ConflictError: Every race was lost.
        CommitUnknownError: It may or may not be in the log.
    """
    after, plan = step.after, step.append
    moved = after.moved(step.events, len(plan.segments), plan.bytes)
    note = Note(bytes=plan.bytes)

    def build(root: Root, slot: Slot) -> Change[CopyRecord]:
        state = parse_copy(after.copy_id, root.copies.get(after.copy_id))
        if state != after:
            return Change(None, state)
        check_preconditions(root, plan)
        epochs, epoch = plan_epochs(root, plan.job.request.change, context.status)
        appended = plan_append(replace(root, epochs=epochs), plan, epoch, slot)
        copied = replace(
            appended,
            operation=Operation.COPY,
            sealed=step.seal and moved.done,
            copies={**root.copies, after.copy_id: moved.to_value()},
        )
        return Change(context.status.tidy(copied, slot), moved, note)

    done = context.log.commit(build, transaction=plan.job.transaction)
    return done.result, done.written


class _Runner:
    """Runs the steps of one copy."""

    def __init__(
        self,
        context: StreamContext,
        source: StreamContext,
        request: CopyRequest,
        progress: Progress,
    ) -> None:
        self.steps, self._progress = 0, progress
        self._context, self._source, self._request = context, source, request
        self._appender = Appender(context)
        self._schema = epoch_schema(context.status, context.log.root.epoch)
        self._write = WriteRequest(self._schema, Layout(inline_bytes=0), context.client)

    def run(self, state: CopyRecord) -> CopyRecord:
        """Run steps until the copy is done; raises as `run_copy_events`."""
        root = self._source.log.root
        while not state.done:
            try:
                for reading, task in self._plan(state, root):
                    state, ours = self._step(state, reading, task)
                    self._progress(state.progress, state.end - state.start)
                    if state.done or not ours:
                        break  # done, or another runner committed the planned step
                else:
                    raise CorruptionError(
                        "the source holds fewer events than it lists",
                        url=self._source.storage.url,
                        copied=state.progress,
                        expected=state.end - state.start,
                    )
            except SnapshotExpiredError:
                # Compacted and vacuumed meanwhile: the same events are in other segments now.
                newer = self._source.log.refresh()
                if newer.version == root.version:
                    raise
                root = newer
        return state

    def _plan(self, state: CopyRecord, root: Root) -> Iterator[tuple[Reading, ReadTask]]:
        """Yield the missing events as of a version of the source, one step at a time."""
        start = state.start + state.progress
        if start < root.head:
            raise TruncatedError(
                "events that are not copied yet are gone",
                remedy="drop the destination, and copy what is left under another id",
                lost=f"[{start}, {min(root.head, state.end)})",
                head=root.head,
                copied=state.progress,
            )
        status = self._source.status
        known = {*epoch_schema(status, root.epoch).names}
        columns = [name for name in self._schema.names if name in known]
        # What is read once would only displace what is read again.
        request = ReadRequest(start, state.end, columns, read_cache_bytes=0)
        reading = plan_reading(self._source, root, request)
        slices = plan_range(status, root, reading)
        for task in plan_tasks(slices, partition_bytes=STEP_BYTES):
            yield reading, task

    def _step(self, after: CopyRecord, reading: Reading, task: ReadTask) -> tuple[CopyRecord, bool]:
        """Write some events and commit them; return False if another runner was first."""
        clock, version = self._context.clock, self._context.log.root.version
        token = names.build_token(version, clock.new_id()[:12])
        job = WriteJob(self._context.storage, token, clock.new_id(), self._write)
        staged = self._stage(job, reading, task)
        if not staged.rows:
            return after, True  # its frames start in another task's rows
        plan = AppendPlan.of(job, staged.segments, [staged])
        step = CopyStep(after, staged.rows, plan, seal=self._request.seal)
        try:
            self._appender.check_clock(staged.segments[-1])
            state, ours = commit_step(self._context, step)
        except MAYBE_COMMITTED:
            raise
        except SegstoreError:
            self._appender.discard(staged.segments)
            raise
        if ours:
            self.steps += 1
            with best_effort("merging status parts"):
                run_due_merge(self._context)
        else:
            self._appender.discard(staged.segments)
        return state, ours

    def _stage(self, job: WriteJob, reading: Reading, task: ReadTask) -> StagedTask:
        threads = min(os.cpu_count() or 1, READ_THREADS)
        batches = run_task(reading, task, threads=threads)
        # The only task and attempt under this token.
        return job.stage(0, "0", (_narrow(batch, self._schema) for batch in batches))


def _narrow(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert events to the schema of the copy, which may be older than the source's newest.

    Columns that were added since are left out. Columns that were widened since still fit, because
    their values were read from narrower bytes.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    present = {*batch.schema.names}
    columns = [
        convert(batch.column(field.name), field.type, field.name)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
