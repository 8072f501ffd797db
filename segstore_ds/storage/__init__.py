"""Storage: objects under a root, on local disk, in memory, and in object stores.

This is the only part of segstore that imports fsspec. It knows nothing of streams. It reads, lists,
deletes and creates objects; `Storage.create` makes a name at most once, and every commit relies on
that.
"""

import os
from collections.abc import Mapping
from typing import Any

from segstore_ds.storage.base import (
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
)
from segstore_ds.storage.places import Overlap, compare_names, find_overlap, refuse_overlap

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
]

UrlLike = str | os.PathLike[str] | Storage  # a location, or the storage that is open there


def open_storage(
    url: UrlLike,
    storage_options: Mapping[str, Any] | None = None,
    *,
    single_writer: bool = False,
) -> Storage:
    """Open the storage at a location; sends no request. One that is open stays as it is.

    Options are flat or keyed by URL prefix. `env:NAME` values are read in every process that opens
    the storage. `single_writer` is the caller's promise that only one process writes; it allows
    filesystems without exclusive create. The storage pickles and may be shared by threads.

    Raises:
        InvalidInputError: The location or the options can't be used, or a package is missing.
        UnsafeFilesystemError: The filesystem has no exclusive create, and `single_writer` is off.
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
