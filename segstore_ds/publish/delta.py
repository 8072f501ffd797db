"""The codec of Delta tables: a log of commits and checkpoints, as Delta's protocol defines it.

Only segstore writes such a table. Its protocol requires a writer feature that no other program
supports, so they refuse writes, OPTIMIZE, VACUUM and RESTORE. The first line of a commit says which
version of the stream the table shows.
"""

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.record import build_json, from_json, parse_json
from segstore_ds.publish import paths
from segstore_ds.publish.columns import MAPPED_ID, NTZ, as_delta, as_delta_stats, bounded_columns
from segstore_ds.publish.snapshot import (
    UNSEALED,
    Change,
    Columns,
    File,
    Note,
    Read,
    Staged,
    Table,
    check_digest,
    check_hint,
    check_seal,
    seal,
    table_uuid,
)
from segstore_ds.storage import ObjectInfo, Storage

KIND, TITLE, METADATA_FOLDER, FIRST = names.DELTA_FOLDER, "Delta", names.DELTA_LOG_FOLDER, 0
MAKES_TABLE = re.compile(r"_delta_log/[0-9].*")
LARGE_BYTES = 1 << 20  # of a commit; after a larger one a checkpoint is written at once
TRAVELS = POINTED = False
HINT = f"{KIND}/_newest.text"  # not of Delta's protocol; by it a lost newest commit is noticed
LAST_CHECKPOINT = f"{METADATA_FOLDER}/_last_checkpoint"
COMMIT, CHECKPOINT = "json", "checkpoint.parquet"
BOUNDED = "bounded"  # On disk: a key of the note. Never change.
DIGEST = "digest"  # On disk: a key of the note; in a checkpoint it is `segstore.digest`.
_CHECKPOINT_DIGEST = b"segstore.digest"
FEATURE = "segstore"  # On disk: the writer feature that no other writer supports.
MAPPING = "columnMapping"  # the feature that columns with other names in files need
_FIRST_LINE_BYTES = 4096  # our `commitInfo` is shorter
_WRITER_FEATURES = (FEATURE, "domainMetadata", "rowTracking")
_TEXTS = pa.map_(pa.string(), pa.string())
_CHECKPOINT_SCHEMA = pa.schema(
    [
        ("protocol", pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", pa.list_(pa.string())),
                ("writerFeatures", pa.list_(pa.string())),
            ]
        )),
        ("metaData", pa.struct(
            [
                ("id", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", _TEXTS),
                ("createdTime", pa.int64()),
            ]
        )),
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
        ("domainMetadata", pa.struct(
            [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
        )),
        ("add", pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", _TEXTS),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
                ("baseRowId", pa.int64()),
                ("defaultRowCommitVersion", pa.int64()),
            ]
        )),
    ]
)  # fmt: skip


@dataclass(slots=True)
class State:
    """The actions of a log: the newest protocol and columns, and each listed file by its path."""

    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    adds: dict[str, dict[str, Any]] = field(default_factory=dict)

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the actions of one commit or checkpoint."""
        for action in actions:
            match action:
                case {"protocol": dict(values)}:
                    self.protocol = values
                case {"metaData": dict(values)}:
                    self.metadata = values
                case {"add": {"path": str(path)} as values}:
                    self.adds[path] = dict(values)
                case {"remove": {"path": str(path)}}:
                    self.adds.pop(path, None)


columns = as_delta


def commit_path(version: int) -> str:
    """Return the path of a commit."""
    return paths.build_delta_path(version, COMMIT)


def newest(storage: Storage, *, visible: bool = False) -> Table:  # noqa: ARG001 - see Codec
    """Return the table's version, and the note of its newest commit."""
    listed = [*storage.list(METADATA_FOLDER)]
    commits, checkpoints = (_versions(listed, kind) for kind in (COMMIT, CHECKPOINT))
    for number in checkpoints.keys() - commits.keys():
        if number > max(commits, default=-1):
            # Readers would take the checkpoint for what another commit of this number says.
            commits[number] = storage.info(commit_path(number))
    if not commits:
        return Table(FIRST - 1, state=State())
    version = max(commits)
    line, note = _first_line(storage, commits[version])
    if note is None:
        raise CorruptionError(
            "another program committed to the published table",
            remedy="delete the table with published.remove(), then publish it again; if it is "
            "another table, move it to a folder of its own",
            where=f"{storage.url}/{commit_path(version)}",
        )
    return Table(version, note, line)


def _versions(objects: Iterable[ObjectInfo], kind: str) -> dict[int, ObjectInfo]:
    """Return the commits, or the checkpoints, among some objects by their versions."""
    found = ((paths.parse_delta_path(info.path), info) for info in objects)
    return {entry[0]: info for entry, info in found if entry is not None and entry[1] == kind}


