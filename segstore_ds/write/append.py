"""Append and overwrite: compute the next root (pure) and commit it.

Every attempt checks, in this order: the stream is the one that was planned on; the writer's batch
is new (a known batch is done, whatever else changed); the stream is not sealed; the segments were
staged at or above the staging floor; the expected tail and version hold; the rules are those that
the events were checked by; the schema is compatible. Then segment numbers and offsets are assigned
in task order. Appends never conflict with each other: an append that loses a race is planned again
on the newer root.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Self

import pyarrow as pa

from segstore_ds.errors import (
    ConflictError,
    InternalError,
    InvalidInputError,
    MissingObjectError,
    PositionError,
    SealedError,
    WriterConflictError,
)
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.batch_fingerprint import BatchFacts, encode_fingerprint, gather_facts
from segstore_ds.format.inline import FRAME_MOST_BYTES, encoded_entry
from segstore_ds.format.operation import Operation
from segstore_ds.format.policies import has_letters
from segstore_ds.format.root import RULES_PROPERTY, Root, SegmentEntry, Writer
from segstore_ds.log.commit import Change, winner_of
from segstore_ds.log.context import StreamContext
from segstore_ds.status.epochs import plan_epochs, with_epochs
from segstore_ds.status.history import Note
from segstore_ds.status.table import Slot
from segstore_ds.status.writers import Commit, check_claim, find_repeated
from segstore_ds.storage import Storage
from segstore_ds.write.job import WriteJob
from segstore_ds.write.staged import StagedTask, check_floor
from segstore_ds.write.task_writer import stage_frames

segments_of, _frames_of, _facts_of = map(attrgetter, ("segments", "frames", "facts"))
_JOINED_MOST_BYTES = 16 * FRAME_MOST_BYTES  # joined, frames of several tasks are much smaller


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """All inputs of a commit of staged segments, except the root it is based on."""

    job: WriteJob  # what was planned, with the schema of the segments
    segments: tuple[SegmentEntry, ...]  # ordered by offset
    # Number and statistics of the events that the tasks received, which identify a repeated batch.
    # The segments hold all of these events; none if the planner found the batch committed.
    facts: BatchFacts
    # All events of a small write, which has no segments: they become an inline segment.
    frame: Frame | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        job: WriteJob,
        segments: Sequence[SegmentEntry],
        tasks: Iterable[StagedTask],
        frame: Frame | None = None,
    ) -> Self:
        """Return the plan that commits these segments or this frame, which hold the tasks' rows."""
        return cls(job, tuple(segments), gather_facts([*map(_facts_of, tasks)]), frame)


def check_stream(root: Root, stream_id: str | None) -> None:
    """Raise PositionError if the planned stream was dropped and recreated. Pure."""
    if stream_id is not None and stream_id != root.stream_id:
        raise PositionError(
            "the stream was dropped and recreated",
            remedy="write the data again",
            planned_on=stream_id,
            stream=root.stream_id,
        )


def has_rules(root: Root, job: WriteJob) -> bool:
    """Tell whether a root has the rules that the rows of a job were checked by. Pure."""
    return root.properties.get(RULES_PROPERTY) == (job.rules and job.rules.text)


def check_preconditions(root: Root, plan: AppendPlan) -> None:
    """Check everything but stream, batch and schema, in the module's order. Pure."""
    if root.sealed:
        raise SealedError("stream is sealed", stream=root.stream_id, tail=root.tail)
    check_floor(root, plan.job.token)
    check_staged_rows(plan)
    plan.job.request.check_expected(root)
    if not has_rules(root, plan.job):
        raise ConflictError(
            "the rules of the stream have changed since the write was planned",
            remedy="write the data again",
            **winner_of(root),
        )


