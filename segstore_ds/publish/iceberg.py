"""The codec of Iceberg tables: metadata, manifest lists and manifests, as in a Hadoop catalog.

Each `v<N>.metadata.json` is a commit, and `version-hint.text` names the newest one. After a crash
or a race the hint may be outdated. A commit adds one snapshot, whose summary says which version of
the stream it shows. Objects that a publisher staged and did not commit are in no metadata.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.policies import GRACE_S
from segstore_ds.format.record import from_json, parse_json
from segstore_ds.publish import paths
from segstore_ds.publish.columns import as_iceberg, as_iceberg_stats, ids_of
from segstore_ds.publish.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    FORMAT_VERSION,
    Entry,
    Form,
    Manifest,
    Rewrite,
    decode_list,
    decode_manifest,
    describe_manifest,
    encode_list,
    encode_manifest,
    plan_manifests,
    read_sealed,
    sealed_nonce,
)
from segstore_ds.publish.paths import location_of
from segstore_ds.publish.snapshot import (
    UNSEALED,
    Change,
    File,
    Note,
    Read,
    Staged,
    Table,
    check_hint,
    check_seal,
    seal,
    table_uuid,
)
from segstore_ds.storage import ObjectInfo, Storage

KIND, TITLE, METADATA_FOLDER = names.ICEBERG_FOLDER, "Iceberg", names.ICEBERG_METADATA_FOLDER
MAKES_TABLE = re.compile(r".*\.metadata\.json.*")
FIRST = 1
LARGE_BYTES = 1 << 62  # unlimited: readers of a table do not read older commits
TRAVELS = POINTED = True
HINT = f"{METADATA_FOLDER}/version-hint.text"
DIGEST = "segstore.digest"  # On disk: the property that holds the digest of the metadata.
NOTE = "segstore"  # On disk: the key of the note in a snapshot's summary.
_KEPT = 10  # snapshots and older metadata that the newest metadata names
_MANIFEST_FILES = 8192  # at most in one manifest


@dataclass(frozen=True, slots=True)
class State:
    """The newest metadata, and the manifests of its current snapshot, if they are known."""

    metadata: Mapping[str, Any]
    manifests: Sequence[Manifest] | None = None

    @property
    def snapshot(self) -> Mapping[str, Any]:
        """The current snapshot; empty without one."""
        current = self.metadata.get("current-snapshot-id")
        matches = (s for s in self.metadata.get("snapshots", ()) if s["snapshot-id"] == current)
        return next(matches, {})


columns = as_iceberg
commit_path = paths.build_iceberg_path


def newest(storage: Storage, *, visible: bool = False) -> Table:
    """Return the newest metadata; if `visible`, none without a hint, as readers need it."""
    hinted = _read_hint(storage)
    table = None if hinted is None else read_version(storage, hinted)
    if table is None and not visible:
        listed = (paths.parse_iceberg_path(i.path) for i in storage.list(METADATA_FOLDER))
        last = max((version for version in listed if version is not None), default=None)
        table = None if last is None else read_version(storage, last)
    while table is not None and (later := read_version(storage, table.version + 1)) is not None:
        table = later
    if table is None:
        return Table(FIRST - 1, state=State({}))
    return replace(table, hinted=table.version == hinted)


def _read_hint(storage: Storage) -> int | None:
    try:
        text = storage.get(HINT, limit_bytes=100).decode("ascii", "replace")
    except MissingObjectError:
        return None
    return paths.parse_iceberg_path(f"{METADATA_FOLDER}/v{text}.metadata.json")


def read_version(storage: Storage, version: int) -> Table | None:
    """Return a version of the table; None if there is none."""
    path = commit_path(version)
    try:
        data = storage.get(path)
    except MissingObjectError:
        return None
    where = storage.describe(path)
    metadata = parse_json(data, where=where)
    if not isinstance(metadata, dict):
        raise CorruptionError("metadata of the published table is no JSON object", where=where)
    properties = metadata.get("properties")
    digest = properties.get(DIGEST) if isinstance(properties, dict) else None
    check_seal(data, DIGEST, digest, where=where)  # from here on, it is as segstore wrote it
    if metadata["format-version"] != FORMAT_VERSION:
        raise CorruptionError(
            "the table has another version of Iceberg's format",
            remedy="delete the table with published.remove(), then publish it again",
            where=where,
        )
    state = State(metadata)
    note = note_of(state.snapshot, where=where)
    if metadata["location"] != location_of(storage.url):
        return Table(version, note, None, state, moved=True)
    form = Form("", location_of(storage.url))
    return Table(version, note, form.path(state.snapshot["manifest-list"]), state)


def note_of(snapshot: Mapping[str, Any], *, where: str) -> Note | None:
    """Return the note in a snapshot's summary; None if another program made the snapshot."""
    text = (snapshot.get("summary") or {}).get(NOTE)
    return None if text is None else from_json(Note, parse_json(text, where=where), where=where)


