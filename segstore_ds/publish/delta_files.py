"""Deletes what a published Delta table no longer needs, once none of its readers may need it."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter

from segstore_ds.format import names
from segstore_ds.log.context import StreamContext
from segstore_ds.log.operations import GRACE_S
from segstore_ds.publish.delta_log import CHECKPOINT, COMMIT, DeltaTable, read_note
from segstore_ds.publish.folders import list_table
from segstore_ds.publish.life_cycle import Erasure
from segstore_ds.publish.unused import mark_unused, read_marks
from segstore_ds.storage import ObjectInfo

_MARKS = f"{names.DELTA_FOLDER}/_unused.json"


def delete_superfluous(
    context: StreamContext, table: DeltaTable, *, now_us: int = 0, grace_s: float = GRACE_S
) -> None:
    """Delete what a checkpoint made superfluous, and files that the table lists no more.

    Readers of older states have the grace for files, and that of the stream's log for its own, by
    the store's times: who publishes each minute would else list ten thousand commits each time.
    """
    storage = context.storage
    objects = list_table(storage, names.DELTA_FOLDER)
    now_us = max(now_us, *(info.modified_us for info in objects))
    log_us = now_us - int(context.log.grace_s * 1e6)
    first = max((n for n, info in checkpoints(objects) if info.modified_us <= log_us), default=0)
    superseded, unused = [], []
    for info in sorted(objects, key=attrgetter("path")):
        version, _ = names.parse_delta_path(info.path) or (None, None)
        if version is not None and version < first:
            superseded.append(info.path)
        elif _is_unlisted(info, table):
            unused.append(info.path)
    for path in (*superseded, *mark_unused(storage, _MARKS, unused, now_us, grace_s)):
        storage.delete(path)


def checkpoints(objects: Iterable[ObjectInfo]) -> Iterator[tuple[int, ObjectInfo]]:
    """Yield the checkpoints among some objects, each with its version."""
    for info in objects:
        version, kind = names.parse_delta_path(info.path) or (0, COMMIT)
        if kind == CHECKPOINT:
            yield version, info


def _is_unlisted(info: ObjectInfo, table: DeltaTable) -> bool:
    return names.published_key(info.path) != info.path and info.path not in table.adds


def first_clean(context: StreamContext, newest: DeltaTable, erasure: Erasure) -> int:
    """Return the first version of the table that shows none of the values."""
    found = (names.parse_delta_path(info.path) for info in newest.files)
    commits = sorted(entry[0] for entry in found if entry is not None and entry[1] == COMMIT)

    def is_clean(version: int) -> bool:
        return erasure.is_clean(read_note(context.storage, version), context.log.root)

    return commits[bisect_left(commits, 1, hi=len(commits) - 1, key=is_clean)]


def remains(
    context: StreamContext, table: DeltaTable, first: int, erasure: Erasure
) -> Iterator[int]:
    """Yield when each object that may hold the values can go."""
    objects = list_table(context.storage, names.DELTA_FOLDER)
    covered_us = min(info.modified_us for n, info in checkpoints(objects) if n >= first)
    marks = read_marks(context.storage, _MARKS)
    for info in objects:
        version, _ = names.parse_delta_path(info.path) or (first, None)
        if version < first:
            yield covered_us + int(context.log.grace_s * 1e6)
        elif _is_unlisted(info, table) and erasure.may_hold(info):
            yield marks.get(info.path, erasure.now_us) + int(erasure.grace_s * 1e6)
