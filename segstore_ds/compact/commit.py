"""The commit of a compaction: each group is replaced as a whole or skipped.

One commit replaces all groups. On the newest root a group is found by the offsets of its events and
the ids of its segments. They never change, so it is found after appends, and after parts were
merged or spilled. If a segment is gone, that group is skipped and the others are still committed.
If no group is left, the commit fails with a conflict. A group that would not reduce the number of
segments is dropped: the next compaction would choose it again.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from operator import add
from typing import TypeVar

from segstore_ds.compact.plan import Group
from segstore_ds.errors import MAYBE_COMMITTED, ConflictError, InternalError, SegstoreError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.record import build_json
from segstore_ds.format.root import PartRef, Root, SegmentEntry
from segstore_ds.format.segment import ARROW
from segstore_ds.log.commit import COMMIT_ATTEMPTS, Change
from segstore_ds.log.context import StreamContext
from segstore_ds.read.prefetch import map_ahead
from segstore_ds.status.history import Note
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import Slice, TableStatus
from segstore_ds.storage import Storage
from segstore_ds.write.staged import check_floor, delete_staged

MERGED_MOST = 16  # most runs that a history row lists one by one
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A run of neighbouring segments and its outputs."""

    start: int  # offset of the run's first event
    inputs: tuple[tuple[int, str], ...]  # id and path of each segment, in offset order
    rows: int  # number of events in the inputs, and in the outputs
    epoch: int  # epoch of the outputs' bytes
    outputs: tuple[SegmentEntry, ...]  # staged segments, in offset order
    # Number of frames of the input that is rewritten within itself; 0 for other runs.
    frames: int = 0


def listed_runs(
    status: TableStatus, root: Root, runs: Sequence[Replacement]
) -> tuple[list[Replacement], list[Replacement]]:
    """Return the runs that can be replaced on a root, and the runs that already are.

    A run can be replaced if the root lists all its inputs, side by side and at their offsets. A run
    is already replaced if the root lists one of its outputs. `runs` are in offset order and do not
    overlap.
    """
    kept, landed = list[Replacement](), list[Replacement]()
    for run in runs:
        # Load one run at a time, without statistics: segments between two runs are not needed.
        first, last = max(run.start, root.listed_start), run.start + run.rows
        found = status.segments(root, first, last, with_stats=False)
        listed = {segment.start: segment for segment in found}
        paths = {segment.entry.path for segment in listed.values()}
        if _is_listed(run, listed):
            kept.append(run)
        if any(segment.path in paths for segment in run.outputs):
            landed.append(run)
    return kept, landed


def _is_listed(run: Replacement, listed: Mapping[int, Slice]) -> bool:
    cursor = run.start
    for segment_id, path in run.inputs:
        placed = listed.get(cursor)
        if placed is None or (placed.entry.segment_id, placed.entry.path) != (segment_id, path):
            return False
        cursor = placed.end
    return cursor == run.start + run.rows


def replace_runs(status: TableStatus, root: Root, runs: Sequence[Replacement], slot: Slot) -> Root:
    """Return the root with the runs replaced, their inputs retired and their parts rewritten."""
    number = root.next_segment
    # What replaces each input: all outputs of a run replace its first one.
    instead: dict[int, list[SegmentEntry]] = {}
    for run in runs:
        if sum(output.rows for output in run.outputs) != run.rows:
            raise InternalError(
                "outputs hold a different number of events than their inputs",
                start=run.start,
                rows=run.rows,
            )
        instead.update((segment_id, []) for segment_id, _ in run.inputs)
        for output in run.outputs:
            instead[run.inputs[0][0]].append(output.numbered(run.epoch << 32 | number))
            number += 1

    def rewritten(old: Sequence[SegmentEntry]) -> Iterator[SegmentEntry]:
        for entry in old:
            yield from instead.get(entry.segment_id, (entry,))

    start, end = runs[0].start, runs[-1].start + runs[-1].rows
    changes: dict[str, list[PartRef]] = {}
    cursor = 0  # where the previous part ends now, if beyond its old end
    for part in status.table.parts(root, start, end):
        if any(run.start < part.end and run.start + run.rows > part.start for run in runs):
            kept = tuple(rewritten(status.table.entries(part)))
            cursor = max(cursor, part.start)
            made = [status.put_part(root, cursor, kept, old=(part,))] if kept else []
            cursor = made[-1].end if made else cursor
            changes[part.path] = made
    root = status.table.replace(root, slot, changes, start=start)
    paths = (path for run in runs for _, path in run.inputs)
    retired = (slot.retire("segment", path) for path in paths if not names.is_inline(path))
    return replace(
        root,
        entries=tuple(rewritten(root.entries)),
        next_segment=number,
        retired=(*root.retired, *retired),
        operation=Operation.COMPACT,
    )


def describe_runs(runs: Sequence[Replacement]) -> str:
    """Return the text of replaced runs in the history, of bounded size (FORMAT.md 5.3). Pure."""
    told = [[run.start, run.start + run.rows, len(run.inputs), len(run.outputs)] for run in runs]
    rest = told[MERGED_MOST - 1 :]
    if len(rest) > 1:
        _, _, before, after = map(sum, zip(*rest, strict=True))
        told[MERGED_MOST - 1 :] = [[rest[0][0], rest[-1][1], before, after]]
    return build_json(told).decode()


def discard(storage: Storage, runs: Iterable[Replacement | None]) -> None:
    """Delete the outputs of runs that were not committed, best effort; never raises."""
    delete_staged(storage, (output for run in runs if run for output in run.outputs))


