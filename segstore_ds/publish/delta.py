"""The codec of Delta tables: a log of commits and checkpoints, as Delta's protocol has it.

Only segstore writes it: the protocol names a writer feature that nobody else knows, so foreign
writers, OPTIMIZE, VACUUM and RESTORE are refused. The first line of a commit says what it shows.
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
    check_seal,
    seal,
    table_uuid,
)
from segstore_ds.storage import ObjectInfo, Storage

KIND, TITLE, METADATA_FOLDER, FIRST = names.DELTA_FOLDER, "Delta", names.DELTA_LOG_FOLDER, 0
MAKES_TABLE = re.compile(r"_delta_log/[0-9].*")
LARGE_BYTES = 1 << 20  # of a commit, which readers had better find in a checkpoint
TRAVELS = POINTED = False
HINT = ""
LAST_CHECKPOINT = f"{METADATA_FOLDER}/_last_checkpoint"
COMMIT, CHECKPOINT = "json", "checkpoint.parquet"
BOUNDED = "bounded"  # On disk: in our object of a commit. Never change.
DIGEST = "digest"  # On disk: in our object of a commit; of a checkpoint, `segstore.digest`.
_CHECKPOINT_DIGEST = b"segstore.digest"
FEATURE = "segstore"  # On disk: the writer feature that keeps every other writer out.
MAPPING = "columnMapping"  # the feature of Delta that columns with other names in files need
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
        """Take over one commit."""
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


def newest(storage: Storage, *, asked: bool = False) -> Table:  # noqa: ARG001 - see Codec
    """Return the table's version, and what its newest commit says."""
    commits = _versions(storage.list(METADATA_FOLDER), COMMIT)
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
    """Return a commit's first line, and what it says of the stream; None for somebody else's."""
    start = storage.get_range(info.path, 0, min(info.size, _FIRST_LINE_BYTES))
    line = start.split(b"\n", 1)[0]  # a commit of many files may be large
    return line, _note_in(parse_json(line, where=storage.describe(info.path)), info.path)


def _note_in(action: Any, where: str) -> Note | None:
    match action:
        case {"commitInfo": {"segstore": dict(values)}}:
            return from_json(Note, values, where=where)
    return None


def read_files(storage: Storage, table: Table) -> tuple[Table, dict[str, File]]:
    """Return a table with its actions from its newest checkpoint on, and its files."""
    checkpoints = _versions(storage.list(METADATA_FOLDER), CHECKPOINT)
    first = max((version for version in checkpoints if version <= table.version), default=-1)
    state = State()
    if first >= 0:
        state.apply(read_checkpoint(storage, first))
    for version in range(first + 1, table.version + 1):
        state.apply(read_commit(storage, version))
    found = (
        File(path, add["baseRowId"], add["baseRowId"] + _rows_of(add), add["size"])
        for path, add in state.adds.items()
    )
    return replace(table, state=state), {file.key: file for file in found}


def _rows_of(add: Mapping[str, Any]) -> int:
    rows: int = json.loads(add["stats"])["numRecords"]
    return rows


def read_commit(storage: Storage, version: int) -> list[Any]:
    """Return the actions of a commit; CorruptionError if it is not as we have written it."""
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
    """Return the next commit: one JSON object a line."""
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
    """Return a JSON text without escaped pairs, of which delta-rs reads half as others.

    Its parser, `arrow-json`, joins the halves by `|` where it has to add: a character of plane 2,
    4, ... or 16 becomes another one.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _bounded(
    table: Table, change: Change, stats: Iterable[Mapping[str, Any]]
) -> tuple[list[str], bool]:
    """Return the columns with both bounds wherever a file has some, and whether they are others.

    Only those are for skipping: a dataset of delta-rs takes a bound that is missing for a null,
    which no value equals, and finds none of the file's rows.
    """
    known: list[str] | None = None
    if table.mark is not None:
        known = json.loads(table.mark)["commitInfo"]["segstore"].get(BOUNDED, [])
    names = change.columns.names
    whole = sum(file.end - file.start for file, _ in change.added)
    if known is None or whole == change.note.tail - change.note.head:  # of all listed files
        found = bounded_columns(stats, names)
    else:
        found = bounded_columns(stats, [name for name in known if name in names])
    return found, found != known


def _head(
    table: Table, change: Change, bounded: tuple[list[str], bool]
) -> Iterator[dict[str, Any]]:
    """Yield what a commit says beside its files; protocol and columns only if they change."""
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
    # Without its actions, the table is known by the version that it shows: of the same columns.
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
    """Return the table's id, columns and properties; only `bounded` columns are for skipping."""
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
    """Return the action that says how far row ids go."""
    mark = json.dumps({"rowIdHighWaterMark": tail - 1})
    return {
        "domainMetadata": {"domain": "delta.rowTracking", "configuration": mark, "removed": False}
    }


