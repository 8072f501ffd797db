"""Storage: objects under a root, on local disk, in memory, and in object stores.

Only this part of segstore imports fsspec. It knows nothing of streams. It reads, lists, deletes and
creates objects. `Storage.create` has exactly one winner per name, on which every commit relies.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from segstore_ds.errors import InvalidInputError, MissingObjectError, StorageError
from segstore_ds.storage.base import (
    PROBE,
    ObjectInfo,
    ScatteredWriter,
    StagedWriter,
    Storage,
    StorageStats,
)
from segstore_ds.storage.credentials import resolve_storage_options
from segstore_ds.storage.local import LocalStorage
from segstore_ds.storage.locations import (
    BUCKETS,
    Location,
    find_inner,
    load_fsspec,
    resolve_location,
    split_pattern,
)

__all__ = [
    "Location",
    "ObjectInfo",
    "Overlap",
    "ScatteredWriter",
    "StagedWriter",
    "Storage",
    "StorageStats",
    "UrlLike",
    "compare_names",
    "find_inner",
    "find_overlap",
    "open_storage",
    "refuse_overlap",
    "resolve_location",
    "resolve_storage_options",
    "split_pattern",
]

UrlLike = str | os.PathLike[str] | Storage  # a location, or the storage that is open there
_LONGEST = 1000  # longest name that object stores accept


def open_storage(
    url: UrlLike, storage_options: Mapping[str, Any] | None = None, *, single_writer: bool = False
) -> Storage:
    """Open the storage at a location; sends no request. An open storage is returned as it is.

    Options are flat or keyed by URL prefix. `env:NAME` values are read in every process that opens
    the storage. `single_writer` is the caller's promise that only one process writes; it allows
    filesystems without exclusive create. The storage pickles and is thread-safe.
    """
    if isinstance(url, Storage):
        return url
    location = resolve_location(url)
    resolve_storage_options(storage_options, location)
    cls = _class_of(location, single_writer=single_writer)
    storage = cls(location, storage_options, single_writer=single_writer, opener=open_storage)
    if location.scheme in BUCKETS:
        # A missing package or a wrong option fails here, not in the middle of a write.
        storage.fs  # noqa: B018
    opened: Storage = storage
    return opened


def _class_of(location: Location, *, single_writer: bool) -> Any:
    if location.scheme == "file":
        return LocalStorage
    if location.scheme == "memory":
        return load_fsspec("segstore_ds.storage.gathered").MemoryStorage
    if location.scheme in BUCKETS:
        return load_fsspec("segstore_ds.storage.objects").ObjectStorage
    module = load_fsspec("segstore_ds.storage.gathered")
    if not single_writer:
        module.refuse_unknown_class(location.scheme, location.url)
    return module.SingleWriterStorage


class Overlap(Enum):
    """How a place overlaps another one."""

    SAME = "is"
    INSIDE = "is inside"
    AROUND = "contains"


def compare_names(place: Storage, other: Storage) -> Overlap | None:
    """Return how a place overlaps another one by names and links; sends no request.

    None means that the names show no overlap, which proves nothing.
    """
    first, second = _real_parts(place.url), _real_parts(other.url)
    if first == second:
        return Overlap.SAME
    if first[: len(second)] == second:
        return Overlap.INSIDE
    return Overlap.AROUND if second[: len(first)] == first else None


def find_overlap(place: Storage, other: Storage) -> Overlap | None:
    """Return how a place overlaps another one, or None, which requests to both stores have proven.

    Links, mounts and access points can give one folder several names, and then a guarantee about
    two separate places does not hold. Names can prove an overlap but not its absence. To prove
    absence, a small object is put into one place, looked up from the other under every suffix of
    its folder's path, and deleted. After a crash, upkeep and drop delete it. A folder inside the
    other place that is mounted under another name is not detected.
    """
    named = compare_names(place, other)
    if named is not None:
        return named
    depth = _find_probe(place, other)
    if depth is not None:
        return Overlap.INSIDE if depth else Overlap.SAME
    return None if _find_probe(other, place) is None else Overlap.AROUND


def refuse_overlap(place: Storage, other: Storage, overlap: Overlap | None, kind: str) -> None:
    """Raise InvalidInputError if a place for `kind` overlaps `other`, one of a stream's places."""
    if overlap is None:
        return
    raise InvalidInputError(
        f"the place of a {kind} {overlap.value} the stream's own folder",
        remedy="choose a separate folder; links and mounts are followed",
        url=place.url,
        folder=other.url,
    )


def _find_probe(place: Storage, seen_from: Storage) -> int | None:
    """Return at which depth below the root of `seen_from` the folder `place` is; None if not."""
    name = f"{PROBE}{secrets.token_hex(16)}"
    try:
        place.put(name, b"probe")
        for depth, path in enumerate(_endings(place.url, name)):
            if len(seen_from.url) + len(path) > _LONGEST:
                break
            # Skip a suffix that is not a valid path; a longer one may be valid.
            with suppress(MissingObjectError, InvalidInputError):
                seen_from.info(path)
                return depth
    finally:
        with suppress(StorageError):
            place.delete(name)
    return None


def _endings(url: str, name: str) -> Iterator[str]:
    """Yield the paths an object may have below a root that contains its folder at some depth."""
    path = name
    yield path
    for part in reversed(resolve_location(url).path.strip("/").split("/")):
        path = f"{part}/{path}"
        yield path


def _real_parts(url: str) -> list[str]:
    location = resolve_location(url)
    path = os.path.realpath(location.path) if location.scheme == "file" else location.path
    parts = [part for part in path.split("/") if part]
    # Containers of different Azure accounts differ only by host.
    host = location.url.partition("://")[2].partition("/")[0] if location.scheme == "abfs" else ""
    return [location.scheme, host, *parts]
