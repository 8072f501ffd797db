"""The version of this package, and the names under which it can be installed."""

from importlib import import_module

__version__ = "0.1.0"


def requirement(extra: str) -> str:
    """Return the pip requirement of an extra, for the installed package: with or without Spark."""
    metadata = import_module("importlib.metadata")  # imported late: `--help` does not need it
    try:
        metadata.distribution("segstore-core")
    except metadata.PackageNotFoundError:
        return f"segstore-ds[{extra}]"
    return f"segstore-core[{extra}]"