def read_files(storage: Storage, table: Table) -> tuple[Table, dict[str, File]]:
    """Return the table and its files; no files if the stream's folder was moved since."""
    if table.note is None or table.moved:
        return table, {}
    form = Form(table.note.stream_id, location_of(storage.url))
    table = _with_manifests(storage, table)
    files = (e.file for m in table.state.manifests for e in _entries_of(storage, m, form))
    return table, {file.key: file for file in files}


def _with_manifests(storage: Storage, table: Table) -> Table:
    """Return a table with the manifests of its current snapshot."""
    state: State = table.state
    if state.manifests is not None:
        return table
    if table.mark is None:
        return replace(table, state=replace(state, manifests=()))
    manifests = decode_list(read_sealed(storage, table.mark), Form("", location_of(storage.url)))
    return replace(table, state=replace(state, manifests=manifests))


def _entries_of(storage: Storage, manifest: Manifest, form: Form) -> list[Entry]:
    return decode_manifest(read_sealed(storage, manifest.path), manifest.start, form)


def stage(storage: Storage, table: Table, change: Change, new_id: Callable[[], str]) -> Staged:
    """Write the next snapshot's manifests and their list, and return its metadata."""
    table = _with_manifests(storage, table)
    kept = table.state.manifests
    form = _form(table, change, location_of(storage.url))
    snapshot = _snapshot(table, change, form, int(new_id()[:15], 16) + 1)
    added = [_entry(file, snapshot, change) for file, _ in change.added]
    # A file that is listed again at other offsets is removed and added.
    gone = {file.key: (file.start, file.end) for file in change.again}
    gone |= {file.key: (file.start, file.end) for file, _ in change.removed}
    by = snapshot["snapshot-id"], snapshot["sequence-number"]
    manifests: list[Manifest] = []
    for item in plan_manifests(kept, [*gone.values()], added):
        if isinstance(item, Manifest):
            manifests.append(item)
            continue
        for entries in _contents(storage, item, gone, by[0], form):
            data, start = encode_manifest(entries, form), entries[0].start
            end = max((e.end for e in entries if e.status != DELETED), default=start)
            path = paths.build_manifest_path(start, end, sealed_nonce(new_id(), data))
            storage.create(path, data)
            manifests.append(describe_manifest(path, data, entries, by, form))
    data = encode_list(manifests, form, snapshot)
    nonce = sealed_nonce(new_id(), data)
    list_path = paths.build_manifest_list_path(change.number, nonce)
    storage.create(list_path, data)
    snapshot["manifest-list"] = form.uri(list_path)
    snapshot["summary"] |= _summary(change, manifests)
    metadata = _metadata(table, snapshot, change, form)
    data = seal(json.dumps(metadata, separators=(",", ":")).encode(), DIGEST)
    after = Table(change.number, change.note, list_path, State(metadata, manifests))
    old = {manifest.path for manifest in kept}
    staged = [list_path, *(item.path for item in manifests if item.path not in old)]
    return Staged(commit_path(change.number), data, after, tuple(staged))


def _form(table: Table, change: Change, url: str) -> Form:
    """Return what the manifests of the next snapshot share; a known schema keeps its id."""
    fields = change.columns.form
    schemas = table.state.metadata.get("schemas", ())
    known = {schema["schema-id"]: schema["fields"] for schema in schemas}
    same = [number for number, listed in known.items() if listed == fields]
    number = max(same, default=max(known, default=-1) + 1)
    schema = {"type": "struct", "schema-id": number, "fields": fields}
    text = json.dumps(schema, separators=(",", ":"))
    return Form(change.note.stream_id, url, text, number)


