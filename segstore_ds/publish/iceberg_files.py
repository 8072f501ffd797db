"""Deletes what a published Iceberg table no longer names, once no reader may need it.

Metadata and manifest lists have the version in their names, so they are superseded since the next
version was written. Manifests and files of the table's own are marked as unused when they are first
seen so. Readers have the grace from then on, by the store's times, as those of the stream have.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from segstore_ds.format import names
from segstore_ds.log.operations import GRACE_S
from segstore_ds.publish.folders import list_table
from segstore_ds.publish.life_cycle import Erasure
from segstore_ds.publish.unused import mark_unused, read_marks
from segstore_ds.storage import ObjectInfo, Storage

_MARKS = f"{names.ICEBERG_FOLDER}/_unused.json"
_MAKING_US = 3_600_000_000  # within an hour, what a publisher wrote is named or never will be


@dataclass(frozen=True, slots=True)
class Named:
    """What the newest metadata names: its version, its manifests, and keys of own files."""

    version: int
    manifests: Collection[str]
    own: Collection[str]

    def leaves_out(self, info: ObjectInfo) -> bool:
        """Tell whether an object is a manifest or a file of the table's own that is not named."""
        if names.parse_manifest_path(info.path) is not None:
            return info.path not in self.manifests
        key = names.published_key(info.path)
        return key != info.path and key not in self.own


def delete_unused(
    storage: Storage, named: Named, *, now_us: int = 0, grace_s: float = GRACE_S
) -> None:
    """Delete what was superseded longer than the grace ago."""
    objects = sorted(list_table(storage, names.ICEBERG_FOLDER), key=lambda info: info.path)
    now_us = max((now_us, *(info.modified_us for info in objects)))
    version = named.version
    written = {
        number: info.modified_us
        for info in objects
        if (number := names.parse_iceberg_path(info.path)) is not None
    }
    # What came later may be of a version that is being made.
    committed_us = max(written.get(version, now_us), now_us - _MAKING_US)
    superseded, unused = [], []
    for info in objects:
        number = _version_of(info.path)
        if number is not None and number < version:
            if written.get(number + 1, info.modified_us) < now_us - int(grace_s * 1e6):
                superseded.append(info.path)
        elif info.modified_us < committed_us and named.leaves_out(info):
            unused.append(info.path)
    for path in (*superseded, *mark_unused(storage, _MARKS, unused, now_us, grace_s)):
        storage.delete(path)


def remains(storage: Storage, named: Named, erasure: Erasure) -> Iterator[int]:
    """Yield when each object that may hold redacted values can go."""
    marks = read_marks(storage, _MARKS)
    for info in list_table(storage, names.ICEBERG_FOLDER):
        if named.leaves_out(info) and erasure.may_hold(info):
            yield marks.get(info.path, erasure.now_us) + int(erasure.grace_s * 1e6)


def _version_of(path: str) -> int | None:
    listed = names.parse_manifest_list_path(path)
    return names.parse_iceberg_path(path) if listed is None else listed
