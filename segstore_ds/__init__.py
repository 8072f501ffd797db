"""segstore: append-only event streams for Spark and Python, in plain folders.

``import segstore_ds as segstore`` loads almost nothing. The first use of a name loads the core, and
the first use of `segstore.spark` loads pyspark.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from segstore_ds.version import __version__ as __version__

if TYPE_CHECKING:
    from segstore_ds import errors as errors
    from segstore_ds import reports as reports
    from segstore_ds import spark as spark
    from segstore_ds.public import *  # noqa: F403
    from segstore_ds.spark import read as read

# Functions that share their name with a subpackage. Importing a subpackage sets that name here, but
# only the first time: it is imported now and the name deleted, so the function can take it.
_NAMED_AS_ROOMS = ("read", "repair")
for _room in _NAMED_AS_ROOMS:
    import_module(f"{__name__}.{_room}")
    del globals()[_room]


def __getattr__(name: str) -> Any:
    if name in ("errors", "reports"):
        return import_module(f"{__name__}.{name}")
    if name == "spark":
        return _spark()
    if name == "read":
        return _spark().read
    if name == "__all__":
        helpers = [] if find_spec("pyspark") is None else ["read", "spark"]
        return ["__version__", "errors", "reports", *helpers, *_public().__all__]
    is_room = name not in _NAMED_AS_ROOMS and find_spec(f"{__name__}.{name}") is not None
    if name.startswith("_") or is_room or name not in _public().__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(_public(), name)
    return globals()[name]


def _public() -> Any:
    return import_module(f"{__name__}.public")


def _spark() -> Any:
    try:
        import_module("pyspark.sql.datasource")
        return import_module(f"{__name__}.spark")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise import_module(f"{__name__}.errors").InvalidInputError(
            "this needs Spark 4.0 or newer, which is not installed here",
            remedy="pip install segstore-ds, or the core in an environment with that Spark",
        ) from error


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