def _snapshot(table: Table, change: Change, form: Form, snapshot_id: int) -> dict[str, Any]:
    """Return the next snapshot without its manifest list and the counts of its summary."""
    base, note = table.state.metadata, change.note
    first = base.get("next-row-id", 0)
    snapshot: dict[str, Any] = {
        "sequence-number": base.get("last-sequence-number", 0) + 1,
        "snapshot-id": snapshot_id,
        "timestamp-ms": max(change.time_ms, base.get("last-updated-ms", 0)),
        "summary": {NOTE: json.dumps(asdict(note), separators=(",", ":"))},
        "schema-id": form.schema_id,
        "first-row-id": first,
        "added-rows": max(note.tail - first, 0),
    }
    if "current-snapshot-id" in base and not table.moved:
        snapshot["parent-snapshot-id"] = base["current-snapshot-id"]
    return snapshot


def _entry(file: File, snapshot: Mapping[str, Any], change: Change) -> Entry:
    rows = file.end - file.start
    stats = as_iceberg_stats(file.stats, rows, change.columns)
    return Entry(ADDED, snapshot["snapshot-id"], snapshot["sequence-number"], file, stats)


def _contents(
    storage: Storage, item: Rewrite, gone: Collection[str], snapshot_id: int, form: Form
) -> Iterator[list[Entry]]:
    """Yield the entries of each manifest that replaces the old ones of `item`."""
    live, dead = list(item.added), []
    for entry in (e for manifest in item.old for e in _entries_of(storage, manifest, form)):
        if entry.file.key in gone:
            # Without its statistics: bounds may be values that were redacted.
            dead.append(replace(entry, status=DELETED, snapshot_id=snapshot_id, stats={}))
        else:
            live.append(replace(entry, status=EXISTING))
    live.sort(key=lambda entry: entry.start)
    yield [*live[:_MANIFEST_FILES], *dead]
    for at in range(_MANIFEST_FILES, len(live), _MANIFEST_FILES):
        yield live[at : at + _MANIFEST_FILES]


def _summary(change: Change, manifests: Sequence[Manifest]) -> dict[str, str]:
    """Return the operation and the counts for a snapshot's summary."""
    files = (*change.added, *change.removed)
    records = [manifest.record for manifest in manifests]
    totals = {
        "added-data-files": len(change.added),
        "added-records": sum(file.end - file.start for file, _ in change.added),
        "deleted-data-files": len(change.removed),
        "total-data-files": sum(manifest.files for manifest in manifests),
        "total-records": sum(r["added_rows_count"] + r["existing_rows_count"] for r in records),
    }
    if files and not any(changes_rows for _, changes_rows in files):
        operation = "replace"
    elif not change.removed:
        operation = "append"
    else:
        operation = "overwrite" if change.added else "delete"
    return {"operation": operation, **{key: str(value) for key, value in totals.items()}}


def _metadata(
    table: Table, snapshot: Mapping[str, Any], change: Change, form: Form
) -> dict[str, Any]:
    """Return the metadata of the next version, whose current snapshot is `snapshot`.

    It keeps the last few of the older snapshots whose grace is not over.
    """
    base, now_ms = table.state.metadata, snapshot["timestamp-ms"]
    old = [
        older
        for older in (() if table.moved or change.fresh else base.get("snapshots", ()))
        if older["timestamp-ms"] >= now_ms - GRACE_S * 1000
    ]
    snapshots = [*old[1 - _KEPT :], dict(snapshot)]
    schemas = {schema["schema-id"]: schema for schema in base.get("schemas", ())}
    schemas[form.schema_id] = json.loads(form.schema_text)
    used = {kept["schema-id"] for kept in snapshots}
    last_id = max(ids_of(change.columns.form), default=0)
    log: list[Mapping[str, Any]] = []
    if base and not table.moved:
        uri = form.uri(commit_path(table.version))
        previous = {"timestamp-ms": base["last-updated-ms"], "metadata-file": uri}
        log = [*base["metadata-log"][1 - _KEPT :], previous]
    return {
        "format-version": FORMAT_VERSION,
        "table-uuid": table_uuid(change.note.stream_id),
        "location": form.url,
        "last-sequence-number": snapshot["sequence-number"],
        "last-updated-ms": now_ms,
        "last-column-id": max(last_id, base.get("last-column-id", 0)),
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
        "metadata-log": log,
        "next-row-id": snapshot["first-row-id"] + snapshot["added-rows"],
    }


