"""segstore: append-only event streams next to Spark, in Arrow segments on any fsspec filesystem.

``import segstore_ds as segstore`` needs no pyspark; the Spark helpers are loaded when first used.
"""

from typing import TYPE_CHECKING, Any

from segstore_ds.cache.read_cache import ReadCounters
from segstore_ds.commit.lookup import Outcome, OutcomeState
from segstore_ds.compact.commit import Compaction
from segstore_ds.copy.request import Copied
from segstore_ds.errors import SegstoreError
from segstore_ds.format.retention import RetentionPolicy
from segstore_ds.format.upkeep import UpkeepPolicy
from segstore_ds.read.cached import read_cache_counters
from segstore_ds.read.cuts import Position
from segstore_ds.read.parquet_files import ParquetFile
from segstore_ds.read.scan import run_task
from segstore_ds.repair.verify import Problem, Report
from segstore_ds.retention.drop import Dropped
from segstore_ds.retention.maintain import Maintenance
from segstore_ds.retention.readers import NamedReader
from segstore_ds.retention.retained import Blocker, Retained
from segstore_ds.retention.vacuum import VacuumReport
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
)
from segstore_ds.version import __version__
from segstore_ds.write.layout import Layout

if TYPE_CHECKING:
    from segstore_ds.spark import (
        activated,
        clone,
        compact,
        copy,
        read,
        recommended_conf,
        register,
        write,
    )

# Four helpers are called as rooms are. All rooms are loaded by now; without these attributes
# `segstore.read` is the helper, and `from segstore_ds.read import ...` still finds the room.
for _room in ("compact", "copy", "read", "write"):
    del globals()[_room]

_SPARK_HELPERS = (
    *("activated", "clone", "compact", "copy", "read"),
    *("recommended_conf", "register", "write"),
)

__all__ = [
    "Blocker",
    "Commit",
    "Compaction",
    "Copied",
    "Dropped",
    "Layout",
    "Maintenance",
    "NamedReader",
    "Outcome",
    "OutcomeState",
    "ParquetFile",
    "Position",
    "Problem",
    "ReadCounters",
    "Report",
    "Retained",
    "RetentionPolicy",
    "SegstoreError",
    "Stream",
    "UpkeepPolicy",
    "VacuumReport",
    "__version__",
    "activated",
    "clone",
    "compact",
    "copy",
    "create",
    "drop",
    "exists",
    "list_streams",
    "open",
    "read",
    "read_cache_counters",
    "recommended_conf",
    "register",
    "repair",
    "run_task",
    "salvage",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _SPARK_HELPERS:
        from segstore_ds import spark  # noqa: PLC0415 - pyspark only when it is used

        return getattr(spark, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
