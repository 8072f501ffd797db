"""The log of a published Delta table: its newest state, its commits and checkpoints.

Only segstore writes it: the protocol names a writer feature that nobody else knows, so foreign
writers, OPTIMIZE, VACUUM and RESTORE are refused.
"""

import hashlib
import io
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.record import build_json, from_json, parse_json
from segstore_ds.publish.delta_types import DeltaSchema
from segstore_ds.publish.life_cycle import Note
from segstore_ds.publish.seal import check_digest, check_seal, seal
from segstore_ds.storage import ObjectInfo, Storage

LAST_CHECKPOINT = f"{names.DELTA_LOG_FOLDER}/_last_checkpoint"
COMMIT, CHECKPOINT = "json", "checkpoint.parquet"
DIGEST = "digest"  # On disk: in our object of a commit; of a checkpoint, `segstore.digest`.
_CHECKPOINT_DIGEST = b"segstore.digest"
FEATURE = "segstore"  # On disk: the writer feature that keeps every other writer out.
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
class DeltaTable:
    """The newest state of a table.

    Attributes:
        version: The number of its newest commit; -1 before the first.
        note: What that commit says of the stream.
        protocol: The newest `protocol` action.
        metadata: The newest `metaData` action.
        adds: The newest `add` action of each listed file, by its path in the stream's folder,
            which is the table's.
        files: What lies in the log's folder.
    """

    version: int = -1
    note: Note | None = None
    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    adds: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: tuple[ObjectInfo, ...] = ()

    def apply(self, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
        """Take over one commit."""
        note = None
        for action in actions:
            match action:
                case {"commitInfo": {"segstore": dict(values)}}:
                    note = values
                case {"protocol": dict(values)}:
                    self.protocol = values
                case {"metaData": dict(values)}:
                    self.metadata = values
                case {"add": {"path": str(path)} as values}:
                    self.adds[path] = dict(values)
                case {"remove": {"path": str(path)}}:
                    self.adds.pop(path, None)
        where = names.build_delta_path(version, COMMIT)
        self.version, self.note = version, from_json(Note, note, where=where) if note else None


def read_newest(storage: Storage) -> DeltaTable:
    """Return the version of the stream's table, and what its newest commit says; -1 without one.

    Raises:
        CorruptionError: Somebody else committed to the table.
    """
    table = DeltaTable(files=tuple(storage.list(names.DELTA_LOG_FOLDER)))
    commits = {}
    for info in table.files:
        match names.parse_delta_path(info.path):
            case int(version), kind if kind == COMMIT:
                commits[version] = info
    if commits:
        newest = max(commits)
        table.apply(newest, [_first_line(storage, commits[newest])])
        _check_ours(storage, table)
    return table


def _first_line(storage: Storage, info: ObjectInfo) -> Any:
    start = storage.get_range(info.path, 0, min(info.size, _FIRST_LINE_BYTES))
    line = start.split(b"\n", 1)[0]  # a commit of many files may be large
    return parse_json(line, where=storage.describe(info.path))


def read_note(storage: Storage, version: int) -> Note | None:
    """Return what one of the table's commits says of the stream; None for somebody else's."""
    table = DeltaTable()
    info = storage.info(names.build_delta_path(version, COMMIT))
    table.apply(version, [_first_line(storage, info)])
    return table.note


def read_table(storage: Storage, newest: DeltaTable) -> DeltaTable:
    """Return the whole state of a table, from its newest checkpoint on.

    Raises:
        MissingObjectError: Its log has a gap.
    """
    found = (names.parse_delta_path(info.path) for info in newest.files)
    checkpoints = [entry[0] for entry in found if entry is not None and entry[1] == CHECKPOINT]
    first = max((version for version in checkpoints if version <= newest.version), default=-1)
    table = DeltaTable(files=newest.files)
    if first >= 0:
        table.apply(first, read_checkpoint(storage, first))
    for version in range(first + 1, newest.version + 1):
        table.apply(version, read_commit(storage, version))
    table.version, table.note = newest.version, newest.note
    return table


def read_commit(storage: Storage, version: int) -> list[Any]:
    """Return the actions of a commit; CorruptionError if it is not as we have written it."""
    path = names.build_delta_path(version, COMMIT)
    data, where = storage.get(path), storage.describe(path)
    actions = [parse_json(line, where=where) for line in data.splitlines()]
    match actions:
        case [{"commitInfo": {"segstore": {"digest": digest}}}, *_]:
            check_seal(data, DIGEST, digest, where=where)
        case _:
            check_digest(data, "", where=where)
    return actions


def _check_ours(storage: Storage, table: DeltaTable) -> None:
    if table.note is None:
        raise CorruptionError(
            "another program committed to the published table",
            remedy="unpublish the stream, then publish it again; if it is another table, move it "
            "to a folder of its own",
            where=f"{storage.url}/{names.build_delta_path(table.version, COMMIT)}",
        )


def encode_commit(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a commit: one JSON object a line."""
    lines = (json.dumps(action, separators=(",", ":")) for action in actions)
    return seal("".join(f"{line}\n" for line in lines).encode(), DIGEST)


def plan_protocol(schema: DeltaSchema) -> dict[str, Any]:
    """Return the protocol of a table with such columns."""
    writers = sorted({*_WRITER_FEATURES, *schema.features})
    if not schema.features:
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": writers}
    readers = list(schema.features)
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": readers,
        "writerFeatures": writers,
    }


def plan_metadata(stream_id: str, schema: DeltaSchema, created_ms: int) -> dict[str, Any]:
    """Return the table's id, columns and properties."""
    digest = hashlib.blake2b(stream_id.encode(), digest_size=16).digest()
    number = str(uuid.UUID(bytes=digest, version=4))
    tracking = "delta.rowTracking.materializedRow"
    return {
        "id": number,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.text,
        "partitionColumns": [],
        "configuration": {
            "delta.enableRowTracking": "true",
            f"{tracking}IdColumnName": f"_row-id-col-{number}",
            f"{tracking}CommitVersionColumnName": f"_row-commit-version-col-{number}",
        },
        "createdTime": created_ms,
    }


def tracked_rows(tail: int) -> dict[str, Any]:
    """Return the action that says how far row ids go."""
    mark = json.dumps({"rowIdHighWaterMark": tail - 1})
    return {
        "domainMetadata": {"domain": "delta.rowTracking", "configuration": mark, "removed": False}
    }


def encode_checkpoint(table: DeltaTable, note: Note) -> bytes:
    """Return a table's state as one Parquet file."""
    rows: list[dict[str, Any]] = [
        {"protocol": table.protocol},
        {"metaData": _with_pairs(table.metadata)},
        {"txn": {"appId": note.stream_id, "version": note.version}},
        tracked_rows(note.tail),
    ]
    rows += [{"add": {**add, "partitionValues": []}} for add in table.adds.values()]
    found = pa.Table.from_pylist(rows, _CHECKPOINT_SCHEMA)
    digest = digest_of(build_json(found.to_pylist()))
    sink = io.BytesIO()
    sealed = found.replace_schema_metadata({_CHECKPOINT_DIGEST: digest})
    pq.write_table(sealed, sink, compression="zstd")
    return sink.getvalue()


def _with_pairs(metadata: dict[str, Any]) -> dict[str, Any]:
    pairs = list(metadata["configuration"].items())
    return {**metadata, "configuration": pairs, "format": {"provider": "parquet", "options": []}}


def read_checkpoint(storage: Storage, version: int) -> Iterable[dict[str, Any]]:
    """Yield the actions of a checkpoint; CorruptionError if it is not as we have written it.

    Other programs may write one, as the protocol does not forbid it: its files are checked instead.
    """
    path = names.build_delta_path(version, CHECKPOINT)
    data, where = storage.get(path), storage.describe(path)
    try:
        found = pq.read_table(io.BytesIO(data))
        rows = found.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("checkpoint can't be read", where=where) from error
    digest = (found.schema.metadata or {}).get(_CHECKPOINT_DIGEST)
    if digest is None:
        _check_files(
            [row["add"] for row in rows if row.get("add")], read_note(storage, version), where
        )
    else:
        check_digest(build_json(rows), digest.decode("ascii", "replace"), where=where)
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
            yield {kind: known}


def _check_files(adds: Iterable[Mapping[str, Any]], note: Note | None, where: str) -> None:
    """Check that files tile the events that a commit shows."""
    try:
        spans = sorted((add["baseRowId"], json.loads(add["stats"])["numRecords"]) for add in adds)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError("checkpoint of another program can't be read", where=where) from error
    place = note.head if note else -1
    for start, rows in spans:
        place = place + rows if start == place else -1
    if note is None or place != note.tail:
        raise CorruptionError("checkpoint of another program lists other files", where=where)