def is_in_place(storage: Storage, table: Table, number: int) -> bool:  # noqa: ARG001 - see Codec
    """Tell whether the previous manifest list is still there; its name is unique."""
    try:
        storage.info(table.mark)
    except MissingObjectError:
        return False
    return True


def written_us(storage: Storage) -> int:
    """Return when the hint was put, as each commit does; a list of the folder would be long."""
    try:
        return storage.info(HINT).modified_us
    except MissingObjectError:
        return 0


def checkpoint(storage: Storage, table: Table) -> None:
    """Do nothing: the metadata of each version is complete."""


def superseded(objects: Collection[ObjectInfo], table: Table) -> Mapping[str, int]:
    """Return when metadata and manifest lists were superseded: when the next version was put."""
    versions = ((paths.parse_iceberg_path(info.path), info.modified_us) for info in objects)
    written = {number: time_us for number, time_us in versions if number is not None}
    named = {*_lists(table)}
    old = ((_version_of(info.path), info) for info in objects)
    return {
        info.path: written.get(number + 1, info.modified_us)
        for number, info in old
        if number is not None and number < table.version and info.path not in named
    }


def _lists(table: Table) -> Iterator[str]:
    """Yield the paths of the manifest lists that a table's metadata names."""
    metadata = table.state.metadata
    form = Form("", metadata.get("location", ""))
    yield from (form.path(each["manifest-list"]) for each in metadata.get("snapshots", ()))


def _version_of(path: str) -> int | None:
    listed = paths.parse_manifest_list_path(path)
    return paths.parse_iceberg_path(path) if listed is None else listed


def parts(storage: Storage, table: Table, *, files: bool) -> Collection[str]:
    """Return the manifests of all named snapshots; with `files` also files of older snapshots."""
    form, older = Form("", location_of(storage.url)), dict[str, Manifest]()
    used = {manifest.path for manifest in _with_manifests(storage, table).state.manifests}
    for path in _lists(table):
        if path != table.mark:
            with suppress(MissingObjectError):
                listed = decode_list(read_sealed(storage, path), form)
                older |= {item.path: item for item in listed if item.path not in used}
    for manifest in older.values() if files else ():
        with suppress(MissingObjectError):
            used |= {entry.file.key for entry in _entries_of(storage, manifest, form)}
    return used | older.keys()


def reads(
    storage: Storage, objects: Mapping[str, ObjectInfo], now_us: int
) -> Iterator[tuple[str, Read]]:
    """Yield each object of the metadata with what reads it, and those that only others name."""
    versions = {n for path in objects if (n := paths.parse_iceberg_path(path)) is not None}
    for version in sorted(versions):
        yield commit_path(version), partial(read_version, storage, version)
    avro = {path for path in objects if path.endswith(".avro")}
    with suppress(FormatError):  # the reads below report damaged objects
        table = newest(storage)
        metadata = table.state.metadata
        form = Form("", metadata.get("location", ""))
        for path in _lists(table):
            avro.add(path)
            avro |= {m.path for m in decode_list(read_sealed(storage, path), form)}
        for number in sorted(_kept_versions(metadata, now_us) - versions):
            yield commit_path(number), partial(storage.info, commit_path(number))
    for path in sorted(avro):
        yield path, partial(read_sealed, storage, path)
    # A table without a hint is sound while its first commit is in progress.
    if (
        HINT in objects
        or len(versions) > 1
        or (versions and paths.build_marks_path(KIND) in objects)
    ):
        yield HINT, partial(check_hint, storage, HINT, versions, commit_path)


def _kept_versions(metadata: Mapping[str, Any], now_us: int) -> set[int]:
    """Return the versions in the metadata log that were superseded less than a grace ago."""
    log, form = metadata.get("metadata-log", ()), Form("", metadata.get("location", ""))
    times = [*(each["timestamp-ms"] for each in log[1:]), metadata.get("last-updated-ms", 0)]
    versions = (
        paths.parse_iceberg_path(form.path(each["metadata-file"]))
        for each, superseded_ms in zip(log, times, strict=False)
        if superseded_ms * 1000 > now_us - int(GRACE_S * 1e6)
    )
    return {number for number in versions if number is not None}
