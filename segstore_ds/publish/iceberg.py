"""Publishes a stream as an Iceberg table over the stream's own Parquet files.

Its metadata lies in `metadata/` of the stream's folder. One exclusive create of
`v<N>.metadata.json` decides each commit; its only new snapshot names the version of the stream that
it shows. What a publisher staged and did not commit is named by no metadata.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from segstore_ds.errors import InvalidInputError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.root import PartRef, Root
from segstore_ds.log.context import StreamContext
from segstore_ds.publish.changes import Changes, Listed, plan_changes
from segstore_ds.publish.folders import remove_table
from segstore_ds.publish.iceberg_files import Named, delete_unused, remains
from segstore_ds.publish.iceberg_table import (
    IcebergTable,
    build_metadata,
    build_snapshot,
    encode_metadata,
    is_in_place,
    note_of,
    plan_form,
    read_newest,
    recollect,
    remember,
    write_hint,
)
from segstore_ds.publish.iceberg_types import IcebergSchema, as_iceberg, as_iceberg_stats
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
from segstore_ds.publish.manifest_plan import Rewrite, plan_manifests
from segstore_ds.publish.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    Entry,
    Form,
    Manifest,
    decode_list,
    decode_manifest,
    describe_manifest,
    encode_list,
    encode_manifest,
    read_sealed,
    sealed_nonce,
)
from segstore_ds.publish.own_files import write_own_file
from segstore_ds.status.epochs import epoch_schema

CLEAN_EVERY = 10  # commits of the table
_MANIFEST_FILES = 8192  # at most in one manifest
_FORMATS = (2, 3)


def run_publish_iceberg(
    context: StreamContext, *, settle: bool, strict: bool, format_version: int | None
) -> Published:
    """Bring the stream's Iceberg table up to its newest version; make it if there is none.

    With `settle` all events are published, and with `strict` no column may be left out. A new table
    has the given version of Iceberg's format, or 3; None takes the table as it is.

    Raises:
        InvalidInputError: The stream is a clone that shares objects; its folder holds another
            table; a column can't be expressed in `strict` mode; or the table is not of
            that format version.
        ConflictError: Other publishers came first every time.
        CorruptionError: Somebody else committed to the table.
    """
    if format_version not in (None, *_FORMATS):
        raise InvalidInputError(
            "not a format version", remedy="take 2 or 3", format_version=format_version
        )
    order = _Order(settle=settle, strict=strict, format_version=format_version)
    return keep_published(
        context, names.ICEBERG_FOLDER, lambda root: _publish(context, root, order), settle=settle
    )


def run_unpublish_iceberg(context: StreamContext) -> int:
    """Delete the table's metadata and its own files; return how many objects there were."""
    return remove_table(context.storage, context.log.root.stream_id, names.ICEBERG_FOLDER)


def published_iceberg(context: StreamContext) -> Published | None:
    """Return what the stream's table shows beside the newest version known; None without one."""
    table = read_newest(context.storage, exact=True, hinted=True)
    return _describe(context, table) if table.note is not None else None


def _describe(context: StreamContext, table: IcebergTable) -> Published:
    columns = as_iceberg(epoch_schema(context.status, context.log.root.epoch))
    return describe(
        context,
        table.note,
        table_version=table.version,
        left_out=columns.left_out,
    )


