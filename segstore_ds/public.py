"""The public names of the package that need no pyspark.

`segstore_ds` loads this module when one of them is used. Types that calls only return are in
`reports`.
"""

from segstore_ds.errors import SegstoreError
from segstore_ds.format.policies import RetentionPolicy, UpkeepPolicy
from segstore_ds.log.batch_log import BatchLog
from segstore_ds.log.lookup import OutcomeState
from segstore_ds.read.cuts import Position
from segstore_ds.read.segments import read_cache_counters
from segstore_ds.retention.readers import NamedReader
from segstore_ds.status.writers import Commit
from segstore_ds.stream.opening import create, drop, exists, list_streams, open, streams  # noqa: A004 - segstore.open(url)
from segstore_ds.stream.rescue import repair, salvage, verify
from segstore_ds.stream.scan import Scan, ScanTask
from segstore_ds.stream.stream import Stream
from segstore_ds.stream.stream_set import StreamSet
from segstore_ds.write.layout import Layout

__all__ = [
    "BatchLog",
    "Commit",
    "Layout",
    "NamedReader",
    "OutcomeState",
    "Position",
    "RetentionPolicy",
    "Scan",
    "ScanTask",
    "SegstoreError",
    "Stream",
    "StreamSet",
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
