"""segstore: append-only event streams next to Spark, in Arrow segments on any fsspec filesystem.

``import segstore_ds as segstore`` needs no pyspark; the Spark helpers are loaded when first used.
"""

from typing import TYPE_CHECKING, Any

from segstore_ds.engine.compact_commit import Compaction
from segstore_ds.engine.copy import Copied
from segstore_ds.engine.cuts import Position
from segstore_ds.engine.drop import Dropped
from segstore_ds.engine.follow import Outcome, OutcomeState
from segstore_ds.engine.parquet_files import ParquetFile
from segstore_ds.engine.readers import NamedReader
from segstore_ds.engine.retain import RetentionPolicy
from segstore_ds.engine.staging import Layout
from segstore_ds.engine.vacuum import VacuumReport
from segstore_ds.engine.verify import Problem, Report
from segstore_ds.engine.writers import Commit
from segstore_ds.errors import SegstoreError
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

if TYPE_CHECKING:
    from segstore_ds.spark import clone, compact, copy, read, recommended_conf, register, write

_SPARK_HELPERS = ("clone", "compact", "copy", "read", "recommended_conf", "register", "write")

__all__ = [
    "Commit",
    "Compaction",
    "Copied",
    "Dropped",
    "Layout",
    "NamedReader",
    "Outcome",
    "OutcomeState",
    "ParquetFile",
    "Position",
    "Problem",
    "Report",
    "RetentionPolicy",
    "SegstoreError",
    "Stream",
    "VacuumReport",
    "__version__",
    "clone",
    "compact",
    "copy",
    "create",
    "drop",
    "exists",
    "list_streams",
    "open",
    "read",
    "recommended_conf",
    "register",
    "repair",
    "salvage",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _SPARK_HELPERS:
        from segstore_ds import spark  # noqa: PLC0415 - pyspark only when it is used

        return getattr(spark, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
