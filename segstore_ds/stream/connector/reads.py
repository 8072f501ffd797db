"""Reads: a snapshot is planned in one process, and its tasks (`tasks`) run in others."""

from segstore_ds.read.cuts import parse_cut
from segstore_ds.read.filters.conditions import Condition, Filters
from segstore_ds.read.filters.literals import NAN
from segstore_ds.read.parquet_files import ParquetFile
from segstore_ds.storage import Storage, open_storage, resolve_location
from segstore_ds.stream.snapshot import Snapshot, open_snapshot

__all__ = [
    "NAN",
    "Condition",
    "Filters",
    "ParquetFile",
    "Snapshot",
    "Storage",
    "open_snapshot",
    "open_storage",
    "parse_cut",
    "resolve_location",
]