def check_staged_rows(plan: AppendPlan) -> None:
    """Raise unless the segments hold all rows that the tasks received. Pure.

    Tasks stage nothing if the planner found the batch committed. Then another process may have
    taken the writer over and set it back.
    """
    rows = plan.facts.rows
    staged = plan.frame.rows if plan.frame else sum(segment.rows for segment in plan.segments)
    if rows == staged:
        return
    if (key := plan.job.request.writer) is not None and not staged:
        raise WriterConflictError(
            "the writer was set back by another process while its batch was repeated",
            remedy="stop one of the two processes, then write the batch again",
            writer_id=key.writer_id,
            batch_id=key.batch_id,
        )
    fact = "tasks staged another number of rows than they received"
    raise InternalError(fact, rows=rows, staged=staged)


def plan_append(root: Root, plan: AppendPlan, epoch: int, slot: Slot) -> Root:
    """Return the root with segments appended in the plan's order, still without its place. Pure."""
    job = plan.job
    first = epoch << 32 | root.next_segment
    if plan.frame is not None:
        entries = [encoded_entry(first, plan.frame)]
    else:
        entries = [segment.numbered(first + place) for place, segment in enumerate(plan.segments)]
    rows = plan.facts.rows
    tail = root.tail + rows
    writers, key = root.writers, job.request.writer
    if key is not None:
        writers = dict(writers)
        claim = Writer(key.owner, key.batch_id, slot.version, rows, tail)
        writers[key.writer_id] = replace(claim, fingerprint=encode_fingerprint(plan.facts))
        if key.claim:
            writers[key.claim] = claim  # only the owner matters
    appended = root.changed(
        entries=(*root.entries, *entries),
        next_segment=root.next_segment + len(entries),
        tail=tail,
        writers=writers,
        operation=Operation.APPEND if job.overwrite_to is None else Operation.OVERWRITE,
        client=job.request.client,
    )
    if job.overwrite_to is not None:
        appended = drop_below(appended, max(job.overwrite_to, root.head), slot)
    return appended


def drop_below(root: Root, head: int, slot: Slot) -> Root:
    """Return the root with its head moved up; retire what is wholly below it. Pure.

    A segment or part that the head divides stays. An inline segment has no object to retire.
    """
    gone_parts = tuple(part for part in root.parts if part.end <= head)
    parts = root.parts[len(gone_parts) :]
    retired = [slot.retire("part", part.path) for part in gone_parts]
    entries = root.entries
    if not parts:
        cursor = root.tail - sum(entry.rows for entry in entries)
        while entries and cursor + entries[0].rows <= head:
            cursor += entries[0].rows
            if entries[0].frame is None:
                retired.append(slot.retire("segment", entries[0].path))
            entries = entries[1:]
    return replace(root, head=head, parts=parts, entries=entries, retired=(*root.retired, *retired))


def _ordered(tasks: Sequence[StagedTask]) -> Sequence[StagedTask]:
    return sorted(tasks, key=attrgetter("task"))


def _runs(tasks: Sequence[StagedTask]) -> Iterator[tuple[list[StagedTask], Sequence[SegmentEntry]]]:
    """Yield each run of neighbouring tasks that sent frames, and the segments that follow it."""
    run: list[StagedTask] = []
    for task in _ordered(tasks):
        if task.frames:
            run.append(task)
        if task.segments:
            yield run, task.segments
            run = []
    yield run, ()