@dataclass(frozen=True, slots=True)
class _Order:
    """How to publish; with `erasure` no snapshot with redacted values is listed afterwards."""

    settle: bool = False
    strict: bool = False
    format_version: int | None = None
    erasure: Erasure | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """What the table is to show: a version, its columns, its files, and in which form."""

    root: Root
    columns: IcebergSchema
    listing: Listing
    form: Form


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the table lists: its manifests, and the files that may have changed."""

    manifests: Sequence[Manifest]
    listed: Listed
    known: frozenset[PartRef] = frozenset()


def _publish(context: StreamContext, root: Root, order: _Order) -> Published | None:
    """Bring the table up to a version; None if another publisher came first."""
    known = recollect(context, root) if order.erasure is None else None
    try:
        return _bring_up(context, known or read_newest(context.storage), root, order)
    except MissingObjectError:
        if known is None:
            raise
        return None  # it was removed meanwhile


def _bring_up(
    context: StreamContext, table: IcebergTable, root: Root, order: _Order
) -> Published | None:
    storage, erasure = context.storage, order.erasure
    check_shown(context, table.note, root, names.ICEBERG_FOLDER)
    columns = _columns_of(context, root, strict=order.strict)
    version = _check_format(table, order.format_version)
    form = plan_form(table, columns, format_version=version, url=storage.url)
    shown = _read_shown(context, table, root, form)
    listing = plan_listing(
        context.status, root, folder=names.ICEBERG_FOLDER, whole=order.settle, known=shown.known
    )
    expired = _expired(table, root, erasure) if erasure else frozenset()
    if table.is_at(storage.url) and not expired and not is_due(table.note, root, listing):
        return _describe(context, table)
    target = _Target(root, columns, listing, form)
    written = _commit(context, table, shown, target, expired)
    if written is None:
        newest = read_newest(storage, exact=True)
        if newest.version:
            write_hint(storage, newest.version)
        return None
    write_hint(storage, table.version)
    remember(context, table)
    if table.version % CLEAN_EVERY == 0:
        own = {file.key for file in listing.files if file.is_own}
        delete_unused(storage, Named(table.version, {item.path for item in written}, own))
    return _describe(context, table)


def _columns_of(context: StreamContext, root: Root, *, strict: bool) -> IcebergSchema:
    columns = as_iceberg(epoch_schema(context.status, root.epoch))
    if not columns.fields or (strict and columns.left_out):
        raise InvalidInputError(
            "Iceberg has no type for some columns",
            remedy="cast them, or publish without strict=True, which leaves them out",
            columns=columns.left_out,
        )
    return columns


def _check_format(table: IcebergTable, format_version: int | None) -> int:
    """Return the format version of the table, or of a new one."""
    found: int = table.metadata.get("format-version", format_version or _FORMATS[-1])
    if format_version not in (None, found):
        raise InvalidInputError(
            "the table was made with another format version",
            remedy="call unpublish_iceberg() first",
            format_version=found,
        )
    return found


def _read_shown(context: StreamContext, table: IcebergTable, root: Root, form: Form) -> _Shown:
    """Return what the table lists; nothing if it names the files of a stream that was moved.

    The version that the table shows says which files it lists, so that the manifests need not be
    read. Without that version, and where there are files of the table's own, they say it.
    """
    note, snapshot, storage = table.note, table.snapshot, context.storage
    if note is None or snapshot is None or not table.is_at(storage.url):
        return _Shown((), Listed(0, 0, {}))
    manifests = table.manifests
    if manifests is None:
        manifests = decode_list(read_sealed(storage, form.path(snapshot["manifest-list"])), form)
    recalled = recall(context, note, root, names.ICEBERG_FOLDER)
    if recalled is not None:
        known, listing = recalled
        spans = {file.key: (file.start, file.end) for file in listing.files}
        return _Shown(manifests, Listed(note.head, note.tail, spans), known)
    entries = (e for manifest in manifests for e in _entries_of(context, manifest, form))
    spans = {names.published_key(entry.path): (entry.start, entry.end) for entry in entries}
    return _Shown(manifests, Listed(note.head, note.tail, spans))


def _entries_of(context: StreamContext, manifest: Manifest, form: Form) -> list[Entry]:
    return decode_manifest(read_sealed(context.storage, manifest.path), manifest.start, form)


def _expired(table: IcebergTable, root: Root, erasure: Erasure) -> frozenset[int]:
    """Return the ids of the snapshots that may show redacted values."""
    where = names.build_iceberg_path(table.version)
    return frozenset(
        snapshot["snapshot-id"]
        for snapshot in table.metadata.get("snapshots", ())
        if not erasure.is_clean(note_of(snapshot, where=where), root)
    )


def forget_iceberg(context: StreamContext, erasure: Erasure) -> Remains:
    """Publish, and delete what may hold the values of versions from before a redaction.

    What the table's readers may still need stays; older snapshots are named no more.
    """
    check_published(context, read_newest(context.storage, exact=True).note)
    keep_published(
        context,
        names.ICEBERG_FOLDER,
        lambda root: _publish(context, root, _Order(erasure=erasure)),
        settle=False,
    )
    storage = context.storage
    named = _named(context, read_newest(storage, exact=True))
    delete_unused(storage, named, now_us=erasure.now_us, grace_s=erasure.grace_s)
    left = [*remains(storage, named, erasure)]
    return Remains(len(left), max(left, default=0))


def _named(context: StreamContext, table: IcebergTable) -> Named:
    """Return what a table's metadata names."""
    columns = _columns_of(context, context.log.root, strict=False)
    version, url = _check_format(table, None), context.storage.url
    form = plan_form(table, columns, format_version=version, url=url)
    shown = _read_shown(context, table, context.log.root, form)
    spans = shown.listed.spans if table.note is not None and table.note.own else ()
    return Named(table.version, {manifest.path for manifest in shown.manifests}, {*spans})


