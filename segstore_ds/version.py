"""The version of this package, in one place, and under which name it is installed."""

from importlib import import_module

__version__ = "0.1.0"


def requirement(extra: str) -> str:
    """Return what pip has to install for an extra: of the whole, or of the core without Spark."""
    metadata = import_module("importlib.metadata")  # loaded late: `--help` does without
    try:
        metadata.distribution("segstore-core")
    except metadata.PackageNotFoundError:
        return f"segstore-ds[{extra}]"
    return f"segstore-core[{extra}]"