class Appender:
    """Commits staged data to one stream."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context

    def stage_inline(
        self, tasks: Sequence[StagedTask], *, token: str, storage: Storage | None = None
    ) -> tuple[SegmentEntry, ...]:
        """Stage the inline frames of tasks, and return all segments in task order.

        Each run of neighbouring tasks that sent frames becomes one segment.
        """
        # Every call uses new names: a job may be committed twice, and each commit may delete its
        # own objects.
        version = names.parse_token_version(token)
        nonce, attempt = self._context.clock.new_id()[:12], "0"
        if version is None:  # a copy, whose objects are all in one folder
            folder, attempt = token, nonce
        else:
            folder = names.build_token(version, nonce)
        segments: list[SegmentEntry] = []
        for run, staged in _runs(tasks):
            if run:
                name = f"{run[0].task}-{attempt}-{len(segments)}.arrow"
                path = names.build_segment_path(folder, name)
                frames = (frame for task in run for frame in task.frames)
                made = stage_frames(storage or self._context.storage, frames, path=path)
                segments.append(made)
            segments.extend(staged)
        return tuple(segments)

    def join_inline(self, tasks: Sequence[StagedTask], job: WriteJob) -> Frame | None:
        """Return all events of a write as one frame, if it is small enough to be inline."""
        frames = [*chain.from_iterable(map(_frames_of, _ordered(tasks)))]
        if not frames or any(map(segments_of, tasks)):
            return None
        frame = frames[0]
        if len(frames) > 1:
            if sum([each.data.size for each in frames]) > _JOINED_MOST_BYTES:
                return None
            schema, layout = job.schema, job.target.layout
            batches = [frame.decode(schema) for frame in frames]
            chosen = layout.chosen_stats(schema, job.time_column)
            frame = layout.encode(pa.concat_batches(batches), chosen)
        return frame if frame.data.size <= FRAME_MOST_BYTES else None

    def check_visible(self, tasks: Sequence[StagedTask], job: WriteJob | None = None) -> None:
        """Raise InvalidInputError if this process can't see a staged object on a local disk.

        Then the tasks wrote to a disk that this process does not share. But the objects of `job`
        may also be deleted: if the batch is committed, nothing is raised, and if they are below the
        staging floor, StagedExpiredError.
        """
        if not self._context.storage.url.startswith("file:"):
            return
        for task in tasks:
            for segment in task.segments:
                path = names.segment_object(segment.path)
                try:
                    size = self._context.storage.info(path).size
                except MissingObjectError:
                    size = -1
                if size != segment.bytes:
                    if job is not None:
                        root, key = self._context.log.refresh(), job.request.writer
                        if key and find_repeated(self._context.status, root, key, batch=None):
                            return
                        check_floor(root, job.token)
                    raise InvalidInputError(
                        "staged segment is not visible to the driver",
                        remedy="use storage that all nodes share",
                        task=task.task,
                        host=task.host,
                        path=f"{self._context.storage.url}/{path}",
                    )

    def commit(self, plan: AppendPlan) -> Commit:
        """Commit staged segments, exactly once for a writer's batch.

        Nothing is committed for a plan without segments, writer or change of the stream.
        """
        job, key = plan.job, plan.job.request.writer
        frame, segments = plan.frame, plan.segments
        size = frame.data.size if frame else sum(segment.bytes for segment in segments)
        writer_id, batch_id = (key.writer_id, key.batch_id) if key else (None, None)
        note = Note(writer_id, batch_id, size)

        def build(root: Root, slot: Slot) -> Change[Commit | None]:
            check_stream(root, job.stream_id)
            if key is not None:
                # With dead letters, the rows of a repeated batch can't be compared: it is unknown
                # how many of them were refused.
                ruled = RULES_PROPERTY in root.properties
                facts = None if ruled and has_letters(root) else plan.facts
                known = find_repeated(self._context.status, root, key, batch=facts)
                if known is not None:
                    return Change(None, known)
                if key.claim:
                    check_claim(self._context.status.writers.find(root, key.claim), key)
            check_preconditions(root, plan)
            epochs, epoch = plan_epochs(root, job.change, self._context.status)
            changed = epochs != root.epochs or key or job.overwrite_to is not None
            if not segments and frame is None and not changed:
                return Change(None, None)
            base = root
            if epochs is not root.epochs:
                base = with_epochs(root, self._context.status, epochs, [job.change.schema])
            appended = plan_append(base, plan, epoch, slot)
            return Change(self._context.status.tidy(appended, slot), None, note)

        done = self._context.log.commit(build, transaction=job.transaction)
        if done.result is not None:
            return replace(done.result, attempts=done.attempts)
        root = done.root
        start = root.tail - plan.facts.rows
        return Commit(root.version, root.transaction, start, root.tail, attempts=done.attempts)
