"""The metadata of a published Iceberg table: its newest version, and how the next one is built.

It lies as Hadoop's catalog lays it out: `v<N>.metadata.json`, the newest of which
`version-hint.text` names. The hint may lag behind by what a crash or a race left.
"""

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.record import from_json, parse_json
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.operations import GRACE_S
from segstore_ds.publish.iceberg_types import IcebergSchema
from segstore_ds.publish.life_cycle import Note
from segstore_ds.publish.manifests import Form, Manifest
from segstore_ds.publish.seal import UNSEALED, check_seal, seal
from segstore_ds.storage import Storage

HINT = f"{names.ICEBERG_METADATA_FOLDER}/version-hint.text"
DIGEST = "segstore.digest"  # On disk: the property that holds the digest of the metadata.
NOTE = "segstore"  # On disk: the key in a snapshot's summary under which our note stands.
_KEPT = 10  # snapshots and older metadata that the newest metadata names
_ROW_IDS = 3  # the first format version that has them
_KNOWN_S = 3600.0  # far below the grace: the name of a superseded version is never free
_TABLE = "iceberg table"


@dataclass(slots=True)
class IcebergTable:
    """The newest state of a table.

    Attributes:
        version: The number of its newest metadata; 0 before the first.
        note: What its newest snapshot says of the stream.
        metadata: Iceberg's JSON.
        manifests: Those of the current snapshot, if they are known.
    """

    version: int = 0
    note: Note | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    manifests: Sequence[Manifest] | None = None

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The current snapshot."""
        current = self.metadata.get("current-snapshot-id")
        found = (s for s in self.metadata.get("snapshots", ()) if s["snapshot-id"] == current)
        return next(found, None)

    @property
    def url(self) -> str:
        """The stream's location when the table was committed to."""
        return str(self.metadata["location"])

    def is_at(self, url: str) -> bool:
        """Tell whether the metadata names files of a stream's folder: it may have been moved."""
        return self.metadata.get("location") == url


def read_newest(storage: Storage, *, exact: bool = False, hinted: bool = False) -> IcebergTable:
    """Return the newest metadata that the hint names; with `exact`, of all that there is.

    With `hinted` a table without a hint, which other engines don't find either, is none.

    Raises:
        CorruptionError: Somebody else committed to the table.
    """
    found = _read_hinted(storage) or (None if hinted else _read_listed(storage))
    while exact and found is not None:
        newer = read_version(storage, found.version + 1)
        if newer is None:
            break
        found = newer
    return found or IcebergTable()


def remember(context: StreamContext, table: IcebergTable) -> None:
    """Keep a table that was just committed to, so that the next commit need not read it."""
    context.memory[_TABLE] = table, context.clock.boot_s()


def recollect(context: StreamContext, root: Root) -> IcebergTable | None:
    """Return the table as this handle left it, if that shows an older version; forgets it.

    Whether it is the newest, the exclusive create of the next version decides; whether it was
    removed meanwhile, `is_in_place` after it.
    """
    table, known_s = context.memory.pop(_TABLE, (None, 0.0))
    if table is None or context.clock.boot_s() - known_s > _KNOWN_S:
        return None
    return table if table.note.version < root.version else None


def is_in_place(storage: Storage, table: IcebergTable, form: Form) -> bool:
    """Tell whether a table's manifest list is there still: no other table has one of its name.

    The first commit, and one that names nothing of what was there before, need none.
    """
    snapshot = table.snapshot
    if snapshot is None or not table.is_at(form.url):
        return True
    try:
        storage.info(form.path(snapshot["manifest-list"]))
    except MissingObjectError:
        return False
    return True


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """Return the bytes of the next version's metadata."""
    return seal(json.dumps(metadata, separators=(",", ":")).encode(), DIGEST)


def write_hint(storage: Storage, version: int) -> None:
    """Say which metadata is the newest."""
    storage.put(HINT, str(version).encode())


def _read_hinted(storage: Storage) -> IcebergTable | None:
    try:
        text = storage.get(HINT, limit_bytes=100).decode("ascii", "replace")
    except MissingObjectError:
        return None
    version = names.parse_iceberg_path(f"{names.ICEBERG_METADATA_FOLDER}/v{text}.metadata.json")
    return None if version is None else read_version(storage, version)


def _read_listed(storage: Storage) -> IcebergTable | None:
    found = (
        names.parse_iceberg_path(info.path) for info in storage.list(names.ICEBERG_METADATA_FOLDER)
    )
    newest = max((version for version in found if version is not None), default=None)
    return None if newest is None else read_version(storage, newest)


