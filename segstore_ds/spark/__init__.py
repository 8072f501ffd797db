"""`segstore.spark`: the format `segstore` and the helpers around it. The only importer of pyspark.

This package is a client of the public API. Only one guarded function in `active` reaches the JVM,
and what needs the JVM has a fallback, so everything works the same through Spark Connect.
"""

import segstore_ds.spark.worker_fsspec  # noqa: F401 - before anything else imports fsspec

# isort: split
from segstore_ds.spark.active import activated
from segstore_ds.spark.jobs import clone, compact, copy, redact
from segstore_ds.spark.listener import listener
from segstore_ds.spark.parquet_scan.read import read
from segstore_ds.spark.session import recommended_conf, register, write

__all__ = [
    "activated",
    "clone",
    "compact",
    "copy",
    "listener",
    "read",
    "recommended_conf",
    "redact",
    "register",
    "write",
]
