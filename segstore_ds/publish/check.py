"""Finds what is damaged of the published tables: what other engines need to read them.

Segments that a table lists are the stream's, and so is the check of them.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.record import from_json, parse_json
from segstore_ds.publish import delta_log, iceberg_table
from segstore_ds.publish.folders import list_table
from segstore_ds.publish.manifests import Form, decode_list, decode_manifest, read_sealed
from segstore_ds.storage import ObjectInfo, Storage

Damaged = Iterator[tuple[str, FormatError]]


def damaged_tables(storage: Storage) -> Damaged:
    """Yield what is damaged of a stream's published tables: the object, and what is wrong."""
    for folder, check in ((names.DELTA_FOLDER, _delta), (names.ICEBERG_FOLDER, _iceberg)):
        objects = {
            info.path: info for info in list_table(storage, folder) if names.is_published(info.path)
        }
        if objects:
            yield from check(storage, objects)


def _try(path: str, read: Callable[[], object]) -> Damaged:
    try:
        read()
    except FormatError as error:
        yield path, error


def _delta(storage: Storage, objects: dict[str, ObjectInfo]) -> Damaged:
    versions: dict[str, list[int]] = {delta_log.COMMIT: [], delta_log.CHECKPOINT: []}
    for path in objects:
        match names.parse_delta_path(path):
            case int(version), str(kind):
                versions[kind].append(version)
    commits, checkpoints = versions[delta_log.COMMIT], versions[delta_log.CHECKPOINT]
    damage = [
        found
        for kind, read in (
            (delta_log.COMMIT, delta_log.read_commit),
            (delta_log.CHECKPOINT, lambda *at: list(delta_log.read_checkpoint(*at))),
        )
        for version in versions[kind]
        for found in _try(names.build_delta_path(version, kind), partial(read, storage, version))
    ]
    first = min((version + 1 for version in checkpoints), default=0)
    wanted = range(min([first, *commits]), max([*commits, *checkpoints], default=-1) + 1)
    for version in sorted({*wanted} - {*commits}):
        path = names.build_delta_path(version, delta_log.COMMIT)
        damage.append((path, MissingObjectError("a commit of the table is missing", where=path)))
    yield from damage
    if delta_log.LAST_CHECKPOINT in objects:
        yield from _try(
            delta_log.LAST_CHECKPOINT, partial(_check_last, storage, objects, {*checkpoints})
        )
    if not damage and commits:
        table = delta_log.read_table(storage, delta_log.read_newest(storage))
        sizes = ((path, add["size"]) for path, add in table.adds.items())
        yield from _own_files(storage, objects, sizes)


@dataclass(frozen=True, slots=True)
class _LastCheckpoint:
    version: int
    size: int
    sizeInBytes: int  # noqa: N815 - Delta's name


def _check_last(storage: Storage, objects: dict[str, ObjectInfo], known: set[int]) -> None:
    path = delta_log.LAST_CHECKPOINT
    where = storage.describe(path)
    last = from_json(_LastCheckpoint, parse_json(storage.get(path), where=where), where=where)
    named = names.build_delta_path(last.version, delta_log.CHECKPOINT)
    if last.version not in known or objects[named].size != last.sizeInBytes:
        raise CorruptionError(
            "names a checkpoint that is not there", where=where, version=last.version
        )


def _iceberg(storage: Storage, objects: dict[str, ObjectInfo]) -> Damaged:
    versions = [n for path in objects if (n := names.parse_iceberg_path(path)) is not None]
    damage: list[tuple[str, FormatError]] = []
    for version in versions:
        path = names.build_iceberg_path(version)
        damage += _try(path, partial(iceberg_table.read_version, storage, version))
    for path in objects:
        if path.endswith(".avro"):
            damage += _try(path, partial(read_sealed, storage, path))
    yield from damage
    hinted = iceberg_table.HINT in objects
    if hinted or len(versions) > 1:  # the first version is there before the hint
        yield from _try(iceberg_table.HINT, partial(_check_hint, storage, {*versions}))
    if not damage and versions:
        yield from _named(storage, objects)


def _check_hint(storage: Storage, versions: set[int]) -> None:
    text = storage.get(iceberg_table.HINT, limit_bytes=100)
    named = int(text) if text.isdigit() else None
    if named not in versions:
        where = storage.describe(iceberg_table.HINT)
        raise CorruptionError("names a version that is not there", where=where, named=named)


def _named(storage: Storage, objects: dict[str, ObjectInfo]) -> Damaged:
    """Check that all is there that the newest metadata names."""
    table = iceberg_table.read_newest(storage, exact=True)
    form = Form(table.metadata["format-version"], table.url, "", 0)
    sizes: dict[str, int] = {}
    for snapshot in table.metadata["snapshots"]:
        path = form.path(snapshot["manifest-list"])
        if path not in objects:
            yield path, MissingObjectError("a manifest list is missing", where=path)
            continue
        for manifest in decode_list(read_sealed(storage, path), form):
            if manifest.path not in objects:
                error = MissingObjectError("a manifest is missing", where=manifest.path)
                yield manifest.path, error
            elif snapshot is table.snapshot:
                data = read_sealed(storage, manifest.path)
                entries = decode_manifest(data, manifest.start, form)
                sizes |= {entry.path: entry.bytes for entry in entries}
    yield from _own_files(storage, objects, sizes.items())


def _own_files(
    storage: Storage, objects: dict[str, ObjectInfo], sizes: Iterable[tuple[str, int]]
) -> Damaged:
    for path, size in sizes:
        if names.published_key(path) == path:
            continue  # a segment
        if path not in objects:
            yield path, MissingObjectError("a file of the table is missing", where=path)
        else:
            yield from _try(path, partial(_check_own, storage, path, size))


def _check_own(storage: Storage, path: str, size: int) -> None:
    data, where = storage.get(path), storage.describe(path)
    if len(data) != size:
        raise CorruptionError(
            "file of a table has the wrong length", where=where, expected=size, actual=len(data)
        )
    try:
        with pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("file of a table can't be read", where=where) from error
