"""fsspec, which is loaded when a location needs it: a local one does not.

When it is imported, fsspec asks everything on `sys.path` for entry points. In Spark's workers these
are also the archives of pyspark, py4j and Spark's core, with ten thousand names, and each process
that Spark starts would read them again. So there they are not searched.
"""

import sys
from importlib import import_module
from typing import Any

_ARCHIVES = (".egg", ".jar", ".zip")


def load_fsspec(module: str = "fsspec") -> Any:
    """Return fsspec, or a module that imports it."""
    # pyspark refuses to import this module anywhere but in a worker, and each kind of worker does.
    if "pyspark.worker_util" in sys.modules and "fsspec" not in sys.modules:
        whole = sys.path
        sys.path = [entry for entry in whole if not entry.endswith(_ARCHIVES)]
        try:
            import_module("fsspec")
        except ImportError:
            pass  # it is in an archive itself
        finally:
            sys.path = whole
    return import_module(module)