def read_version(storage: Storage, version: int) -> IcebergTable | None:
    """Return a version of the table; None where there is none."""
    path = names.build_iceberg_path(version)
    try:
        data = storage.get(path)
    except MissingObjectError:
        return None
    where = storage.describe(path)
    metadata = parse_json(data, where=where)
    if not isinstance(metadata, dict):
        raise CorruptionError("stored metadata cannot be read", where=where)
    properties = metadata.get("properties")
    digest = properties.get(DIGEST) if isinstance(properties, dict) else None
    check_seal(data, DIGEST, digest, where=where)  # so what follows is as it was written
    table = IcebergTable(version, None, metadata)
    table.note = note_of(table.snapshot or {}, where=where)
    return table


def note_of(snapshot: Mapping[str, Any], *, where: str) -> Note | None:
    """Return what a snapshot says of the stream; None for somebody else's."""
    text = (snapshot.get("summary") or {}).get(NOTE)
    return None if text is None else from_json(Note, parse_json(text, where=where), where=where)


def plan_form(
    table: IcebergTable, columns: IcebergSchema, *, format_version: int, url: str
) -> Form:
    """Return what the manifests of the next snapshot share; a known schema keeps its number."""
    fields = list(columns.fields)
    known = {schema["schema-id"]: schema["fields"] for schema in table.metadata.get("schemas", ())}
    same = [number for number, listed in known.items() if listed == fields]
    number = max(same, default=max(known, default=-1) + 1)
    schema = {"type": "struct", "schema-id": number, "fields": fields}
    return Form(format_version, url, json.dumps(schema, separators=(",", ":")), number)


def build_snapshot(
    table: IcebergTable, note: Note, form: Form, *, snapshot_id: int, time_ms: int
) -> dict[str, Any]:
    """Return the next snapshot, but for its manifest list and what changed."""
    base = table.metadata if table.is_at(form.url) else {}
    snapshot: dict[str, Any] = {
        "sequence-number": table.metadata.get("last-sequence-number", 0) + 1,
        "snapshot-id": snapshot_id,
        "timestamp-ms": max(time_ms, table.metadata.get("last-updated-ms", 0)),
        "summary": {NOTE: json.dumps(asdict(note), separators=(",", ":"))},
        "schema-id": form.schema_id,
    }
    if "current-snapshot-id" in base:
        snapshot["parent-snapshot-id"] = base["current-snapshot-id"]
    if form.format_version >= _ROW_IDS:
        first = table.metadata.get("next-row-id", 0)
        snapshot |= {"first-row-id": first, "added-rows": max(note.tail - first, 0)}
    return snapshot


def build_metadata(
    table: IcebergTable,
    snapshot: Mapping[str, Any],
    columns: IcebergSchema,
    form: Form,
    *,
    expired: Collection[int] = (),
) -> dict[str, Any]:
    """Return the metadata of the next version, whose current snapshot is `snapshot`.

    Older snapshots stay in it for the grace, but no more than a few, and none with an id of
    `expired`.
    """
    base, now_ms = table.metadata, snapshot["timestamp-ms"]
    old = [
        older
        for older in base.get("snapshots", ())
        if table.is_at(form.url)
        and older["timestamp-ms"] >= now_ms - GRACE_S * 1000
        and older["snapshot-id"] not in expired
    ]
    snapshots = [*old[1 - _KEPT :], dict(snapshot)]
    schemas = {schema["schema-id"]: schema for schema in base.get("schemas", ())}
    schemas[form.schema_id] = json.loads(form.schema_text)
    used = {kept["schema-id"] for kept in snapshots}
    row_ids = {}
    if form.format_version >= _ROW_IDS:
        row_ids = {"next-row-id": snapshot["first-row-id"] + snapshot["added-rows"]}
    note = json.loads(snapshot["summary"][NOTE])
    return {
        "format-version": form.format_version,
        "table-uuid": _uuid(note["stream_id"]),
        "location": form.url,
        "last-sequence-number": snapshot["sequence-number"],
        "last-updated-ms": now_ms,
        "last-column-id": max(columns.last_id, base.get("last-column-id", 0)),
        "current-schema-id": form.schema_id,
        "schemas": [schemas[number] for number in sorted(used)],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"gc.enabled": "false", DIGEST: UNSEALED},
        "current-snapshot-id": snapshot["snapshot-id"],
        "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}},
        "snapshots": snapshots,
        "snapshot-log": [
            {"timestamp-ms": kept["timestamp-ms"], "snapshot-id": kept["snapshot-id"]}
            for kept in snapshots
        ],
        "metadata-log": _metadata_log(table, form),
        **row_ids,
    }


def _metadata_log(table: IcebergTable, form: Form) -> Sequence[Mapping[str, Any]]:
    if not table.is_at(form.url):
        return ()
    path = names.build_iceberg_path(table.version)
    newest = {"timestamp-ms": table.metadata["last-updated-ms"], "metadata-file": form.uri(path)}
    return [*table.metadata["metadata-log"][1 - _KEPT :], newest]


def _uuid(stream_id: str) -> str:
    digest = hashlib.blake2b(stream_id.encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))