def is_in_place(storage: Storage, table: Table, number: int) -> bool:
    """Tell whether the commit before is as it was known, or was cleaned up after others' commits.

    Another table may have one of its name, but not with its digest.
    """
    try:
        return bool(storage.get_range(commit_path(table.version), 0, len(table.mark)) == table.mark)
    except MissingObjectError:
        found = map(paths.parse_delta_path, (i.path for i in storage.list(METADATA_FOLDER)))
        return any(
            entry is not None and (entry[0] > number or entry == (number, CHECKPOINT))
            for entry in found
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
    storage.put(paths.build_delta_path(table.version, CHECKPOINT), data)  # maybe over another's
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
    found = pa.Table.from_pylist(rows, _CHECKPOINT_SCHEMA)
    digest = digest_of(build_json(found.to_pylist()))
    sink = io.BytesIO()
    sealed = found.replace_schema_metadata({_CHECKPOINT_DIGEST: digest})
    pq.write_table(sealed, sink, compression="zstd")
    return sink.getvalue()


def read_checkpoint(storage: Storage, version: int) -> list[dict[str, Any]]:
    """Return the actions of a checkpoint; CorruptionError if it is not as we have written it.

    Other programs may write one, as the protocol does not forbid it: its files are checked instead.
    """
    path = paths.build_delta_path(version, CHECKPOINT)
    data, where = storage.get(path), storage.describe(path)
    try:
        found = pq.read_table(io.BytesIO(data))
        rows = found.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("checkpoint can't be read", where=where) from error
    digest = (found.schema.metadata or {}).get(_CHECKPOINT_DIGEST)
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
    """Check that files tile the events that a commit shows."""
    try:
        spans = sorted((add["baseRowId"], _rows_of(add)) for add in adds)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError("checkpoint of another program can't be read", where=where) from error
    place = note.head if note else -1
    for start, rows in spans:
        place = place + rows if start == place else -1
    if note is None or place != note.tail:
        raise CorruptionError("checkpoint of another program lists other files", where=where)


def superseded(objects: Collection[ObjectInfo], table: Table) -> Mapping[str, int]:  # noqa: ARG001
    """Return since when commits and checkpoints have been below a checkpoint."""
    # A checkpoint that `_last_checkpoint` names stays, also where the put of a newer name failed.
    named_us = max((i.modified_us for i in objects if i.path == LAST_CHECKPOINT), default=None)
    checkpoints = _versions(objects, CHECKPOINT)
    found: dict[str, int] = {}
    for info in objects:
        entry = paths.parse_delta_path(info.path)
        if entry is not None:
            times = [c.modified_us for n, c in checkpoints.items() if n > entry[0]]
            later = [us for us in times if named_us is None or us <= named_us]
            found |= {info.path: min(later)} if later else {}
    return found


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
    for version in range(min([first, *commits]), last + 1):
        yield commit_path(version), partial(read_commit, storage, version)
    for version, info in checkpoints.items():
        yield info.path, partial(read_checkpoint, storage, version)
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
            "file names a checkpoint that does not exist", where=where, version=last.version
        )