def _first_line(storage: Storage, info: ObjectInfo) -> tuple[bytes, Note | None]:
    """Return a commit's first line, and its note; None if another program wrote it."""
    start = storage.get_range(info.path, 0, min(info.size, _FIRST_LINE_BYTES))
    line = start.split(b"\n", 1)[0]  # a commit of many files may be large
    return line, _note_in(parse_json(line, where=storage.describe(info.path)), info.path)


def _note_in(action: Any, where: str) -> Note | None:
    match action:
        case {"commitInfo": {"segstore": dict(values)}}:
            return from_json(Note, values, where=where)
    return None


def read_files(storage: Storage, table: Table) -> tuple[Table, dict[str, File]]:
    """Return a table with its state as of its newest commit, and its files by their keys."""
    checkpoints = _versions(storage.list(METADATA_FOLDER), CHECKPOINT)
    first = max((version for version in checkpoints if version <= table.version), default=-1)
    state = State()
    if first >= 0:
        state.apply(read_checkpoint(storage, first))
    for version in range(first + 1, table.version + 1):
        state.apply(read_commit(storage, version))
    files = (
        File(path, add["baseRowId"], add["baseRowId"] + _rows_of(add), add["size"])
        for path, add in state.adds.items()
    )
    return replace(table, state=state), {file.key: file for file in files}


def _rows_of(add: Mapping[str, Any]) -> int:
    rows: int = json.loads(add["stats"])["numRecords"]
    return rows


def read_commit(storage: Storage, version: int) -> list[Any]:
    """Return the actions of a commit; CorruptionError if it is not as segstore has written it."""
    path = commit_path(version)
    data, where = storage.get(path), storage.describe(path)
    actions = [parse_json(line, where=where) for line in data.splitlines()]
    match actions:
        case [{"commitInfo": {"segstore": {"digest": digest}}}, *_]:
            check_seal(data, DIGEST, digest, where=where)
        case _:
            check_digest(data, "", where=where)
    return actions


def stage(
    storage: Storage,  # noqa: ARG001 - see Codec
    table: Table,
    change: Change,
    new_id: Callable[[], str],  # noqa: ARG001
) -> Staged:
    """Return the next commit: one JSON object per line."""
    stats = [
        as_delta_stats(file.stats, file.end - file.start, change.schema, change.columns)
        for file, _ in change.added
    ]
    bounded = _bounded(table, change, stats)
    actions = (*_head(table, change, bounded), *_removals(change), *_additions(change, stats))
    data = seal("".join(f"{_as_text(action)}\n" for action in actions).encode(), DIGEST)
    after = Table(change.number, change.note, data.split(b"\n", 1)[0])
    return Staged(commit_path(change.number), data, after)


