"""Metadata tables, in a module of their own: reads of events need not import it."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from segstore_ds.compact.plan import PLAN_SCHEMA
from segstore_ds.read.find_streams import DEPTH, STREAMS_SCHEMA, read_streams
from segstore_ds.read.metadata_tables import METADATA_TABLES, find_table, open_table, plan_table
from segstore_ds.storage import Storage
from segstore_ds.stream.connector.reads import Snapshot

__all__ = ["METADATA", "MetadataRows", "list_streams_below"]

# The columns of each metadata table, of a compaction's plan, and of a folder's streams.
METADATA: Mapping[str, pa.Schema] = {
    **{name: table.schema for name, table in METADATA_TABLES.items()},
    "compactionPlan": PLAN_SCHEMA,
    "streams": STREAMS_SCHEMA,
}


def list_streams_below(folder: Storage) -> pa.Table:
    """Return the metadata table `streams` of a folder, searched as deep as by default."""
    return read_streams(folder, depth=DEPTH)


@dataclass(frozen=True, slots=True)
class MetadataRows:
    """A metadata table of one version."""

    snapshot: Snapshot
    name: str

    def spans(self) -> list[tuple[int, int]]:
        """Return offset ranges that cover the table, for reading it in parallel."""
        at = self.snapshot
        return plan_table(at.context.status, at.root, find_table(self.name))

    def read(self, span: tuple[int, int] | None = None) -> pa.RecordBatchReader:
        """Return the table, or of a table by range the rows of one span."""
        return open_table(self.snapshot.context, self.name, self.snapshot.root, span)
