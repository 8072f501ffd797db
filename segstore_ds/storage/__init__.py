"""Storage: objects under a root, on local disk, in memory, and in object stores.

This is the only part of segstore that imports fsspec. It knows nothing of streams. It reads, lists,
deletes and creates objects; `Storage.create` makes a name at most once, and every commit relies on
that.
"""

from segstore_ds.storage.base import (
    ObjectInfo,
    ScatteredWriter,
    StagedWriter,
    Storage,
    StorageStats,
)
from segstore_ds.storage.credentials import resolve_storage_options
from segstore_ds.storage.locations import Location, find_inner, resolve_location
from segstore_ds.storage.opening import UrlLike, open_storage
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
