"""Publishes a stream as a Delta table over the stream's own Parquet files.

Its log lies in `_delta_log/` of the stream's folder. One exclusive create decides each commit,
which names the version of the stream that it shows. So several publishers may run at once, and each
may stop anywhere: no commit lists what was staged, and the next call publishes what is missing.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.root import PartRef, Root
from segstore_ds.log.context import StreamContext
from segstore_ds.publish.changes import Changes, Listed, plan_changes
from segstore_ds.publish.delta_files import (
    checkpoints,
    delete_superfluous,
    first_clean,
    remains,
)
from segstore_ds.publish.delta_log import (
    CHECKPOINT,
    COMMIT,
    DIGEST,
    LAST_CHECKPOINT,
    DeltaTable,
    encode_checkpoint,
    encode_commit,
    plan_metadata,
    plan_protocol,
    read_newest,
    read_table,
    tracked_rows,
)
from segstore_ds.publish.delta_types import DeltaSchema, as_delta, as_delta_stats
from segstore_ds.publish.folders import remove_table
from segstore_ds.publish.life_cycle import (
    Erasure,
    Note,
    Published,
    Remains,
    check_published,
    check_shown,
    describe,
    has_same_events,
    is_due,
    keep_published,
    recall,
)
from segstore_ds.publish.listing import Listing, WantedFile, plan_listing
from segstore_ds.publish.own_files import write_own_file
from segstore_ds.publish.seal import UNSEALED
from segstore_ds.status.epochs import epoch_schema

CHECKPOINT_EVERY = 10  # commits of the table
_LARGE_BYTES = 1 << 20  # of a commit, which readers had better find in a checkpoint


@dataclass(frozen=True, slots=True)
class _Target:
    """What the table is to show: a version, its columns and its files."""

    root: Root
    schema: pa.Schema
    columns: DeltaSchema
    listing: Listing


def run_publish_delta(context: StreamContext, *, settle: bool, strict: bool) -> Published:
    """Bring the stream's Delta table up to its newest version; make the table if there is none.

    With `settle` all events are published, and with `strict` no column may be left out.

    Raises:
        InvalidInputError: The stream is a clone that shares objects; its folder holds another
            table; or a column can't be expressed in `strict` mode.
        ConflictError: Other publishers came first every time.
        CorruptionError: Somebody else committed to the table.
    """
    return keep_published(
        context,
        names.DELTA_FOLDER,
        lambda root: _publish(context, root, settle=settle, strict=strict),
        settle=settle,
    )


def _publish(context: StreamContext, root: Root, *, settle: bool, strict: bool) -> Published | None:
    """Bring the table up to a version; None if another publisher came first."""
    table = read_newest(context.storage)
    check_shown(context, table.note, root, names.DELTA_FOLDER)
    table, known = _recall(context, table, root)
    target = _plan_target(context, root, known, settle=settle, strict=strict)
    if is_due(table.note, root, target.listing):
        size = _commit(context, table, target)
        if not size:
            return None
        if size > _LARGE_BYTES or (table.version and table.version % CHECKPOINT_EVERY == 0):
            whole = read_table(context.storage, read_newest(context.storage))
            _write_checkpoint(context, whole)
            delete_superfluous(context, whole)
    return _describe(context, table)


def run_unpublish_delta(context: StreamContext) -> int:
    """Delete the table's metadata and its own files; return how many objects there were."""
    return remove_table(context.storage, context.log.root.stream_id, names.DELTA_FOLDER)


def published_delta(context: StreamContext) -> Published | None:
    """Return what the stream's table shows beside the newest version known; None without one."""
    table = read_newest(context.storage)
    return _describe(context, table) if table.note is not None else None


def _recall(
    context: StreamContext, newest: DeltaTable, root: Root
) -> tuple[DeltaTable, frozenset[PartRef]]:
    """Return what a table lists, without the files of parts that the stream still has.

    The version that the table shows says it, so that the table's log need not be read. Without that
    version, and where files may have to be written, the log says all of it.
    """
    note = newest.note
    recalled = recall(context, note, root, names.DELTA_FOLDER) if note is not None else None
    if note is None or recalled is None:
        return read_table(context.storage, newest), frozenset()
    known, listing = recalled
    columns = as_delta(epoch_schema(context.status, root.epoch))
    table = DeltaTable(
        newest.version,
        note,
        plan_protocol(columns),
        plan_metadata(note.stream_id, columns, note.created_ms),
        {
            file.key: {
                "path": file.key,
                "size": file.bytes,
                "baseRowId": file.start,
                "rows": file.end - file.start,
            }
            for file in listing.files
        },
    )
    return table, known


def _plan_target(
    context: StreamContext,
    root: Root,
    known: frozenset[PartRef],
    *,
    settle: bool,
    strict: bool,
) -> _Target:
    schema = epoch_schema(context.status, root.epoch)
    columns = as_delta(schema)
    if not columns.names or (strict and columns.left_out):
        raise InvalidInputError(
            "Delta has no type for some columns",
            remedy="cast them, or publish without strict=True, which leaves them out",
            columns=columns.left_out,
        )
    listing = plan_listing(
        context.status, root, folder=names.DELTA_FOLDER, whole=settle, known=known
    )
    return _Target(root, schema, columns, listing)


