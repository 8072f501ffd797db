"""Reads: a snapshot is planned in one process, and its tasks (`tasks`) run in others."""

from collections.abc import Mapping

import pyarrow as pa

from segstore_ds.read.cuts import parse_cut
from segstore_ds.read.filters.conditions import Condition, Filters
from segstore_ds.read.filters.literals import NAN
from segstore_ds.read.find_streams import DEPTH, STREAMS_SCHEMA, read_streams
from segstore_ds.read.metadata_tables import METADATA_TABLES, PLAN_SCHEMA
from segstore_ds.read.parquet_files import ParquetFile
from segstore_ds.storage import Storage, open_storage, resolve_location
from segstore_ds.stream.snapshot import Snapshot, open_snapshot

__all__ = [
    "METADATA",
    "NAN",
    "STREAMS",
    "Condition",
    "Filters",
    "ParquetFile",
    "Snapshot",
    "Storage",
    "list_streams_below",
    "open_snapshot",
    "open_storage",
    "parse_cut",
    "resolve_location",
]

STREAMS = "streams"  # the only metadata table that is of a folder, not of a stream
# The columns of each metadata table, and of a compaction's plan.
METADATA: Mapping[str, pa.Schema] = {
    **{name: table.schema for name, table in METADATA_TABLES.items()},
    "compactionPlan": PLAN_SCHEMA,
    STREAMS: STREAMS_SCHEMA,
}


def list_streams_below(folder: Storage) -> pa.Table:
    """Return the metadata table `streams` of a folder, searched as deep as by default."""
    return read_streams(folder, depth=DEPTH)
