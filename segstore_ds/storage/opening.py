"""Opens the storage at a location."""

import os
from collections.abc import Mapping
from typing import Any

from segstore_ds.storage.base import Storage
from segstore_ds.storage.checked import CheckedStorage
from segstore_ds.storage.credentials import resolve_storage_options
from segstore_ds.storage.local import LocalStorage
from segstore_ds.storage.locations import resolve_location
from segstore_ds.storage.memory import MemoryStorage
from segstore_ds.storage.objects import ObjectStorage
from segstore_ds.storage.single_writer import SingleWriterStorage, refuse_unknown_class

UrlLike = str | os.PathLike[str] | Storage  # a location, or the storage that is open there

_CLASSES: Mapping[str, type[CheckedStorage]] = {
    "file": LocalStorage,
    "memory": MemoryStorage,
    "s3": ObjectStorage,
    "gs": ObjectStorage,
    "abfs": ObjectStorage,
}


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
    cls = _CLASSES.get(location.scheme, SingleWriterStorage)
    if cls is SingleWriterStorage and not single_writer:
        refuse_unknown_class(location.scheme, location.url)
    storage = cls(location, storage_options, single_writer=single_writer, opener=open_storage)
    if isinstance(storage, ObjectStorage):
        # A missing package or a wrong option fails here, not in the middle of a write.
        storage.fs  # noqa: B018
    return storage
