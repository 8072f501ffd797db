"""The front door: `create`, `open`, `exists`, `drop`, `list_streams` and `Stream`.

A `Stream` is a handle: it remembers the newest root it has seen and follows the log from there.
Several threads may use it one after another, but not at once; open one handle per thread. Its
methods are grouped by what they do, one module per group, and only put engine parts together.
"""

from segstore_ds.stream.catalog import drop, list_streams
from segstore_ds.stream.handle import client_name
from segstore_ds.stream.opening import (
    Stream,
    create,
    create_on,
    exists,
    open,  # noqa: A004 - segstore.open(url) is the name users expect
    open_on,
)
from segstore_ds.stream.rescue import repair, salvage

__all__ = [
    "Stream",
    "client_name",
    "create",
    "create_on",
    "drop",
    "exists",
    "list_streams",
    "open",
    "open_on",
    "repair",
    "salvage",
]
