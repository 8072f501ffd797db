"""fsspec, imported in Spark's Python workers without a search through archives.

fsspec asks everything on `sys.path` for entry points when it is imported. In a worker these are
also the archives of pyspark, py4j and Spark's core, with ten thousand names, and each process that
Spark starts would read them again.
"""

import sys
from importlib import import_module

_ARCHIVES = (".egg", ".jar", ".zip")


def _import_fsspec() -> None:
    # pyspark refuses to import this module anywhere but in a worker, and each kind of worker does.
    if "pyspark.worker_util" not in sys.modules or "fsspec" in sys.modules:
        return
    whole = sys.path
    sys.path = [entry for entry in whole if not entry.endswith(_ARCHIVES)]
    try:
        import_module("fsspec")
    except ImportError:
        pass  # it is in an archive itself: then it is imported where it is used
    finally:
        sys.path = whole


_import_fsspec()