def _as_text(value: Mapping[str, Any]) -> str:
    """Return a JSON text without escaped surrogate pairs, half of which delta-rs misreads.

    Its parser, `arrow-json`, joins the two surrogates by `|` instead of `+`: characters of planes
    2, 4, ... and 16 become other ones.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _bounded(
    table: Table, change: Change, stats: Iterable[Mapping[str, Any]]
) -> tuple[list[str], bool]:
    """Return the columns for data skipping, and whether they differ from the table's.

    They have both bounds in every file that has any. A dataset of delta-rs takes a missing bound
    for a null, which no value equals, and would skip the file.
    """
    known: list[str] | None = None
    if table.mark is not None:
        known = json.loads(table.mark)["commitInfo"]["segstore"].get(BOUNDED, [])
    names = change.columns.names
    rows = sum(file.end - file.start for file, _ in change.added)
    if known is None or rows == change.note.tail - change.note.head:  # all listed files are new
        bounded = bounded_columns(stats, names)
    else:
        bounded = bounded_columns(stats, [name for name in known if name in names])
    return bounded, bounded != known


def _head(
    table: Table, change: Change, bounded: tuple[list[str], bool]
) -> Iterator[dict[str, Any]]:
    """Yield the actions before those of files; protocol and metadata only if they change."""
    note, state = change.note, table.state
    yield {
        "commitInfo": {
            "timestamp": change.time_ms,
            "operation": "PUBLISH",
            "operationParameters": {},
            "engineInfo": change.client,
            "segstore": {**asdict(note), BOUNDED: bounded[0], DIGEST: UNSEALED},
        }
    }
    # If its state was not read, the table shows a version that has the same columns (`_recall`).
    protocol = plan_protocol(change.columns)
    if state is not None and protocol != state.protocol:
        yield {"protocol": protocol}
    metadata = plan_metadata(note, change.columns, bounded[0])
    if bounded[1] or (state is not None and metadata != state.metadata):
        yield {"metaData": metadata}
    yield {"txn": {"appId": note.stream_id, "version": note.version}}
    yield _tracked_rows(note.tail)


def _removals(change: Change) -> Iterator[dict[str, Any]]:
    for file, changes_rows in change.removed:
        yield {
            "remove": {
                "path": file.path,
                "deletionTimestamp": change.time_ms,
                "dataChange": changes_rows,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": file.bytes,
                "baseRowId": file.start,
            }
        }


def _additions(change: Change, stats: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for (file, changes_rows), known in zip(change.added, stats, strict=True):
        yield {
            "add": {
                "path": file.path,
                "partitionValues": {},
                "size": file.bytes,
                "modificationTime": change.time_ms,
                "dataChange": changes_rows,
                "stats": _as_text(known),
                "baseRowId": file.start,
                "defaultRowCommitVersion": change.number,
            }
        }


def plan_protocol(columns: Columns) -> dict[str, Any]:
    """Return the protocol of a table with such columns."""
    features = [NTZ] if '"timestamp_ntz"' in columns.form else []
    features = [MAPPING, *features] if _mapping(columns) else features
    readers = {"readerFeatures": features} if features else {}
    return {
        "minReaderVersion": 3 if features else 1,
        "minWriterVersion": 7,
        **readers,
        "writerFeatures": sorted({*_WRITER_FEATURES, *features}),
    }


def plan_metadata(note: Note, columns: Columns, bounded: Collection[str]) -> dict[str, Any]:
    """Return the table's id, columns and properties; only `bounded` columns have statistics."""
    fields = zip(columns.names, json.loads(columns.form)["fields"], strict=True)
    named = (field["name"].replace("`", "``") for stored, field in fields if stored in bounded)
    number, tracking = table_uuid(note.stream_id), "delta.rowTracking.materializedRow"
    return {
        "id": number,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns.form,
        "partitionColumns": [],
        "configuration": {
            "delta.enableRowTracking": "true",
            "delta.dataSkippingStatsColumns": ",".join(f"`{name}`" for name in named),
            f"{tracking}IdColumnName": f"_row-id-col-{number}",
            f"{tracking}CommitVersionColumnName": f"_row-commit-version-col-{number}",
            **_mapping(columns),
        },
        "createdTime": note.created_ms,
    }


def _mapping(columns: Columns) -> dict[str, str]:
    ids = [int(number) for number in re.findall(rf'"{MAPPED_ID}":([0-9]+)', columns.form)]
    if not ids:
        return {}
    return {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(max(ids))}


def _tracked_rows(tail: int) -> dict[str, Any]:
    """Return the action with the high-water mark of row ids."""
    mark = json.dumps({"rowIdHighWaterMark": tail - 1})
    return {
        "domainMetadata": {"domain": "delta.rowTracking", "configuration": mark, "removed": False}
    }


def is_in_place(storage: Storage, table: Table, number: int) -> bool:
    """Tell whether the previous commit is unchanged, or was cleaned up after later commits.

    Another table may have a commit of that name, but not with its digest.
    """
    try:
        return bool(storage.get_range(commit_path(table.version), 0, len(table.mark)) == table.mark)
    except MissingObjectError:
        entries = map(paths.parse_delta_path, (i.path for i in storage.list(METADATA_FOLDER)))
        return any(
            entry is not None and (entry[0] > number or entry == (number, CHECKPOINT))
            for entry in entries
        )
    except FormatError:  # it is shorter
        return False


def written_us(storage: Storage) -> int:
    """Return when the newest object of the log was written."""
    return max((info.modified_us for info in storage.list(METADATA_FOLDER)), default=0)


def checkpoint(storage: Storage, table: Table) -> None:
    """Write the table's state as of its newest commit."""
    whole, _ = read_files(storage, table)
    if whole.note is None:
        return
    data = encode_checkpoint(whole.state, whole.note)
    storage.put(paths.build_delta_path(table.version, CHECKPOINT), data)  # may replace another's
    hint = {"version": table.version, "size": len(whole.state.adds) + 4, "sizeInBytes": len(data)}
    storage.put(LAST_CHECKPOINT, json.dumps(hint).encode())


def encode_checkpoint(state: State, note: Note) -> bytes:
    """Return a table's state as one Parquet file."""
    pairs = list(state.metadata["configuration"].items())
    parquet = {"provider": "parquet", "options": []}
    rows: list[dict[str, Any]] = [
        {"protocol": state.protocol},
        {"metaData": {**state.metadata, "configuration": pairs, "format": parquet}},
        {"txn": {"appId": note.stream_id, "version": note.version}},
        _tracked_rows(note.tail),
    ]
    rows += [{"add": {**add, "partitionValues": []}} for add in state.adds.values()]
    state_table = pa.Table.from_pylist(rows, _CHECKPOINT_SCHEMA)
    digest = digest_of(build_json(state_table.to_pylist()))
    sink = io.BytesIO()
    sealed = state_table.replace_schema_metadata({_CHECKPOINT_DIGEST: digest})
    pq.write_table(sealed, sink, compression="zstd")
    return sink.getvalue()


