"""The public names that need no pyspark; `segstore_ds` loads this module when one is used."""

from segstore_ds.cache.read_cache import ReadCounters
from segstore_ds.compact.commit import Compaction
from segstore_ds.copy.destination import Copied
from segstore_ds.errors import SegstoreError
from segstore_ds.format.policies import RetentionPolicy, UpkeepPolicy
from segstore_ds.log.lookup import Outcome, OutcomeState
from segstore_ds.observe.figures import Metrics
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.cached import read_cache_counters
from segstore_ds.read.cuts import Position
from segstore_ds.read.parquet_files import ParquetFile
from segstore_ds.redact.report import Forgotten, Left, Redacted
from segstore_ds.repair.verify import Problem, Report
from segstore_ds.retention.drop import Dropped
from segstore_ds.retention.plan import Maintenance
from segstore_ds.retention.readers import NamedReader
from segstore_ds.retention.retained import Blocker, Retained
from segstore_ds.status.writers import Commit
from segstore_ds.stream import (
    Stream,
    create,
    drop,
    exists,
    list_streams,
    open,  # noqa: A004 - segstore.open(url)
    repair,
    salvage,
    streams,
    verify,
)
from segstore_ds.stream.scan import Scan, ScanTask
from segstore_ds.write.layout import Layout

__all__ = [
    "Blocker",
    "Commit",
    "Compaction",
    "Copied",
    "Dropped",
    "Forgotten",
    "Layout",
    "Left",
    "Maintenance",
    "Metrics",
    "NamedReader",
    "Outcome",
    "OutcomeState",
    "ParquetFile",
    "Position",
    "Problem",
    "Published",
    "ReadCounters",
    "Redacted",
    "Report",
    "Retained",
    "RetentionPolicy",
    "Scan",
    "ScanTask",
    "SegstoreError",
    "Stream",
    "UpkeepPolicy",
    "create",
    "drop",
    "exists",
    "list_streams",
    "open",
    "read_cache_counters",
    "repair",
    "salvage",
    "streams",
    "verify",
]
