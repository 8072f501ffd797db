"""Deletes what a published Iceberg table no longer names, once no reader may need it.

Metadata and manifest lists have the version in their names, so they are superseded since the next
version was written. Manifests and files of the table's own are marked as unused when they are first
seen so. Readers have the grace from then on, by the store's times, as those of the stream have.
"""

from collections.abc import Collection

from segstore_ds.format import names
from segstore_ds.log.operations import GRACE_S
from segstore_ds.publish.iceberg_table import METADATA_FOLDER
from segstore_ds.publish.unused import mark_unused
from segstore_ds.storage import ObjectInfo, Storage

_MARKS = f"{METADATA_FOLDER}/_unused.json"


def delete_unused(
    storage: Storage, version: int, manifests: Collection[str], own: Collection[str]
) -> None:
    """Delete what was superseded longer than the grace ago.

    The newest metadata has the given version, and names these manifests and files with these keys.
    """
    objects = sorted(storage.list(names.ICEBERG_FOLDER), key=lambda info: info.path)
    now_us = max((info.modified_us for info in objects), default=0)
    written = {
        number: info.modified_us
        for info in objects
        if (number := names.parse_iceberg_path(info.path)) is not None
    }
    committed_us = written.get(version, now_us)  # what came later may be of a later version
    superseded, unused = [], []
    for info in objects:
        number = _version_of(info.path)
        if number is not None and number < version:
            if written.get(number + 1, info.modified_us) < now_us - int(GRACE_S * 1e6):
                superseded.append(info.path)
        elif info.modified_us < committed_us and _is_unused(info, manifests, own):
            unused.append(info.path)
    for path in (*superseded, *mark_unused(storage, _MARKS, unused, now_us)):
        storage.delete(path)


def _version_of(path: str) -> int | None:
    listed = names.parse_manifest_list_path(path)
    return names.parse_iceberg_path(path) if listed is None else listed


def _is_unused(info: ObjectInfo, manifests: Collection[str], own: Collection[str]) -> bool:
    if names.parse_manifest_path(info.path) is not None:
        return info.path not in manifests
    key = names.published_key(info.path)
    return key != info.path and key not in own