def read_checkpoint(storage: Storage, version: int) -> list[dict[str, Any]]:
    """Return the actions of a checkpoint; CorruptionError if it is damaged.

    The protocol allows other programs to write one. It has no digest, so its files are checked.
    """
    path = paths.build_delta_path(version, CHECKPOINT)
    data, where = storage.get(path), storage.describe(path)
    try:
        stored = pq.read_table(io.BytesIO(data))
        rows = stored.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("checkpoint can't be read", where=where) from error
    digest = (stored.schema.metadata or {}).get(_CHECKPOINT_DIGEST)
    if digest is None:
        adds = [row["add"] for row in rows if row.get("add")]
        _check_files(adds, _first_line(storage, storage.info(commit_path(version)))[1], where)
    else:
        check_digest(build_json(rows), digest.decode("ascii", "replace"), where=where)
    actions = []
    for row in rows:
        for kind, values in row.items():
            if values is None:
                continue
            known = {name: value for name, value in values.items() if value is not None}
            if kind == "metaData":
                known["configuration"] = dict(known["configuration"])
                known["format"] = {"provider": "parquet", "options": {}}
            if kind == "add":
                known["partitionValues"] = {}
            actions.append({kind: known})
    return actions


def _check_files(adds: Iterable[Mapping[str, Any]], note: Note | None, where: str) -> None:
    """Check that files hold each event that a commit shows exactly once."""
    try:
        spans = sorted((add["baseRowId"], _rows_of(add)) for add in adds)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError("checkpoint of another program can't be read", where=where) from error
    place = note.head if note else -1
    for start, rows in spans:
        place = place + rows if start == place else -1
    if note is None or place != note.tail:
        raise CorruptionError("checkpoint of another program lists wrong files", where=where)


def superseded(objects: Collection[ObjectInfo], table: Table) -> Mapping[str, int]:  # noqa: ARG001
    """Return since when commits and checkpoints have been below a checkpoint."""
    # The checkpoint that `_last_checkpoint` names stays, even if its last update failed.
    named_us = max((i.modified_us for i in objects if i.path == LAST_CHECKPOINT), default=None)
    checkpoints = _versions(objects, CHECKPOINT)
    since: dict[str, int] = {}
    for info in objects:
        entry = paths.parse_delta_path(info.path)
        if entry is not None:
            times = [c.modified_us for n, c in checkpoints.items() if n > entry[0]]
            later = [us for us in times if named_us is None or us <= named_us]
            since |= {info.path: min(later)} if later else {}
    return since


def parts(storage: Storage, table: Table, *, files: bool) -> Collection[str]:  # noqa: ARG001
    """Return nothing: a commit names no other metadata."""
    return ()


def reads(
    storage: Storage,
    objects: Mapping[str, ObjectInfo],
    now_us: int,  # noqa: ARG001 - see Codec
) -> Iterator[tuple[str, Read]]:
    """Yield each object of the log with what reads it, and commits that are missing."""
    commits = _versions(objects.values(), COMMIT)
    checkpoints = _versions(objects.values(), CHECKPOINT)
    first = min((version + 1 for version in checkpoints), default=0)
    last = max([*commits, *checkpoints], default=-1)
    # A checkpoint has its commit, by which `newest` finds it.
    for version in range(min([first, max(checkpoints, default=first), *commits]), last + 1):
        yield commit_path(version), partial(read_commit, storage, version)
    for version, info in checkpoints.items():
        yield info.path, partial(read_checkpoint, storage, version)
    if HINT in objects and commits:  # it may be an older one
        yield HINT, partial(check_hint, storage, HINT, range(last + 1), commit_path)
    if LAST_CHECKPOINT in objects:
        yield LAST_CHECKPOINT, partial(_check_last, storage, checkpoints)


@dataclass(frozen=True, slots=True)
class _LastCheckpoint:
    version: int
    size: int
    sizeInBytes: int  # noqa: N815 - Delta's name


def _check_last(storage: Storage, checkpoints: Mapping[int, ObjectInfo]) -> None:
    where = storage.describe(LAST_CHECKPOINT)
    value = parse_json(storage.get(LAST_CHECKPOINT), where=where)
    last = from_json(_LastCheckpoint, value, where=where)
    named = checkpoints.get(last.version)
    if named is None or named.size != last.sizeInBytes:
        raise CorruptionError(
            "the file names a checkpoint that does not exist", where=where, version=last.version
        )
