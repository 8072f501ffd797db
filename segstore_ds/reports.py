"""`segstore.reports`: types that calls return, for annotations; users never construct them."""

from segstore_ds.cache.read_cache import ReadCounters
from segstore_ds.compact.commit import Compaction
from segstore_ds.copy.backup import BackedUp
from segstore_ds.copy.destination import Copied
from segstore_ds.format.policies import Rules
from segstore_ds.format.redactions import Expiry
from segstore_ds.log.lookup import Outcome
from segstore_ds.observe.figures import Metrics
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.parquet_files import ParquetFile
from segstore_ds.redact.plan import Forgotten, Left, Redacted
from segstore_ds.repair.repair import RepairReport
from segstore_ds.repair.salvage import SalvageReport
from segstore_ds.repair.verify import Problem, Report
from segstore_ds.retention.drop import Dropped
from segstore_ds.retention.report import Blocker, Maintenance, Retained

__all__ = [
    "BackedUp",
    "Blocker",
    "Compaction",
    "Copied",
    "Dropped",
    "Expiry",
    "Forgotten",
    "Left",
    "Maintenance",
    "Metrics",
    "Outcome",
    "ParquetFile",
    "Problem",
    "Published",
    "ReadCounters",
    "Redacted",
    "RepairReport",
    "Report",
    "Retained",
    "Rules",
    "SalvageReport",
]
