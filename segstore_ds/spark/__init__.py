"""`segstore.spark`: the format `segstore` and the helpers around it. The only importer of pyspark.

This package is a client of the public API. Only one guarded function in `versions` reaches the JVM,
and what needs the JVM has a fallback, so everything works the same through Spark Connect.

Spark starts new Python processes after an idle minute, so each imports only what it needs: a helper
is imported when it is first used, and the format's entry points import what they call.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segstore_ds.spark.jobs import copy as copy
    from segstore_ds.spark.jobs import open as open  # noqa: A004 - segstore.spark.open
    from segstore_ds.spark.parquet_scan.read import read as read
    from segstore_ds.spark.query_listener import listener as listener
    from segstore_ds.spark.session import create_view as create_view
    from segstore_ds.spark.session import recommended_conf as recommended_conf
    from segstore_ds.spark.session import register as register
    from segstore_ds.spark.session import write as write
    from segstore_ds.spark.session import write_batch as write_batch
    from segstore_ds.spark.versions import activated as activated

_MODULES = {
    "activated": "versions",
    "copy": "jobs",
    "create_view": "session",
    "listener": "query_listener",
    "open": "jobs",
    "read": "parquet_scan.read",
    "recommended_conf": "session",
    "register": "session",
    "write": "session",
    "write_batch": "session",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return globals()[name]
