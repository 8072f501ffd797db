"""Commits of write jobs by one handle: staged once, committed once, discarded if that failed.

`AfterCommit` has the steps after the acknowledgement in order; none of them can fail the write. The
hint is not among them: the log writes it with every commit, of any writer.
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter, is_

import pyarrow as pa

from segstore_ds.compact.run import run_auto_compact, run_due_merge
from segstore_ds.errors import (
    MAYBE_COMMITTED,
    ClosedError,
    ConflictError,
    InvalidInputError,
    SegstoreError,
)
from segstore_ds.format.names import segment_object
from segstore_ds.format.root import SegmentEntry
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seams import best_effort
from segstore_ds.publish.auto import PROPERTY as AUTO_PUBLISH
from segstore_ds.publish.auto import may_auto_publish, run_auto_publish
from segstore_ds.redact.expire import EXPIRY
from segstore_ds.retention.retain import AutoRetain
from segstore_ds.retention.upkeep import UPKEEP, AutoUpkeep, Round
from segstore_ds.status.writers import Commit
from segstore_ds.stream.latest_table import LATEST
from segstore_ds.write.append import Appender, AppendPlan, check_stream, has_rules, segments_of
from segstore_ds.write.inputs import ArrowInput, as_input
from segstore_ds.write.job import WriteJob, plan_job
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask, delete_staged

_JOBS_REMEMBERED = 1024
_TRIED, _ENDED = "tried", "ended"


class Commits:
    """The commits of one handle; it remembers which jobs it has tried and which have ended."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._jobs: OrderedDict[str, str] = OrderedDict()  # threads may share it, as `RowCache`
        self.appender = Appender(context)
        self._after = AfterCommit(context)

    def write(self, request: WriteRequest, data: ArrowInput) -> Commit:
        """Plan a write, stage its rows in this process, and commit them."""
        try:
            while True:
                job = plan_job(self._context, request)
                try:
                    return self.commit(job, job.stage_all(data))
                except (ConflictError, InvalidInputError):
                    # If others changed the rules, data that is in memory is checked again.
                    held = not (data.lent or job.repeated)
                    if not held or has_rules(self._context.log.refresh(), job):
                        raise
        except SegstoreError as error:
            data.explain(error)
            raise

    def commit(
        self, job: WriteJob, tasks: Sequence[StagedTask], *, keep_staged: bool = False
    ) -> Commit:
        """Commit what tasks staged for a job; `Stream.commit` describes it."""
        if self._jobs.get(job.transaction) == _ENDED:
            raise ClosedError("write job has ended", remedy="write the data again", token=job.token)
        repeated = job.transaction in self._jobs
        self._remember(job, _TRIED)
        staged = tuple(chain.from_iterable(map(segments_of, tasks)))
        segments, ours = staged, list[SegmentEntry]()
        try:
            check_stream(self._context.log.root, job.stream_id)
            if staged:
                self.appender.check_visible(tasks, job)
            frame = self.appender.join_inline(tasks, job)
            if frame is None:
                segments = self.appender.stage_inline(tasks, token=job.token, storage=job.storage)
                known = {*staged}
                ours = [segment for segment in segments if segment not in known]
            self._context.log.check_clock(segment_object(ours[-1].path) if ours else None)
            plan = AppendPlan.of(job, segments, tasks, frame)
            if job.rules is not None and any(task.refused for task in tasks):
                self._send(plan, tasks)
            commit = self.appender.commit(plan)
        except MAYBE_COMMITTED:
            raise
        except SegstoreError:
            # If this is not the first try, staged segments may already be in the log.
            mine = ours if repeated or keep_staged else segments
            delete_staged(self._context.storage, mine)
            if not repeated:
                self._remember(job, _ENDED)
            raise
        if commit.repeated:
            delete_staged(self._context.storage, ours)
        else:
            self._after.run(job.request.layout if job.request.compact else None)
        return commit

    def _send(self, plan: AppendPlan, tasks: Sequence[StagedTask]) -> None:
        from segstore_ds.write.letters import send_refused  # noqa: PLC0415 - few have rules

        def write(target: StreamContext, request: WriteRequest, letters: pa.Table) -> None:
            Commits(target).write(request, as_input(letters))

        send_refused(self._context, plan, sorted(tasks, key=attrgetter("task")), write)

    def keep_up(self) -> None:
        """Run the steps that are due after a commit that was made elsewhere."""
        self._after.keep_up()

    def _remember(self, job: WriteJob, state: str) -> None:
        while len(self._jobs) >= _JOBS_REMEMBERED:
            with suppress(KeyError):  # another thread was first
                self._jobs.popitem(last=False)
        self._jobs[job.transaction] = state


_MERGING, _RETENTION = best_effort("merging status parts"), best_effort("retention")
_UPKEEP = best_effort("upkeep")
_merged_by = attrgetter("properties", "parts", "retired_parts", "writers_parts", "history_parts")
_NEVER = (None,) * 5
_PUBLISHING = Round(
    "publishing", may_auto_publish, lambda own, _: run_auto_publish(own), AUTO_PUBLISH
)


class AfterCommit:
    """Runs the steps that follow a handle's writes."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._merged: Sequence[object] = _NEVER  # parts of the root for which no merge was due
        self._retain = AutoRetain(context)
        self._upkeep = AutoUpkeep(context, (UPKEEP, EXPIRY, _PUBLISHING, LATEST))

    def run(self, compact: Layout | None) -> None:
        """Run each step that is due; a step that fails is logged and the next one runs."""
        with _MERGING:
            parts = _merged_by(self._context.log.root)
            if not all(map(is_, parts, self._merged)):  # usually a commit changes none of them
                run_due_merge(self._context)
                self._merged = parts
        if compact is not None:
            with best_effort("compaction"):
                run_auto_compact(self._context, compact)
        with _RETENTION:
            self._retain.apply_if_due()
        self.keep_up()

    def keep_up(self) -> None:
        """Start upkeep, expiry and publishing in the background if they are due."""
        with _UPKEEP:
            self._upkeep.start_if_due()
