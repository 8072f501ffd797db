"""Spark: the format `segstore` and the helpers around it. The only importer of pyspark.

A client of the public API. Nothing here touches the JVM but one guarded function in `session`, so
everything works the same through Spark Connect.
"""

from segstore_ds.spark.compaction import compact
from segstore_ds.spark.copying import copy
from segstore_ds.spark.session import Registration, recommended_conf, register, write
from segstore_ds.spark.source import SegstoreDataSource

__all__ = [
    "Registration",
    "SegstoreDataSource",
    "compact",
    "copy",
    "recommended_conf",
    "register",
    "write",
]