def _commit(context: StreamContext, table: DeltaTable, target: _Target) -> int:
    """Commit what brings the table to the target; return the bytes, 0 if another came first."""
    root, number, shown = target.root, table.version + 1, table.note
    spans = {
        names.published_key(path): (add["baseRowId"], add["baseRowId"] + _rows_of(add))
        for path, add in table.adds.items()
    }
    listed = Listed(shown.head, shown.tail, spans) if shown else Listed(0, 0, {})
    changes = plan_changes(listed, target.listing, same_events=has_same_events(shown, root))
    note = Note(
        root.stream_id,
        root.generation,
        root.version,
        target.listing.start,
        target.listing.end,
        shown.created_ms if shown else root.time_us // 1000,
        sum(file.is_own for file in target.listing.files),
    )
    actions = [
        *_head_actions(context, table, target, note),
        *_file_actions(context, table, target, changes),
    ]
    path, data = names.build_delta_path(number, COMMIT), encode_commit(actions)
    if not context.storage.create(path, data) and context.storage.get(path) != data:
        return 0
    table.apply(number, actions)
    return len(data)


def _rows_of(add: Mapping[str, Any]) -> int:
    """Return how many events a listed file holds."""
    rows: int = add["rows"] if "rows" in add else json.loads(add["stats"])["numRecords"]
    return rows


def _head_actions(
    context: StreamContext, table: DeltaTable, target: _Target, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield what a commit says beside its files; protocol and columns only if they change."""
    time_ms = target.root.time_us // 1000
    yield {
        "commitInfo": {
            "timestamp": time_ms,
            "operation": "PUBLISH",
            "operationParameters": {},
            "engineInfo": context.client,
            "segstore": {**asdict(note), DIGEST: UNSEALED},
        }
    }
    protocol = plan_protocol(target.columns)
    if protocol != table.protocol:
        yield {"protocol": protocol}
    columns = target.columns
    metadata = plan_metadata(note.stream_id, columns, note.created_ms)
    if metadata != table.metadata:
        yield {"metaData": metadata}
    yield {"txn": {"appId": note.stream_id, "version": note.version}}
    yield tracked_rows(note.tail)


def _file_actions(
    context: StreamContext, table: DeltaTable, target: _Target, changes: Changes
) -> Iterator[dict[str, Any]]:
    time_ms = target.root.time_us // 1000
    paths = {names.published_key(path): path for path in table.adds}
    for key, changes_rows in changes.removed:
        add = table.adds[paths[key]]
        yield {
            "remove": {
                "path": add["path"],
                "deletionTimestamp": time_ms,
                "dataChange": changes_rows,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": add["size"],
                "baseRowId": add["baseRowId"],
            }
        }
    for wanted, changes_rows in changes.added:
        path, size = _file_of(context, target, wanted)
        rows = wanted.end - wanted.start
        stats = as_delta_stats(wanted.stats, rows, target.schema, target.columns.names)
        yield {
            "add": {
                "path": path,
                "partitionValues": {},
                "size": size,
                "modificationTime": time_ms,
                "dataChange": changes_rows,
                "stats": stats,
                "baseRowId": wanted.start,
                "defaultRowCommitVersion": table.version + 1,
            }
        }


def _file_of(context: StreamContext, target: _Target, wanted: WantedFile) -> tuple[str, int]:
    if not wanted.is_own:
        return wanted.key, wanted.bytes
    return write_own_file(context, target.root, wanted, target.columns.names)


def _write_checkpoint(context: StreamContext, table: DeltaTable) -> None:
    """Write the table's state as of its newest commit, and delete what it makes superfluous."""
    if table.note is None:
        return
    storage = context.storage
    data = encode_checkpoint(table, table.note)
    storage.put(names.build_delta_path(table.version, CHECKPOINT), data)  # maybe over another's
    hint = {"version": table.version, "size": len(table.adds) + 4, "sizeInBytes": len(data)}
    storage.put(LAST_CHECKPOINT, json.dumps(hint).encode())


def forget_delta(context: StreamContext, erasure: Erasure) -> Remains:
    """Publish, and delete what may hold the values of versions from before a redaction.

    What the table's readers may still need stays. A checkpoint makes older commits superfluous.
    """
    check_published(context, read_newest(context.storage).note)
    run_publish_delta(context, settle=False, strict=False)
    storage = context.storage
    newest = read_newest(storage)
    table = read_table(storage, newest)
    first = first_clean(context, newest, erasure)
    if all(version < first for version, _ in checkpoints(newest.files)):
        _write_checkpoint(context, table)
    delete_superfluous(context, table, now_us=erasure.now_us, grace_s=erasure.grace_s)
    left = [*remains(context, table, first, erasure)]
    return Remains(len(left), max(left, default=0))


def _describe(context: StreamContext, table: DeltaTable) -> Published:
    columns = as_delta(epoch_schema(context.status, context.log.root.epoch))
    return describe(
        context,
        table.note,
        table_version=table.version,
        left_out=columns.left_out,
    )