def _commit(
    context: StreamContext,
    table: IcebergTable,
    shown: _Shown,
    target: _Target,
    expired: Collection[int],
) -> list[Manifest] | None:
    """Commit what brings the table to the target; return its manifests, None if one came first."""
    storage, form, root = context.storage, target.form, target.root
    changes = plan_changes(
        shown.listed, target.listing, same_events=has_same_events(table.note, root)
    )
    snapshot = build_snapshot(
        table,
        _note(table, target),
        form,
        snapshot_id=int(context.clock.new_id()[:15], 16) + 1,
        time_ms=root.time_us // 1000,
    )
    added = [_add(context, target, wanted, snapshot) for wanted, _ in changes.added]
    spans = shown.listed.spans
    # A file that is listed again at other offsets goes and comes.
    again = {file.key for file, _ in changes.added} & {*spans}
    gone = {key: spans[key] for key in again.union(key for key, _ in changes.removed)}
    items = plan_manifests(shown.manifests, [*gone.values()], added)
    manifests = [m for item in items for m in _write(context, item, gone, snapshot, form)]
    about = {
        "snapshot-id": snapshot["snapshot-id"],
        "parent-snapshot-id": snapshot.get("parent-snapshot-id"),
        "sequence-number": snapshot["sequence-number"],
        "first-row-id": snapshot.get("first-row-id"),
    }
    data = encode_list(manifests, form, about=about)
    nonce = sealed_nonce(context.clock.new_id(), data)
    list_path = names.build_manifest_list_path(table.version + 1, nonce)
    storage.create(list_path, data)
    snapshot["manifest-list"] = form.uri(list_path)
    snapshot["summary"] |= _summary(changes, manifests, added)
    metadata = build_metadata(table, snapshot, target.columns, form, expired=expired)
    path, data = names.build_iceberg_path(table.version + 1), encode_metadata(metadata)
    if not storage.create(path, data) and storage.get(path) != data:
        return None
    if not is_in_place(storage, table, form):  # it was removed, and this commit comes too late
        kept = {manifest.path for manifest in shown.manifests}
        staged = [item.path for item in manifests if item.path not in kept]
        own = [entry.path for entry in added if names.published_key(entry.path) != entry.path]
        for late in (path, list_path, *staged, *own):
            storage.delete(late)
        return None
    table.version, table.metadata, table.note = table.version + 1, metadata, _note(table, target)
    table.manifests = manifests
    return manifests


def _note(table: IcebergTable, target: _Target) -> Note:
    root, listing = target.root, target.listing
    return Note(
        root.stream_id,
        root.generation,
        root.version,
        listing.start,
        listing.end,
        table.note.created_ms if table.note else root.time_us // 1000,
        sum(file.is_own for file in listing.files),
    )


def _add(
    context: StreamContext, target: _Target, wanted: WantedFile, snapshot: dict[str, Any]
) -> Entry:
    path, size = wanted.key, wanted.bytes
    if wanted.is_own:
        path, size = write_own_file(context, target.root, wanted, target.columns.names)
    rows = wanted.end - wanted.start
    return Entry(
        ADDED,
        snapshot["snapshot-id"],
        snapshot["sequence-number"],
        path,
        wanted.start,
        rows,
        size,
        as_iceberg_stats(wanted.stats, rows, target.columns),
    )


def _write(
    context: StreamContext,
    item: Manifest | Rewrite,
    gone: Collection[str],
    snapshot: Mapping[str, Any],
    form: Form,
) -> Iterator[Manifest]:
    """Yield manifests of the next snapshot: a kept one, or those that are written in its place."""
    if isinstance(item, Manifest):
        yield item
        return
    by = snapshot["snapshot-id"], snapshot["sequence-number"]
    live, dead = _sort_out(context, item, gone, by[0], form)
    chunks = [live[at : at + _MANIFEST_FILES] for at in range(0, len(live), _MANIFEST_FILES)]
    for number, chunk in enumerate(chunks or [[]]):
        entries = [*chunk, *dead] if number == 0 else chunk
        start = entries[0].start
        end = chunk[-1].end if chunk else start
        data = encode_manifest(entries, form)
        nonce = sealed_nonce(context.clock.new_id(), data)
        path = names.build_manifest_path(start, end, nonce)
        context.storage.create(path, data)
        yield describe_manifest(path, data, entries, by, form)


def _sort_out(
    context: StreamContext, item: Rewrite, gone: Collection[str], snapshot_id: int, form: Form
) -> tuple[list[Entry], list[Entry]]:
    """Return the files of a new manifest, in the order of offsets, and those that go."""
    old = [e for manifest in item.old for e in _entries_of(context, manifest, form)]
    live, dead = list(item.added), []
    for entry in old:
        if names.published_key(entry.path) in gone:
            # Its bounds may be those of values that were redacted.
            dead.append(replace(entry, status=DELETED, snapshot_id=snapshot_id, stats={}))
        else:
            live.append(replace(entry, status=EXISTING))
    return sorted(live, key=lambda entry: entry.start), dead


def _summary(
    changes: Changes, manifests: Sequence[Manifest], added: Sequence[Entry]
) -> dict[str, str]:
    """Return what a snapshot did, in Iceberg's words."""
    moved = not any(change for _, change in (*changes.added, *changes.removed))
    records = [manifest.record for manifest in manifests]
    totals = {
        "added-data-files": len(added),
        "added-records": sum(entry.rows for entry in added),
        "deleted-data-files": len(changes.removed),
        "total-data-files": sum(manifest.files for manifest in manifests),
        "total-records": sum(r["added_rows_count"] + r["existing_rows_count"] for r in records),
    }
    if changes and moved:
        operation = "replace"
    elif not changes.removed:
        operation = "append"
    else:
        operation = "overwrite" if changes.added else "delete"
    return {"operation": operation, **{key: str(value) for key, value in totals.items()}}