def run_each(
    run: Callable[[int, T], R],
    rows: Iterable[T],
    drop: Callable[[Sequence[R]], None],
    *,
    threads: int = 1,
    weigh: Callable[[T], int] = lambda _: 0,
) -> Generator[R, None, None]:
    """Yield `run(number, row)` of each row, in order; drop all if one fails or the caller stops."""
    done: list[R] = []

    def run_one(numbered: tuple[int, T]) -> R:
        found = run(*numbered)
        done.append(found)
        return found

    found = map_ahead(
        run_one, enumerate(rows), threads=threads, weigh=lambda numbered: weigh(numbered[1])
    )
    try:
        with closing(found):
            yield from found
    except BaseException:
        drop(done)
        raise


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did.

    Attributes:
        version: The newest version after the compaction.
        commits: Number of commits; 0 if there was nothing to do.
        groups: Number of runs that were replaced.
        segments_before: Number of segments in those runs.
        segments_after: Number of segments that replaced them.
        bytes_read: Encoded bytes of the inputs.
        bytes_written: Encoded bytes of the outputs.
        skipped: Number of groups that were written in vain: another commit changed their
            inputs, or they would have been as many segments as before, or above the target.
    """

    version: int
    commits: int = 0
    groups: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    skipped: int = 0

    def __add__(self, other: "Compaction") -> "Compaction":
        (one, *first), (two, *second) = astuple(self), astuple(other)
        return Compaction(max(one, two), *map(add, first, second))


def commit_groups(
    context: StreamContext, done: Sequence[Replacement], *, attempts: int = COMMIT_ATTEMPTS
) -> tuple[Root, tuple[Replacement, ...]]:
    """Replace the groups that are a gain in one commit, as `commit_runs`; there may be none."""
    runs = _apart([run for run in done if is_gain(run)])
    if not runs:
        discard(context.storage, done)
        return context.log.root, ()
    return commit_runs(
        context, runs, lambda root, *_: (root, Note()), staged=done, attempts=attempts
    )


def commit_runs(
    context: StreamContext,
    runs: Sequence[Replacement],
    amend: Callable[[Root, Sequence[Replacement], Slot], tuple[Root, Note]],
    *,
    staged: Sequence[Replacement],
    attempts: int = COMMIT_ATTEMPTS,
) -> tuple[Root, tuple[Replacement, ...]]:
    """Replace runs in one commit; skip those whose inputs changed meanwhile.

    `runs` are in offset order and do not overlap. `amend` gets the root with the replaced runs, and
    returns it with further changes and the note for the history. Returns the committed root and the
    runs that it replaces. The other `staged` outputs are deleted, all of them if nothing was
    committed. If the commit may be in the log (`MAYBE_COMMITTED`), nothing is deleted. Safe to
    repeat.

    Raises:
        ConflictError: The inputs of every run changed, or every race was lost.
    """

    def build(root: Root, slot: Slot) -> Change[Sequence[Replacement]]:
        for output in (output for run in runs for output in run.outputs):
            check_floor(root, names.segment_token(output.path))
        kept, landed = listed_runs(context.status, root, runs)
        if landed:
            # An earlier call has committed these outputs: they must not be deleted.
            return Change(None, landed)
        if not kept:
            raise ConflictError(
                "the segments to rewrite are no longer listed",
                remedy="plan again: a truncation or another compaction came first",
                stream=root.stream_id,
                runs=len(runs),
            )
        changed, note = amend(replace_runs(context.status, root, kept, slot), kept, slot)
        tidied = context.status.tidy(replace(changed, client=context.client), slot)
        return Change(tidied, kept, replace(note, merged=describe_runs(kept)))

    try:
        made = context.log.commit(build, attempts=attempts)
    except MAYBE_COMMITTED:
        raise  # the log may name the outputs, so keep them
    except SegstoreError:
        discard(context.storage, staged)
        raise
    kept = {*made.result}
    discard(context.storage, [run for run in staged if run not in kept])
    return made.root, tuple(made.result)


def is_gain(run: Replacement) -> bool:
    """Tell whether a rewrite improves the stream. Pure.

    Several inputs: if there are fewer outputs, or some input is Arrow and no output is. One input:
    if it was cut, or has at most half the frames, or more of them. There are no outputs if they
    would have passed the target.
    """
    if not run.outputs:
        return False
    if len(run.inputs) == 1:
        made = sum(output.frames for output in run.outputs)
        within = made * 2 <= run.frames or made > run.frames
        return within if run.frames else len(run.outputs) > 1
    settles = any(path.endswith(f".{ARROW}") for _, path in run.inputs) and all(
        output.format != ARROW for output in run.outputs
    )
    return settles or len(run.outputs) < len(run.inputs)


def _apart(done: Sequence[Replacement]) -> list[Replacement]:
    """Return groups in offset order, only the first of those that overlap: rows may be repeated."""
    kept: list[Replacement] = []
    for run in sorted(done, key=lambda run: run.start):
        if not kept or run.start >= kept[-1].start + kept[-1].rows:
            kept.append(run)
    return kept


def summarise(
    root: Root, groups: Sequence[Group], done: Sequence[Replacement], kept: Sequence[Replacement]
) -> Compaction:
    """Return what one commit of groups did; zero commits if it kept none. Pure."""
    return Compaction(
        version=root.version,
        commits=int(bool(kept)),
        groups=len(kept),
        segments_before=sum(len(run.inputs) for run in kept),
        segments_after=sum(len(run.outputs) for run in kept),
        bytes_read=sum(group.bytes for group in groups),
        bytes_written=sum(output.bytes for run in done for output in run.outputs),
        skipped=len(done) - len(kept),
    )
