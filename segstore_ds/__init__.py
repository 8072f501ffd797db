"""segstore: append-only event streams next to Spark, in Arrow segments on any fsspec filesystem.

``import segstore_ds as segstore`` loads almost nothing. The first use of a name loads the core, and
the first use of a Spark helper loads pyspark.
"""

# ruff: noqa: F405 - names of `public` are listed here once more, and loaded when one is used

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from segstore_ds.version import __version__

if TYPE_CHECKING:
    from segstore_ds.public import *  # noqa: F403 - the same names, for type checkers
    from segstore_ds.spark import (
        activated,
        clone,
        compact,
        copy,
        listener,
        read,
        recommended_conf,
        redact,
        register,
        write,
    )

_SPARK_HELPERS = (
    *("activated", "clone", "compact", "copy", "listener", "read"),
    *("recommended_conf", "redact", "register", "write"),
)

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
    "__version__",
    "activated",
    "clone",
    "compact",
    "copy",
    "create",
    "drop",
    "exists",
    "list_streams",
    "listener",
    "open",
    "read",
    "read_cache_counters",
    "recommended_conf",
    "redact",
    "register",
    "repair",
    "salvage",
    "streams",
    "verify",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _SPARK_HELPERS:
        return _spark_helper(name)
    if name == "errors":
        return import_module("segstore_ds.errors")
    if name in __all__:
        found = getattr(import_module("segstore_ds.public"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _spark_helper(name: str) -> Any:
    try:
        return getattr(import_module("segstore_ds.spark"), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise import_module("segstore_ds.errors").InvalidInputError(
            "this needs Spark 4.2 or newer, which is not installed here",
            remedy="pip install segstore-ds, or the core in an environment with that Spark",
            name=name,
        ) from error


def __dir__() -> list[str]:
    names = [*__all__, "errors"]
    if find_spec("pyspark") is None:
        return [name for name in names if name not in _SPARK_HELPERS]
    return names


class _Package(ModuleType):
    """The package: `read` and five more names are functions, though rooms have the same names."""

    def __setattr__(self, name: str, value: object) -> None:
        # Python puts each module that it imports into its package.
        if name not in __all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that Spark sends to its workers may hold the package.
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
