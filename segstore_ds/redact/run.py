"""Redaction: sets columns of matching events to null, and changes nothing else.

`run_redact` plans, rewrites and commits until no event matches below the tail of its first call.
Each commit replaces whole segments by others with as many events at the same offsets, as a
compaction does, so appends, readers and cuts are not affected. A replacement has a new segment
number: a compaction that read the old segment does not find it any more and skips it. Results of
compactions that ran meanwhile are searched again.

A record in the root, under the redaction's id, has its progress: a call with the same id continues,
or returns what was done. The last commit states that nothing matched on the previous version. It
detects a restore that lists old segments again above the tail; later restores are refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import attrgetter

from segstore_ds.compact.commit import Replacement, commit_runs
from segstore_ds.compact.rewrite import plan_job
from segstore_ds.compact.run import commit_bytes, in_commits
from segstore_ds.errors import ConflictError
from segstore_ds.format import names
from segstore_ds.format.indexed_columns import find_time_field
from segstore_ds.format.operation import Operation
from segstore_ds.format.redactions import Redaction, redactions_of, refuse_kept, with_redaction
from segstore_ds.format.root import PartRef, Root, Writer
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.read.prune import looks_up, segments_holding
from segstore_ds.redact.plan import (
    Redacted,
    RedactRequest,
    Wanted,
    by_stored_names,
    check_reason,
    plan_wanted,
    refuse_time_column,
)
from segstore_ds.redact.rewrite import RedactedSegment, RedactJob
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.history import Note
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import Run, Slice, TableStatus, slices_of_run
from segstore_ds.write.layout import Layout

CONFLICTS = 32  # most rounds in a row that other commits make fail


def run_redact(context: StreamContext, request: RedactRequest) -> Redacted:
    """Redact a stream up to its tail, in as many commits as needed.

    If it fails, its earlier commits stay, and a call with the same id continues.
    """
    names.check_label(request.redact_id, what="redaction")
    check_reason(request.reason)
    root = context.log.refresh()
    known = redactions_of(root).get(request.redact_id)
    if known is not None and known.done:
        context.log.seams.of(root).before_ack(root)  # as before each acknowledgement
        return _result(known, repeated=True)
    refuse_kept(root)
    epochs = [(epoch_schema(context.status, epoch), epoch.names) for epoch in root.epochs]
    # Others may rename columns while this runs.
    request = by_stored_names(epochs, request)
    progress = Progress(context, request, known or _begin(root, request))
    lost = 0
    while lost < CONFLICTS:
        try:
            if progress.round():
                return _result(progress.record)
            lost = 0
        except ConflictError:
            lost += 1
    raise ConflictError(
        "other commits changed the segments on every attempt",
        remedy="call it again with the same redact_id",
        redact_id=request.redact_id,
    )


def _begin(root: Root, request: RedactRequest) -> Redaction:
    return Redaction(request.redact_id, root.version, root.tail, reason=request.reason)


def _result(record: Redaction, *, repeated: bool = False) -> Redacted:
    return Redacted(
        record.redact_id, record.version, record.tail, record.rows, record.segments, repeated
    )


class Progress:
    """One call's redaction: its record, and the segments in which nothing matches."""

    def __init__(
        self,
        context: StreamContext,
        request: RedactRequest,
        record: Redaction,
        *,
        start: int = 0,
        end: int | None = None,
    ) -> None:
        self._context = context
        self._request = request
        self.record = record
        self._start = start  # below it, only events that the head hides may match
        self._end = end  # overrides the record's tail
        self._wanted: Mapping[int, Wanted] = {}
        self._clean: set[tuple[int, int, str]] = set()

    def round(self) -> bool:
        """Redact what matches on the newest version; True after the last commit."""
        root = self._context.log.refresh()
        if (root.restored or 0) > self.record.version:
            # Segments that a restore listed again are above the former tail.
            self.record = replace(self.record, version=root.version, tail=root.tail)
        return False if self.sweep(root, commit_bytes(self._context)) else self._finish(root)

    def sweep(self, root: Root, most_bytes: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Redact what matches on a version, in commits of so many bytes; False if nothing does."""
        job, matched = self.plan(root), False
        size = attrgetter("entry.bytes")
        for chosen in in_commits(self.candidates(root, job), size, most_bytes):
            with closing(self._context.launch(job, chosen)) as searched:
                matched |= self._redact(searched)
            if stop():
                break
        return matched

    def plan(self, root: Root) -> RedactJob:
        """Return the job for all segments of a version."""
        job = plan_job(self._context, root, Layout(), stages=True)
        if {*job.epochs} != {*self._wanted}:
            self._wanted = plan_wanted(job.epochs, self._request)
        time = find_time_field(root, epoch_schema(self._context.status, root.epoch))
        refuse_time_column(self._request.columns, time and time.name)
        return RedactJob(job, self._wanted, self.record.tail if self._end is None else self._end)

    def candidates(self, root: Root, job: RedactJob) -> Iterator[Slice]:
        """Yield the segments that may hold a matching event, by their statistics."""
        looking = any(looks_up(each.filters, job.job.key_columns) for each in job.wanted.values())
        keys = job.keys() if looking else {}
        for run in self._runs(root, job, with_filters=looking):
            held = job.may_match(run)
            if keys and held.any():
                held &= segments_holding(run, keys)
            for placed, may in zip(slices_of_run(root, run, with_stats=False), held, strict=True):
                place = _place(placed)
                if place not in self._clean and may:
                    yield placed
                else:
                    self._clean.add(place)

    def _runs(self, root: Root, job: RedactJob, *, with_filters: bool) -> Iterator[Run]:
        runs = partial(
            self._context.status.runs, root, with_filters=with_filters, wanted=job.part_test()
        )
        start, end = max(self._start, root.listed_start), min(job.tail, root.tail)
        if root.listed_start < root.head < start:
            for run in runs(root.listed_start, root.head):
                start = max(start, int(run.starts[-1] + run.columns.rows[-1]))
                yield run
        yield from runs(start, end)

    def _redact(self, searched: Iterable[RedactedSegment]) -> bool:
        """Commit the replacements of segments; tell whether any event matched."""
        matched: list[RedactedSegment] = []
        for segment in searched:
            if segment.run is None:
                self._clean.add(_place(segment.placed))
            else:
                matched.append(segment)
        if matched:
            self.record = commit_redaction(self._context, self.record, matched)
            for segment in matched:
                self._remember(segment)
        return bool(matched)

    def _remember(self, segment: RedactedSegment) -> None:
        # If the commit skipped this replacement, nothing is listed under these paths.
        start = segment.placed.start
        for output in segment.run.outputs if segment.run else ():
            self._clean.add((start, output.rows, output.path))
            start += output.rows

    def _finish(self, checked: Root) -> bool:
        """Commit that nothing matched on a version; False if a restore was committed since."""
        clean = self.record.version if self.record.time_us else checked.version

        def build(root: Root, slot: Slot) -> Change[Redaction | None]:
            refuse_kept(root)
            if (root.restored or 0) > checked.version:
                return Change(None)
            known = redactions_of(root).get(self.record.redact_id, self.record)
            if known.done and known.tail >= self.record.tail:
                return Change(None, known)  # another call with this id came first
            version = max(clean, known.version)
            done = replace(known, version=version, time_us=slot.time_us, done=True)
            change = replace(
                with_redaction(root, done), operation=Operation.REDACT, client=self._context.client
            )
            return Change(self._context.status.tidy(change, slot), done, note_of(done, 0))

        done = self._context.log.commit(build).result
        if done is None:
            return False
        self.record = done
        return True


def commit_redaction(
    context: StreamContext, record: Redaction, segments: Iterable[RedactedSegment]
) -> Redaction:
    """Replace segments in one commit, as `commit_runs`; return the updated record."""
    rows = {segment.run: segment.rows for segment in segments if segment.run is not None}
    runs = sorted(rows, key=lambda run: run.start)

    def note(root: Root, kept: Sequence[Replacement], slot: Slot) -> tuple[Root, Note]:
        refuse_kept(root)
        changed = sum(rows[run] for run in kept)
        known = redactions_of(root).get(record.redact_id, record)
        noted = replace(
            known,
            version=slot.version,
            tail=max(known.tail, record.tail),
            rows=known.rows + changed,
            segments=known.segments + len(kept),
            time_us=slot.time_us,
            done=False,
        )
        cleared = _without_fingerprints(context.status, root, kept, slot)
        planned = replace(with_redaction(cleared, noted), operation=Operation.REDACT)
        return planned, note_of(noted, changed)

    root, _ = commit_runs(context, runs, note, staged=runs)
    return redactions_of(root).get(record.redact_id, record)


def note_of(record: Redaction, rows: int) -> Note:
    """Return the history's note for a commit that changed so many events."""
    return Note(writer_id=f"redact:{record.redact_id}", batch_id=rows)


def _without_fingerprints(
    status: TableStatus, root: Root, runs: Sequence[Replacement], slot: Slot
) -> Root:
    """Return a root without the fingerprints of batches that were redacted.

    Repeated batches are still recognised by their ids, but their values are not compared.
    """

    def cleared(writers: Iterable[tuple[str, Writer]]) -> dict[str, Writer]:
        return {
            name: replace(writer, fingerprint="")
            for name, writer in writers
            if writer.fingerprint
            and any(
                run.start < writer.end and run.start + run.rows > writer.end - writer.rows
                for run in runs
            )
        }

    root = replace(root, writers={**root.writers, **cleared(root.writers.items())})
    table, changes = status.writers, dict[str, list[PartRef]]()
    for part in table.parts(root):
        writers = table.part(part)
        if changed := cleared(writers.items()):
            changes[part.path] = [table.put(root.version, {**writers, **changed})]
    return table.replace(root, slot, changes)


def _place(placed: Slice) -> tuple[int, int, str]:
    # The path of an inline segment may be reused, but not with the same range.
    return placed.start, placed.entry.rows, placed.entry.path
