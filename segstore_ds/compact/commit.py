"""The commit of a compaction: whole groups are swapped, or give way.

Everything is in one commit: data, index entries, segment numbers. A group is found again on the
newest root by the ids of its segments; where one is gone, the group gives way and the others do
not. Where none is left, that is a conflict, and nothing is committed. A group that would replace
segments by as many is dropped: to swap it would leave the next compaction the same work again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from segstore_ds.commit.commit import COMMIT_ATTEMPTS, StreamLog
from segstore_ds.compact.plan import Group
from segstore_ds.compact.replace import Replacement, listed_runs, replace_runs
from segstore_ds.errors import MAYBE_COMMITTED, ConflictError, SegstoreError, StagedExpiredError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.format.segment import ARROW, FORMATS
from segstore_ds.log.transition import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.write.task_writer import delete_staged

_ARROW_ENDING = FORMATS[ARROW].ending


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did.

    Attributes:
        version: The newest version after it.
        commits: How many commits it took; 0 where there was nothing to do.
        groups: How many runs were replaced.
        segments_before: How many segments they had.
        segments_after: How many stand in their place.
        bytes_read: Encoded bytes of the inputs.
        bytes_written: Encoded bytes of the outputs.
        gave_way: Groups that were written for nothing: another commit changed their inputs, or they
            would have been as many segments as before.
    """

    version: int
    commits: int = 0
    groups: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    gave_way: int = 0

    def __add__(self, other: "Compaction") -> "Compaction":
        return Compaction(
            max(self.version, other.version),
            self.commits + other.commits,
            self.groups + other.groups,
            self.segments_before + other.segments_before,
            self.segments_after + other.segments_after,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.gave_way + other.gave_way,
        )


def commit_groups(
    log: StreamLog,
    status: TableStatus,
    done: Sequence[Replacement],
    *,
    transaction: str,
    client: str = "",
    attempts: int = COMMIT_ATTEMPTS,
) -> tuple[Root, tuple[Replacement, ...]]:
    """Swap all groups in one commit; those whose inputs were changed meanwhile give way.

    What gave way is deleted, and everything where nothing was committed. Safe to repeat.

    Returns:
        The root that holds the change, and the groups that are in it: none where none is a gain.

    Raises:
        ConflictError: Every group's inputs were changed, or every race was lost.
        StagedExpiredError: It was planned on a version below the staging floor.
        CommitUnknownError: It may or may not be in the log; nothing was deleted.
        UnderReplicatedError: It is in the log, but a follower lacks it; nothing was deleted.
        FencedError: This folder is not the primary; nothing was deleted.
        FormatError: Metadata can't be read.
        StorageError: The storage failed.
    """
    runs = _apart([run for run in done if is_gain(run)])
    if not runs:
        delete_staged(log.storage, (one for run in done for one in run.outputs))
        return log.root, ()
    kept: list[Replacement] = []

    def build(root: Root, slot: Slot) -> Root | None:
        _check_floor(root, runs)
        kept[:], landed = listed_runs(status, root, runs)
        if landed:
            # Called again for a commit that landed: what it lists must not be deleted.
            kept[:] = landed
            return None
        if not kept:
            raise ConflictError(
                "the segments to be compacted are no longer there",
                remedy="plan again: a truncation or another compaction came first",
                stream=root.stream_id,
                groups=len(runs),
            )
        return status.tidy(replace(replace_runs(status, root, kept, slot), client=client), slot)

    shipped = {
        names.segment_object(one.path): frozenset(one.followers)
        for run in runs
        for one in run.outputs
    }
    try:
        root = log.commit(build, transaction=transaction, attempts=attempts, shipped=shipped).root
    except MAYBE_COMMITTED:
        raise  # a log may name what was written
    except SegstoreError:
        delete_staged(log.storage, (one for run in done for one in run.outputs))
        raise
    lost = [run for run in done if run not in kept]
    delete_staged(log.storage, (one for run in lost for one in run.outputs))
    return root, tuple(kept)


def is_gain(run: Replacement) -> bool:
    """Tell whether a group leaves less to be done: fewer segments, or the pieces of a split.

    As many are a gain only where none of them is of Arrow any more. Pure.
    """
    if len(run.inputs) == 1:
        return len(run.outputs) > 1
    settles = any(path.endswith(_ARROW_ENDING) for _, path in run.inputs) and all(
        one.format != ARROW for one in run.outputs
    )
    return settles or len(run.outputs) < len(run.inputs)


def _apart(done: Sequence[Replacement]) -> list[Replacement]:
    """Return the groups by offset, of two that overlap the first: rows may have been doubled."""
    kept: list[Replacement] = []
    for run in sorted(done, key=lambda run: run.start):
        if not kept or run.start >= kept[-1].start + kept[-1].rows:
            kept.append(run)
    return kept


def _check_floor(root: Root, runs: Sequence[Replacement]) -> None:
    for path in (one.path for run in runs for one in run.outputs):
        version = names.parse_token_version(names.segment_token(path))
        if version is not None and version < root.staging_floor:
            raise StagedExpiredError(
                "staged objects are too old to be committed",
                path=path,
                staging_floor=root.staging_floor,
            )


def summarise(
    root: Root,
    groups: Sequence[Group],
    done: Sequence[Replacement],
    kept: Sequence[Replacement],
) -> Compaction:
    """Return what one commit of groups did, or that there was none. Pure."""
    return Compaction(
        version=root.version,
        commits=int(bool(kept)),
        groups=len(kept),
        segments_before=sum(len(run.inputs) for run in kept),
        segments_after=sum(len(run.outputs) for run in kept),
        bytes_read=sum(group.bytes for group in groups),
        bytes_written=sum(one.bytes for run in done for one in run.outputs),
        gave_way=len(done) - len(kept),
    )
